//! What has happened in one schedule, and what follows from it for each request.

use std::{collections::BTreeMap, time::Duration};

use polylock_core::deadline;

use super::{
    acts::Role,
    message::{Action, Log, Loss, Outcome, Reply, Way},
};

/// An operation that was carried out.
#[derive(Debug, Clone)]
pub struct Event {
    /// The process.
    pub role: Role,
    /// The operation.
    pub action: Action,
    /// Its times and its outcome.
    pub reply: Reply,
}

/// Everything that has happened in one schedule. Times are in nanoseconds.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// The operations, in the order of their replies.
    pub events: Vec<Event>,
    /// What the guards have recorded.
    pub logs: BTreeMap<String, Log>,
    /// The times at which a message was withheld, and at which it was delivered.
    pub deliveries: Vec<(u64, u64)>,
    /// The times at which copies of messages were delivered.
    pub copies: Vec<u64>,
    /// The times for which a process was stopped, if messages can't be withheld.
    pub pauses: Vec<(u64, u64)>,
}

/// A request, by the letter with which its owner and its guards begin: the holder's and the adopter's guards are of one request.
pub type Letter = char;

/// The requests.
pub const LETTERS: [Letter; 3] = ['h', 'n', 'z'];

/// Returns the request of a guard or an owner.
#[must_use]
pub fn request_of(name: &str) -> Option<Letter> {
    match name.chars().next()? {
        'h' | 'a' => Some('h'),
        letter => LETTERS.into_iter().find(|other| *other == letter),
    }
}

/// An operation by which a hold ends, or ends for the other guards of its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending {
    /// The time at which it was invoked.
    pub invoked: u64,
    /// The time from which the store shows no entry; the end of the lease if it is parked. `None` if nothing has confirmed it.
    pub gone_by: Option<u64>,
    /// The index of its event.
    pub event: usize,
    /// The time at which it has failed, after which it has no effect.
    pub failed: Option<u64>,
}

/// A confirmation of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Confirmed {
    /// The time from which it was known.
    pub known: u64,
    /// The time before which the message was not sent.
    pub sent: u64,
    /// The end of the lease.
    pub until: u64,
}

/// A request, with everything that its processes know of it.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// The times at which the acquisition was invoked and has returned, and whether it has succeeded.
    pub acquired: Option<(u64, u64, bool)>,
    /// The confirmations of the lease.
    pub confirmed: Vec<Confirmed>,
    /// The times between which the hold is parked: from the reply to the end.
    pub parked: Vec<(u64, u64)>,
    /// The operations that end the hold.
    pub endings: Vec<Ending>,
    /// The tokens, each with the time from which it was known.
    pub tokens: Vec<(u64, u64)>,
    /// The tokens that inspection has shown: those of a shared hold of two stores are smaller.
    pub shown: Vec<u64>,
    /// The lease that each guard asks for.
    leases: BTreeMap<String, Duration>,
    /// The times from which the hold is shared, or is not.
    pub modes: Vec<(u64, bool)>,
    /// The conversions, by the time of their invocation and the guard.
    pub conversions: Vec<(u64, String)>,
    /// The longest lease that a process has asked for.
    pub longest: Duration,
    /// The guards, each with the time from which it sends no renewals; the greatest number if it has not ended.
    pub guards: BTreeMap<String, u64>,
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl History {
    /// Returns the guard's loss, as it has recorded it.
    fn loss(&self, guard: &str) -> Option<&Loss> {
        self.logs.get(guard)?.lost.as_ref()
    }

    /// Returns true if a break of the request has been invoked before this time.
    fn is_broken(&self, known: &Known, before: u64) -> bool {
        self.events.iter().any(|event| {
            event.reply.invoked < before
                && matches!(event.action, Action::Break { token, .. } if known.has(token))
        })
    }

    /// Returns what is known of a request.
    #[must_use]
    pub fn known(&self, letter: Letter) -> Known {
        let mut known = Known::default();
        for (index, event) in self.events.iter().enumerate() {
            self.learn(&mut known, letter, index, event);
        }
        for (guard, log) in &self.logs {
            if request_of(guard) == Some(letter) {
                let lease = known.leases.get(guard).copied().unwrap_or(known.longest);
                let lease = nanos(lease.saturating_sub(deadline::margin(lease)));
                let renewed = |(at, until): &(u64, u64)| Confirmed {
                    known: *at,
                    sent: until.saturating_sub(lease),
                    until: *until,
                };
                known.confirmed.extend(log.renewals.iter().map(renewed));
                let end = known.guards.entry(guard.clone()).or_insert(u64::MAX);
                *end = log.lost.as_ref().map_or(*end, |lost| lost.at.min(*end));
            }
        }
        known.breaks(self);
        known.confirmed.sort_unstable();
        known.modes.sort_unstable();
        known
    }

    fn learn(&self, known: &mut Known, letter: Letter, index: usize, event: &Event) {
        let Event { action, reply, .. } = event;
        let Reply { invoked, returned, outcome, .. } = reply;
        let is_own = |guard: &String| request_of(guard) == Some(letter);
        match action {
            Action::Acquire { guard, ttl, shared, .. } if is_own(guard) => {
                known.acquired = Some((*invoked, *returned, matches!(outcome, Outcome::Held { .. })));
                known.longest = known.longest.max(ttl.unwrap_or_default());
                known.leases.extend(ttl.map(|ttl| (guard.clone(), ttl)));
                known.held(reply, true);
                known.modes.push((0, *shared));
                known.guards.insert(guard.clone(), u64::MAX);
            }
            Action::Adopt { guard, ttl, .. } if is_own(guard) => {
                known.longest = known.longest.max(ttl.unwrap_or_default());
                known.leases.extend(ttl.map(|ttl| (guard.clone(), ttl)));
                known.held(reply, false);
                known.guards.insert(guard.clone(), u64::MAX);
            }
            Action::IntoHandle { guard } if is_own(guard) && *outcome != Outcome::Absent => {
                if let Outcome::Handle { ttl, .. } = outcome {
                    let left = ttl.saturating_sub(deadline::margin(*ttl));
                    let until = invoked.saturating_add(nanos(left));
                    known.confirmed.push(Confirmed { known: *returned, sent: *invoked, until });
                }
                known.guards.insert(guard.clone(), *returned);
                if matches!(outcome, Outcome::Lost(loss) if loss.kind == "broken") {
                    // The guard is dropped, and with it the hold is released.
                    known.endings.push(Ending {
                        invoked: *invoked,
                        gone_by: None,
                        event: index,
                        failed: None,
                    });
                }
            }
            Action::Look { .. } => {
                if let Outcome::Shown(entries) = outcome {
                    let own = entries.iter().filter(|entry| request_of(&entry.owner) == Some(letter));
                    known.shown.extend(own.filter_map(|entry| entry.token));
                }
            }
            Action::Downgrade { guard } | Action::Upgrade { guard, .. }
                if is_own(guard) && *outcome != Outcome::Absent =>
            {
                let is_weaker = matches!(action, Action::Downgrade { .. });
                if is_weaker && *outcome != Outcome::Unsupported {
                    known.modes.push((*invoked, true));
                }
                if let (Outcome::Held { .. }, false) = (outcome, is_weaker) {
                    known.modes.push((*returned, false));
                }
                known.conversions.push((*invoked, guard.clone()));
                known.held(reply, true);
            }
            Action::End { guard, way } if is_own(guard) && *outcome != Outcome::Absent => {
                known.guards.insert(guard.clone(), *returned);
                let lost = self.loss(guard).filter(|loss| loss.at < *invoked);
                if lost.is_some_and(|loss| loss.kind != "broken") {
                    // Nothing is sent.
                    return;
                }
                let is_carried_out = match outcome {
                    Outcome::Done => true,
                    // The guard knew of the break before, and the store may not have replied.
                    Outcome::Lost(loss) if loss.kind == "broken" => {
                        !self.deliveries.iter().any(|(at, _)| (*invoked..*returned).contains(at))
                    }
                    Outcome::Lost(loss) => loss.kind != "deadline",
                    _ => false,
                };
                let gone_by = match way {
                    Way::Release => Some(*returned),
                    Way::After(delay) if *outcome == Outcome::Done => {
                        known.parked.push((*returned, invoked + nanos(*delay)));
                        // Redlock keeps a vote for 1 % and 2 ms longer, and servers count in ms.
                        Some(returned + nanos(*delay) + nanos(*delay / 50 + Duration::from_millis(10)))
                    }
                    // The hold may have another token.
                    Way::After(_) => None,
                    Way::Drop => None,
                    // A broken hold is released.
                    Way::Leave if self.is_broken(known, *returned) => None,
                    Way::Leave => return,
                };
                let gone_by = gone_by.filter(|_| is_carried_out);
                known.endings.push(Ending {
                    invoked: *invoked,
                    gone_by,
                    event: index,
                    failed: failed(reply),
                });
            }
            _ => {}
        }
    }
}

/// Returns the time at which an operation has failed because of the network.
pub(super) fn failed(reply: &Reply) -> Option<u64> {
    matches!(reply.outcome, Outcome::Failed { temporary: true, .. }).then_some(reply.returned)
}

impl Known {
    fn held(&mut self, reply: &Reply, is_new: bool) {
        if let Outcome::Held { token, deadline, .. } = reply.outcome {
            self.confirmed.push(Confirmed { known: reply.returned, sent: reply.invoked, until: deadline });
            if is_new {
                self.tokens.push((reply.returned, token));
            }
        }
    }

    /// Adds the breaks by force of this request.
    fn breaks(&mut self, history: &History) {
        for (index, event) in history.events.iter().enumerate() {
            let Action::Break { token, force: true, .. } = event.action else { continue };
            // Without a conversion, a smaller token is that of one of two stores.
            let converted = self.tokens.iter().any(|(known, other)| {
                *other > token
                    && *known < event.reply.invoked
                    && self.conversions.iter().any(|(invoked, _)| invoked < known)
            });
            if converted || !self.has(token) {
                continue;
            }
            let is_done = matches!(&event.reply.outcome, Outcome::Broken(tokens) if tokens.contains(&token));
            let gone_by = is_done.then_some(event.reply.returned);
            let (invoked, failed) = (event.reply.invoked, failed(&event.reply));
            self.endings.push(Ending { invoked, gone_by, event: index, failed });
        }
    }

    /// Returns true if the request had this token.
    #[must_use]
    pub fn has(&self, token: u64) -> bool {
        self.tokens.iter().any(|(_, known)| *known == token) || self.shown.contains(&token)
    }

    /// Returns true if the lease was confirmed by a message that was sent later than this time.
    #[must_use]
    pub fn is_confirmed_after(&self, at: Option<u64>) -> bool {
        at.is_some_and(|at| self.confirmed.iter().any(|confirmed| confirmed.sent > at))
    }

    /// Returns the operations that end the hold. One that has failed, after which the lease was confirmed, is none: it must have no effect any
    /// more.
    pub fn endings(&self) -> impl Iterator<Item = &Ending> {
        self.endings.iter().filter(|ending| !self.is_confirmed_after(ending.failed))
    }

    /// Returns the time of the first ending.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.endings().map(|ending| ending.invoked).min().unwrap_or(u64::MAX)
    }

    /// Returns the end of the lease that was confirmed at `at`.
    #[must_use]
    pub fn confirmed_at(&self, at: u64) -> u64 {
        let known = self.confirmed.iter().filter(|confirmed| confirmed.known <= at);
        known.map(|confirmed| confirmed.until).max().unwrap_or(0)
    }

    /// Returns the times between which the request is confirmed to exclude others.
    #[must_use]
    pub fn holds(&self) -> Vec<(u64, u64)> {
        let ended = self.ended();
        let leases = self.confirmed.iter().map(|confirmed| (confirmed.known, confirmed.until.min(ended)));
        // A break by force ends a parked hold, and so does a release.
        let parked = self.parked.iter().map(|(from, until)| {
            let later = self.endings().map(|ending| ending.invoked).filter(|invoked| invoked > from);
            (*from, later.min().unwrap_or(u64::MAX).min(*until))
        });
        leases.chain(parked).filter(|(from, until)| from < until).collect()
    }

    /// Returns true if the hold is shared at this time.
    #[must_use]
    pub fn is_shared(&self, at: u64) -> bool {
        self.modes.iter().rfind(|(from, _)| *from <= at).is_some_and(|(_, shared)| *shared)
    }

    /// Returns true if a message of this ending may have been withheld, or its process stopped, and the hold lasts for longer than this guard's lease:
    /// then the process has given the release up at its own deadline, and the hold goes on.
    fn may_fail(&self, ending: &Ending, event: &Event, history: &History, settled: u64) -> bool {
        let (Action::End { guard, .. } | Action::IntoHandle { guard }) = &event.action else { return false };
        let time = ending.invoked..ending.invoked + settled;
        let was_delayed = history.deliveries.iter().any(|(at, _)| time.contains(at))
            || history.pauses.iter().any(|(from, until)| *from < time.end && *until > time.start);
        was_delayed
            && (self.guards.iter().any(|(other, end)| other != guard && *end > ending.invoked)
                || self.leases.get(guard).is_some_and(|lease| *lease < self.longest))
    }

    /// Returns the last times of an entry of the request. `last` is the time of the last delivery.
    #[must_use]
    pub fn limit(&self, history: &History, bounds: Bounds, last: u64) -> Limit {
        let Some((_, returned, is_held)) = self.acquired else { return Limit { gone_by: 0, lease: 0 } };
        let (settled, undone) = (nanos(bounds.settled), last + nanos(bounds.undone));
        if !is_held {
            return Limit { gone_by: (returned + settled).max(undone), lease: u64::MAX };
        }
        let dropped = self.endings.iter().filter_map(|ending| {
            let event = &history.events[ending.event];
            // A broken hold that is left may not be released: its guard may not know of the break yet.
            let is_dropped = match &event.action {
                Action::End { way, .. } => {
                    *way == Way::Drop || *way == Way::Leave && matches!(event.reply.outcome, Outcome::Lost(_))
                }
                action => matches!(action, Action::IntoHandle { .. }),
            };
            (is_dropped && !self.may_fail(ending, event, history, settled)).then(|| ending.invoked + settled)
        });
        let gone_by = self.endings.iter().filter_map(|ending| ending.gone_by).chain(dropped).min();
        let unsent = self.guards.values().copied().max().unwrap_or(0);
        // A renewal is under way for as long as an operation lasts.
        let renewed = unsent.max(last).saturating_add(settled).saturating_add(nanos(self.longest));
        Limit {
            gone_by: gone_by.unwrap_or(u64::MAX).max(undone),
            lease: renewed.max(self.confirmed_at(u64::MAX)),
        }
    }
}

/// The times that a store may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The time from a release in the background until it is confirmed.
    pub settled: Duration,
    /// The time from the delivery of a late claim until the store is without its entry, if the store does not refuse it.
    pub undone: Duration,
    /// True if the store shows the last grant, or an unknown owner, for a lease whose grant is not written yet, or never will be.
    pub shows_last_grant: bool,
}

/// The last times of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// The last time at which the store may show it.
    pub gone_by: u64,
    /// The last end of its lease.
    pub lease: u64,
}

impl Limit {
    /// Returns the time from which the request excludes nobody.
    #[must_use]
    pub fn free(self) -> u64 {
        self.gone_by.min(self.lease)
    }
}
