//! A break that has failed breaks nothing later, on every store: all copies of its messages arrive right after the error. The servers are
//! silent until then.

use std::time::Duration;

use polylock::Locks;
use polylock_integration_tests::{
    clock::{now, pause},
    on_stores,
    proxy::{Direction, Flow, Proxy},
    stores,
};

on_stores! {
    [postgres mariadb redis azure http_redis http_postgres]
    [a_mark_that_has_failed_marks_nothing a_break_by_force_that_has_failed_removes_nothing]
}

/// Longer than a test takes.
const TTL: Duration = Duration::from_secs(60);
/// The time in which a server carries a message out, on a busy machine.
const CARRIED_OUT: Duration = Duration::from_secs(1);

async fn a_mark_that_has_failed_marks_nothing(store: &'static str) {
    a_failed_break_changes_nothing(store, false).await;
}

async fn a_break_by_force_that_has_failed_removes_nothing(store: &'static str) {
    a_failed_break_changes_nothing(store, true).await;
}

async fn a_failed_break_changes_nothing(store: &'static str, force: bool) {
    let namespace = stores::namespace(store).await;
    let url = namespace.url_with("polylock.operation_timeout", "1s");
    // The service has two servers, and the client would use the other one.
    let url = match (url.split_once(','), url.split_once('?')) {
        (Some((first, _)), Some((_, keys))) if store.starts_with("http") => format!("{first}?{keys}"),
        _ => url,
    };
    let (proxy, url_of_proxy) = Proxy::in_front_of(&url).expect("a server of this machine");
    let direct = Locks::connect(namespace.url()).await.unwrap();
    let breaker = Locks::connect(&url_of_proxy).await.unwrap();
    let holder = direct.lock("late").ttl(TTL).acquire().await.unwrap();
    // The server has the script of a break from now on.
    let first = direct.lock("first").ttl(TTL).acquire().await.unwrap();
    let broken = breaker.break_lock("first").token(first.fencing_token()).await.unwrap();
    assert_eq!(broken.len(), 1);
    drop(first);

    proxy.set(Direction::ToServer, Flow::Hold);
    let sent = now();
    let order = breaker.break_lock("late").token(holder.fencing_token());
    let broken = if force { order.force().await } else { order.await };
    println!("{store}: {broken:?} after {:.1?}", now().since(sent));
    proxy.set(Direction::ToServer, Flow::Pass);
    pause(CARRIED_OUT).await;
    let status = direct.inspect("late").await.unwrap();
    let error = broken.expect_err("no message has arrived");
    assert!(error.is_temporary(), "{error:?}");
    assert!(matches!(&status.holders[..], [entry] if entry.broken.is_none()), "{status:?}");
    holder.release().await.unwrap();
}
