//! The record of a run by its clients.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    time::Duration,
};

use polylock_core::{LockName, Mode};
use polylock_testkit::history::Section;

use super::live_entry::LiveEntry;

/// The longest time from the request of a break to its execution, in nanoseconds.
const LONGEST_BREAK: u64 = 15_000_000_000;

/// The record of a run.
#[derive(Debug, Default)]
pub struct Record {
    /// The sections of all clients.
    pub sections: Vec<Section>,
    /// The attempts of all clients, by their owners.
    pub attempts: BTreeMap<String, Attempt>,
    /// The requests that are waiting: the client, the lock, and the time of the begin.
    pub waiting: BTreeSet<(String, &'static str, u64)>,
    /// The breaks: the lock, and the time at which it was requested.
    pub breaks: Vec<(&'static str, u64)>,
    /// The holds that were broken: the lock, the token, and the time.
    pub broken: Vec<(&'static str, u64, u64)>,
    /// The holds that ended at a deadline which no renewal had moved.
    pub losses: Vec<Loss>,
    /// The locks that their holders have left, and that stay taken for a time.
    pub kept: Vec<Kept>,
    /// The errors that only a bug explains.
    pub surprises: Vec<String>,
    /// Broken promises that a client has seen, with their times and kinds.
    pub seen: Vec<(u64, &'static str, String)>,
}

/// An attempt to hold a lock, from its begin on. Each has an owner of its own, so that its entries in the store can be told from others.
#[derive(Debug)]
pub struct Attempt {
    /// The time for which it may leave a grant alone: a queue lease if its future is not polled.
    pub patience: Duration,
    /// True if it leaves its hold to expire when it is lost.
    pub leaves_lost: bool,
    /// Its state.
    pub state: AttemptState,
    /// The time since which it has this state.
    pub since: u64,
}

/// The state of an attempt.
#[derive(Debug)]
pub enum AttemptState {
    /// It may have entries of all kinds.
    Acquiring,
    /// It has the hold of this lock with this token, and nothing else.
    Holding(String, u64),
    /// It has nothing more, once this time is over: a lease may be left to expire.
    Over(Duration),
}

/// A hold that has ended at its deadline.
#[derive(Debug)]
pub struct Loss {
    /// The time.
    pub at: u64,
    /// The process.
    pub process: usize,
    /// The lease.
    pub lease: Duration,
    /// The hold.
    pub what: String,
}

/// A lock that stays taken after its holder has left it.
#[derive(Debug)]
pub struct Kept {
    /// The lock.
    pub lock: String,
    /// The mode of the hold.
    pub mode: Mode,
    /// The token of the hold.
    pub token: u64,
    /// The time at which its holder left it, and the time until which no conflicting request is granted the lock, unless it is broken.
    pub time: Range<u64>,
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

    /// Returns true if the hold with this token need not be released: a client has or had it, or leaves it to expire.
    #[must_use]
    pub fn needs_no_release(&self, name: &LockName, token: u64, owner: &str) -> bool {
        self.had_hold(name, token) || self.attempts.get(owner).is_some_and(|attempt| attempt.leaves_lost)
    }

    /// Returns the last section with this token.
    #[must_use]
    pub fn section(&self, name: &str, token: u64) -> Option<&Section> {
        let is_it = |section: &&Section| section.token == Some(token) && section.lock == name;
        self.sections.iter().rev().find(is_it)
    }

    /// Returns the time since which no client uses `entry`, at the latest, and the time for which it may be in the store all the same;
    /// `None` if a client uses it.
    #[must_use]
    pub fn unused(&self, entry: &LiveEntry) -> Option<(u64, Duration)> {
        let Some(attempt) = entry.owner.as_ref().and_then(|owner| self.attempts.get(owner)) else {
            let is_unused = entry.token.is_some_and(|token| !self.has_hold(&entry.name, token));
            return is_unused.then_some((0, Duration::ZERO));
        };
        let patience = match &attempt.state {
            // The locks of a semaphore are held before the acquisition has a slot.
            AttemptState::Acquiring if entry.token.is_none() || entry.name.as_str().contains('\0') => None,
            AttemptState::Acquiring => Some(attempt.patience),
            AttemptState::Holding(lock, token) => {
                let is_it = *lock == entry.name.as_str() && entry.token == Some(*token);
                (!is_it).then_some(Duration::ZERO)
            }
            AttemptState::Over(keeps) => Some(*keeps),
        };
        Some((attempt.since, patience?))
    }

    /// Returns the locks that were granted to a client while a former holder still kept them: the time, and what happened.
    #[must_use]
    pub fn taken_early(&self) -> Vec<(u64, String)> {
        let is_broken = |kept: &&Kept| {
            let since = kept.time.start.saturating_sub(LONGEST_BREAK);
            self.breaks.iter().any(|(lock, at)| *lock == kept.lock && (since..kept.time.end).contains(at))
        };
        let taken = self.kept.iter().filter(|kept| !is_broken(kept)).flat_map(|kept| {
            let is_early = |section: &&Section| {
                section.lock == kept.lock
                    && section.token > Some(kept.token)
                    && section.mode.conflicts_with(kept.mode)
                    && section.acquired < kept.time.end
            };
            self.sections.iter().filter(is_early).map(|section| {
                let Kept { lock, token, time, .. } = kept;
                let until = Duration::from_nanos(time.end);
                let what =
                    format!("{} has {lock}, which token {token} keeps until {until:?}", section.client);
                (section.acquired, what)
            })
        });
        taken.collect()
    }
}
