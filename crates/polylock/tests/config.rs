//! A table of a config file is equivalent to the URL with the same keys.

use std::time::Duration;

use polylock::{Locks, LocksConfig};

#[tokio::test]
async fn a_table_is_equivalent_to_the_url() {
    let url = Locks::connect("memory:?polylock.ttl=1m30s&polylock.wait=5").await.unwrap();
    let toml: LocksConfig = toml::from_str("store = 'memory:'\nttl = '1m30s'\nwait = 5").unwrap();
    let json: LocksConfig =
        serde_json::from_str(r#"{"store": "memory:", "ttl": "1m30s", "wait": 5.0}"#).unwrap();
    for config in [toml, json, LocksConfig::new("memory:").set("ttl", "90").set("wait", "5s")] {
        let locks = Locks::from_config(config).await.unwrap();
        assert_eq!(locks.options(), url.options());
    }
    assert_eq!(url.options().ttl, Duration::from_secs(90));
    assert_eq!(url.options().wait, Some(Duration::from_secs(5)));
}

#[tokio::test]
async fn a_misspelt_or_repeated_key_is_refused() {
    for (text, expected) in [
        ("store = 'memory:'\ntll = '1s'", "polylock.tll: unknown key; did you mean polylock.ttl?"),
        ("store = 'memory:?polylock.ttl=1s'\nttl = '1s'", "polylock.ttl: is given twice: remove one"),
        ("store = 'memory:'\nttl = 'soon'", "polylock.ttl: \"soon\" is not a duration"),
    ] {
        let config: LocksConfig = toml::from_str(text).unwrap();
        let error = Locks::from_config(config).await.unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn debug_shows_no_password() {
    let config: LocksConfig =
        toml::from_str("store = 'redis://me:canary@host'\npassword = 'canary'").unwrap();
    let shown = format!("{config:?} {config:#?} {:?}", config.clone().into_url());
    assert!(!shown.contains("canary"), "{shown}");
    assert!(shown.contains("host"), "{shown}");
}
