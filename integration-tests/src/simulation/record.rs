//! The record of a run by its clients.

use std::collections::BTreeSet;

use polylock_core::LockName;
use polylock_testkit::history::Section;

/// The record of a run.
#[derive(Debug, Default)]
pub struct Record {
    /// The sections of all clients.
    pub sections: Vec<Section>,
    /// The requests that are waiting: the client, the lock, and the time of the begin.
    pub waiting: BTreeSet<(String, &'static str, u64)>,
    /// The holds that were broken: the lock, the token, and the time.
    pub broken: Vec<(&'static str, u64, u64)>,
    /// The errors that only a bug explains.
    pub surprises: Vec<String>,
    /// The holds with a deadline after the end of their lease at the server, and the times at which that was found.
    pub overlong: Vec<(u64, String)>,
}

impl Record {
    /// Returns true if a client has the hold of `name` with `token`. An acquisition of a slot holds the turnstile without a record of it.
    #[must_use]
    pub fn has_hold(&self, name: &LockName, token: u64) -> bool {
        name.is_turnstile() || self.section(name.as_str(), token).is_some_and(|section| section.open)
    }

    /// Returns true if a client has or had the hold of `name` with `token`, or if it is a turnstile.
    #[must_use]
    pub fn had_hold(&self, name: &LockName, token: u64) -> bool {
        name.is_turnstile() || self.section(name.as_str(), token).is_some()
    }

    /// Returns the last section with this token.
    #[must_use]
    pub fn section(&self, name: &str, token: u64) -> Option<&Section> {
        let is_it = |section: &&Section| section.token == Some(token) && section.lock == name;
        self.sections.iter().rev().find(is_it)
    }
}
