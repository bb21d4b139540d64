//! A conversion that has failed changes no hold that another process has adopted since: a copy of it names the token that the hold still has.

use std::time::Duration;

use polylock::{Locks, Mode};
use polylock_integration_tests::{
    clock::pause,
    on_stores,
    proxy::{Direction, Flow, Proxy},
    stores,
};

on_stores! {
    [postgres mariadb redis http_redis http_postgres]
    [a_downgrade_that_has_failed_changes_nothing]
}

/// The lease of the process that converts: it gives up at the end.
const SHORT: Duration = Duration::from_secs(2);
/// Longer than a test takes.
const LONG: Duration = Duration::from_secs(60);
/// The time limit of one operation, and some more for a busy machine.
const EXPIRED: Duration = Duration::from_millis(1500);
/// The time in which a server carries a message out, on a busy machine.
const CARRIED_OUT: Duration = Duration::from_secs(1);

async fn a_downgrade_that_has_failed_changes_nothing(store: &'static str) {
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
    // The server has the script of a conversion from now on.
    let mut first = here.lock("first").acquire().await.unwrap();
    first.downgrade(Mode::Shared).await.unwrap();
    first.release().await.unwrap();

    let mut guard = here.lock("late").ttl(SHORT).acquire().await.unwrap();
    let adopted = direct.adopt_for(&guard.handle().unwrap(), LONG).await.unwrap();
    proxy.set(Direction::ToServer, Flow::Hold);
    let failed = guard.downgrade(Mode::Shared).await;
    println!("{store}: {failed:?}");
    pause(EXPIRED).await;
    proxy.set(Direction::ToServer, Flow::Pass);
    pause(CARRIED_OUT).await;
    let status = direct.inspect("late").await.unwrap();
    let held: Vec<_> = status.holders.iter().map(|holder| (holder.mode, holder.token)).collect();
    failed.expect_err("no message has arrived");
    assert_eq!(held, [(Mode::Exclusive, Some(adopted.fencing_token()))]);
    assert!(direct.lock("late").shared().try_acquire().await.unwrap().is_none(), "a reader beside a writer");
    adopted.release().await.unwrap();
}
