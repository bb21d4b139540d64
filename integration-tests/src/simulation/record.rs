//! The record of a run by its clients.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    time::Duration,
};

use polylock_core::{LockName, Mode};
use polylock_testkit::history::Section;

use super::{
    both::step::Step,
    holds::{Holds, Key},
    live_entry::LiveEntry,
};

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
    /// The holds of all clients.
    pub holds: Holds,
    /// The breaks of all that a lock has: the lock, the time at which it was requested, and that of the reply, which is late at first.
    pub breaks: Vec<(&'static str, Range<u64>)>,
    /// The breaks by token that may end another hold: the lock, and the time from the request to the reply. In Azure, a lease shows the grant
    /// before it until its own is written, so a break of that one, which has ended, ends the lease: the service tells nobody whose lease it
    /// is. A transitional store may show the token that a hold has in one of the two stores while it begins or ends.
    pub misled: Vec<(String, Range<u64>)>,
    /// The holds that were marked as broken: the lock, the token, and the time.
    pub broken: Vec<(String, u64, u64)>,
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
    /// The clients that have its hold, or are about to adopt it.
    pub users: BTreeSet<String>,
    /// The longest lease that one of them renews.
    pub longest: Duration,
    /// The lock of its hold, once it has one.
    pub lock: String,
    /// The tokens that its hold has had: each conversion draws a new one.
    pub tokens: BTreeSet<u64>,
    /// The clients that convert it at present.
    pub converting: BTreeSet<String>,
    /// The time at which a client first began to convert it.
    pub converted_since: Option<u64>,
    /// True once a client has released it, or has requested its end.
    pub is_ended: bool,
    /// The last client that has done so. If its process is killed, the hold may last as long as its lease.
    pub ended_by: Option<String>,
}

impl Attempt {
    /// Returns the time at which a client has left its hold to expire.
    #[must_use]
    pub fn left(&self, holds: &Holds) -> Option<u64> {
        self.tokens.iter().find_map(|token| holds.get(&(self.lock.clone(), *token))?.left)
    }

    /// Sets the state.
    pub fn set(&mut self, state: AttemptState, now: u64) {
        (self.state, self.since) = (state, now);
    }

    /// Records that `client` adopts the hold, or has it. It is in the store for as long as one of them renews it.
    pub fn join(&mut self, client: &str, (lock, token): &Key, ttl: Duration, now: u64) {
        self.users.insert(client.to_owned());
        self.longest = self.longest.max(ttl);
        let is_left = matches!(self.state, AttemptState::Over(keeps) if !keeps.is_zero());
        if is_left || matches!(self.state, AttemptState::Acquiring) {
            self.set(AttemptState::Holding(lock.clone(), *token), now);
        }
    }

    /// Records that `client` ends the hold for all. The store has it for `keeps` at most.
    pub fn end(&mut self, client: &str, keeps: Duration, now: u64) {
        self.users.remove(client);
        self.longest = self.longest.max(keeps);
        let left = match self.state {
            // A parked hold ends when the first client wanted it to, unless another one releases it.
            AttemptState::Over(before) if self.is_ended && !keeps.is_zero() => {
                before.saturating_sub(Duration::from_nanos(now - self.since))
            }
            _ => Duration::ZERO,
        };
        self.set(AttemptState::Over(keeps.max(left)), now);
        self.is_ended = true;
        self.ended_by = Some(client.to_owned());
    }

    /// Records that the end at a later time may not have reached the store: the lease that another process has renewed may be a longer one.
    pub fn unpark(&mut self) {
        if let AttemptState::Over(keeps) = &mut self.state {
            *keeps = self.longest.max(*keeps);
        }
    }

    /// Records that the hold with this token, which `client` has ended, was lost: if another client has converted it, that one may have it.
    pub fn resume(&mut self, client: &str, token: u64, now: u64) {
        let is_converted = self.tokens.last().is_some_and(|last| *last > token);
        if is_converted && self.ended_by.as_deref() == Some(client) {
            self.set(AttemptState::Over(self.longest), now);
        }
    }

    /// Returns true if `client`, which has just been told this token, may not have the hold any more: another client has released it or
    /// converted it meanwhile, or is about to.
    #[must_use]
    pub fn may_be_over(&self, client: &str, token: u64) -> bool {
        let is_converted = self.converting.iter().any(|other| other != client);
        self.is_ended || is_converted || self.tokens.last().is_some_and(|last| *last > token)
    }

    /// Records that `client` has left the hold. If nobody has it then, the store has it for `keeps` at most.
    pub fn leave(&mut self, client: &str, keeps: Duration, now: u64) {
        self.users.remove(client);
        match self.state {
            AttemptState::Holding(..) if self.users.is_empty() => self.set(AttemptState::Over(keeps), now),
            // A process was killed while it released the hold. If the hold is in two stores, and was released in one of them, this client has
            // extended the rest before it has found out.
            AttemptState::Over(keeps) if keeps >= self.longest => self.since = now,
            _ => {}
        }
    }
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
    /// The process of its holder, and the lease that it renews if the store can't end the hold at that time.
    pub renewed_by: (usize, Duration),
    /// The time at which its holder left it, and the time until which no conflicting request is granted the lock, unless it is broken.
    pub time: Range<u64>,
}

impl Record {
    /// Returns true if a client has the hold of `name` with `token`. An acquisition of a slot holds the turnstile without a record of it.
    #[must_use]
    pub fn has_hold(&self, name: &LockName, token: u64) -> bool {
        name.is_turnstile() || self.sections_of(name.as_str(), token).any(|section| section.open)
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
        self.sections_of(name, token).next()
    }

    /// Returns the sections with this token, from the last one on: those of the processes that have or had this hold.
    pub fn sections_of(&self, name: &str, token: u64) -> impl Iterator<Item = &Section> {
        let is_it = move |section: &&Section| section.token == Some(token) && section.lock == name;
        self.sections.iter().rev().filter(is_it)
    }

    /// Returns true if a client has requested a break of this hold, or of all that the lock had at some time since `invoked`.
    #[must_use]
    pub fn may_be_broken(&self, key: &Key, invoked: u64) -> bool {
        // A process that does not know of a conversion is told of the break of the hold with its new token.
        let is_it = |attempt: &&Attempt| attempt.lock == key.0 && attempt.tokens.contains(&key.1);
        let attempt = self.attempts.values().find(is_it);
        let tokens = attempt.map_or_else(|| [key.1].into(), |attempt| attempt.tokens.clone());
        let is_named = tokens
            .into_iter()
            .any(|token| self.holds.get(&(key.0.clone(), token)).is_some_and(|hold| hold.broken.is_some()));
        is_named || self.breaks.iter().any(|(lock, asked)| *lock == key.0 && asked.end > invoked)
    }

    /// Returns true if a second client may have ended this hold, which the first one has acquired or adopted since `invoked`.
    #[must_use]
    pub fn may_have_ended_elsewhere(&self, key: &Key, invoked: u64) -> bool {
        let may_be_broken = self.may_be_broken(key, invoked);
        self.holds.get(key).is_some_and(|hold| hold.may_have_ended_elsewhere(may_be_broken))
    }

    /// Records a violation if a hold was reported as broken although nobody has requested that.
    pub fn check_broken(&mut self, key: &Key, now: u64) {
        // The store may have granted it long before its client received it.
        let first = self.sections_of(&key.0, key.1).min_by_key(|section| section.acquired);
        let (invoked, acquired) = first.map_or((0, u64::MAX), |section| (section.invoked, section.acquired));
        let is_of_both = self.holds.get(key).is_some_and(|hold| hold.step == Some(Step::Both));
        let until = if is_of_both { now } else { acquired };
        let is_misled = self
            .misled
            .iter()
            .any(|(lock, asked)| *lock == key.0 && asked.start < until && asked.end > invoked);
        if !is_misled && !self.may_be_broken(key, invoked) {
            let what =
                format!("innocent hold: token {} of {} was broken, which nobody has asked for", key.1, key.0);
            self.seen.push((now, "break", what));
        }
    }

    /// Returns the time since which no client uses `entry`, at the latest, and the time for which it may be in the store all the same;
    /// `None` if a client uses it.
    #[must_use]
    pub fn unused(&self, entry: &LiveEntry) -> Option<(u64, Duration)> {
        let Some(attempt) = entry.owner.as_ref().and_then(|owner| self.attempt(entry, owner)) else {
            let is_unused = entry.token.is_some_and(|token| !self.has_hold(&entry.name, token));
            return is_unused.then_some((0, Duration::ZERO));
        };
        let patience = match &attempt.state {
            // The locks of a semaphore are held before the acquisition has a slot.
            AttemptState::Acquiring if entry.token.is_none() || entry.name.as_str().contains('\0') => None,
            AttemptState::Acquiring => Some(attempt.patience),
            AttemptState::Holding(lock, token) => {
                // Processes that convert the hold at the same time are told of the new token in any order.
                let is_own = |it: u64| it == *token || attempt.tokens.contains(&it);
                let is_it = *lock == entry.name.as_str() && entry.token.is_some_and(is_own);
                (!is_it).then_some(Duration::ZERO)
            }
            AttemptState::Over(keeps) => Some(*keeps),
        };
        Some((attempt.since, patience?))
    }

    /// Returns the attempt of `owner`, or the one whose hold this is: a process that has adopted it may have written it again at a server that
    /// had lost it.
    fn attempt(&self, entry: &LiveEntry, owner: &str) -> Option<&Attempt> {
        let has_token = |attempt: &&Attempt| {
            attempt.lock == entry.name.as_str()
                && entry.token.is_some_and(|token| attempt.tokens.contains(&token))
        };
        self.attempts.get(owner).or_else(|| self.attempts.values().find(has_token))
    }

    /// Returns the locks that were granted to a client while a former holder still kept them: the time, and what happened.
    #[must_use]
    pub fn taken_early(&self) -> Vec<(u64, &Kept, String)> {
        let is_ended = |kept: &&Kept| {
            let since = kept.time.start.saturating_sub(LONGEST_BREAK);
            let is_broken = |(lock, asked): &(&str, Range<u64>)| {
                *lock == kept.lock && (since..kept.time.end).contains(&asked.start)
            };
            let hold = self.holds.get(&(kept.lock.clone(), kept.token));
            // Another process may have released it, too.
            hold.is_some_and(|hold| hold.ends > 1 || hold.broken.is_some())
                || self.breaks.iter().any(is_broken)
        };
        let taken = self.kept.iter().filter(|kept| !is_ended(kept)).flat_map(|kept| {
            let is_early = |section: &&Section| {
                section.lock == kept.lock
                    && section.token > Some(kept.token)
                    && section.mode.conflicts_with(kept.mode)
                    && kept.time.contains(&section.acquired)
            };
            self.sections.iter().filter(is_early).map(move |section| {
                let Kept { lock, token, time, .. } = kept;
                let until = Duration::from_nanos(time.end);
                let what =
                    format!("{} has {lock}, which token {token} keeps until {until:?}", section.client);
                (section.acquired, kept, what)
            })
        });
        taken.collect()
    }
}
