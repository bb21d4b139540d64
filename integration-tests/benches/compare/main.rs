//! polylock side by side with the raw driver, in one run: what a lock costs, and how it passes from hand to hand.
//!
//! `cargo bench -p polylock-integration-tests --bench compare` prints the tables; with `-- postgres` behind it, or `-- postgres/relaxed`,
//! those of one store. With `-- goals` it measures only what the goals of this project are about, runs the benchmark `scale` for those of
//! many locks and waiters, and prints of each goal whether it was met. `--json FILE` writes everything to a file. A store whose server is
//! not installed is skipped. Machines and disks differ, so look at the ratios; and
//! at the wait, the hand-over and the fairness beside each rate: a releaser that takes its own lock back at once is
//! quick and starves the rest.
#![allow(clippy::unwrap_used, reason = "a benchmark")]

mod contended;
mod goals;
mod many;
mod peer;
mod places;
mod raw;
mod report;
mod statements;
mod uncontended;

use std::path::PathBuf;

use places::Place;
use polylock_integration_tests::clock::now;
use report::Report;
use tokio::runtime::{Builder, Runtime};

/// The two kinds of runtime that users have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flavour {
    MultiThread,
    CurrentThread,
}

impl Flavour {
    fn name(self) -> &'static str {
        match self {
            Self::MultiThread => "multi-thread",
            Self::CurrentThread => "current-thread",
        }
    }

    fn runtime(self) -> Runtime {
        let mut builder = match self {
            Self::MultiThread => Builder::new_multi_thread(),
            Self::CurrentThread => Builder::new_current_thread(),
        };
        builder.worker_threads(2).enable_all().build().unwrap()
    }

    /// Runs `work` where a user's task runs: on a worker, where there are any.
    fn run<T: Send + 'static>(self, work: impl Future<Output = T> + Send + 'static) -> T {
        let runtime = self.runtime();
        runtime.block_on(async { tokio::spawn(work).await.unwrap() })
    }
}

/// What the command line asks for.
#[derive(Debug, Default)]
struct Wanted {
    /// Stores, or all.
    stores: Vec<String>,
    /// Only what the goals are about, with the benchmark `scale`.
    goals: bool,
    json: Option<PathBuf>,
}

impl Wanted {
    fn read(mut words: impl Iterator<Item = String>) -> Self {
        let mut wanted = Self::default();
        while let Some(word) = words.next() {
            match word.as_str() {
                "goals" => wanted.goals = true,
                "--json" => wanted.json = words.next().map(PathBuf::from),
                // What cargo says is an option.
                option if option.starts_with('-') => {}
                _ => wanted.stores.push(word),
            }
        }
        wanted
    }

    fn includes(&self, place: Place) -> bool {
        let (store, durability) = place.names();
        let is = |wanted: &String| *wanted == store || *wanted == format!("{store}/{durability}");
        self.stores.is_empty() || self.stores.iter().any(is)
    }

    /// The measurements of benchmark `scale` that the goals are about.
    fn at_scale(&self) -> Vec<goals::AtScale> {
        let (count, stores) = goals::HELD;
        let held = stores.into_iter().map(|store| (store, "held", count));
        let waiters = goals::WAITERS.into_iter().map(|(store, count)| (store, "waiters", count));
        let is_wanted =
            |store: &str| self.stores.is_empty() || self.stores.iter().any(|wanted| wanted == store);
        held.chain(waiters).filter(|(store, ..)| is_wanted(store)).collect()
    }
}

fn main() {
    let began = now();
    let wanted = Wanted::read(std::env::args().skip(1));
    let is_there = |place: &Place| {
        let missing = place.missing();
        if let Some(missing) = &missing {
            let (store, durability) = place.names();
            println!("{store}, {durability}: skipped: {missing:?}");
        }
        missing.is_none()
    };
    let places: Vec<Place> =
        Place::ALL.into_iter().filter(|place| wanted.includes(*place)).filter(is_there).collect();
    let mut report = Report::default();
    uncontended::run(&places, &mut report);
    many::run(&places, &mut report);
    contended::run(&places, wanted.goals, &mut report);
    statements::run(&places, &mut report);
    let peer = if places.contains(&peer::RSLOCK) { peer::run(&mut report) } else { None };
    let at_scale = wanted.at_scale();
    let lines = wanted.goals.then(|| peer::scale(&at_scale)).flatten();
    let scale = lines.as_deref().map(|lines| (&at_scale[..], lines));
    let verdicts = goals::verdicts(&report, &places, peer.as_ref(), scale);
    report.judge(verdicts);
    if let Some(file) = &wanted.json {
        report.write(file);
    }
    println!("\nin {:.0?}", now().since(began));
}
