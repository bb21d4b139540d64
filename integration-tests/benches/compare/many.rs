//! As many locks as tasks: the capacity of one pool, connection or session.

use std::time::Duration;

use hdrhistogram::Histogram;
use polylock::Locks;
use polylock_integration_tests::{
    clock::now,
    history::{at, nanos},
};

use crate::{
    Flavour,
    raw::Raw,
    report::{Cell, Report},
    setups::Setup,
    uncontended::owner,
};

const TASKS: usize = 64;
/// Alternating slices, so that other load of the machine affects both.
const SLICES: u32 = 14;
const SLICE: Duration = Duration::from_millis(300);
/// The number of slices at the start that do not count, because tables and directories still grow.
const WARM: u32 = 2;

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
            Cell::number(rate(&polylock), 0),
            Cell::number(rate(&raw), 0),
            Cell::ratio(rate(&polylock) / rate(&raw)),
            Cell::time(at(&polylock, 0.5)),
            Cell::time(at(&raw, 0.5)),
            Cell::time(at(&polylock, 0.99)),
            Cell::time(at(&raw, 0.99)),
        ]);
    }
}

/// Returns the times of polylock and of the raw client, if the raw client can be shared.
async fn beside_raw(setup: Setup) -> Option<[Histogram<u64>; 2]> {
    let (namespace, url) = setup.open().await;
    let raw = setup.raw(&namespace).await?;
    raw.shared()?;
    let locks = Locks::connect(&url).await.unwrap();
    let mut times = [nanos(), nanos()];
    // Each is the first one equally often.
    for (slice, which) in (0..SLICES).zip([0, 1, 1, 0].into_iter().cycle()) {
        let until = now() + SLICE;
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let (locks, mut raw, name) = (locks.clone(), raw.shared(), format!("bench-{task}"));
                tokio::spawn(async move {
                    let mut times = nanos();
                    while now() < until {
                        let began = now();
                        match (which, &mut raw) {
                            (0, _) => {
                                let guard = locks.lock(&name).acquire().await.unwrap();
                                guard.release().await.unwrap();
                            }
                            (_, raw) => pair(raw, &name).await,
                        }
                        let took = u64::try_from(now().since(began).as_nanos()).unwrap();
                        times.saturating_record(took);
                    }
                    times
                })
            })
            .collect();
        for task in tasks {
            let task = task.await.unwrap();
            if slice >= WARM {
                times[which].add(&task).unwrap();
            }
        }
    }
    Some(times)
}

async fn pair(raw: &mut Option<Raw>, name: &str) {
    if let Some(raw) = raw {
        raw.pair(name.as_bytes(), owner(now())).await;
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn rate(times: &Histogram<u64>) -> f64 {
    times.len() as f64 / (SLICE * (SLICES - WARM) / 2).as_secs_f64()
}
