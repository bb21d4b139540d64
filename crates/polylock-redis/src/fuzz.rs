//! Fuzz targets: URLs, the keys of locks, and the settings of servers.

use polylock_core::{LockName, url::checks};
use redis::InfoDict;

use crate::{checkup, cluster, endpoint::Expected, keys::Keys, redlock, sentinel, single};

polylock_fuzz::fuzz_targets!(tests: urls, keys, server_settings);

fn urls(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    drop((single::Config::new(&text), sentinel::Config::new(&text)));
    drop((cluster::Config::new(&text), redlock::Config::new(&text)));
    let url = |password: &str| format!("redis://u:{password}@h1:1/0");
    checks::hides_password(single::Config::new, &text, url);
    checks::hides_password(cluster::Config::new, &text, url);
    checks::hides_password(sentinel::Config::new, &text, |password| {
        format!("redis://:{password}@h1,h2:2/main")
    });
    checks::hides_password(redlock::Config::new, &text, |password| {
        format!("redlock://u:{password}@h1,h2,h3")
    });
}

fn keys(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    for keys in [Keys::new("app:x"), Keys::bucketed("app:x")] {
        if let Ok(name) = LockName::new(&text) {
            let key = keys.of("h", &name);
            assert_eq!(keys.name(&key).as_ref(), Some(&name), "{key}");
        }
        if let Some(name) = keys.name(&text) {
            let kind = text.split_once("}:").unwrap().1.split_once(':').unwrap().0;
            assert_eq!(keys.of(kind, &name), text);
        }
    }
}

fn server_settings(input: &[u8]) {
    let info = InfoDict::new(&String::from_utf8_lossy(input));
    let value = |key: &str| info.get::<String>(key);
    checkup::durability_warning(&value);
    for expected in [Expected::Primary, Expected::ClusterNode, Expected::NamedPrimary] {
        if let Ok(health) = checkup::check_settings(&value, expected, &[]) {
            assert!(value("role").is_none_or(|role| role == "master"), "{health:?}");
            assert_eq!(health.run.as_deref(), value("run_id").as_deref());
        }
    }
}
