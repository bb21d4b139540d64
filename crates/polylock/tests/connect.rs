//! The URL picks the store, and says what to do when it can't.

use polylock::{Error, Locks, LocksConfig, schema, schemes};

async fn refusal(url: &str) -> String {
    match Locks::connect(url).await {
        Err(Error::Config(error)) => error.to_string(),
        other => panic!("{url}: {other:?}"),
    }
}

#[tokio::test]
async fn an_unknown_scheme_lists_what_is_there() {
    let here = schemes().collect::<Vec<_>>().join(", ");
    assert_eq!(
        refusal("etcd://host").await,
        format!("store: no store is called \"etcd\"; available: {here}")
    );
    assert_eq!(
        refusal("memry:").await,
        format!("store: no store is called \"memry\"; did you mean \"memory\"? available: {here}")
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
        let refused = refusal(&format!("{scheme}://host/x")).await;
        let suggested = format!("did you mean {nearest:?}?");
        assert!(refused.contains(&suggested), "{refused}");
    }
}

#[cfg(not(feature = "sqlite"))]
#[tokio::test]
async fn a_store_left_out_names_its_feature() {
    assert_eq!(
        refusal("sqlite:///tmp/x.db").await,
        "store: \"sqlite\" is not compiled in (enable feature \"sqlite\"); available: memory"
    );
}

#[tokio::test]
async fn an_unknown_key_is_refused_with_a_suggestion() {
    let error = refusal("memory:?polylock.tll=3s").await;
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
fn a_store_without_tables_of_its_own_needs_no_statements() {
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
        if schemes().any(|scheme| url.starts_with(scheme)) {
            assert_eq!(schema(url), Ok(None), "{url}");
        }
    }
}

#[test]
fn the_statements_are_those_of_the_url_and_nothing_is_opened() {
    for scheme in schemes().filter(|scheme| ["postgres", "postgresql", "mysql", "mariadb"].contains(scheme)) {
        let server = format!("{scheme}://app:canary@no-such-host.invalid/app");
        let text = schema(&format!("{server}?polylock.table=app_locks")).unwrap().unwrap();
        assert!(text.contains("app_locks_holds") && !text.contains("canary"), "{text}");
        assert_eq!(LocksConfig::new(&server).set("table", "app_locks").schema(), Ok(Some(text)));
        assert_eq!(schema(&format!("{server}?polylock.tabel=x")).unwrap_err().key, "polylock.tabel");
        assert_eq!(schema(&format!("{server}?polylock.ttl=soon")).unwrap_err().key, "polylock.ttl");
    }
    assert_eq!(schema("etcd://host").unwrap_err().key, "store");
}
