//! The URL selects the store, and an invalid one causes an error with a remedy.

use polylock::{Error, Locks, LocksConfig, schema, schemes};

async fn config_error(url: &str) -> String {
    match Locks::connect(url).await {
        Err(Error::Config(error)) => error.to_string(),
        other => panic!("{url}: {other:?}"),
    }
}

#[tokio::test]
async fn the_error_about_an_unknown_scheme_lists_the_available_ones() {
    let available = schemes().collect::<Vec<_>>().join(", ");
    assert!(available.starts_with("memory"), "{available}");
    assert_eq!(
        config_error("etcd://host").await,
        format!("store: unknown scheme \"etcd\"; available: {available}")
    );
    assert_eq!(
        config_error("memry:").await,
        format!("store: unknown scheme \"memry\"; did you mean \"memory\"? available: {available}")
    );
}

#[tokio::test]
async fn a_misspelt_scheme_is_refused_with_the_nearest_one() {
    for (scheme, nearest) in [
        ("redis+cluster", "redis-cluster"),
        ("redis-custer", "redis-cluster"),
        ("rediss+cluster", "rediss-cluster"),
        ("redis-sentinal", "redis-sentinel"),
    ] {
        let refused = config_error(&format!("{scheme}://host/x")).await;
        let suggested = format!("did you mean {nearest:?}?");
        assert!(refused.contains(&suggested), "{refused}");
    }
}

#[cfg(not(feature = "sqlite"))]
#[tokio::test]
async fn the_error_about_a_missing_store_names_its_feature() {
    assert_eq!(
        config_error("sqlite:///tmp/x.db").await,
        "store: \"sqlite\" is not compiled in: enable feature \"sqlite\"; available: memory"
    );
}

#[tokio::test]
async fn an_unknown_key_is_refused_with_a_suggestion() {
    let error = config_error("memory:?polylock.tll=3s").await;
    assert_eq!(error, "polylock.tll: unknown key; did you mean polylock.ttl?");
}

#[tokio::test]
async fn a_named_memory_store_is_shared_and_an_unnamed_one_is_not() {
    let (a, b) = (Locks::connect("memory:here").await.unwrap(), Locks::connect("memory:here").await.unwrap());
    let held = a.lock("x").acquire().await.unwrap();
    assert!(b.lock("x").try_acquire().await.unwrap().is_none());
    let alone = Locks::connect("memory:").await.unwrap();
    assert!(alone.lock("x").try_acquire().await.unwrap().is_some());
    held.release().await.unwrap();
}

#[test]
fn a_store_without_tables_needs_no_statements() {
    for url in [
        "memory:",
        "memory:here",
        "sqlite:///no/such/place/locks.db",
        "redis://no-such-host",
        "redlock://a,b,c",
        "redis-cluster://a,b,c",
        "redis+sentinel://a,b,c/orders",
        "zookeeper://a,b,c/app",
    ] {
        if schemes().any(|scheme| url.starts_with(&scheme)) {
            assert_eq!(schema(url), Ok(None), "{url}");
        }
    }
}

#[test]
fn the_schema_follows_the_url_and_no_store_is_opened() {
    for scheme in
        schemes().filter(|scheme| ["postgres", "postgresql", "mysql", "mariadb"].contains(&&**scheme))
    {
        let server = format!("{scheme}://app:canary@no-such-host.invalid/app");
        let text = schema(&format!("{server}?polylock.namespace=app_locks")).unwrap().unwrap();
        assert!(text.contains("app_locks_holds") && !text.contains("canary"), "{text}");
        assert_eq!(LocksConfig::new(&server).set("namespace", "app_locks").schema(), Ok(Some(text)));
        assert_eq!(schema(&format!("{server}?polylock.tabel=x")).unwrap_err().key, "polylock.tabel");
        assert_eq!(schema(&format!("{server}?polylock.ttl=soon")).unwrap_err().key, "polylock.ttl");
    }
    assert_eq!(schema("etcd://host").unwrap_err().key, "store");
}

#[tokio::test]
async fn a_transition_from_a_store_to_itself_is_refused() {
    let refused = config_error("both:memory:there;memory:there").await;
    assert!(refused.starts_with("store: both:OLD;NEW names one store"), "{refused}");
    Locks::connect("both:memory:there;memory:elsewhere").await.unwrap();
    Locks::connect("both:memory:;memory:").await.unwrap();
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn a_transition_from_a_file_to_itself_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().display();
    std::os::unix::fs::symlink(directory.path(), directory.path().join("link")).unwrap();
    for new in [format!("{path}/locks.db"), format!("{path}/./locks.db"), format!("{path}/link/locks.db")] {
        let refused = config_error(&format!("both:sqlite://{path}/locks.db;SQLite://{new}")).await;
        assert!(refused.starts_with("store: both:OLD;NEW names one store"), "{new}: {refused}");
    }
    Locks::connect(&format!("both:sqlite://{path}/locks.db;sqlite://{path}/new.db")).await.unwrap();
}
