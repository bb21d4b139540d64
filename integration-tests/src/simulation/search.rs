//! A search for a failing run, and its record for `docs/safety.md`.

use std::{
    fmt, io,
    num::NonZero,
    panic::resume_unwind,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use clap::ValueEnum;
use polylock_core::{Clock, SystemClock, sync::lock};

use super::{
    plan::{Plan, Planted, StoreKind},
    violation::Violation,
    world::{self, Outcome},
};
use crate::chaos::record::{self, Record};

/// The longest search for a planted bug.
pub const LONGEST_SEARCH: Duration = Duration::from_secs(180);

/// The runs of successive seeds, until one of them fails.
#[derive(Debug)]
pub struct Search {
    store: StoreKind,
    planted: Option<Planted>,
    first: u64,
    runs: u64,
    /// The number of sections.
    pub sections: u64,
    faults: u64,
    took: Duration,
    /// The failing run, and its first violation.
    pub found: Option<(Plan, Violation)>,
}

/// The limits of a search.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The greatest number of runs.
    pub runs: u64,
    /// The time after which no further run begins.
    pub time: Duration,
    /// The number of runs at the same time.
    pub threads: usize,
}

impl Limits {
    /// Limits the time alone, with one run after the other.
    #[must_use]
    pub const fn time(time: Duration) -> Self {
        Self { runs: u64::MAX, time, threads: 1 }
    }

    /// Runs as many at the same time as the machine has cores.
    #[must_use]
    pub fn on_all_cores(self) -> Self {
        Self { threads: thread::available_parallelism().map_or(1, NonZero::get), ..self }
    }
}

impl Search {
    /// Runs the plans of the seeds from `first` on.
    ///
    /// # Errors
    /// If the operating system refuses resources of a run.
    pub fn run(store: StoreKind, planted: Option<Planted>, first: u64, limits: Limits) -> io::Result<Self> {
        let (began, next) = (SystemClock.now(), AtomicU64::new(0));
        let search = Mutex::new(Self::new(store, planted, first));
        let run = || -> io::Result<()> {
            loop {
                let is_over = lock(&search).found.is_some() || SystemClock.now().since(began) >= limits.time;
                let number = next.fetch_add(1, Ordering::Relaxed);
                if is_over || number >= limits.runs {
                    return Ok(());
                }
                let plan = Plan::draw(store, first + number, planted);
                let outcome = world::run(&plan, false)?;
                lock(&search).add(plan, outcome);
            }
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..limits.threads).map(|_| scope.spawn(run)).collect();
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
        })?;
        let search = search.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(Self { took: SystemClock.now().since(began), ..search })
    }

    /// Adds a run. Of several failing ones, the search has found that with the first seed.
    fn add(&mut self, plan: Plan, outcome: Outcome) {
        self.runs += 1;
        self.sections += outcome.sections as u64;
        self.faults += plan.faults.len() as u64;
        let is_first = self.found.as_ref().is_none_or(|(found, _)| plan.seed < found.seed);
        let violation = outcome.violations.into_iter().next();
        self.found = violation.filter(|_| is_first).map(|violation| (plan, violation)).or(self.found.take());
    }

    const fn new(store: StoreKind, planted: Option<Planted>, first: u64) -> Self {
        Self { store, planted, first, runs: 0, sections: 0, faults: 0, took: Duration::ZERO, found: None }
    }

    /// Returns the record of the search.
    #[must_use]
    pub fn record(&self) -> Record {
        let (one, seconds) = (|kind: &str| (kind.to_owned(), 1), self.took.as_secs_f64());
        Record {
            configuration: configuration(self.store),
            planted: self.planted.as_ref().map(name),
            commit: record::commit(),
            date: record::today(),
            seed: self.first,
            runs: self.runs,
            sections: self.sections,
            faults: [("all".to_owned(), self.faults)].into(),
            violations: self.found.iter().map(|(_, violation)| one(violation.kind)).collect(),
            seconds,
            detected: self.found.as_ref().map(|_| seconds),
            ..Record::default()
        }
    }
}

impl fmt::Display for Search {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, runs, sections, took, .. } = self;
        let rate = *sections as f64 / took.as_secs_f64();
        write!(
            f,
            "{runs} runs from seed {first}, {sections} sections in {took:.1?}, {rate:.0} sections/s: "
        )?;
        match &self.found {
            Some((plan, violation)) => write!(f, "seed {}: {violation}", plan.seed),
            None => f.write_str("no violation"),
        }
    }
}

/// Returns a random seed, after which there are as many seeds as any search needs.
#[must_use]
pub fn first_seed() -> u64 {
    fastrand::u64(..u64::MAX / 2)
}

/// Returns the name of the simulated store in records.
#[must_use]
pub fn configuration(store: StoreKind) -> String {
    format!("simulated {}", name(&store))
}

/// Returns the name of a store or a bug in records.
#[must_use]
pub fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
