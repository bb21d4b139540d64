//! Dead holders and cancelled requests: the time until their nodes are deleted.

use std::time::Duration;

use polylock::Locks;
use polylock_integration_tests::{
    clock::{TIMEOUT, now, pause, until},
    process::Process,
    proxy::{BOTH, Direction, Flow, Proxy},
    servers::zookeeper,
    stores::wait_for_waiters,
};

use super::{Namespace, SLACK};

const TICK: Duration = Duration::from_millis(500);
const SESSION: Duration = Duration::from_secs(4);

/// `kill -9`, at three points between two renewals.
#[tokio::test(flavor = "multi_thread")]
async fn kill_9_of_the_holder_frees_the_lock_after_its_session_and_two_ticks() {
    let server = zookeeper::start(&["tickTime=500", "minSessionTimeout=1000"]).unwrap();
    let namespace = Namespace::of(&server);
    let locks = Locks::connect(&namespace.url).await.unwrap();
    for round in 0..3 {
        let name = format!("killed/{round}");
        let arguments = ["hold", &namespace.url_with_session(SESSION), &name, "1"];
        let mut holder = Process::start(env!("CARGO_BIN_EXE_worker"), arguments);
        let token: u64 = holder.expect_line("held")[0].parse().unwrap();
        let next = tokio::spawn(locks.lock(&name).acquire());
        wait_for_waiters(&locks, &name, 1).await;
        pause(SESSION / 10 * round).await;
        holder.kill();
        let killed = now();
        let next = tokio::time::timeout(TIMEOUT, next)
            .await
            .expect("the waiter is granted the lock")
            .unwrap()
            .unwrap();
        let took = now().since(killed);
        println!("free {took:.2?} after the kill; its session timeout was {SESSION:?}");
        assert!(took < SESSION + 2 * TICK + SLACK, "{took:?}");
        assert!(next.fencing_token().get() > token);
        next.release().await.unwrap();
    }
    namespace.wait_until_empty().await;
}

/// Its session continues.
#[tokio::test(flavor = "multi_thread")]
async fn the_node_of_a_cancelled_waiter_is_deleted_at_once() {
    let server = zookeeper::start(&[]).unwrap();
    let namespace = Namespace::of(&server);
    let (here, raw) = (Locks::connect(&namespace.url).await.unwrap(), namespace.client().await);
    let guard = here.lock("n").acquire().await.unwrap();
    for round in 0..20_u32 {
        let waiting = tokio::spawn(here.lock("n").acquire());
        if round % 2 == 0 {
            wait_for_waiters(&here, "n", 1).await;
        } else {
            // At any point of the creation of its node.
            pause(Duration::from_micros(200) * round).await;
        }
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
        let cancelled = now();
        // Twice, because a create may have been in flight.
        for _ in 0..2 {
            until("its node is deleted", async || namespace.requests(&raw).await == 1).await;
        }
        let took = now().since(cancelled);
        println!("gone after {took:.1?}");
        assert!(took < Duration::from_secs(1) + SLACK, "{took:?}");
    }
    assert!(guard.is_held());
    guard.release().await.unwrap();
    namespace.wait_until_empty().await;
}

/// Regardless of which packets are lost or delayed.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_abandoned_during_a_partition_leaves_no_node() {
    const LONG: Duration = Duration::from_secs(20);
    let server = zookeeper::start(&[]).unwrap();
    let (namespace, proxy) = (Namespace::of(&server), Proxy::to(server.port()));
    let raw = namespace.client().await;
    let there = Locks::connect(&namespace.url).await.unwrap();
    let here = Locks::connect(&proxy.url(&namespace.url_with_session(LONG))).await.unwrap();
    here.lock("first").acquire().await.unwrap().release().await.unwrap();
    for flow in [Flow::Drop, Flow::Hold, Flow::Stall] {
        for ways in [&BOTH[..], &[Direction::ToServer], &[Direction::ToClient]] {
            for held in [false, true] {
                let name = format!("{flow:?} {ways:?} {held}");
                // The lock's node exists, so the first packet is the create.
                let guard = there.lock(&name).acquire().await.unwrap();
                let guard = if held { Some(guard) } else { guard.release().await.map(|()| None).unwrap() };
                ways.iter().for_each(|way| proxy.set(*way, flow));
                let acquiring = tokio::spawn(here.lock(&name).acquire());
                if ways == [Direction::ToClient] {
                    until("its node is created", async || {
                        namespace.requests(&raw).await == 1 + usize::from(held)
                    })
                    .await;
                } else {
                    pause(Duration::from_millis(50)).await;
                }
                assert!(!acquiring.is_finished());
                acquiring.abort();
                assert!(acquiring.await.unwrap_err().is_cancelled());
                let abandoned = now();
                pause(Duration::from_millis(50)).await;
                proxy.set_both(Flow::Pass);
                // Packets that were held back arrive before this is answered.
                here.lock("after").acquire().await.unwrap().release().await.unwrap();
                until("its node is deleted", async || namespace.requests(&raw).await == usize::from(held))
                    .await;
                let took = now().since(abandoned);
                println!("{name}: gone after {took:.1?}");
                assert!(took < LONG, "not before the end of its session: {took:?}");
                if let Some(guard) = guard {
                    guard.release().await.unwrap();
                }
                // No create arrives later.
                there.lock(&name).acquire().await.unwrap().release().await.unwrap();
            }
        }
    }
    namespace.wait_until_empty().await;
}
