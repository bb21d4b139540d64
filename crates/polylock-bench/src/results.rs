//! The results of a run.

use std::time::Duration;

use crate::{
    Drained, Error, Kills, Part, Settings, Summary, Times,
    held::{Released, Watched},
    machine::Machine,
    own_locks::Throughput,
};

/// The results of a run on some stores.
#[derive(Debug)]
pub struct Report {
    /// The circumstances.
    pub run: Run,
    /// The results of each store.
    pub stores: Vec<StoreResults>,
}

/// The circumstances of a run.
#[derive(Debug, Clone)]
pub struct Run {
    /// The version of the program.
    pub version: String,
    /// The commit of the program, if it is known.
    pub commit: Option<String>,
    /// The date and time of the start, by the machine's wall clock.
    pub date: String,
    /// The machine.
    pub machine: Machine,
    /// The settings.
    pub settings: Settings,
    /// The duration of the whole run.
    pub duration: Duration,
    /// The reason for which the run ended early, if it did.
    pub ended_by: Option<String>,
}

/// The results of one store.
#[derive(Debug)]
pub struct StoreResults {
    /// The short name in tables: the backend, with a number if several stores have the same.
    pub label: String,
    /// The backend.
    pub backend: &'static str,
    /// The URL without secrets.
    pub store: String,
    /// The statements of the raw driver that is measured beside the store, or the reason why there is none.
    pub raw: Result<&'static str, String>,
    /// The parts, in the order in which they were measured.
    pub parts: Vec<(Part, Outcome)>,
}

impl StoreResults {
    /// Returns the statements of the raw driver, or the reason why there is none.
    #[must_use]
    pub fn raw_text(&self) -> String {
        self.raw.as_ref().map_or_else(|reason| format!("none: {reason}"), |raw| (*raw).to_owned())
    }

    /// Returns the outcome of a part; `None` if it was not selected, or the run ended before.
    #[must_use]
    pub fn outcome(&self, part: Part) -> Option<&Outcome> {
        self.parts.iter().find(|(other, _)| *other == part).map(|(_, outcome)| outcome)
    }
}

/// The outcome of a part.
#[derive(Debug)]
pub enum Outcome {
    /// It was measured.
    Measured(Box<Measured>),
    /// It can't be measured on this store, for this reason.
    Skipped(String),
    /// It failed.
    Failed(Error),
}

/// The numbers of a part.
#[derive(Debug)]
#[expect(missing_docs, reason = "the parts are documented at `Part`")]
#[expect(clippy::large_enum_variant, reason = "an outcome has it in a box")]
pub enum Measured {
    Uncontended(Uncontended),
    OwnLocks(OwnLocks),
    HandOver(HandOver),
    Contended(Contended),
    Waiters(Waiters),
    Held(Held),
    Kill(Kills),
}

/// The times of pairs.
#[derive(Debug)]
pub struct Uncontended {
    /// Of polylock.
    pub polylock: Times,
    /// Of the raw driver, if there is one.
    pub raw: Option<Times>,
}

/// The throughput of pairs.
#[derive(Debug)]
pub struct OwnLocks {
    /// The number of tasks.
    pub tasks: usize,
    /// Of polylock.
    pub polylock: Throughput,
    /// Of the raw driver, if tasks can share it.
    pub raw: Option<Throughput>,
}

/// The times from a release to the next grant.
#[derive(Debug)]
pub struct HandOver {
    /// To another task.
    pub to_task: Times,
    /// To another process, if the store has any.
    pub to_process: Option<Times>,
    /// The times of raw pairs in this part.
    pub raw: Option<Times>,
}

/// The numbers of a contended lock.
#[derive(Debug)]
pub struct Contended {
    /// The number of tasks.
    pub tasks: usize,
    /// In one process.
    pub one_process: Summary,
    /// In several processes, with their number, if the store has any.
    pub processes: Option<(usize, Summary)>,
    /// The times of raw pairs right before and after.
    pub raw: Option<Times>,
}

/// The numbers of many waiters.
#[derive(Debug)]
pub struct Waiters {
    /// The number of waiters.
    pub count: usize,
    /// The time until all were queued.
    pub queued_in: Duration,
    /// The times of pairs on another lock without waiters.
    pub pairs_before: Times,
    /// The same while all wait.
    pub pairs_waiting: Times,
    /// The drain.
    pub drained: Drained,
}

/// The numbers of many locks.
#[derive(Debug)]
pub struct Held {
    /// The number of locks.
    pub count: usize,
    /// Their TTL.
    pub ttl: Duration,
    /// The time in which they were acquired.
    pub acquired_in: Duration,
    /// The time in which they were held.
    pub held_for: Duration,
    /// The numbers of that time.
    pub watched: Watched,
    /// The processor time of this process in that time, if it is known.
    pub cpu: Option<Duration>,
    /// The memory for each lock in bytes, if it is known.
    pub bytes_each: Option<u64>,
    /// The releases.
    pub released: Released,
}
