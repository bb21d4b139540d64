//! SIGSTOP of a holder past its lease, then SIGCONT: it wakes up believing what was true before.
//!
//! A process that is stopped in the middle of a write keeps the lock that SQLite itself has on the file, and then nobody
//! can write to it until it goes on or dies. That is SQLite's nature, and harms no promise but that of progress. It hits
//! few stops, which are counted; each holder has a file of its own, so that it does not hit the others. A server goes on
//! by itself with what it was told, and must have none of that.

use std::time::Duration;

use polylock::Locks;
use polylock_integration_tests::{on_stores, process::Process, stores::spot};

use crate::worker;

const HOLDERS: u32 = 10;
const TTL: Duration = Duration::from_millis(300);

/// What the holders saw of all stops.
#[derive(Debug, Default)]
struct Seen {
    stops: u64,
    in_a_write: u64,
    late: u64,
    underway: u64,
    polls: u64,
}

/// Stops as many holders of distinct locks, each so often. While one stands still another takes its lock.
async fn stop_and_go(store: &'static str, scenario: &'static str, rounds: u32) -> Seen {
    let tasks: Vec<_> =
        (0..HOLDERS).map(|holder| tokio::spawn(one_holder(store, scenario, holder, rounds))).collect();
    let mut all = Seen::default();
    for task in tasks {
        let seen = task.await.unwrap();
        all.stops += seen.stops;
        all.in_a_write += seen.in_a_write;
        all.late += seen.late;
        all.underway += seen.underway;
        all.polls += seen.polls;
    }
    println!("{store}, {scenario}: {all:?}");
    all
}

async fn one_holder(store: &str, scenario: &str, holder: u32, rounds: u32) -> Seen {
    let spot = spot(store).await;
    let (ttl, rounds) = (spot.lease(TTL), spot.times(rounds as usize));
    let url = spot.url_with("polylock.ttl", &format!("{}ms", ttl.as_millis()));
    let name = format!("stopped/{holder}");
    let timeout = match store {
        "redis" | "redlock3" => "command_timeout",
        "zookeeper" => "connect_timeout",
        "azure" => "request_timeout",
        store if is_sqlite(store) => "busy_timeout",
        _ => "timeout",
    };
    let locks = Locks::connect(&format!("{url}&polylock.{timeout}=2s&polylock.outage=1s")).await.unwrap();
    let mut process = worker(scenario, &url, &name, &[&rounds.to_string()]);
    let mut seen = Seen::default();
    for round in 0..rounds {
        let (back, held) = hears(process, "held").await;
        process = back;
        let token: u64 = held[0].parse().unwrap();
        // The fault comes at any point of the renewals.
        let at = holder + u32::try_from(round).unwrap();
        polylock_integration_tests::clock::pause(ttl / (3 * HOLDERS) * at).await;
        process.stop();
        // Lost by now: another has it.
        let taken = locks.lock(&name).acquire().await;
        process.go_on();
        let (back, lost) = hears(process, "lost").await;
        process = back;
        match taken {
            Ok(guard) => {
                assert!(guard.fencing_token().get() > token);
                guard.release().await.unwrap();
            }
            Err(error) => {
                println!(
                    "{store}, {name}: stopped in a write: {error}: {:?}",
                    std::error::Error::source(&error)
                );
                assert!(error.is_temporary(), "{error}");
                seen.in_a_write += 1;
            }
        }
        let number = |at: usize| lost[at].parse::<u64>().unwrap();
        seen.stops += 1;
        seen.late += number(0);
        seen.underway += number(1);
        seen.polls += number(2);
    }
    assert!(process.ends().success());
    seen
}

/// Hears `word` without blocking the others.
async fn hears(mut process: Process, word: &'static str) -> (Process, Vec<String>) {
    let heard = tokio::task::spawn_blocking(move || {
        let words = process.hears(word);
        (process, words)
    });
    heard.await.unwrap()
}

fn is_sqlite(store: &str) -> bool {
    store.starts_with("sqlite")
}

on_stores! { a_stopped_holder_reports_the_loss_and_its_work_is_not_polled_after_the_deadline }

async fn a_stopped_holder_reports_the_loss_and_its_work_is_not_polled_after_the_deadline(
    store: &'static str,
) {
    let seen = stop_and_go(store, "hold", 10).await;
    assert_eq!(seen.stops, u64::from(HOLDERS) * spot(store).await.times(10) as u64);
    assert!(seen.polls > 100, "the work was busy: {seen:?}");
    let bearable = if is_sqlite(store) { 10 } else { 0 };
    assert!(seen.in_a_write <= bearable, "the store's own lock is held for too long: {seen:?}");
    assert_eq!(seen.late, 0, "polled after the deadline: {seen:?}");
    assert!(seen.underway <= 1, "stopped within a poll this often can't be chance: {seen:?}");
}

/// The planted twin: what everybody writes by hand polls the work after the deadline, and is found out. The store has no
/// part in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_select_polls_the_work_after_the_deadline() {
    let seen = stop_and_go("sqlite_full", "hold-by-select", 5).await;
    assert!(seen.late > 0, "the count does not see late polls: {seen:?}");
}
