//! The time of an acquisition and a release, and of the hand-over to a waiter.

use std::time::Duration;

use polylock::{Clock, Error, Moment, Result, Scope, SystemClock, core::Locks};
use polylock_bench::process::print_line as print;
use tokio::sync::mpsc::UnboundedReceiver;

use super::{
    process::{Job, start},
    report::{Outcome, Row},
    subject::Subject,
};
use crate::exit::Failure;

const PART: &str = "latency";
const PAIR: &str = "pair";
const HANDED: &str = "handed";

/// The time after which a waiter counts as queued, if the store does not show it.
const QUEUED_AFTER: Duration = Duration::from_millis(300);
/// The time limit of the measurements: a slow store gets fewer of them.
const TIME: Duration = Duration::from_secs(10);

/// Measures.
pub(super) async fn rows(subject: &Subject, quick: bool) -> Result<Vec<Row>, Failure> {
    let namespace = subject.namespaces.create();
    let locks = subject.open(&namespace).await?;
    let (pairs, handovers) = if quick { (100, 10) } else { (500, 40) };
    let row = |name, times: Vec<Duration>| row(name, times, subject.options.ttl);
    let mut rows = vec![row("acquire and release", measure_pairs(&locks, pairs).await?)];
    rows.push(row("hand-over in this process", within_process(&locks, handovers).await?));
    rows.push(if locks.capabilities().scope == Scope::Process {
        Row::skipped(PART, "hand-over to another process", "the store is in the memory of one process")
    } else {
        row("hand-over to another process", across_processes(&locks, &namespace, handovers).await?)
    });
    Ok(rows)
}

fn row(name: &str, mut times: Vec<Duration>, ttl: Duration) -> Row {
    times.sort_unstable();
    let Some(last) = times.len().checked_sub(1) else {
        return Row::new(PART, name, Outcome::Failure, "no hand-over was completed");
    };
    let (p50, p99) = (times[last / 2], times[last * 99 / 100]);
    let milliseconds = |time: Duration| format!("{:.2} ms", time.as_secs_f64() * 1000.0);
    let value = format!("p50 {}, p99 {} ({} times)", milliseconds(p50), milliseconds(p99), times.len());
    Row::ok(PART, name, value).warn_if(
        p99 > ttl / 10,
        "the p99 is more than a tenth of the TTL, so that a few slow renewals may lose a lock: choose a longer TTL, or a nearer store",
    )
}

async fn measure_pairs(locks: &Locks, count: usize) -> Result<Vec<Duration>> {
    let end = SystemClock.now() + TIME;
    let mut times = Vec::new();
    while times.len() < count && SystemClock.now() < end {
        let begin = SystemClock.now();
        locks.lock(PAIR).acquire().await?.release().await?;
        times.push(SystemClock.now().since(begin));
    }
    Ok(times)
}

async fn within_process(locks: &Locks, count: usize) -> Result<Vec<Duration>> {
    let end = SystemClock.now() + TIME;
    let mut times = Vec::new();
    while times.len() < count && SystemClock.now() < end {
        let guard = locks.lock(HANDED).acquire().await?;
        let waiter = locks.lock(HANDED);
        let waiter = tokio::spawn(async move {
            let guard = waiter.acquire().await?;
            let acquired = SystemClock.now();
            guard.release().await?;
            Ok::<_, Error>(acquired)
        });
        queued(locks).await;
        let released = SystemClock.now();
        guard.release().await?;
        let Ok(acquired) = waiter.await else { break };
        times.push(acquired?.since(released));
    }
    Ok(times)
}

async fn across_processes(locks: &Locks, namespace: &str, count: usize) -> Result<Vec<Duration>, Failure> {
    let mut worker = start(&Job::Waiter { namespace: namespace.to_owned() })?;
    let end = SystemClock.now() + TIME;
    let mut times = Vec::new();
    while times.len() < count && SystemClock.now() < end {
        let guard = locks.lock(HANDED).acquire().await?;
        worker.send("acquire");
        queued(locks).await;
        let released = SystemClock.now();
        guard.release().await?;
        let line = worker.next_line(end + TIME).await;
        let Some(acquired) = line.and_then(|line| line.parse().ok()) else { break };
        times.push(Moment::from_nanos(acquired).since(released));
    }
    Ok(times)
}

/// Waits until somebody waits for the lock, as far as the store shows waiters.
async fn queued(locks: &Locks) {
    let until = SystemClock.now() + QUEUED_AFTER;
    while SystemClock.now() < until {
        if locks.inspect(HANDED).await.is_ok_and(|status| !status.waiters.is_empty()) {
            return;
        }
        SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(2)).await;
    }
}

/// Waits for the lock at each line of the input, and writes the time at which it had the lock.
pub(super) async fn run(
    subject: &Subject,
    namespace: &str,
    mut input: UnboundedReceiver<String>,
) -> Result<(), Failure> {
    let locks = subject.open(namespace).await?;
    while input.recv().await.is_some() {
        let guard = locks.lock(HANDED).acquire().await?;
        print(SystemClock.now().as_nanos());
        guard.release().await?;
    }
    Ok(())
}
