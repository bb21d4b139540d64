//! A table of a config file is equivalent to the URL with the same keys.

use std::time::Duration;

use polylock::{ConfigFile, Locks, LocksConfig};

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
    let file: ConfigFile = toml::from_str(
        "store = 'redis://me:canary@host'\n[profiles.far]\nstore = 'redis://me:canary@far'\npassword = 'canary'",
    )
    .unwrap();
    let shown = format!("{file:?}");
    assert!(!shown.contains("canary") && shown.contains("host") && shown.contains("far"), "{shown}");
}

#[test]
fn a_profile_overrides_its_own_keys_and_inherits_the_others() {
    let text =
        "store = 'memory:'\nttl = '20s'\n[profiles.night]\nttl = 60\n[profiles.far]\nstore = 'memory:far'";
    let file: ConfigFile = toml::from_str(text).unwrap();
    assert_eq!(file.profiles().collect::<Vec<_>>(), ["far", "night"]);
    assert_eq!(file.config(None).unwrap(), LocksConfig::new("memory:").set("ttl", "20s"));
    assert_eq!(file.config(Some("night")).unwrap(), LocksConfig::new("memory:").set("ttl", "60"));
    assert_eq!(file.config(Some("far")).unwrap(), LocksConfig::new("memory:far").set("ttl", "20s"));
    let json: ConfigFile =
        serde_json::from_str(r#"{"store": "memory:", "ttl": "20s", "profiles": {"night": {"ttl": 60}}}"#)
            .unwrap();
    assert_eq!(json.config(Some("night")).unwrap(), file.config(Some("night")).unwrap());
}

#[test]
fn a_missing_profile_or_store_and_a_table_as_a_value_are_refused() {
    let file: ConfigFile = toml::from_str("ttl = 1\n[profiles.far]\n[profiles.night]").unwrap();
    let error = file.config(Some("nigth")).unwrap_err().to_string();
    assert_eq!(error, "profile: there is no \"nigth\" in the config file; available: far, night");
    let error = file.config(Some("night")).unwrap_err().to_string();
    assert_eq!(error, "store: is missing: set it to the store's URL");
    let error = ConfigFile::default().config(Some("night")).unwrap_err().to_string();
    assert!(error.contains("add a section [profiles.night]"), "{error}");
    for text in ["ttl = [1]", "[profiles.night]\nttl = {}", "ttl = 2026-01-01"] {
        let error = toml::from_str::<ConfigFile>(text).unwrap_err().to_string();
        assert!(error.contains("ttl must be a string, a number or a boolean"), "{error}");
    }
}
