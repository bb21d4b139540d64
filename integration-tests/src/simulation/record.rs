//! The record of a run by its clients.

use std::collections::BTreeSet;

use polylock_core::LockName;
use polylock_testkit::history::Section;

/// The record of a run.
#[derive(Debug, Default)]
pub struct Record {
    /// The sections of all clients.
    pub sections: Vec<Section>,
    /// The requests that are waiting, by client, with the time of their begin.
    pub waiting: BTreeSet<(String, u64)>,
    /// The errors that only a bug explains.
    pub surprises: Vec<String>,
    /// The holds with a deadline after the end of their lease at the server, and the times at which that was found.
    pub overlong: Vec<(u64, String)>,
}

impl Record {
    /// Returns true if a client has the hold of `name` with `token`.
    #[must_use]
    pub fn has_hold(&self, name: &LockName, token: u64) -> bool {
        self.find(name, token).is_some_and(|section| section.open)
    }

    /// Returns true if a client has or had the hold of `name` with `token`.
    #[must_use]
    pub fn had_hold(&self, name: &LockName, token: u64) -> bool {
        self.find(name, token).is_some()
    }

    fn find(&self, name: &LockName, token: u64) -> Option<&Section> {
        let is_it = |section: &&Section| section.token == Some(token) && section.lock == name.as_str();
        self.sections.iter().rev().find(is_it)
    }
}
