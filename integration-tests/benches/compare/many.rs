//! As many locks as tasks: what one pool, connection or session carries.

use std::time::Duration;

use hdrhistogram::Histogram;
use polylock::Locks;
use polylock_integration_tests::{
    clock::now,
    history::{at, nanos},
};

use crate::{
    Flavour,
    places::Place,
    raw::Raw,
    report::{Cell, Report},
    uncontended::owner,
};

const TASKS: usize = 64;
/// Slices in turn, so that what else the machine does hits both alike.
const SLICES: u32 = 14;
const SLICE: Duration = Duration::from_millis(300);
/// The first ones, in which tables and directories grow, do not count.
const WARM: u32 = 2;

/// Prints the table.
pub(crate) fn run(places: &[Place], report: &mut Report) {
    let title = format!(
        "{TASKS} tasks, each with a lock of its own, in one process, alternating with raw on one pool, connection or session"
    );
    let columns =
        &["store", "durability", "pairs/s", "raw pairs/s", "/ raw", "p50", "raw p50", "p99", "raw p99"];
    report.begin("own locks", &title, columns);
    for place in places.iter().copied().filter(|place| *place != Place::Memory) {
        let Some([ours, raw]) = Flavour::MultiThread.run(beside_raw(place)) else { continue };
        let (store, durability) = place.names();
        report.row(vec![
            Cell::text(store),
            Cell::text(durability),
            Cell::number(rate(&ours), 0),
            Cell::number(rate(&raw), 0),
            Cell::ratio(rate(&ours) / rate(&raw)),
            Cell::time(at(&ours, 0.5)),
            Cell::time(at(&raw, 0.5)),
            Cell::time(at(&ours, 0.99)),
            Cell::time(at(&raw, 0.99)),
        ]);
    }
}

/// Ours and raw, if raw can be shared.
async fn beside_raw(place: Place) -> Option<[Histogram<u64>; 2]> {
    let (spot, url) = place.open().await;
    let raw = place.raw(&spot).await?;
    raw.shared()?;
    let locks = Locks::connect(&url).await.unwrap();
    let mut seen = [nanos(), nanos()];
    // Each is first as often as the other.
    for (slice, which) in (0..SLICES).zip([0, 1, 1, 0].into_iter().cycle()) {
        let until = now() + SLICE;
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let (locks, mut raw, name) = (locks.clone(), raw.shared(), format!("bench-{task}"));
                tokio::spawn(async move {
                    let mut seen = nanos();
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
                        seen.saturating_record(took);
                    }
                    seen
                })
            })
            .collect();
        for task in tasks {
            let task = task.await.unwrap();
            if slice >= WARM {
                seen[which].add(&task).unwrap();
            }
        }
    }
    Some(seen)
}

async fn pair(raw: &mut Option<Raw>, name: &str) {
    if let Some(raw) = raw {
        raw.pair(name.as_bytes(), owner(now())).await;
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn rate(seen: &Histogram<u64>) -> f64 {
    seen.len() as f64 / (SLICE * (SLICES - WARM) / 2).as_secs_f64()
}
