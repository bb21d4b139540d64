//! Locks in synchronous programs, opened by URL.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

use polylock::{Error, OwnerId, blocking::Locks};
use rayon::prelude::*;

/// The sum of increments that are lost if two threads are in the section at the same time.
fn increment(counter: &AtomicU32) {
    let before = counter.load(Ordering::Relaxed);
    thread::yield_now();
    counter.store(before + 1, Ordering::Relaxed);
}

#[test]
fn threads_of_a_pool_exclude_each_other() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(4).build().unwrap();
    let locks = Locks::connect("memory:").unwrap();
    let counter = AtomicU32::new(0);
    pool.install(|| {
        (0..200).into_par_iter().for_each(|_| {
            locks.lock("counter").acquire().unwrap().run(|_| increment(&counter)).unwrap();
        });
    });
    assert_eq!(counter.into_inner(), 200);
}

#[cfg(feature = "sqlite")]
#[test]
fn threads_with_stores_of_their_own_exclude_each_other() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", directory.path().join("locks.db").display());
    let counter = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let locks = Locks::connect(&url).unwrap();
                for _ in 0..20 {
                    locks.lock("counter").acquire().unwrap().run(|_| increment(&counter)).unwrap();
                }
            });
        }
    });
    assert_eq!(counter.into_inner(), 80);
}

#[test]
fn a_builder_opens_the_store_for_a_synchronous_program() {
    let owner = OwnerId::new("import-7").unwrap();
    let builder = polylock::Locks::builder("memory:").owner(&owner).wait(Duration::from_millis(20));
    let locks = builder.connect_blocking().unwrap();
    let guard = locks.lock("a").acquire().unwrap();
    assert_eq!(guard.owner(), &owner);
    assert!(locks.lock("a").acquire().unwrap_err().is_not_acquired());
    let error = Locks::connect("no-such-scheme://host").unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error}");
}

#[tokio::test]
async fn the_same_locks_are_used_in_tasks_and_in_threads() {
    let locks = polylock::Locks::connect("memory:").await.unwrap();
    assert!(matches!(Locks::connect("memory:"), Err(Error::AsyncContext)));
    let blocking = Locks::from(locks.clone());
    let guard = tokio::task::spawn_blocking(move || blocking.lock("a").acquire()).await.unwrap().unwrap();
    assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
    polylock::Guard::from(guard).release().await.unwrap();
    assert!(locks.lock("a").try_acquire().await.unwrap().is_some());
}
