//! URL schemes of stores that are not part of polylock. One test: the registry belongs to the process.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use polylock::{
    ConfigError, Error, Keys, Locks, LocksConfig, Result, Store, StoreConfig, StoreUrl, core::memory,
    register, schema, schemes,
};

/// The number of attempts to open a store.
static OPENED: AtomicUsize = AtomicUsize::new(0);

/// `third:NAME`, with the key `polylock.room`.
struct Config {
    name: String,
}

impl Config {
    fn from_url(url: &StoreUrl, keys: &mut Keys) -> Result<Self, ConfigError> {
        let room =
            keys.text("polylock.room").ok_or_else(|| ConfigError::new("polylock.room", "is missing"))?;
        Ok(Self { name: format!("{room}/{}", url.rest()) })
    }
}

#[async_trait::async_trait]
impl StoreConfig for Config {
    async fn open(&self) -> Result<Store> {
        OPENED.fetch_add(1, SeqCst);
        Ok(memory::named(&self.name))
    }

    fn schema(&self) -> Result<Option<String>, ConfigError> {
        Ok(Some(format!("CREATE {}", self.name)))
    }
}

async fn config_error(url: &str) -> String {
    match Locks::connect(url).await {
        Err(Error::Config(error)) => error.to_string(),
        other => panic!("{url}: {other:?}"),
    }
}

#[tokio::test]
async fn a_registered_scheme_works_like_a_built_in_one() {
    let before = config_error("third:a?polylock.room=x").await;
    assert!(before.starts_with("store: unknown scheme \"third\""), "{before}");
    register("third", Config::from_url).unwrap();

    // By URL and by configuration, with the settings of all stores.
    let locks = Locks::connect("third:a?polylock.room=x&polylock.ttl=7s").await.unwrap();
    assert_eq!(locks.options().ttl.as_secs(), 7);
    let same = Locks::from_config(LocksConfig::new("third:a").set("room", "x")).await.unwrap();
    let other = Locks::connect("third:a?polylock.room=y").await.unwrap();
    assert_eq!(OPENED.load(SeqCst), 3);
    let guard = locks.lock("n").acquire().await.unwrap();
    assert!(same.lock("n").try_acquire().await.unwrap().is_none());
    assert!(other.lock("n").try_acquire().await.unwrap().is_some());
    guard.release().await.unwrap();
    assert_eq!(schema("third:a?polylock.room=x"), Ok(Some("CREATE x/a".to_owned())));

    // Its own errors, and those of all stores.
    assert_eq!(config_error("third:a").await, "polylock.room: is missing");
    assert_eq!(
        config_error("third:a?polylock.room=x&polylock.romm=y").await,
        "polylock.romm: unknown key; did you mean polylock.room?"
    );
    assert!(schemes().any(|scheme| scheme == "third"));
    let suggestion = config_error("thirt:a").await;
    assert!(suggestion.contains("did you mean \"third\"?"), "{suggestion}");
    let problem = polylock::admit("third:a?polylock.room=x").await.unwrap_err().to_string();
    assert!(problem.contains("no start-up delay"), "{problem}");

    for (scheme, problem) in [
        ("third", "is registered already"),
        ("redis", "belongs to a store of polylock"),
        ("Fourth", "is not a URL scheme"),
        ("four th", "is not a URL scheme"),
        ("", "is not a URL scheme"),
    ] {
        let refused = register(scheme, Config::from_url).unwrap_err();
        assert!(refused.key == "store" && refused.problem.contains(problem), "{refused}");
    }
}
