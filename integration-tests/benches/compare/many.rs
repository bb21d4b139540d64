//! As many locks as tasks: the capacity of one pool, connection or session.

use std::time::Duration;

use polylock::Locks;
use polylock_bench::{
    Floor,
    own_locks::{Throughput, measure},
};

use crate::{
    Flavour,
    report::{Cell, Report},
    setups::Setup,
};

const TASKS: usize = 64;
/// Alternating slices, so that other load of the machine affects both.
const SLICES: u32 = 12;
const SLICE: Duration = Duration::from_millis(300);

/// Prints the table.
pub(crate) fn run(setups: &[Setup], report: &mut Report) {
    let title = format!(
        "{TASKS} tasks, each with a lock of its own, in one process, alternating with raw on one pool, connection or session"
    );
    let columns =
        &["store", "durability", "pairs/s", "raw pairs/s", "/ raw", "p50", "raw p50", "p99", "raw p99"];
    report.begin("own locks", &title, columns);
    for setup in setups.iter().copied().filter(|setup| *setup != Setup::Memory) {
        let Some([polylock, raw]) = Flavour::MultiThread.run(beside_raw(setup)) else { continue };
        let (store, durability) = setup.names();
        report.row(vec![
            Cell::text(store),
            Cell::text(durability),
            Cell::number(polylock.rate(), 0),
            Cell::number(raw.rate(), 0),
            Cell::ratio(polylock.rate() / raw.rate()),
            Cell::time(polylock.times.p50()),
            Cell::time(raw.times.p50()),
            Cell::time(polylock.times.p99()),
            Cell::time(raw.times.p99()),
        ]);
    }
}

/// Returns the throughput of polylock and of the raw client, if tasks can share that.
async fn beside_raw(setup: Setup) -> Option<[Throughput; 2]> {
    let (_namespace, url) = setup.open().await;
    let mut raw = setup.raw(&url, Floor::Usual).await?;
    raw.share()?;
    let locks = Locks::connect(&url).await.unwrap();
    let measured = measure(&locks, Some(&*raw), TASKS, SLICES, SLICE).await.unwrap();
    raw.remove().await.unwrap();
    Some(measured)
}
