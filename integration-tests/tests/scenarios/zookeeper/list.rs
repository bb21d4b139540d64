//! Listing many locks.

use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use polylock::Locks;
use polylock_integration_tests::{
    clock::now,
    proxy::{Direction, Flow, Proxy},
    servers::zookeeper,
};
use zookeeper_client::{Acls, CreateMode};

use super::Namespace;

const LOCKS: usize = 320;

/// The delay of each reply. Each lock needs two successive replies, so a list of all locks at once would take little more than three
/// delays, and a list of a few at a time takes many.
const DELAY: Duration = Duration::from_millis(20);

#[tokio::test(flavor = "multi_thread")]
async fn requests_a_few_locks_at_a_time() {
    let server = zookeeper::start(&[]).unwrap();
    let namespace = Namespace::of(&server);
    let proxy = Proxy::to(server.port());
    let locks = Locks::connect(&proxy.url(&namespace.url)).await.unwrap();
    let held = try_join_all((0..4).map(|name| locks.lock(format!("held-{name}")).acquire())).await.unwrap();

    // Nodes of requests in another session, without data.
    let raw = namespace.client().await;
    let (container, node) =
        (CreateMode::Container, CreateMode::EphemeralSequential.with_acls(Acls::anyone_all()));
    let (container, guid) = (container.with_acls(Acls::anyone_all()), "0".repeat(32));
    let plant = async |name: usize| {
        let directory = format!("{}/name-{name:03}", namespace.root);
        raw.create(&directory, b"", &container).await.unwrap();
        raw.create(&format!("{directory}/{guid}_EX_"), b"", &node).await.unwrap();
    };
    join_all((0..LOCKS).map(plant)).await;

    proxy.set(Direction::ToClient, Flow::Delay(DELAY));
    let began = now();
    let listed = locks.list("").await.unwrap();
    let took = now().since(began);
    println!("{} locks in {took:.1?}", listed.len());
    assert_eq!(listed.len(), LOCKS + held.len());
    assert!(listed.iter().all(|lock| lock.holders.len() == 1) && listed.is_sorted_by_key(|lock| &lock.name));
    assert!(took > 20 * DELAY, "all at once: {took:.1?}");
}
