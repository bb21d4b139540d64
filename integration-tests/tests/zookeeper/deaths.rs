//! Who dies, and who gives up: what is left of them, and for how long.

use std::time::Duration;

use polylock::Locks;
use polylock_integration_tests::{
    clock::{PATIENCE, now, pause, until},
    process::Process,
    proxy::{BOTH, Flow, Proxy, Way},
    servers::zookeeper,
};

use crate::{SLACK, Spot, waiters};

const TICK: Duration = Duration::from_millis(500);
const SESSION: Duration = Duration::from_secs(4);

/// `kill -9`, at three points between two renewals.
#[tokio::test(flavor = "multi_thread")]
async fn kill_9_of_the_holder_frees_the_lock_within_its_session_and_two_ticks() {
    let server = zookeeper::start(&["tickTime=500", "minSessionTimeout=1000"]).unwrap();
    let spot = Spot::of(&server);
    let locks = Locks::connect(&spot.url).await.unwrap();
    for round in 0..3 {
        let name = format!("killed/{round}");
        let arguments = ["hold", &spot.with(SESSION), &name, "1"];
        let mut holder = Process::start(env!("CARGO_BIN_EXE_worker"), arguments);
        let token: u64 = holder.hears("held")[0].parse().unwrap();
        let next = tokio::spawn(locks.lock(&name).acquire());
        waiters(&locks, &name, 1).await;
        pause(SESSION / 10 * round).await;
        holder.kill();
        let killed = now();
        let next = tokio::time::timeout(PATIENCE, next).await.expect("it is served").unwrap().unwrap();
        let took = now().since(killed);
        println!("free {took:.2?} after the kill; its session was for {SESSION:?}");
        assert!(took < SESSION + 2 * TICK + SLACK, "{took:?}");
        assert!(next.fencing_token().get() > token);
        next.release().await.unwrap();
    }
    spot.is_clean().await;
}

/// Long before its session ends, which goes on.
#[tokio::test(flavor = "multi_thread")]
async fn the_node_of_a_waiter_that_is_cancelled_goes_at_once() {
    let server = zookeeper::start(&[]).unwrap();
    let spot = Spot::of(&server);
    let (here, raw) = (Locks::connect(&spot.url).await.unwrap(), spot.raw().await);
    let guard = here.lock("n").acquire().await.unwrap();
    for round in 0..20_u32 {
        let waiting = tokio::spawn(here.lock("n").acquire());
        if round % 2 == 0 {
            waiters(&here, "n", 1).await;
        } else {
            // At any point of its making.
            pause(Duration::from_micros(200) * round).await;
        }
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
        let cancelled = now();
        // Twice: what was on its way is there for all now.
        for _ in 0..2 {
            until("it is gone", async || spot.requests(&raw).await == 1).await;
        }
        let took = now().since(cancelled);
        println!("gone after {took:.1?}");
        assert!(took < Duration::from_secs(1) + SLACK, "{took:?}");
    }
    assert!(guard.is_held());
    guard.release().await.unwrap();
    spot.is_clean().await;
}

/// Whatever of its request was lost, or comes late.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_abandoned_in_a_black_hole_leaves_no_node() {
    const LONG: Duration = Duration::from_secs(20);
    let server = zookeeper::start(&[]).unwrap();
    let (spot, proxy) = (Spot::of(&server), Proxy::to(server.port()));
    let raw = spot.raw().await;
    let there = Locks::connect(&spot.url).await.unwrap();
    let here = Locks::connect(&proxy.url(&spot.with(LONG))).await.unwrap();
    here.lock("first").acquire().await.unwrap().release().await.unwrap();
    for flow in [Flow::Swallow, Flow::Hold, Flow::Stall] {
        for ways in [&BOTH[..], &[Way::ToServer], &[Way::ToClient]] {
            for held in [false, true] {
                let name = format!("{flow:?} {ways:?} {held}");
                // Its node is there, so that the create is the first that is sent.
                let guard = there.lock(&name).acquire().await.unwrap();
                let guard = if held { Some(guard) } else { guard.release().await.map(|()| None).unwrap() };
                ways.iter().for_each(|way| proxy.set(*way, flow));
                let taking = tokio::spawn(here.lock(&name).acquire());
                if ways == [Way::ToClient] {
                    until("its node is made", async || spot.requests(&raw).await == 1 + usize::from(held))
                        .await;
                } else {
                    pause(Duration::from_millis(50)).await;
                }
                assert!(!taking.is_finished());
                taking.abort();
                assert!(taking.await.unwrap_err().is_cancelled());
                let abandoned = now();
                pause(Duration::from_millis(50)).await;
                proxy.set_both(Flow::Pass);
                // Anything that is held back has come before this is answered.
                here.lock("after").acquire().await.unwrap().release().await.unwrap();
                until("it is gone", async || spot.requests(&raw).await == usize::from(held)).await;
                let took = now().since(abandoned);
                println!("{name}: gone after {took:.1?}");
                assert!(took < LONG, "its session would have ended: {took:?}");
                if let Some(guard) = guard {
                    guard.release().await.unwrap();
                }
                // Nothing comes later either.
                there.lock(&name).acquire().await.unwrap().release().await.unwrap();
            }
        }
    }
    spot.is_clean().await;
}
