//! SIGSTOP of a holder past its lease, then SIGCONT: it resumes with outdated state.
//!
//! A process that is stopped in the middle of a write keeps the lock that SQLite itself has on the file, and then no other
//! process can write to it until it resumes or dies. This is a property of SQLite, which affects only progress. It happens in
//! few stops, which are counted; each holder has its own file, so that the others are not affected. A server completes
//! its requests by itself, and must show no such stop.

use std::time::Duration;

use polylock::Locks;
use polylock_integration_tests::{load::turn, on_stores, process::Process, stores::namespace};

use crate::worker;

const HOLDERS: u32 = 10;
const TTL: Duration = Duration::from_millis(300);

/// The counts of all holders.
#[derive(Debug, Default)]
struct Counts {
    stops: u64,
    in_a_write: u64,
    late: u64,
    underway: u64,
    polls: u64,
}

/// Stops and resumes holders of distinct locks. While one is stopped, another client acquires its lock.
async fn stop_and_go(store: &'static str, scenario: &'static str, rounds: u32) -> Counts {
    let _turn = turn().await;
    let tasks: Vec<_> =
        (0..HOLDERS).map(|holder| tokio::spawn(one_holder(store, scenario, holder, rounds))).collect();
    let mut all = Counts::default();
    for task in tasks {
        let counts = task.await.unwrap();
        all.stops += counts.stops;
        all.in_a_write += counts.in_a_write;
        all.late += counts.late;
        all.underway += counts.underway;
        all.polls += counts.polls;
    }
    println!("{store}, {scenario}: {all:?}");
    all
}

async fn one_holder(store: &str, scenario: &str, holder: u32, rounds: u32) -> Counts {
    let namespace = namespace(store).await;
    let (ttl, rounds) = (namespace.lease(TTL), namespace.times(rounds as usize));
    let url = namespace.url_with("polylock.ttl", &format!("{}ms", ttl.as_millis()));
    let name = format!("stopped/{holder}");
    let timeout = if store == "zookeeper" { "connect_timeout" } else { "operation_timeout" };
    // A server on a busy machine may be slow for seconds. A stop in a write lasts until this client gives up.
    let outage = if is_sqlite(store) { "1s" } else { "10s" };
    let locks =
        Locks::connect(&format!("{url}&polylock.{timeout}=2s&polylock.outage={outage}")).await.unwrap();
    let mut process = worker(scenario, &url, &name, &[&rounds.to_string()]);
    let mut counts = Counts::default();
    for round in 0..rounds {
        let (back, held) = expect_line(process, "held").await;
        process = back;
        let token: u64 = held[0].parse().unwrap();
        // The fault happens at any point of the renewals.
        let at = holder + u32::try_from(round).unwrap();
        polylock_integration_tests::clock::pause(ttl / (3 * HOLDERS) * at).await;
        process.stop();
        // The hold ends meanwhile, and the lock is granted to this client.
        let taken = locks.lock(&name).acquire().await;
        process.resume();
        let (back, lost) = expect_line(process, "lost").await;
        process = back;
        match taken {
            Ok(guard) => {
                assert!(guard.fencing_token().get() > token);
                // On a busy machine, its short lease may end before the reply.
                if let Err(error) = guard.release().await {
                    assert!(error.is_temporary() || error.lost().is_some(), "{error:?}");
                }
            }
            Err(error) => {
                println!(
                    "{store}, {name}: stopped in a write: {error}: {:?}",
                    std::error::Error::source(&error)
                );
                assert!(error.is_temporary(), "{error}");
                counts.in_a_write += 1;
            }
        }
        let number = |at: usize| lost[at].parse::<u64>().unwrap();
        counts.stops += 1;
        counts.late += number(0);
        counts.underway += number(1);
        counts.polls += number(2);
    }
    process.send_line("end");
    assert!(process.wait_for_exit().success());
    counts
}

/// Waits for the line `word` without blocking the other holders.
async fn expect_line(mut process: Process, word: &'static str) -> (Process, Vec<String>) {
    let reading = tokio::task::spawn_blocking(move || {
        let words = process.expect_line(word);
        (process, words)
    });
    reading.await.unwrap()
}

fn is_sqlite(store: &str) -> bool {
    store.starts_with("sqlite")
}

on_stores! { a_stopped_holder_reports_the_loss_and_its_work_is_not_polled_after_the_deadline }

async fn a_stopped_holder_reports_the_loss_and_its_work_is_not_polled_after_the_deadline(
    store: &'static str,
) {
    let counts = stop_and_go(store, "hold", 10).await;
    assert_eq!(counts.stops, u64::from(HOLDERS) * namespace(store).await.times(10) as u64);
    assert!(counts.polls > 100, "the work was polled too rarely: {counts:?}");
    let allowed = if is_sqlite(store) { 10 } else { 0 };
    assert!(counts.in_a_write <= allowed, "too many stops within a write: {counts:?}");
    assert_eq!(counts.late, 0, "polled after the deadline: {counts:?}");
    assert!(counts.underway <= 1, "too many polls under way at a deadline: {counts:?}");
}

/// The counterexample: a plain `select!` polls the work after the deadline, and the test detects it. It does not depend on the
/// store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_select_polls_the_work_after_the_deadline() {
    let counts = stop_and_go("sqlite_full", "hold-by-select", 5).await;
    assert!(counts.late > 0, "late polls were not counted: {counts:?}");
}
