//! A lock that is released after a delay is kept for just that time, on every store.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use polylock::Locks;
use polylock_integration_tests::{clock::now, on_stores, stores::spot};

on_stores! { a_release_after_a_delay_keeps_the_lock_for_that_time }

const DELAY: Duration = Duration::from_secs(2);
/// Waiters look at least once a second, and Azure has leases of whole seconds.
const LATE: Duration = Duration::from_secs(3);

async fn a_release_after_a_delay_keeps_the_lock_for_that_time(store: &str) {
    let spot = spot(store).await;
    let (mine, others) =
        (Locks::connect(spot.url()).await.unwrap(), Locks::connect(spot.url()).await.unwrap());
    let guard = mine.lock("x").acquire().await.unwrap();
    let (token, began) = (guard.fencing_token(), now());
    let parting = tokio::spawn(guard.release_after(DELAY));
    let next = others.lock("x").wait(Duration::from_secs(20)).acquire().await.unwrap();
    let free_after = now().since(began);
    println!("{store}: free after {free_after:?}");
    assert!(free_after >= DELAY && free_after < DELAY + LATE, "{free_after:?}");
    assert!(next.fencing_token() > token);
    parting.await.unwrap().unwrap();
}
