//! Slots that move from node to node while their locks are in use.

use std::time::Duration;

use polylock::{Guard, Locks};
use polylock_integration_tests::{
    clock::{self, pause},
    load::Load,
    refusals::describe,
    servers::redis_cluster::Cluster,
    stores::wait_for_waiters,
};

const TTL: Duration = Duration::from_secs(2);

/// Waits until the lease is extended beyond its present end.
async fn wait_for_renewal(guard: &Guard) {
    let deadline = guard.deadline();
    clock::until("the lease is extended", async || !guard.is_held() || guard.deadline() > deadline + TTL / 2)
        .await;
    guard.ensure_held().unwrap();
}

/// Returns the number of channels with subscribers in the slots of this node.
async fn subscribed_channels(cluster: &Cluster, node: usize) -> usize {
    cluster.ask::<Vec<String>>(node, &["PUBSUB", "SHARDCHANNELS", "{kept:*"]).await.len()
}

/// 1. The slot begins to move: the node serves only calls all of whose keys it has, so claims have to wait.
/// 2. The holds are still renewed, first at the old node, and then at the node to which their key has moved.
/// 3. The slot has moved: the next waiter is granted the lock there, and is notified there.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_survives_the_move_of_its_slot_and_waiters_are_granted_then() {
    let cluster = super::shared();
    let (name, slot) = super::names_by_primary(cluster, "kept").await.swap_remove(0);
    let url = super::url(cluster, "kept");
    let (locks, others) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    let guard = locks.lock(&name).ttl(TTL).acquire().await.unwrap();
    let waiting = tokio::spawn(others.lock(&name).acquire());
    wait_for_waiters(&locks, &name, 1).await;

    cluster.begin_move(slot, 0, 1).await;
    let error = others.lock(&name).try_acquire().await.unwrap_err();
    let (_, text) = describe(&error);
    assert!(error.is_temporary() && text.contains("is being moved"), "{text}");
    wait_for_renewal(&guard).await;
    let keys = cluster.keys_in(0, slot).await;
    assert!(keys.iter().any(|key| key.contains("}:h:")), "{keys:?}");
    cluster.move_keys(&keys, 0, 1).await;
    wait_for_renewal(&guard).await;
    cluster.end_move(slot, 0, 1).await;

    assert!(others.lock(&name).try_acquire().await.unwrap().is_none());
    clock::until("the waiter is subscribed at the new node", async || {
        subscribed_channels(cluster, 1).await == 1
    })
    .await;
    assert_eq!(subscribed_channels(cluster, 0).await, 0);
    wait_for_renewal(&guard).await;
    let token = guard.fencing_token();
    guard.release().await.unwrap();
    let next = tokio::time::timeout(Duration::from_secs(5), waiting).await.unwrap().unwrap().unwrap();
    assert!(next.fencing_token() > token);
    next.release().await.unwrap();
    assert_eq!(locks.list("").await.unwrap(), []);
}

/// When a slot leaves a node, that ends the subscriptions in it with a message that the driver takes for a reply. Nothing that it
/// returns after that belongs to the command that was sent.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_subscription_is_not_a_reply_to_a_command() {
    let cluster = super::shared();
    let (name, slot) = super::names_by_primary(cluster, "ended").await.swap_remove(0);
    let url = super::url(cluster, "ended");
    let (locks, others) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    // Locks of the same node, and others.
    let mut held = Vec::new();
    for number in 0..40 {
        held.push(others.lock(format!("other/{number}")).ttl(20 * TTL).acquire().await.unwrap());
    }
    for (from, to) in [(0, 1), (1, 0), (0, 1)] {
        let guard = others.lock(&name).ttl(10 * TTL).acquire().await.unwrap();
        let waiting = tokio::spawn(locks.lock(&name).acquire());
        wait_for_waiters(&others, &name, 1).await;
        cluster.begin_move(slot, from, to).await;
        let keys = cluster.keys_in(from, slot).await;
        cluster.move_keys(&keys, from, to).await;
        let target = cluster.id(to).await;
        let slot_text = slot.to_string();
        cluster.ask::<()>(to, &["CLUSTER", "SETSLOT", &slot_text, "NODE", &target]).await;
        // The node receives this first, and then the commands of the client.
        tokio::task::block_in_place(|| cluster.nodes()[from].freeze());
        let command = ["CLUSTER", "SETSLOT", &slot_text, "NODE", &target];
        let move_message = cluster.ask::<()>(from, &command);
        let inspections = async {
            pause(Duration::from_millis(100)).await;
            let inspected =
                futures_util::future::join_all(held.iter().map(|it| locks.inspect(it.name().as_str())));
            let thaw = async {
                pause(Duration::from_millis(50)).await;
                tokio::task::block_in_place(|| cluster.nodes()[from].thaw());
            };
            tokio::join!(inspected, thaw).0
        };
        let ((), inspected) = tokio::join!(move_message, inspections);
        for (guard, status) in held.iter().zip(inspected) {
            let status = status.unwrap();
            assert_eq!(status.holders.len(), 1, "{status:?}");
            assert_eq!(status.holders[0].token, Some(guard.fencing_token()));
        }
        guard.release().await.unwrap();
        let next = tokio::time::timeout(Duration::from_secs(5), waiting).await.unwrap().unwrap().unwrap();
        next.release().await.unwrap();
    }
}

/// Slots move under load: no held lock is granted again, and every waiter is granted its lock.
#[tokio::test(flavor = "multi_thread")]
async fn moving_slots_under_load_breaks_no_guarantee() {
    let cluster = super::shared();
    let names = super::names_by_primary(cluster, "load").await;
    let moves = async {
        for round in 0..2 {
            for (number, (_, slot)) in names.iter().enumerate() {
                let (from, to) = ((number + round) % 3, (number + round + 1) % 3);
                cluster.move_slot(*slot, from, to).await;
                pause(Duration::from_millis(100)).await;
            }
        }
    };
    let url = super::url(cluster, "load");
    let mut stores = Vec::new();
    for _ in 0..3 {
        stores.push(Locks::connect(&url).await.unwrap());
    }
    let loads = names.iter().map(|(name, _)| {
        let name: &'static str = Box::leak(name.clone().into_boxed_str());
        let load = Load { tasks: 2, name, names: 1, duration: TTL, min_holds: 20, ..Load::default() };
        load.on(stores.clone(), async {})
    });
    let (outcomes, ()) = tokio::join!(futures_util::future::join_all(loads), moves);
    for outcome in outcomes {
        outcome.assert_consistent();
        assert_eq!((outcome.failures, outcome.losses), (0, 0));
        assert!(outcome.sections.len() > 20);
    }
}
