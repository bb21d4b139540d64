//! Crate `rslock` on one Redis, measured as the benchmark measures this library.
//!
//! ```text
//! polylock-peers REDIS_URL
//! ```
//!
//! It prints one line of JSON; all times are in microseconds.
#![forbid(unsafe_code)]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use rslock::LockManager;
use serde_json::{Value, json};
use tokio::sync::Barrier;

const TTL: Duration = Duration::from_secs(30);
const PAIRS: u32 = 2_000;
/// The number of pairs at the start that do not count, because connections are created.
const WARM: u32 = 200;
const TASKS: usize = 64;
const DURATION: Duration = Duration::from_secs(3);

/// One hold: when it was wanted, when it was acquired, and when its release began.
#[derive(Clone, Copy)]
struct Section {
    wanted: Instant,
    acquired: Instant,
    released: Instant,
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let url = std::env::args().nth(1).expect("the URL of a Redis server");
    let manager = LockManager::new(vec![url]);
    let measured = json!({
        "peer": "rslock", "uncontended": uncontended(&manager).await, "contended": contended(&manager).await,
    });
    println!("{measured}");
}

async fn uncontended(manager: &LockManager) -> Value {
    let mut times = micros();
    for round in 0..PAIRS + WARM {
        let began = Instant::now();
        let lock = manager.lock("uncontended", TTL).await.expect("uncontended");
        manager.unlock(&lock).await;
        if round >= WARM {
            record(&mut times, began.elapsed());
        }
    }
    json!({ "p50_us": times.value_at_quantile(0.5), "p99_us": times.value_at_quantile(0.99) })
}

async fn contended(manager: &LockManager) -> Value {
    let start = Arc::new(Barrier::new(TASKS));
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (manager, start) = (manager.clone(), start.clone());
            tokio::spawn(async move {
                start.wait().await;
                let (until, mut sections) = (Instant::now() + DURATION, Vec::new());
                while Instant::now() < until {
                    let wanted = Instant::now();
                    let lock = manager.acquire_no_guard("contended", TTL).await.expect("it waits");
                    let acquired = Instant::now();
                    sections.push(Section { wanted, acquired, released: acquired });
                    manager.unlock(&lock).await;
                }
                sections
            })
        })
        .collect();
    let mut of_tasks = Vec::new();
    for task in tasks {
        of_tasks.push(task.await.expect("no task panics"));
    }
    // The sections of each task when the first one has finished.
    let ends = of_tasks.iter().filter_map(|sections| sections.last().map(|last| last.released));
    let first_done = ends.min().expect("somebody had it");
    let shares =
        of_tasks.iter().map(|all| all.iter().filter(|section| section.released <= first_done).count());
    let (fewest, most) =
        shares.fold((usize::MAX, 0), |(fewest, most), share| (fewest.min(share), most.max(share)));
    let mut all: Vec<Section> = of_tasks.into_iter().flatten().collect();
    all.sort_by_key(|section| section.acquired);
    let (mut hand_over, mut wait) = (micros(), micros());
    for pair in all.windows(2) {
        record(&mut hand_over, pair[1].acquired.saturating_duration_since(pair[0].released));
    }
    for section in &all {
        record(&mut wait, section.acquired - section.wanted);
    }
    let elapsed = all.last().expect("somebody had it").released - all[0].wanted;
    json!({
        "tasks": TASKS,
        "acquisitions_per_s": all.len() as f64 / elapsed.as_secs_f64(),
        "hand_over_p50_us": hand_over.value_at_quantile(0.5),
        "hand_over_p99_us": hand_over.value_at_quantile(0.99),
        "wait_p99_us": wait.value_at_quantile(0.99),
        "wait_max_us": wait.max(),
        "fairness": fewest as f64 / most.max(1) as f64,
    })
}

fn micros() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 600_000_000, 3).expect("from a microsecond to ten minutes")
}

fn record(times: &mut Histogram<u64>, took: Duration) {
    times.saturating_record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
}
