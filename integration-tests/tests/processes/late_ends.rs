//! A park or a release that has failed ends no hold later, on every store: another process that knows the hold has extended it. All messages
//! arrive right after the error.

use std::time::Duration;

use polylock::{Guard, Locks, Result};
use polylock_integration_tests::{
    clock::pause,
    on_stores,
    proxy::{Direction, Flow, Proxy},
    stores,
};

on_stores! {
    [postgres mariadb redis http_postgres http_redis]
    [a_park_that_has_failed_ends_nothing a_release_that_has_failed_ends_nothing]
}

/// The lease of the process that ends the hold: it gives up at the end.
const SHORT: Duration = Duration::from_secs(2);
/// Longer than a test takes.
const LONG: Duration = Duration::from_secs(60);
/// The time in which a server carries a message out, on a busy machine.
const CARRIED_OUT: Duration = Duration::from_secs(1);
/// The time after which a parked hold ends.
const PARKED: Duration = Duration::from_millis(200);

async fn a_park_that_has_failed_ends_nothing(store: &'static str) {
    a_failed_end_changes_nothing(store, async |guard| guard.release_after(PARKED).await).await;
}

async fn a_release_that_has_failed_ends_nothing(store: &'static str) {
    a_failed_end_changes_nothing(store, async |guard| guard.release().await).await;
}

async fn a_failed_end_changes_nothing(store: &'static str, end: impl AsyncFn(Guard) -> Result<()>) {
    let namespace = stores::namespace(store).await;
    let url = namespace.url_with("polylock.operation_timeout", "1s");
    // The service has two servers, and the client would use the other one.
    let url = match (url.split_once(','), url.split_once('?')) {
        (Some((first, _)), Some((_, keys))) if store.starts_with("http") => format!("{first}?{keys}"),
        _ => url,
    };
    let (proxy, url_of_proxy) = Proxy::in_front_of(&url).expect("a server of this machine");
    let direct = Locks::connect(namespace.url()).await.unwrap();
    let here = Locks::connect(&url_of_proxy).await.unwrap();
    // The server has the scripts from now on.
    let first = here.lock("first").acquire().await.unwrap();
    first.handle().unwrap();
    end(first).await.unwrap();

    let guard = here.lock("late").ttl(SHORT).acquire().await.unwrap();
    let adopted = direct.adopt_for(&guard.handle().unwrap(), LONG).await.unwrap();
    proxy.set(Direction::ToServer, Flow::Hold);
    let failed = end(guard).await;
    println!("{store}: {failed:?}");
    proxy.set(Direction::ToServer, Flow::Pass);
    pause(CARRIED_OUT).await;
    let error = failed.expect_err("no message has arrived");
    assert!(error.is_temporary(), "{error:?}");
    let next = direct.lock("late").try_acquire().await.unwrap();
    assert!(next.is_none(), "the hold of another process has ended");
    adopted.release().await.expect("the hold goes on");
}
