//! Servers that stop for a fraction of a second (a fork, a slow disk, a paused virtual machine), each at a different time and for
//! a different duration, while clients compete for one lock.
//!
//! The normal run is short. The acceptance run takes about half an hour, and is started with
//! `POLYLOCK_TEST_PAUSES=200 cargo test -p polylock-integration-tests --test scenarios redlock::pauses:: -- --nocapture`.

use std::time::Duration;

use polylock::{Error, Locks, Mode};
use polylock_integration_tests::{
    clock::{now, pause},
    refusals::describe,
};
use polylock_testkit::history::{self, Attempt, Recorder, Rules, Section};
use tokio::{sync::watch, task::JoinSet};

use super::setup::{MAX_FREE_TIME, Setup};

/// The longest time for which the lock may be free while a client waits for it: two seconds, including a pause of the servers, and the time
/// that a busy machine may add.
const HANDOVER: Duration = Duration::from_secs(5);

/// Returns the number of pauses of each kind.
fn pauses() -> u64 {
    std::env::var("POLYLOCK_TEST_PAUSES").map_or(5, |count| count.parse().unwrap())
}

fn millis(range: std::ops::Range<u64>) -> Duration {
    Duration::from_millis(fastrand::u64(range))
}

/// Stops `count` random servers, each after a random delay and for a random time.
async fn stop_some(setup: &Setup, count: usize) {
    let mut nodes: Vec<usize> = (0..setup.nodes.len()).collect();
    fastrand::shuffle(&mut nodes);
    let stops = nodes[..count].iter().map(|node| async {
        pause(millis(0..150)).await;
        tokio::task::block_in_place(|| setup.nodes[*node].freeze());
        pause(millis(300..1000)).await;
        tokio::task::block_in_place(|| setup.nodes[*node].thaw());
    });
    futures_util::future::join_all(stops).await;
}

/// Acquires the lock, holds it for a random time, and releases it.
async fn hold_once(locks: &Locks, attempt: Attempt) -> Result<(), Error> {
    let guard = locks.lock("n").acquire().await?;
    let hold = attempt.acquired(&guard);
    tokio::select! {
        biased;
        _ = guard.lost() => {
            hold.lost(guard.deadline());
        }
        () = pause(millis(0..250)) => {
            hold.releasing(&guard);
        }
    }
    guard.release().await
}

/// Acquires and releases the lock until the end of the run. Returns the releases that failed or reported a loss.
async fn compete(
    locks: Locks,
    client: usize,
    recorder: Recorder,
    over: watch::Receiver<bool>,
) -> Vec<String> {
    let mut failures = Vec::new();
    while !*over.borrow() {
        let attempt = recorder.invoke("n", client.to_string(), Mode::Exclusive);
        if let Err(error) = hold_once(&locks, attempt).await {
            failures.push(describe(&error).1);
        }
        // Sometimes the lock is free when a pause begins, and is requested during the pause.
        if fastrand::bool() {
            pause(millis(0..1500)).await;
        }
    }
    failures
}

/// Returns the longest time for which the lock was free while the next holder waited for it.
fn longest_handover(sections: &[Section]) -> Duration {
    let mut sections: Vec<&Section> = sections.iter().collect();
    sections.sort_by_key(|section| section.acquired);
    let idle = |pair: &[&Section]| pair[1].acquired.saturating_sub(pair[0].end().max(pair[1].invoked));
    Duration::from_nanos(sections.windows(2).map(idle).max().unwrap_or(0))
}

/// Waits until the servers have only the documented keys, for [`MAX_FREE_TIME`] at most.
async fn assert_nothing_is_left(setup: &Setup) {
    let until = now() + MAX_FREE_TIME;
    for node in 0..setup.nodes.len() {
        loop {
            let mut left: Vec<String> = setup.query(node, &["KEYS", "*"]).await;
            left.retain(|key| !key.starts_with("{polylock}:member") && !key.starts_with("{polylock}:n:"));
            if left.is_empty() {
                break;
            }
            assert!(now() < until, "left behind on server {node}: {left:?}");
            pause(Duration::from_millis(5)).await;
        }
    }
}

async fn compete_during_pauses(nodes: usize, clients: usize) {
    for (options, delays) in [("", true), ("polylock.restart=trust", false)] {
        for (what, stopped) in [("a majority", nodes / 2 + 1), ("a minority", nodes / 2)] {
            let setup = Setup::private_direct(nodes);
            let url = setup.direct_url(options);
            if delays {
                assert_eq!(setup.admit(&url).await.len(), nodes);
            }
            let recorder = Recorder::new();
            let (end, over) = watch::channel(false);
            let mut competing = JoinSet::new();
            for client in 0..clients {
                let locks = Locks::connect(&url).await.unwrap();
                competing.spawn(compete(locks, client, recorder.clone(), over.clone()));
            }
            for _ in 0..pauses() {
                pause(millis(1000..1500)).await;
                stop_some(&setup, stopped).await;
            }
            end.send(true).unwrap();
            let failures = competing.join_all().await.concat();
            let sections = recorder.sections();
            let handover = longest_handover(&sections);
            println!(
                "{nodes} servers, {clients} clients, {} pauses of {what}, {options:?}: {} sections, longest hand-over {handover:.1?}",
                pauses(),
                sections.len(),
            );
            assert_eq!(history::check(&sections, Rules::default()), []);
            assert_eq!(failures, [""; 0], "releases");
            assert!(handover < HANDOVER, "{handover:?}");
            assert!(sections.len() as u64 > pauses(), "clients make progress");
            assert_nothing_is_left(&setup).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn three_servers_and_two_clients() {
    compete_during_pauses(3, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_servers_and_eight_clients() {
    compete_during_pauses(3, 8).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn five_servers_and_two_clients() {
    compete_during_pauses(5, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn five_servers_and_eight_clients() {
    compete_during_pauses(5, 8).await;
}
