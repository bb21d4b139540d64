//! One task, one lock, nobody else: acquire and release, in turns with the raw driver.

use std::time::Duration;

use hdrhistogram::Histogram;
use polylock::{Locks, Moment};
use polylock_integration_tests::{
    clock::now,
    history::{at, nanos},
};

use crate::{
    Flavour, goals,
    raw::Raw,
    report::{Cell, Report},
    setups::Setup,
};

/// Batches in turn, so that what else the machine does hits both alike.
const BATCHES: u32 = 60;
const BATCH: u32 = 20;
/// The first batches, in which statements are prepared and files grow, do not count.
const WARM: u32 = 5;
/// Raw pairs beside what many do.
const FLOOR: u32 = 200;

/// Prints the table.
pub(crate) fn run(setups: &[Setup], report: &mut Report) {
    let title = "Uncontended acquire + release\n\n\
         Alternating with raw: INSERT + DELETE by sqlx on the same settings, on a pool of sqlx where there is a server. \
         And with the least that could be: on connections of its own, with a release as little durable as ours. In ZooKeeper: \
         create, list and delete, one by one, and with the first two at once.";
    let columns = &[
        "store",
        "durability",
        "runtime",
        "p50",
        "p99",
        "raw p50",
        "raw p99",
        "p50 / raw",
        "goal",
        "p50 / least",
    ];
    report.begin("uncontended", title, columns);
    for setup in setups.iter().copied().filter(|setup| *setup != Setup::Memory) {
        for flavour in [Flavour::MultiThread, Flavour::CurrentThread] {
            let [polylock, raw, minimal] = flavour.run(beside_raw(setup));
            let goal =
                if flavour == Flavour::MultiThread { goals::pair(setup) } else { goals::CURRENT_THREAD };
            let (store, durability) = setup.names();
            report.row(vec![
                Cell::text(store),
                Cell::text(durability),
                Cell::text(flavour.name()),
                Cell::time(at(&polylock, 0.5)),
                Cell::time(at(&polylock, 0.99)),
                Cell::time(at(&raw, 0.5)),
                Cell::time(at(&raw, 0.99)),
                Cell::ratio(ratio(&polylock, &raw)),
                Cell::text(format!("<= {goal}")),
                (!minimal.is_empty()).then(|| Cell::ratio(ratio(&polylock, &minimal))).into(),
            ]);
        }
    }
    if setups.contains(&Setup::Memory) {
        for flavour in [Flavour::MultiThread, Flavour::CurrentThread] {
            let polylock = flavour.run(in_memory());
            let mut row = vec![Cell::text("memory"), Cell::text("none"), Cell::text(flavour.name())];
            row.extend([Cell::time(at(&polylock, 0.5)), Cell::time(at(&polylock, 0.99))]);
            row.extend([Cell::none(), Cell::none(), Cell::none(), Cell::text("<= 30 us"), Cell::none()]);
            report.row(row);
        }
    }
}

/// The p50 of what a hand-over is compared with: a script's round trip in Redis, elsewhere nothing.
pub(crate) async fn trip(setup: Setup) -> Option<Duration> {
    if !matches!(setup, Setup::RedisDurable | Setup::RedisForgetful) {
        return None;
    }
    let (namespace, _) = setup.open().await;
    let (mut raw, mut times) = (setup.raw(&namespace).await?, nanos());
    for round in 0..FLOOR {
        let began = now();
        raw.script(b"bench", owner(began)).await;
        if round >= BATCH {
            record(&mut times, now().since(began));
        }
    }
    Some(at(&times, 0.5))
}

/// The raw p50 at this moment, if there is one.
pub(crate) async fn floor(setup: Setup) -> Option<Histogram<u64>> {
    let (namespace, _) = setup.open().await;
    let (mut raw, mut times) = (setup.raw(&namespace).await?, nanos());
    for round in 0..FLOOR {
        let began = now();
        raw.pair(b"bench", owner(began)).await;
        if round >= BATCH {
            record(&mut times, now().since(began));
        }
    }
    Some(times)
}

/// Ours, raw, and the least that could be.
async fn beside_raw(setup: Setup) -> [Histogram<u64>; 3] {
    let (namespace, url) = setup.open().await;
    let locks = Locks::connect(&url).await.unwrap();
    let mut raw: [Option<Raw>; 2] = [setup.raw(&namespace).await, setup.minimal(&namespace).await];
    let mut times = [nanos(), nanos(), nanos()];
    for batch in 0..BATCHES {
        for turn in 0..3 {
            // Each is first as often as the others.
            let which = usize::try_from((turn + batch) % 3).unwrap();
            for _ in 0..BATCH {
                let began = now();
                match which {
                    0 => pair(&locks).await,
                    other => match &mut raw[other - 1] {
                        Some(raw) => raw.pair(b"bench", owner(began)).await,
                        None => break,
                    },
                }
                if batch >= WARM {
                    record(&mut times[which], now().since(began));
                }
            }
        }
    }
    times
}

/// As many bytes as a request's id.
pub(crate) fn owner(began: Moment) -> [u8; 16] {
    u128::from(began.as_nanos()).to_be_bytes()
}

async fn in_memory() -> Histogram<u64> {
    let (_spot, url) = Setup::Memory.open().await;
    let locks = Locks::connect(&url).await.unwrap();
    let mut times = nanos();
    for round in 0..20_000 {
        let began = now();
        pair(&locks).await;
        if round >= 2_000 {
            record(&mut times, now().since(began));
        }
    }
    times
}

async fn pair(locks: &Locks) {
    let guard = locks.lock("bench").acquire().await.unwrap();
    guard.release().await.unwrap();
}

fn record(times: &mut Histogram<u64>, took: Duration) {
    times.saturating_record(u64::try_from(took.as_nanos()).unwrap());
}

fn ratio(polylock: &Histogram<u64>, raw: &Histogram<u64>) -> f64 {
    at(polylock, 0.5).as_secs_f64() / at(raw, 0.5).as_secs_f64()
}
