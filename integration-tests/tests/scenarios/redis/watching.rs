//! The cost of a watch at the server.

use std::time::Duration;

use polylock::{Locks, WatchEvent};
use polylock_integration_tests::{
    clock::{now, pause},
    servers::redis,
};

use super::Namespace;

/// The time for which commands are counted.
const WINDOW: Duration = Duration::from_secs(6);

/// Returns the number of commands that the server executes in the window, those of scripts included, except for those of the count itself.
async fn commands(namespace: &Namespace) -> u64 {
    let total = async || namespace.command_calls().await.values().sum::<u64>();
    let before = total().await;
    pause(WINDOW).await;
    total().await - before - 1
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_costs_the_server_less_than_one_waiter() {
    let server = redis::start(&[]).unwrap();
    let namespace = Namespace::on(&server).await;
    let locks = Locks::connect(&namespace.url).await.unwrap();
    let held = locks.lock("a").acquire().await.unwrap();
    let idle = commands(&namespace).await;

    let waiter = tokio::spawn(locks.lock("a").acquire());
    while locks.inspect("a").await.unwrap().waiters.is_empty() {
        pause(Duration::from_millis(10)).await;
    }
    let waiting = commands(&namespace).await - idle;
    waiter.abort();

    let mut watch = locks.watch("").await.unwrap();
    let watching = tokio::spawn(async move {
        loop {
            watch.refresh().await;
        }
    });
    let watched = commands(&namespace).await - idle;
    watching.abort();
    println!(
        "in {WINDOW:?}: {idle} commands idle, {waiting} more with a waiter, {watched} more with a watch"
    );
    assert!(watched > 0 && watched <= waiting, "{watched} {waiting}");
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_another_client_arrive_within_two_seconds() {
    let server = redis::start(&[]).unwrap();
    let namespace = Namespace::on(&server).await;
    let locks = Locks::connect(&namespace.url).await.unwrap();
    let mut watch = Locks::connect(&namespace.url).await.unwrap().watch("").await.unwrap();
    let began = now();
    let _held = locks.lock("a").acquire().await.unwrap();
    let WatchEvent::Changed(change) = watch.next().await else { panic!("no outage") };
    assert_eq!((change.kind.as_str(), change.name().as_str()), ("granted", "a"));
    assert!(now().since(began) < Duration::from_secs(5), "{:?}", now().since(began));
}
