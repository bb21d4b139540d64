//! The holds of a run. Several processes may have one of them, by its handle, so what they have been told and what they have done is recorded
//! for the hold, by its lock and its token.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use polylock_testkit::history::Section;

use super::both::step::Step;

/// The greatest number of handles that wait for a process.
const MOST_OFFERS: usize = 8;

/// The holds of all clients.
#[derive(Debug, Default)]
pub struct Holds {
    records: BTreeMap<Key, HoldRecord>,
    offers: Vec<Offer>,
}

/// The lock and the token of a hold.
pub type Key = (String, u64);

/// One hold. Times are those at which a client began or finished an operation.
#[derive(Debug, Default)]
pub struct HoldRecord {
    /// The step of the processes that have it, if their fleet moves from one store to another.
    pub step: Option<Step>,
    /// True once another process may have it.
    pub is_shared: bool,
    /// The time at which a client first ended it for all: by a release, a conversion, or a request to end it later.
    pub ended: Option<u64>,
    /// The number of clients that have ended it.
    pub ends: u32,
    /// The number of clients that are about to leave it to others.
    leaving: u32,
    /// The time at which a client first left it to expire, in a store that would free it when the process ends. Core then sets the end of its
    /// lease, and releases it if it is broken.
    pub left: Option<u64>,
    /// The time since which the store is known not to renew it: a release, a conversion, or its end at a later time was confirmed.
    pub gone: Option<u64>,
    /// The time at which a break of it was first requested.
    pub broken: Option<u64>,
    /// The same for a break with force, after which others may have the lock at once.
    pub forced: Option<u64>,
    /// The time at which a break of it was first confirmed.
    pub marked: Option<u64>,
    /// The end of the longest lease that the store has confirmed to any client.
    confirmed: u64,
}

impl HoldRecord {
    /// Returns true if a client has ended it, or has removed it by force: the store need not have it.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.ended.is_some() || self.forced.is_some() || (self.left.is_some() && self.broken.is_some())
    }

    /// Returns true if a second client may have ended it: by an end of its own, or because it leaves a hold that `may_be_broken`, by its
    /// token or with all of its lock, to others or to expire: core releases it then.
    #[must_use]
    pub const fn may_have_ended_elsewhere(&self, may_be_broken: bool) -> bool {
        self.ends > 1 || self.forced.is_some() || ((self.leaving > 0 || self.left.is_some()) && may_be_broken)
    }

    /// Records that a client ends it for all.
    pub fn end(&mut self, now: u64) {
        self.ended.get_or_insert(now);
        self.ends += 1;
    }

    /// Records that the store has confirmed a lease until `until`.
    pub fn confirm(&mut self, until: u64) {
        self.confirmed = self.confirmed.max(until);
    }
}

/// A handle that any process may take, as the text that programs pass to each other.
#[derive(Debug, Clone)]
pub struct Offer {
    /// The owner of the attempt.
    pub owner: String,
    /// The handle.
    pub text: String,
    /// The lock, and the token when the handle was made.
    pub key: Key,
    /// The step of the processes that may adopt it: those that use the same stores.
    pub step: Option<Step>,
}

impl Holds {
    /// Returns the record of a hold, if there is one.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<&HoldRecord> {
        self.records.get(key)
    }

    /// Returns the record of a hold, a new one if there is none.
    pub fn of(&mut self, key: &Key) -> &mut HoldRecord {
        self.records.entry(key.clone()).or_default()
    }

    /// Records that a client ends the hold of `lock` that has or had these tokens.
    pub fn end(&mut self, lock: &str, tokens: &BTreeSet<u64>, now: u64) {
        for token in tokens {
            self.of(&(lock.to_owned(), *token)).end(now);
        }
    }

    /// Records that the hold of `lock` that has or had these tokens may end at any time from now on.
    pub fn suspend(&mut self, lock: &str, tokens: &BTreeSet<u64>, now: u64) {
        for token in tokens {
            let hold = self.of(&(lock.to_owned(), *token));
            hold.ended.get_or_insert(now);
            hold.leaving += 1;
        }
    }

    /// Records that it has not ended after all, unless a client has ended it meanwhile.
    pub fn resume(&mut self, lock: &str, tokens: &BTreeSet<u64>) {
        for token in tokens {
            let hold = self.of(&(lock.to_owned(), *token));
            hold.leaving = hold.leaving.saturating_sub(1);
            hold.ended = hold.ended.filter(|_| hold.ends > 0 || hold.leaving > 0);
        }
    }

    /// Records that the hold `from` has the token of `to` now. A client that is about to leave it may not know that, and ends it nevertheless if it was
    /// broken.
    pub fn convert(&mut self, from: &Key, to: &Key, now: u64) {
        let old = self.of(from);
        let (is_shared, leaving) = (old.is_shared, old.leaving);
        let new = self.of(to);
        (new.is_shared, new.leaving) = (is_shared, new.leaving + leaving);
        if leaving > 0 {
            new.ended.get_or_insert(now);
        }
    }

    /// Offers a handle to all processes.
    pub fn offer(&mut self, offer: Offer) {
        if self.offers.iter().filter(|other| other.step == offer.step).count() < MOST_OFFERS {
            self.offers.push(offer);
        }
    }

    /// Takes a handle for a process in this step, most of the last ones. Sometimes it stays, for a further process.
    pub fn take(&mut self, random: &mut Rng, step: Option<Step>) -> Option<Offer> {
        let fitting = self.offers.iter().enumerate().filter(|(_, offer)| offer.step == step);
        let fitting: Vec<usize> = fitting.map(|(at, _)| at).collect();
        let last = fitting.len().checked_sub(1)?;
        let at = fitting[if random.bool() { last } else { random.usize(..=last) }];
        Some(if random.u8(..4) == 0 { self.offers[at].clone() } else { self.offers.remove(at) })
    }

    /// Returns the holds that the store gives less time than it has confirmed to a client, although nobody has ended them. `expires` returns
    /// the end of the lease in the store. Each is returned once.
    pub fn shortened(&mut self, now: u64, expires: impl Fn(&str, u64) -> Option<u64>) -> Vec<String> {
        let relied_on = self.records.iter_mut().filter(|(_, hold)| hold.confirmed > now && !hold.is_over());
        let mut found = Vec::new();
        for ((lock, token), hold) in relied_on {
            let expires = expires(lock, *token);
            if expires.is_none_or(|expires| expires < hold.confirmed) {
                let until = hold.confirmed;
                found.push(format!(
                    "shortened lease: token {token} of {lock} ends at {expires:?}, confirmed until {until}"
                ));
                hold.confirmed = 0;
            }
        }
        found
    }

    /// Returns the sections with one for each hold: of those of several processes, the time from the first begin to the last end. A hold ends
    /// for all with the first release, conversion or break by force: the others find out when they renew, so the documentation of handles says
    /// that they may still work then.
    #[must_use]
    pub fn merged(&self, sections: &[Section]) -> Vec<Section> {
        let (mut merged, mut first): (Vec<Section>, BTreeMap<Key, usize>) = Default::default();
        for section in sections {
            let key = key_of(section);
            let is_shared = self.records.get(&key).is_some_and(|hold| hold.is_shared);
            if is_shared && let Some(at) = first.get(&key) {
                // A process that was paused may receive its guard after the deadline: it has never had the hold.
                if section.acquired >= section.end() {
                    continue;
                }
                let first = &mut merged[*at];
                let end = first.end().max(section.end());
                first.invoked = first.invoked.min(section.invoked);
                first.acquired = first.acquired.min(section.acquired);
                first.deadline = first.deadline.max(section.deadline);
                (first.released, first.lost, first.polled) = (Some(end), None, None);
            } else {
                first.insert(key, merged.len());
                merged.push(section.clone());
            }
        }
        for section in &mut merged {
            let Some(hold) = self.records.get(&key_of(section)) else { continue };
            let released = hold.left.zip(hold.broken).map(|(left, broken)| left.max(broken));
            let ended = hold.ended.into_iter().chain(released).filter(|_| hold.is_shared);
            let over = ended.chain(hold.forced);
            section.released = section.released.into_iter().chain(over).min();
        }
        merged
    }
}

fn key_of(section: &Section) -> Key {
    (section.lock.clone(), section.token.unwrap_or_default())
}
