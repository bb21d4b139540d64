//! Compares polylock with the raw driver in one run: the cost of a lock, and of its hand-over.
//!
//! `cargo bench -p polylock-integration-tests --bench compare` prints the tables; with `-- postgres` behind it, or `-- postgres/relaxed`,
//! those of one store. With `-- goals` it measures only the goals of this project, runs the benchmark `scale` for those of
//! many locks and waiters, and prints the verdict on each goal. `--json FILE` writes everything to a file. A store without an installed server
//! is skipped. Machines and disks differ, so compare the ratios, and compare
//! the wait, the hand-over and the fairness with each rate: a releaser that reacquires its own lock at once is
//! fast, and starves the others.
#![allow(clippy::unwrap_used, reason = "a benchmark")]

mod contended;
mod goals;
mod many;
mod peer;
mod report;
mod semaphore;
mod setups;
mod statements;
mod uncontended;
mod verdict;

use std::path::PathBuf;

use polylock_integration_tests::clock::now;
use report::Report;
use setups::Setup;
use tokio::runtime::{Builder, Runtime};

/// The head of the generated page.
const HEAD: &str = "\
# Benchmarks

polylock beside the raw driver of each store, measured in one run on a virtual machine with 2 cores, on which the servers run, too. Machines and disks
differ: compare the ratios, and measure on yours. This page is the output of

```sh
cargo bench -p polylock-integration-tests --bench compare -- goals > docs/benchmarks.md
```

The engine is the crate `polylock-bench`, which `polylock bench -S URL` runs on a store of your own. In an uncontended run, batches of 20
pairs of polylock and of each raw driver alternate, and the first five of each do not count; with a lock for each task, slices of 300 ms
alternate. The histories of contended locks are checked before they are summarized.

[Scaling](scaling.md) explains where the time goes, and has the capacity of each store with many locks and many waiters.";

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

/// The arguments of the command line.
#[derive(Debug, Default)]
struct Arguments {
    /// Stores, or all.
    stores: Vec<String>,
    /// Measures only the goals, with the benchmark `scale`.
    goals: bool,
    json: Option<PathBuf>,
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = String>) -> Self {
        let mut arguments = Self::default();
        while let Some(word) = words.next() {
            match word.as_str() {
                "goals" => arguments.goals = true,
                "--json" => arguments.json = words.next().map(PathBuf::from),
                // Options of cargo are ignored.
                option if option.starts_with('-') => {}
                _ => arguments.stores.push(word),
            }
        }
        arguments
    }

    fn includes(&self, setup: Setup) -> bool {
        let (store, durability) = setup.names();
        let is = |wanted: &String| *wanted == store || *wanted == format!("{store}/{durability}");
        self.stores.is_empty() || self.stores.iter().any(is)
    }

    /// Returns the measurements of benchmark `scale` that the goals need.
    fn at_scale(&self) -> Vec<peer::AtScale> {
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
    let arguments = Arguments::parse(std::env::args().skip(1));
    let is_available = |setup: &Setup| {
        let missing = setup.missing();
        if let Some(missing) = &missing {
            let (store, durability) = setup.names();
            eprintln!("{store}, {durability}: skipped: {missing:?}");
        }
        missing.is_none()
    };
    let setups: Vec<Setup> =
        Setup::ALL.into_iter().filter(|setup| arguments.includes(*setup)).filter(is_available).collect();
    println!("{HEAD}");
    let mut report = Report::default();
    uncontended::run(&setups, &mut report);
    many::run(&setups, &mut report);
    contended::run(&setups, arguments.goals, &mut report);
    statements::run(&setups, &mut report);
    semaphore::run(&setups, &mut report);
    let peer = if setups.contains(&peer::RSLOCK) { peer::run(&mut report) } else { None };
    let at_scale = arguments.at_scale();
    let lines = arguments.goals.then(|| peer::scale(&at_scale)).flatten();
    let scale = lines.as_deref().map(|lines| (&at_scale[..], lines));
    let verdicts = goals::verdicts(&report, &setups, peer.as_ref(), scale);
    report.judge(verdicts);
    if let Some(file) = &arguments.json {
        report.write(file);
    }
    eprintln!("in {:.0?}", now().since(began));
}
