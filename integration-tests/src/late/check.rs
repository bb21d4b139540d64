//! The promises, checked in the history of one schedule.

use std::{collections::BTreeMap, fmt, time::Duration};

use super::{
    history::{Bounds, History, Known, LETTERS, Letter, failed, request_of},
    message::{Action, Loss, Outcome, Shown, mode},
};

/// The kind of a broken promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Two requests hold the lock in conflicting modes.
    Overlap,
    /// A confirmed lease ends early, and no operation has ended it.
    Shortened,
    /// The store shows a request that has ended.
    Ghost,
    /// The store shows a longer lease than anybody can have confirmed.
    Extended,
    /// A hold is broken that was no target of a break.
    Innocent,
    /// A later grant has a smaller token.
    Token,
    /// A free lock is not granted to a request that waits for it.
    Stuck,
    /// An operation has failed for another reason than the network.
    Error,
}

/// All kinds.
pub const KINDS: [Kind; 8] = [
    Kind::Overlap,
    Kind::Shortened,
    Kind::Ghost,
    Kind::Extended,
    Kind::Innocent,
    Kind::Token,
    Kind::Stuck,
    Kind::Error,
];

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Its kind.
    pub kind: Kind,
    /// What was seen.
    pub what: String,
    /// The entry that was shown, if the violation is in one.
    pub entry: Option<Shown>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.what)
    }
}

/// The difference between a time that a client computes and the server's: a hold is parked, and inspected, by the rest of its lease.
const ROUNDED: u64 = 5_000_000;

/// The time until a free lock is granted to a request that waits for it, although a message was withheld, on a busy machine.
const GRANTED: Duration = Duration::from_secs(8);

/// A schedule to be checked.
#[derive(Debug)]
pub struct Check<'h> {
    history: &'h History,
    bounds: Bounds,
    requests: BTreeMap<Letter, Known>,
    found: Vec<Violation>,
}

/// Returns the broken promises in a history.
#[must_use]
pub fn check(history: &History, bounds: Bounds) -> Vec<Violation> {
    let requests = LETTERS.map(|letter| (letter, history.known(letter)));
    let mut check = Check { history, bounds, requests: requests.into(), found: Vec::new() };
    check.overlaps();
    check.looks();
    check.losses();
    check.tokens();
    check.stuck();
    check.errors();
    check.found
}

/// Returns the last time at which the store may show an entry of the owner, or `None` if it may not show this one now.
#[must_use]
pub fn may_vanish_by(history: &History, bounds: Bounds, owner: &str) -> Option<u64> {
    let known = history.known(request_of(owner)?);
    Some(known.limit(history, bounds, history.last_delivery(u64::MAX)).gone_by)
}

impl History {
    /// Returns the time of the last delivery up to this time.
    #[must_use]
    pub fn last_delivery(&self, until: u64) -> u64 {
        let delivered = self.deliveries.iter().map(|(_, delivered)| *delivered);
        delivered.chain(self.copies.iter().copied()).filter(|at| *at <= until).max().unwrap_or(0)
    }
}

impl Check<'_> {
    fn add(&mut self, kind: Kind, what: String) {
        self.found.push(Violation { kind, what, entry: None });
    }

    fn overlaps(&mut self) {
        let mut found = Vec::new();
        for (first, one) in &self.requests {
            for (second, other) in self.requests.range(*first..).skip(1) {
                let pairs =
                    one.holds().into_iter().flat_map(|a| other.holds().into_iter().map(move |b| (a, b)));
                for (a, b) in pairs {
                    let (from, until) = (a.0.max(b.0), a.1.min(b.1));
                    // The modes change at these times.
                    let changes = one.modes.iter().chain(&other.modes).map(|(at, _)| *at);
                    let conflicts = changes
                        .chain([from])
                        .filter(|at| (from..until).contains(at))
                        .any(|at| mode(one.is_shared(at)).conflicts_with(mode(other.is_shared(at))));
                    if conflicts {
                        let time = Duration::from_nanos(until - from);
                        found.push(format!(
                            "{first} and {second} both hold the lock for {time:.1?} from {from}"
                        ));
                    }
                }
            }
        }
        found.into_iter().for_each(|what| self.add(Kind::Overlap, what));
    }

    /// Checks what inspection has shown.
    fn looks(&mut self) {
        let history = self.history;
        for event in &history.events {
            let Outcome::Shown(entries) = &event.reply.outcome else { continue };
            let (from, to) = (event.reply.invoked, event.reply.returned);
            for letter in LETTERS {
                let entry = entries.iter().find(|entry| request_of(&entry.owner) == Some(letter));
                self.shortened(letter, entry, from, to);
            }
            for entry in entries {
                self.ghost(entry, from);
                self.marked(entry, from);
            }
        }
    }

    fn shortened(&mut self, letter: Letter, entry: Option<&Shown>, from: u64, to: u64) {
        let count = self.found.len();
        let known = &self.requests[&letter];
        let (confirmed, ended) = (known.confirmed_at(from), known.ended());
        let until = match known.parked.iter().find(|(parked, _)| *parked <= from) {
            // Something else has ended it.
            Some((parked, _)) if known.endings().any(|it| it.invoked > *parked && it.invoked < to) => {
                return;
            }
            Some((_, until)) => *until,
            None if ended <= to => return,
            None => confirmed,
        };
        if until <= to.saturating_add(ROUNDED) {
            return;
        }
        let promised = Duration::from_nanos(until - to);
        let what = match entry {
            Some(entry) if entry.token.is_none() => {
                format!("{letter} waits, and has the lock for another {promised:.1?}")
            }
            Some(entry) if entry.expires_in + Duration::from_nanos(ROUNDED) < promised => {
                format!(
                    "{letter} has a lease of {:.1?}, and {promised:.1?} are confirmed, at {from}",
                    entry.expires_in
                )
            }
            Some(_) => return,
            None => format!("{letter} has no entry, and {promised:.1?} are confirmed, at {from}"),
        };
        self.add(Kind::Shortened, what);
        self.found[count].entry = entry.cloned();
    }

    fn ghost(&mut self, entry: &Shown, from: u64) {
        let last = self.history.last_delivery(from);
        let limit = |known: &Known| known.limit(self.history, self.bounds, last);
        let known = request_of(&entry.owner).and_then(|letter| self.requests.get(&letter));
        let may_have_entry = |known: &Known| from <= limit(known).gone_by;
        if self.bounds.shows_last_grant
            && !known.is_some_and(may_have_entry)
            && self.requests.values().any(may_have_entry)
        {
            // The lease is that of a request that has not written its grant.
            return;
        }
        let Some(known) = known else {
            return self.add(Kind::Ghost, format!("an entry of {}", entry.owner));
        };
        let limit = limit(known);
        let (owner, count) = (&entry.owner, self.found.len());
        let ends = from.saturating_add(u64::try_from(entry.expires_in.as_nanos()).unwrap_or(u64::MAX));
        if from > limit.gone_by {
            let after = Duration::from_nanos(from - limit.gone_by);
            self.add(
                Kind::Ghost,
                format!("{owner} has an entry {after:.1?} after its end, for {:.1?}", entry.expires_in),
            );
        } else if ends > limit.lease {
            let after = Duration::from_nanos(ends - limit.lease);
            self.add(Kind::Extended, format!("the entry of {owner} ends {after:.1?} after its lease"));
        }
        self.found[count..].iter_mut().for_each(|violation| violation.entry = Some(entry.clone()));
    }

    /// Returns true if a break of one of the request's tokens was invoked before this time.
    fn is_target(&self, known: &Known, before: u64) -> bool {
        self.history.events.iter().any(|event| {
            matches!(event.action, Action::Break { token, .. } if known.has(token))
                && event.reply.invoked < before
                && !known.is_confirmed_after(failed(&event.reply))
        })
    }

    fn marked(&mut self, entry: &Shown, from: u64) {
        let known = request_of(&entry.owner).and_then(|letter| self.requests.get(&letter));
        if entry.broken
            && known.is_some_and(|known| {
                known.acquired.is_some_and(|it| it.2) && !self.is_target(known, u64::MAX)
            })
        {
            self.add(Kind::Innocent, format!("{} is marked, and was no target, at {from}", entry.owner));
        }
    }

    /// Checks the losses that guards and operations have reported.
    fn losses(&mut self) {
        let history = self.history;
        for (guard, log) in &history.logs {
            if let (Some(letter), Some(loss)) = (request_of(guard), &log.lost) {
                self.loss(letter, guard, loss, loss.at, None);
            }
        }
        for (index, event) in history.events.iter().enumerate() {
            let Outcome::Lost(loss) = &event.reply.outcome else { continue };
            // A copy of the message that ends the hold may have been carried out before the message.
            if history.copies.iter().any(|at| (event.reply.invoked..event.reply.returned).contains(at)) {
                continue;
            }
            let guard = match &event.action {
                Action::Adopt { guard, .. } | Action::End { guard, .. } | Action::IntoHandle { guard } => {
                    guard
                }
                Action::Downgrade { guard } | Action::Upgrade { guard, .. } => guard,
                _ => continue,
            };
            // A loss that the guard has recorded is checked there.
            let recorded = history.logs.get(guard).and_then(|log| log.lost.as_ref());
            if let (Some(letter), None) = (request_of(guard), recorded) {
                self.loss(letter, guard, loss, event.reply.returned, Some(index));
            }
        }
    }

    fn loss(&mut self, letter: Letter, guard: &str, loss: &Loss, at: u64, event: Option<usize>) {
        let known = &self.requests[&letter];
        if loss.kind == "broken" {
            if !self.is_target(known, at) {
                let notice = loss.notice.as_deref().unwrap_or("no notice");
                self.add(Kind::Innocent, format!("{guard} is broken ({notice}), and was no target, at {at}"));
            }
            return;
        }
        if loss.kind != "gone" {
            return;
        }
        let has_ended = known.endings().any(|ending| ending.invoked < at && Some(ending.event) != event);
        let is_converted = known.conversions.iter().any(|(invoked, other)| *invoked < at && other != guard);
        let confirmed = known.confirmed_at(at);
        if !has_ended && !is_converted && confirmed > at.saturating_add(ROUNDED) {
            let left = Duration::from_nanos(confirmed - at);
            self.add(Kind::Shortened, format!("{guard} is gone, and {left:.1?} are confirmed, at {at}"));
        }
    }

    fn tokens(&mut self) {
        let mut grants: Vec<(u64, u64, u64, String)> = Vec::new();
        let mut found = Vec::new();
        for event in &self.history.events {
            let (guard, is_conversion) = match &event.action {
                Action::Acquire { guard, .. } => (guard, false),
                Action::Downgrade { guard } | Action::Upgrade { guard, .. } => (guard, true),
                _ => continue,
            };
            let Outcome::Held { token, .. } = event.reply.outcome else { continue };
            // A conversion to the present mode is none.
            if is_conversion && grants.iter().any(|(_, _, other, _)| *other == token) {
                continue;
            }
            for (_, returned, other, of) in &grants {
                if *returned < event.reply.invoked && *other >= token {
                    found.push(format!("{guard} has {token}, after {other} of {of}"));
                }
            }
            grants.push((event.reply.invoked, event.reply.returned, token, guard.clone()));
        }
        found.into_iter().for_each(|what| self.add(Kind::Token, what));
    }

    /// Checks that a request that waits is granted a free lock.
    fn stuck(&mut self) {
        let granted = u64::try_from((self.bounds.settled + GRANTED).as_nanos()).unwrap_or(u64::MAX);
        let mut found = Vec::new();
        for event in &self.history.events {
            let Action::Acquire { guard, wait: Some(wait), .. } = &event.action else { continue };
            let Some(letter) = request_of(guard) else { continue };
            let is_late = matches!(event.reply.outcome, Outcome::Held { .. } | Outcome::Refused);
            let last = self.history.last_delivery(event.reply.returned);
            let others = self.requests.iter().filter(|(other, known)| {
                **other != letter
                    && known.acquired.is_some_and(|(invoked, ..)| invoked < event.reply.returned)
            });
            let free = others.map(|(_, known)| known.limit(self.history, self.bounds, last).free()).max();
            let free = free.unwrap_or(0).max(event.reply.invoked);
            if is_late && event.reply.returned.saturating_sub(free) > granted {
                let time = Duration::from_nanos(event.reply.returned - free);
                found.push(format!("{guard} waits {time:.1?} for a free lock, of {wait:?}"));
            }
        }
        found.into_iter().for_each(|what| self.add(Kind::Stuck, what));
    }

    fn errors(&mut self) {
        for event in &self.history.events {
            if let Outcome::Failed { temporary: false, text } = &event.reply.outcome {
                let what = format!("{:?}: {text}", event.action);
                self.found.push(Violation { kind: Kind::Error, what, entry: None });
            }
        }
    }
}

#[cfg(test)]
mod tests;
