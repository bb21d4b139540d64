//! One task, one lock, nobody else: acquire and release, in turns with the raw driver.

use std::{collections::HashMap, time::Duration};

use hdrhistogram::Histogram;
use polylock::{Locks, Moment};
use polylock_integration_tests::{
    clock::now,
    history::{at, nanos},
    targets,
};
use sqlx::sqlite::SqliteSynchronous;

use crate::{Flavour, raw::Raw};

/// Batches in turn, so that what else the machine does hits both alike.
const BATCHES: u32 = 60;
const BATCH: u32 = 20;
/// The first batches, in which statements are prepared and files grow, do not count.
const WARM: u32 = 5;

/// The raw p50, by target.
pub(crate) type Floors = HashMap<&'static str, Duration>;

/// Prints the table.
pub(crate) fn run() -> Floors {
    println!(
        "\n## Uncontended acquire + release (raw: INSERT + DELETE by sqlx on the same settings, alternating)\n"
    );
    println!(
        "| store | durability | runtime | p50 | p99 | raw p50 | raw p99 | p50 / raw | goal | p50 / raw, release relaxed |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    let mut floors = Floors::new();
    for flavour in [Flavour::MultiThread, Flavour::CurrentThread] {
        for (target, durability, grant) in [
            ("sqlite_full", "full", SqliteSynchronous::Full),
            ("sqlite_normal", "normal", SqliteSynchronous::Normal),
        ] {
            let [ours, raw, relaxed] = flavour.run(beside_raw(target, grant));
            let goal = if flavour == Flavour::MultiThread { 1.15 } else { 1.4 };
            let p50 = at(&ours, 0.5);
            println!(
                "| sqlite | {durability} | {} | {p50:.1?} | {:.1?} | {:.1?} | {:.1?} | {} | <= {goal} | {} |",
                flavour.name(),
                at(&ours, 0.99),
                at(&raw, 0.5),
                at(&raw, 0.99),
                verdict(ratio(&ours, &raw), goal),
                ratio_text(ratio(&ours, &relaxed)),
            );
            floors.entry(target).or_insert_with(|| at(&raw, 0.5));
        }
    }
    for flavour in [Flavour::MultiThread, Flavour::CurrentThread] {
        let ours = flavour.run(in_memory());
        let p50 = at(&ours, 0.5);
        let met = if p50 <= Duration::from_micros(30) { "met" } else { "MISSED" };
        println!(
            "| memory | none | {} | {p50:.1?} | {:.1?} | - | - | - | <= 30 us: {met} | - |",
            flavour.name(),
            at(&ours, 0.99),
        );
    }
    floors
}

/// Ours, raw, and raw with a release that is as relaxed as ours.
async fn beside_raw(target: &'static str, grant: SqliteSynchronous) -> [Histogram<u64>; 3] {
    let spot = targets::make(target).await.unwrap();
    let locks = Locks::connect(spot.url()).await.unwrap();
    let mut raw = Raw::open(&spot.file("raw.db"), grant, grant).await;
    let relaxed = spot.file("relaxed.db");
    let mut relaxed = Raw::open(&relaxed, grant, SqliteSynchronous::Normal).await;
    let mut seen = [nanos(), nanos(), nanos()];
    for batch in 0..BATCHES {
        for turn in 0..3 {
            // Each is first as often as the others.
            let which = usize::try_from((turn + batch) % 3).unwrap();
            for _ in 0..BATCH {
                let began = now();
                match which {
                    0 => pair(&locks).await,
                    1 => raw.pair(b"bench", owner(began)).await,
                    _ => relaxed.pair(b"bench", owner(began)).await,
                }
                if batch >= WARM {
                    record(&mut seen[which], now().since(began));
                }
            }
        }
    }
    seen
}

/// As many bytes as a request's id.
fn owner(began: Moment) -> [u8; 16] {
    u128::from(began.as_nanos()).to_be_bytes()
}

async fn in_memory() -> Histogram<u64> {
    let spot = targets::memory().await.unwrap();
    let locks = Locks::connect(spot.url()).await.unwrap();
    let mut seen = nanos();
    for round in 0..20_000 {
        let began = now();
        pair(&locks).await;
        if round >= 2_000 {
            record(&mut seen, now().since(began));
        }
    }
    seen
}

async fn pair(locks: &Locks) {
    let guard = locks.lock("bench").acquire().await.unwrap();
    guard.release().await.unwrap();
}

fn record(seen: &mut Histogram<u64>, took: Duration) {
    seen.saturating_record(u64::try_from(took.as_nanos()).unwrap());
}

fn ratio(ours: &Histogram<u64>, raw: &Histogram<u64>) -> f64 {
    at(ours, 0.5).as_secs_f64() / at(raw, 0.5).as_secs_f64()
}

fn ratio_text(ratio: f64) -> String {
    format!("{ratio:.2} x")
}

fn verdict(ratio: f64, goal: f64) -> String {
    format!("{} {}", ratio_text(ratio), if ratio <= goal { "(met)" } else { "(MISSED)" })
}
