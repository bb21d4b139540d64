//! A semaphore beside a lock of the same store: the cost without contention, and the fairness under contention.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use polylock::Locks;
use polylock_bench::Times;
use polylock_integration_tests::clock::now;

use crate::{
    Flavour,
    report::{Cell, Report},
    setups::Setup,
};

const SLOTS: u32 = 4;
const TASKS: usize = 64;
const DURATION: Duration = Duration::from_secs(3);

/// The batches of each, the pairs of a batch, and the first ones of it, which do not count.
const ROUNDS: usize = 30;
const BATCH: usize = 20;
const WARM_UP: usize = 5;

/// Prints the table.
pub(crate) fn run(setups: &[Setup], report: &mut Report) {
    let title = format!(
        "Semaphore of {SLOTS} slots\n\n\
         Uncontended pairs, alternating with pairs of a lock; and {TASKS} tasks in one process, each again and again for {DURATION:?} (nothing is done \
         with a slot)."
    );
    let columns = &[
        "store",
        "durability",
        "p50",
        "lock p50",
        "p50 / lock",
        "acquisitions/s",
        "fairness min/max",
        "most holders",
    ];
    report.begin("semaphore", &title, columns);
    for setup in setups {
        let [semaphore, lock] = Flavour::MultiThread.run(beside_lock(*setup));
        let contended = Flavour::MultiThread.run(contend(*setup));
        let (store, durability) = setup.names();
        report.row(vec![
            Cell::text(store),
            Cell::text(durability),
            Cell::time(semaphore.p50()),
            Cell::time(lock.p50()),
            semaphore.ratio_to(&lock).map(Cell::ratio).into(),
            Cell::number(contended.rate, 0),
            Cell::number(contended.fairness, 2),
            Cell::count(contended.most_holders as u64),
        ]);
    }
}

/// Pairs of a semaphore, and of a lock.
async fn beside_lock(setup: Setup) -> [Times; 2] {
    let (_namespace, url) = setup.open().await;
    let locks = Locks::connect(&url).await.unwrap();
    let mut times = [Times::new(), Times::new()];
    for _ in 0..ROUNDS {
        for pair in 0..BATCH {
            let began = now();
            locks.semaphore("slots", SLOTS).acquire().await.unwrap().release().await.unwrap();
            if pair >= WARM_UP {
                times[0].record_since(began);
            }
        }
        for pair in 0..BATCH {
            let began = now();
            locks.lock("lock").acquire().await.unwrap().release().await.unwrap();
            if pair >= WARM_UP {
                times[1].record_since(began);
            }
        }
    }
    times
}

/// The result of a contended run.
struct Contended {
    rate: f64,
    /// The fewest acquisitions of a task divided by the most.
    fairness: f64,
    /// The greatest number of holders at the same time.
    most_holders: usize,
}

async fn contend(setup: Setup) -> Contended {
    let (_namespace, url) = setup.open().await;
    let locks = Locks::connect(&url).await.unwrap();
    let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let began = now();
    let end = began + DURATION;
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (locks, inside, most) = (locks.clone(), inside.clone(), most.clone());
            tokio::spawn(async move {
                let mut count = 0_u32;
                while now() < end {
                    let guard = locks.semaphore("slots", SLOTS).acquire().await.unwrap();
                    most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.release().await.unwrap();
                    count += 1;
                }
                count
            })
        })
        .collect();
    let mut counts = Vec::new();
    for task in tasks {
        counts.push(task.await.unwrap());
    }
    let seconds = now().since(began).as_secs_f64();
    let (fewest, greatest) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
    Contended {
        rate: f64::from(counts.iter().sum::<u32>()) / seconds,
        fairness: f64::from(*fewest) / f64::from(*greatest),
        most_holders: most.load(Ordering::SeqCst),
    }
}
