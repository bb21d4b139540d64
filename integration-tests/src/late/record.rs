//! The record of a run.

use super::{
    check::KINDS,
    run::{Outcome, Run},
};
use crate::chaos::record::{Record, commit, today};

/// The fault of a withheld message, and that of a further copy.
pub const FAULTS: [&str; 2] = ["withheld", "copied"];

/// What precedes the name of an exception among the faults.
pub const EXCUSED: &str = "excused: ";

/// Returns the name of the configuration of a store.
#[must_use]
pub fn configuration(store: &str) -> String {
    format!("late {store}")
}

/// Returns the record of a run on this store.
#[must_use]
pub fn record(store: &str, run: &Run, outcome: &Outcome) -> Record {
    let [withheld, copied] = FAULTS.map(str::to_owned);
    let copies = u64::try_from(outcome.copies).unwrap_or(u64::MAX);
    let counts = [(withheld, outcome.withheld.into()), (copied, copies)];
    let excused = outcome.excused.iter().map(|(name, count)| (format!("{EXCUSED}{name}"), (*count).into()));
    let found = KINDS.iter().filter_map(|kind| {
        let count = u64::try_from(outcome.count(*kind)).unwrap_or(u64::MAX);
        (count > 0).then(|| (format!("{kind:?}").to_lowercase(), count))
    });
    Record {
        configuration: configuration(store),
        planted: run.planted.map(|plant| plant.name().to_owned()),
        commit: commit(),
        date: today(),
        seed: run.seed,
        runs: outcome.schedules.into(),
        faults: counts.into_iter().chain(excused).collect(),
        violations: found.collect(),
        seconds: outcome.took.as_secs_f64(),
        detected: outcome.detected.map(|time| time.as_secs_f64()),
        ..Record::default()
    }
}
