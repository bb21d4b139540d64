//! A model of a server that keeps queues of locks, like those of Redis and PostgreSQL: grants in order of arrival, leases by its own
//! clock, a handover by the release with a notification that may be lost, and claims that expire.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use polylock_core::{
    BreakNotice, FencingToken, Grant, HoldTerms, LockName, LostReason, Request, RequestId,
    queue::{self, QueueEntry},
    sync::lock,
    wakeups::Handover,
};

use super::{
    live_entry::LiveEntry,
    plan::Planted,
    queue_call::{Call, Kept, Reply, Subscriber},
};

mod orders;

/// The locks of the server.
#[derive(Debug)]
pub struct QueueServer {
    planted: Option<Planted>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The last number drawn: for tokens and queue positions.
    last: u64,
    locks: BTreeMap<LockName, Vec<Entry>>,
    /// The released requests of which a claim may be on its way, and the times until which it is valid.
    released: BTreeMap<RequestId, i64>,
    /// The holds that were broken with force.
    removed: BTreeMap<RequestId, BreakNotice>,
    /// The holds that have expired, for the planted bug.
    expired: Vec<Entry>,
    notifications: Vec<(Subscriber, Handover)>,
    /// The grants, for the check.
    grants: Vec<GrantRecord>,
    /// The requests that were released, for the check.
    ended: BTreeSet<RequestId>,
    /// The claims that had an effect after the release of their request, with their times.
    late: Vec<(i64, LockName)>,
    /// The calls that were carried out, with their times.
    executed: Vec<(i64, RequestId, Executed)>,
}

/// A call that was carried out, although perhaps without an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Executed {
    /// A claim.
    Claim,
    /// A release, or the withdrawal of a request that waits.
    Release,
    /// The end of a hold at a later time.
    Park,
}

#[derive(Debug, Clone)]
struct Entry {
    request: Arc<Request>,
    queue_entry: QueueEntry,
    token: Option<u64>,
    since_us: i64,
    expires_us: i64,
    subscriber: Subscriber,
    ticket: u64,
    /// The notice of a break.
    notice: Option<BreakNotice>,
    is_parked: bool,
}

impl Entry {
    fn grant(&mut self, token: u64, expires_us: i64) {
        (self.queue_entry.held, self.token, self.expires_us) = (true, Some(token), expires_us);
    }

    fn left(&self, now: i64) -> Duration {
        Duration::from_micros(self.expires_us.saturating_sub(now).try_into().unwrap_or(0))
    }

    fn has_token(&self, token: FencingToken) -> bool {
        self.queue_entry.held && self.token == Some(token.get())
    }

    fn record(&self, token: u64, at: i64) -> GrantRecord {
        let Self { request, subscriber, .. } = self;
        GrantRecord { at, request: request.clone(), token, process: (subscriber.link, subscriber.life) }
    }

    /// Returns the notification of a grant with `token`.
    fn notification(&self, token: u64, now: i64) -> Option<(Subscriber, Handover)> {
        let [ticket, position, token] = [self.ticket, self.queue_entry.seq, token].map(u64::cast_signed);
        let handover = Handover::new([ticket, position, token, self.expires_us - now])?;
        Some((self.subscriber.clone(), handover))
    }
}

/// A grant, for the checks of a run.
#[derive(Debug, Clone)]
pub struct GrantRecord {
    /// The time, in microseconds of the server's clock.
    pub at: i64,
    /// The request.
    pub request: Arc<Request>,
    /// The token.
    pub token: u64,
    /// The link and the life of the process.
    pub process: (usize, u64),
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

impl State {
    fn draw(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Removes the expired entries of `name`, and grants the lock to each waiter that conflicts with no entry ahead of it, except
    /// `own`: its claim follows.
    fn settle(&mut self, name: &LockName, now: i64, own: Option<RequestId>, keeps_expired: bool) {
        let mut entries = self.locks.remove(name).unwrap_or_default();
        let expired: Vec<Entry> = entries.extract_if(.., |entry| entry.expires_us <= now).collect();
        if keeps_expired {
            self.expired.extend(expired.into_iter().filter(|entry| entry.queue_entry.held));
        }
        for at in 0..entries.len() {
            let entry = entries[at].queue_entry;
            if entry.held || own == Some(entries[at].request.id) || is_blocked(&entries, entry) {
                continue;
            }
            let token = entries[at].token.unwrap_or_else(|| self.draw());
            // A client that has died holds the lock no longer than it would have waited.
            let until = entries[at].expires_us;
            entries[at].grant(token, until);
            self.grants.push(entries[at].record(token, now));
            self.notifications.extend(entries[at].notification(token, now));
        }
        if !entries.is_empty() {
            self.locks.insert(name.clone(), entries);
        }
    }
}

fn is_blocked(entries: &[Entry], entry: QueueEntry) -> bool {
    let all: Vec<QueueEntry> = entries.iter().map(|entry| entry.queue_entry).collect();
    queue::watched(&all, entry.seq, entry.mode).is_some()
}

impl QueueServer {
    /// Creates a server without locks.
    #[must_use]
    pub fn new(planted: Option<Planted>) -> Self {
        Self { planted, state: Mutex::default() }
    }

    /// Executes `call` at `now`. Returns the reply and the notifications to be sent.
    pub fn execute(&self, now: i64, call: Call) -> (Reply, Vec<(Subscriber, Handover)>) {
        let mut state = lock(&self.state);
        let reply = match call {
            Call::Claim { request, subscriber, ticket, expires_us, token, .. } => {
                self.claim(&mut state, now, &request, &subscriber, (ticket, expires_us, token))
            }
            Call::KeepAlive(requests) => Reply::Kept(
                requests.iter().map(|request| self.keep_alive(&mut state, now, request)).collect(),
            ),
            Call::Release { request, refused_us, expires_us } => {
                self.release(&mut state, now, &request, (refused_us, expires_us))
            }
            Call::Park { request, token, left, refused, expires_us } => {
                self.park(&mut state, now, (&request, token), (left, refused, expires_us))
            }
            Call::Convert(request, conversion) => self.convert(&mut state, now, &request, conversion),
            Call::Break { name, order, expires_us } => {
                self.break_holds(&mut state, now, &name, &order, expires_us)
            }
            Call::List(prefix) => Reply::Locks(state.list(now, &prefix)),
            Call::Raise(to) => {
                let last = state.last;
                state.last = last.max(to.get());
                Reply::Drawn(last)
            }
            Call::Draw => Reply::Drawn(state.draw()),
        };
        let mut notifications = std::mem::take(&mut state.notifications);
        if self.has(Planted::LostNotification) {
            notifications.clear();
        }
        (reply, notifications)
    }

    fn has(&self, planted: Planted) -> bool {
        self.planted == Some(planted)
    }

    fn claim(
        &self,
        state: &mut State,
        now: i64,
        request: &Arc<Request>,
        subscriber: &Subscriber,
        (ticket, expires_us, token): (u64, i64, Option<u64>),
    ) -> Reply {
        let is_late = now > expires_us || state.released.get(&request.id).is_some_and(|until| now <= *until);
        if is_late && !self.has(Planted::LateClaim) {
            return Reply::Expired;
        }
        state.executed.push((now, request.id, Executed::Claim));
        state.settle(&request.name, now, Some(request.id), self.has(Planted::RevivedHold));
        let mut entries = state.locks.remove(&request.name).unwrap_or_default();
        let known = entries.iter().position(|entry| entry.request.id == request.id);
        let at = known.unwrap_or_else(|| {
            let queue_entry = QueueEntry { seq: state.draw(), mode: request.mode, held: false };
            let (request, subscriber) = (request.clone(), subscriber.clone());
            entries.push(Entry {
                request,
                queue_entry,
                token,
                since_us: now,
                expires_us: 0,
                subscriber,
                ticket,
                notice: None,
                is_parked: false,
            });
            entries.len() - 1
        });
        // A client that continues on another server of a lock service waits there.
        (entries[at].subscriber, entries[at].ticket) = (subscriber.clone(), ticket);
        let entry = entries[at].queue_entry;
        let reply = if entry.held || !is_blocked(&entries, entry) {
            let token = entries[at].token.unwrap_or_else(|| state.draw());
            let entry = &mut entries[at];
            if !entry.queue_entry.held {
                state.grants.push(entry.record(token, now));
                entry.grant(token, now + micros(request.ttl));
            } else if !entry.is_parked && entry.notice.is_none() {
                entry.expires_us = entry.expires_us.max(now + micros(request.ttl));
            }
            // The claim counts the lease from when it was sent.
            let left = entry.left(now).min(request.ttl);
            FencingToken::new(token.cast_signed())
                .map_or(Reply::Expired, |token| Reply::Granted(Grant::new(token, left)))
        } else {
            entries[at].expires_us = now + micros(request.queue_lease());
            let all: Vec<QueueEntry> = entries.iter().map(|entry| entry.queue_entry).collect();
            let held = entries.iter().filter(|entry| entry.queue_entry.held).map(|entry| entry.expires_us);
            let left = held.min().unwrap_or(i64::MAX).saturating_sub(now).cast_unsigned();
            Reply::Queued {
                position: entry.seq,
                ahead: queue::blockers(&all, entry.seq, entry.mode).count(),
                left: Duration::from_micros(left),
            }
        };
        if !request.queues && matches!(reply, Reply::Queued { .. }) {
            entries.remove(at);
        } else if state.ended.contains(&request.id) {
            state.late.push((now, request.name.clone()));
        }
        state.locks.insert(request.name.clone(), entries);
        reply
    }

    fn keep_alive(&self, state: &mut State, now: i64, request: &Arc<Request>) -> Kept {
        if self.has(Planted::RevivedHold) {
            let revived = state.expired.extract_if(.., |entry| entry.request.id == request.id);
            let revived: Vec<Entry> = revived.collect();
            state.locks.entry(request.name.clone()).or_default().extend(revived);
        }
        let entries = state.locks.get_mut(&request.name);
        let live = |entry: &&mut Entry| {
            entry.request.id == request.id && (entry.expires_us > now || self.has(Planted::RevivedHold))
        };
        match entries.and_then(|entries| entries.iter_mut().find(live)) {
            Some(Entry { notice: Some(notice), .. }) => Kept::Lost(LostReason::Broken(notice.clone())),
            Some(entry) if entry.is_parked && !self.has(Planted::RevivedPark) => Kept::Lost(LostReason::Gone),
            Some(entry) if entry.queue_entry.held => {
                let until = now + micros(request.ttl);
                entry.expires_us =
                    if self.has(Planted::ShorteningRenewal) { until } else { until.max(entry.expires_us) };
                let mode = entry.queue_entry.mode;
                match entry.token.and_then(|token| FencingToken::new(token.cast_signed())) {
                    Some(token) => Kept::Held(entry.left(now), HoldTerms::new(token, mode)),
                    None => Kept::Lost(LostReason::Gone),
                }
            }
            Some(entry) => {
                entry.expires_us = entry.expires_us.max(now + micros(request.queue_lease()));
                Kept::Queued
            }
            None => Kept::Lost(state.reason(request.id)),
        }
    }

    fn release(
        &self,
        state: &mut State,
        now: i64,
        request: &Arc<Request>,
        (refused_us, expires_us): (i64, i64),
    ) -> Reply {
        if now > expires_us {
            return Reply::Expired;
        }
        state.ended.insert(request.id);
        state.executed.push((now, request.id, Executed::Release));
        if refused_us > now {
            state.released.insert(request.id, refused_us);
        }
        let is_foreign = self.has(Planted::ForeignRelease);
        let mut removed = false;
        if let Some(entries) = state.locks.get_mut(&request.name) {
            let before = entries.len();
            entries.retain(|entry| {
                let is_own = entry.request.id == request.id && entry.expires_us > now;
                !(is_own || is_foreign && entry.queue_entry.held)
            });
            removed = entries.len() < before;
        }
        state.settle(&request.name, now, None, self.has(Planted::RevivedHold));
        if self.has(Planted::EarlyHandover) {
            hand_over_to_next(state, &request.name, now);
        }
        if removed { Reply::Ended } else { Reply::Lost(state.reason(request.id)) }
    }

    /// Restarts the server. Its state is durable.
    pub fn restart(&self) {
        if self.has(Planted::LostState) {
            lock(&self.state).locks.clear();
        }
    }

    /// Returns all grants.
    #[must_use]
    pub fn grants(&self) -> Vec<GrantRecord> {
        lock(&self.state).grants.clone()
    }

    /// Returns the claims that had an effect after the release of their request, with their times.
    #[must_use]
    pub fn late(&self) -> Vec<(i64, LockName)> {
        lock(&self.state).late.clone()
    }

    /// Returns the claims, releases and ends at a later time that were carried out, with their times.
    #[must_use]
    pub fn executed(&self) -> Vec<(i64, RequestId, Executed)> {
        lock(&self.state).executed.clone()
    }

    /// Returns the time at which the hold of `name` with `token` expires, unless it was renewed later; `None` if it has ended.
    #[must_use]
    pub fn expires(&self, name: &LockName, token: FencingToken) -> Option<i64> {
        self.expires_of(name, |_, other| other == token.get())
    }

    /// The same for the hold whose request and token are chosen by `is_it`.
    pub fn expires_of(&self, name: &LockName, is_it: impl Fn(RequestId, u64) -> bool) -> Option<i64> {
        let state = lock(&self.state);
        let holds = |entry: &&Entry| {
            entry.queue_entry.held && entry.token.is_some_and(|token| is_it(entry.request.id, token))
        };
        Some(state.locks.get(name)?.iter().find(holds)?.expires_us)
    }

    /// Returns the live entries at `now`, with their requests.
    #[must_use]
    pub fn live(&self, now: i64) -> Vec<(Arc<Request>, LiveEntry)> {
        let state = lock(&self.state);
        let live = state.locks.iter().flat_map(|(name, entries)| {
            let live: Vec<Entry> = entries.iter().filter(|entry| entry.expires_us > now).cloned().collect();
            let entry = |entry: &Entry| {
                let live = LiveEntry {
                    name: name.clone(),
                    token: entry.token.filter(|_| entry.queue_entry.held),
                    is_free_to_go: !entry.queue_entry.held && !is_blocked(&live, entry.queue_entry),
                    owner: Some(entry.request.owner.as_str().to_owned()),
                };
                (entry.request.clone(), live)
            };
            live.iter().map(entry).collect::<Vec<_>>()
        });
        live.collect()
    }
}

/// The planted bug: grants the lock to the first waiter, whoever holds it.
fn hand_over_to_next(state: &mut State, name: &LockName, now: i64) {
    let token = state.draw();
    let Some(entries) = state.locks.get_mut(name) else { return };
    let Some(entry) = entries.iter_mut().find(|entry| !entry.queue_entry.held) else { return };
    let until = entry.expires_us;
    entry.grant(token, until);
    state.notifications.extend(entry.notification(token, now));
}
