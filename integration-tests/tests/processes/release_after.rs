//! A release after a delay holds the lock for that time, on every store.

use std::time::Duration;

use polylock::Locks;
use polylock_integration_tests::{clock::now, on_stores, stores::namespace};

on_stores! { a_delayed_release_holds_the_lock_for_the_delay }

const DELAY: Duration = Duration::from_secs(2);
/// Waiters poll at least once a second, and Azure has leases of whole seconds.
const LATE: Duration = Duration::from_secs(3);

async fn a_delayed_release_holds_the_lock_for_the_delay(store: &str) {
    let namespace = namespace(store).await;
    let (holder, waiter) =
        (Locks::connect(namespace.url()).await.unwrap(), Locks::connect(namespace.url()).await.unwrap());
    let guard = holder.lock("x").acquire().await.unwrap();
    let (token, began) = (guard.fencing_token(), now());
    let release = tokio::spawn(guard.release_after(DELAY));
    let next = waiter.lock("x").wait(Duration::from_secs(20)).acquire().await.unwrap();
    let free_after = now().since(began);
    println!("{store}: free after {free_after:?}");
    assert!(free_after >= DELAY && free_after < DELAY + LATE, "{free_after:?}");
    assert!(next.fencing_token() > token);
    release.await.unwrap().unwrap();
}
