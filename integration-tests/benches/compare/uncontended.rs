//! One task, one lock, nobody else: acquire and release, in turns with the raw driver.

use std::time::Duration;

use polylock::Locks;
use polylock_bench::{
    Floor, Times, raw,
    uncontended::{Until, measure},
};

use crate::{
    Flavour, goals,
    report::{Cell, Report},
    setups::Setup,
};

/// The batches of each.
const ROUNDS: usize = 60;

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
                Cell::time(polylock.p50()),
                Cell::time(polylock.p99()),
                Cell::time(raw.p50()),
                Cell::time(raw.p99()),
                polylock.ratio_to(&raw).map(Cell::ratio).into(),
                Cell::text(format!("<= {goal}")),
                polylock.ratio_to(&minimal).map(Cell::ratio).into(),
            ]);
        }
    }
    if setups.contains(&Setup::Memory) {
        for flavour in [Flavour::MultiThread, Flavour::CurrentThread] {
            let polylock = flavour.run(in_memory());
            let mut row = vec![Cell::text("memory"), Cell::text("none"), Cell::text(flavour.name())];
            row.extend([Cell::time(polylock.p50()), Cell::time(polylock.p99())]);
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
    let (_namespace, url) = setup.open().await;
    let mut raw = setup.raw(&url, Floor::Usual).await?;
    Some(raw::trips(&mut *raw).await.unwrap()?.p50())
}

/// The raw pairs at this moment, if there is a driver.
pub(crate) async fn floor(setup: Setup) -> Option<Times> {
    let (_namespace, url) = setup.open().await;
    let mut raw = setup.raw(&url, Floor::Usual).await?;
    let times = raw::pairs(&mut *raw).await.unwrap();
    raw.remove().await.unwrap();
    Some(times)
}

/// Ours, raw, and the least that could be.
async fn beside_raw(setup: Setup) -> [Times; 3] {
    let (_namespace, url) = setup.open().await;
    let locks = Locks::connect(&url).await.unwrap();
    let mut raw = [setup.raw(&url, Floor::Usual).await, setup.raw(&url, Floor::Least).await];
    let times = measure(&locks, &mut raw, Until::Rounds(ROUNDS)).await.unwrap();
    for client in raw.iter_mut().flatten() {
        client.remove().await.unwrap();
    }
    times.try_into().unwrap()
}

async fn in_memory() -> Times {
    let (_namespace, url) = Setup::Memory.open().await;
    let locks = Locks::connect(&url).await.unwrap();
    measure(&locks, &mut [], Until::Rounds(1_000)).await.unwrap().remove(0)
}
