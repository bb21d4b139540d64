//! Listing many locks.

use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use polylock::Locks;
use polylock_integration_tests::{
    clock::now,
    proxy::{Flow, Proxy, Way},
    servers::zookeeper,
};
use zookeeper_client::{Acls, CreateMode};

use crate::Spot;

const LOCKS: usize = 320;

/// How long each answer takes. Each lock needs two, one after the other, so a list of all locks at once takes little more than three
/// of these times, and one of a few at a time takes many.
const DELAY: Duration = Duration::from_millis(20);

#[tokio::test(flavor = "multi_thread")]
async fn asks_for_a_few_locks_at_a_time() {
    let server = zookeeper::start(&[]).unwrap();
    let spot = Spot::of(&server);
    let proxy = Proxy::to(server.port());
    let locks = Locks::connect(&proxy.url(&spot.url)).await.unwrap();
    let held = try_join_all((0..4).map(|name| locks.lock(format!("held-{name}")).acquire())).await.unwrap();

    // Requests as the store writes them, of a session that nobody has. They have no data of the store.
    let raw = spot.raw().await;
    let (container, node) =
        (CreateMode::Container, CreateMode::EphemeralSequential.with_acls(Acls::anyone_all()));
    let (container, guid) = (container.with_acls(Acls::anyone_all()), "0".repeat(32));
    let plant = async |name: usize| {
        let directory = format!("{}/name-{name:03}", spot.root);
        raw.create(&directory, b"", &container).await.unwrap();
        raw.create(&format!("{directory}/{guid}_EX_"), b"", &node).await.unwrap();
    };
    join_all((0..LOCKS).map(plant)).await;

    proxy.set(Way::ToClient, Flow::Delay(DELAY));
    let began = now();
    let listed = locks.list("").await.unwrap();
    let took = now().since(began);
    println!("{} locks in {took:.1?}", listed.len());
    assert_eq!(listed.len(), LOCKS + held.len());
    assert!(listed.iter().all(|lock| lock.holders.len() == 1) && listed.is_sorted_by_key(|lock| &lock.name));
    assert!(took > 20 * DELAY, "all at once: {took:.1?}");
}
