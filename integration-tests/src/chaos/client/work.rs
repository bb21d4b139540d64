//! The part of a process in a run, and the arguments of its program.

use std::path::PathBuf;

use crate::chaos::planted::ClientBug;

/// The part of a process in a run.
#[derive(Debug, Clone)]
pub struct Work {
    /// The URL of the store, through the proxies of this process.
    pub url: String,
    /// The directory of the histories.
    pub directory: PathBuf,
    /// The name of the process, unique in the run.
    pub name: String,
    /// The seed of its decisions.
    pub seed: u64,
    /// The number of its clients.
    pub clients: usize,
    /// A short lease and a long one, in milliseconds; equal if the store has a single one.
    pub leases: (u64, u64),
    /// The bug of its clients.
    pub bug: Option<ClientBug>,
    /// True for many short sections, on many locks.
    pub is_dense: bool,
    /// True if holds are left to other processes, and broken by them.
    pub hands_over: bool,
    /// True if requests wait for the store for longer than any fault lasts.
    pub outlasts: bool,
}

impl Work {
    /// Returns the arguments of the program `worker`.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let (short, long) = self.leases;
        let numbers = [self.seed, self.clients as u64, short, long].map(|number| number.to_string());
        let words = ["chaos", &self.url, &self.name].map(str::to_owned).into_iter();
        let directory = self.directory.display().to_string();
        words
            .chain([directory])
            .chain(numbers)
            .chain([
                self.bug.map_or("", ClientBug::name).to_owned(),
                self.is_dense.to_string(),
                self.hands_over.to_string(),
                self.outlasts.to_string(),
            ])
            .collect()
    }
}
