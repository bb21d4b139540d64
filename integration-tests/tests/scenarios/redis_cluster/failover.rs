//! Primaries that are killed or frozen, and their replicas.

use std::time::Duration;

use polylock::{Locks, LostReason};
use polylock_integration_tests::{
    clock::{self, TIMEOUT, now, pause},
    load::Load,
    servers::redis_cluster,
    stores::wait_for_waiters,
};
use polylock_testkit::history;
use tokio::task::block_in_place;

const TTL: Duration = Duration::from_secs(10);

/// A primary is killed under load. Its last acknowledged writes may be lost, so two may hold a lock; tokens grow all the same, and all
/// locks are granted again when the replica has taken over.
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_killed_under_load_is_replaced_and_tokens_grow() {
    let cluster = redis_cluster::start(&[]).unwrap();
    let names = super::names_by_primary(&cluster, "p").await;
    let (slot, moved) = (names[0].1, names[1].1);
    let url = super::url(&cluster, "p");
    let stores = [Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap()];
    let faults = async {
        pause(Duration::from_millis(300)).await;
        cluster.begin_move(moved, 1, 2).await;
        block_in_place(|| cluster.nodes()[0].kill());
        cluster.wait_until_agreed(slot, redis_cluster::PRIMARIES).await;
        let keys = cluster.keys_in(1, moved).await;
        cluster.move_keys(&keys, 1, 2).await;
        cluster.end_move(moved, 1, 2).await;
        // It comes back as a replica.
        block_in_place(|| cluster.nodes()[0].restart());
    };
    let loads = names.iter().map(|(name, _)| {
        let name: &'static str = Box::leak(name.clone().into_boxed_str());
        let lasts = Duration::from_secs(6);
        let load = Load {
            tasks: 2,
            name,
            names: 1,
            duration: lasts,
            wait: 3 * TTL,
            readers: false,
            ..Load::default()
        };
        load.on(stores.to_vec(), async {})
    });
    let (outcomes, ()) = tokio::join!(futures_util::future::join_all(loads), faults);
    for (outcome, (name, _)) in outcomes.into_iter().zip(&names) {
        println!("{name}: {} sections, {} losses", outcome.sections.len(), outcome.losses);
        assert_eq!(outcome.failures, 0);
        assert_eq!(history::token_regressions(&outcome.sections), []);
        assert_eq!(history::repeated_tokens(&outcome.sections), []);
        for locks in &stores {
            let guard = locks.lock(name).wait(TTL).acquire().await.unwrap();
            let last = outcome.sections.iter().filter_map(|section| section.token).max();
            assert!(Some(guard.fencing_token().get()) > last);
            guard.release().await.unwrap();
        }
    }
    cluster.wait_until_agreed(slot, redis_cluster::PRIMARIES).await;
}

/// A frozen primary delays neither the renewals at the others nor their locks. It is replaced, and what it does afterwards
/// has no effect.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_primary_delays_no_other_and_is_replaced() {
    let cluster = redis_cluster::start(&["cluster-require-full-coverage no"]).unwrap();
    let names = super::names_by_primary(&cluster, "p").await;
    let locks = Locks::connect(&super::url(&cluster, "p")).await.unwrap();
    let mut guards = Vec::new();
    for (name, _) in &names {
        // Renewed in one batch, with a lease that does not outlast the time limit of a command for long.
        guards.push(locks.lock(name).ttl(Duration::from_millis(1500)).acquire().await.unwrap());
    }
    // The replica has it.
    let replicated: i64 = cluster.ask(0, &["WAIT", "1", "5000"]).await;
    assert_eq!(replicated, 1);
    block_in_place(|| cluster.nodes()[0].freeze());
    let (began, slot) = (now(), names[0].1);
    let takeover = async {
        clock::until("the replica takes over", async || {
            cluster.primary_of(slot, 1).await == Some(redis_cluster::PRIMARIES)
        })
        .await;
    };
    let others = async {
        let mut slowest = Duration::ZERO;
        while now().since(began) < Duration::from_secs(3) {
            let sent = now();
            locks.inspect(&names[1].0).await.unwrap();
            slowest = slowest.max(now().since(sent));
            pause(Duration::from_millis(20)).await;
        }
        slowest
    };
    let ((), slowest) = tokio::join!(takeover, others);
    assert!(slowest < Duration::from_millis(450), "{slowest:?}");
    for guard in &guards[1..] {
        guard.ensure_held().unwrap();
    }
    let last = guards[0].fencing_token();
    let next = locks.lock(&names[0].0).wait(TTL);
    drop(guards);
    let next = next.acquire().await.unwrap();
    assert!(next.fencing_token() > last);
    block_in_place(|| cluster.nodes()[0].thaw());
    cluster.wait_until_agreed(slot, redis_cluster::PRIMARIES).await;
    next.ensure_held().unwrap();
    assert!(next.renewed().await.is_some());
    next.release().await.unwrap();
}

/// Replicas take over on request while locks, and the slots of a semaphore, are passed on all the time. They wait for the writes of their
/// primaries, so nothing is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_on_request_during_hand_overs_breaks_no_guarantee() {
    let cluster = redis_cluster::start(&[]).unwrap();
    let (name, slot) = super::names_by_primary(&cluster, "p").await.swap_remove(0);
    let url = super::url(&cluster, "p");
    let mut stores = Vec::new();
    for _ in 0..3 {
        stores.push(Locks::connect(&url).await.unwrap());
    }
    let name: &'static str = Box::leak(name.into_boxed_str());
    let duration = Duration::from_secs(9);
    let load = Load { tasks: 2, name, names: 1, duration, readers: false, wait: 3 * TTL, ..Load::default() };
    let slots = Load { tasks: 2, name: "pool", names: 1, slots: 5, ..load };
    let mut taken = Vec::new();
    for _ in 0..slots.slots {
        taken.push(stores[0].semaphore(slots.name, slots.slots).acquire().await.unwrap());
    }
    let at_primary: Vec<String> = cluster.ask(0, &["KEYS", "{p:*:h:*pool*"]).await;
    assert!(!at_primary.is_empty(), "no slot is at this primary");
    drop(taken);
    let takeovers = async {
        for next in [redis_cluster::PRIMARIES, 0, redis_cluster::PRIMARIES] {
            // The others vote once in two timeouts of a node.
            pause(Duration::from_millis(2500)).await;
            cluster.ask::<()>(next, &["CLUSTER", "FAILOVER"]).await;
            cluster.wait_until_agreed(slot, next).await;
        }
    };
    let (outcome, slots) =
        tokio::join!(load.on(stores.clone(), takeovers), slots.on(stores, std::future::ready(())));
    for outcome in [outcome, slots] {
        outcome.assert_consistent();
        assert_eq!((outcome.failures, outcome.losses), (0, 0));
    }
}

/// A hand-over that the replica has not received when its primary dies:
/// 1. The holder releases the lock, and the primary grants it to the first waiter.
/// 2. The replica, in whose data the former holder has the lock, takes over.
/// 3. The first waiter is told that it has lost the lock, and then the second one is granted it.
#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_that_is_forgotten_is_a_loss_before_the_next_grant() {
    let cluster = redis_cluster::start(&[]).unwrap();
    let (name, slot) = super::names_by_primary(&cluster, "p").await.swap_remove(0);
    let url = super::url(&cluster, "p");
    let (holder, first, second) = (
        Locks::connect(&url).await.unwrap(),
        Locks::connect(&url).await.unwrap(),
        Locks::connect(&url).await.unwrap(),
    );
    let guard = holder.lock(&name).ttl(TTL).acquire().await.unwrap();
    let granted = tokio::spawn(first.lock(&name).ttl(TTL).acquire());
    wait_for_waiters(&holder, &name, 1).await;
    let next = tokio::spawn(second.lock(&name).ttl(TTL).wait(3 * TTL).acquire());
    wait_for_waiters(&holder, &name, 2).await;
    let replicated: i64 = cluster.ask(0, &["WAIT", "1", "5000"]).await;
    assert_eq!(replicated, 1);
    // Nothing that happens from now on waits for it in a buffer.
    block_in_place(|| cluster.nodes()[redis_cluster::PRIMARIES].freeze());
    cluster.ask::<()>(0, &["CLIENT", "KILL", "TYPE", "replica"]).await;
    let token = guard.fencing_token();
    guard.release().await.unwrap();
    let granted = tokio::time::timeout(TIMEOUT, granted).await.unwrap().unwrap().unwrap();
    assert!(granted.fencing_token() > token);
    block_in_place(|| {
        cluster.nodes()[0].kill();
        cluster.nodes()[redis_cluster::PRIMARIES].thaw();
    });
    let lost = granted.lost();
    let lost = tokio::spawn(async { (lost.await, now()) });
    let next = next.await.unwrap().unwrap();
    let at = now();
    assert!(lost.is_finished(), "the lock was granted while another process held it");
    let (reason, notified) = lost.await.unwrap();
    println!("{reason:?}, {:.2?} before the next grant", at.since(notified));
    assert_eq!(reason, LostReason::Gone);
    assert!(next.fencing_token() > granted.fencing_token());
    next.release().await.unwrap();
    assert_eq!(cluster.primary_of(slot, 1).await, Some(redis_cluster::PRIMARIES));
}
