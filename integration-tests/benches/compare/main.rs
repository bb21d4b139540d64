//! polylock side by side with the raw driver, in one run: what a lock costs, and how it passes from hand to hand.
//!
//! `cargo bench -p polylock-integration-tests` prints the tables; with `-- postgres` behind it, or `-- postgres/relaxed`,
//! those of one store. Machines and disks differ, so look at the ratios; and
//! at the wait, the hand-over and the fairness beside each rate: a releaser that takes its own lock back at once is
//! quick and starves the rest.
#![allow(clippy::unwrap_used, reason = "a benchmark")]

mod contended;
mod many;
mod places;
mod raw;
mod uncontended;

use places::Place;
use polylock_integration_tests::clock::now;
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

fn main() {
    let began = now();
    // What cargo says is an option.
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let places: Vec<Place> = Place::ALL
        .into_iter()
        .filter(|place| {
            let (store, durability) = place.names();
            let is = |wanted: &String| *wanted == store || *wanted == format!("{store}/{durability}");
            wanted.is_empty() || wanted.iter().any(is)
        })
        .collect();
    uncontended::run(&places);
    many::run(&places);
    contended::run(&places);
    println!("\nin {:.0?}", now().since(began));
}
