//! A model of a server that keeps queues of locks, like those of Redis and PostgreSQL: grants in order of arrival, leases by its own
//! clock, a handover by the release with a notification that may be lost, and claims that expire.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use polylock_core::{
    FencingToken, Grant, LockName, Request, RequestId,
    queue::{self, QueueEntry},
    sync::lock,
    wakeups::{Handover, Wakeups},
};

use super::{live_entry::LiveEntry, plan::Planted};

/// The receiver of the notifications for one client.
#[derive(Debug, Clone)]
pub struct Subscriber {
    /// The link to its process.
    pub link: usize,
    /// The life of its process.
    pub life: u64,
    /// The waiters of the process.
    pub wakeups: Arc<Wakeups>,
}

/// A call of the server. Times are in microseconds of its clock.
#[derive(Debug, Clone)]
pub enum Call {
    /// Grants the lock, or enqueues the request.
    Claim {
        /// The request.
        request: Arc<Request>,
        /// The receiver of a later grant.
        subscriber: Subscriber,
        /// The number by which the receiver knows the waiter.
        ticket: u64,
        /// The least time that the server's clock shows when the claim is sent, by the client's estimate.
        earliest_us: i64,
        /// The time from which the claim has no effect.
        expires_us: i64,
        /// The token for the grant, if it was drawn before.
        token: Option<u64>,
    },
    /// Extends holds and queue entries.
    KeepAlive(Vec<Arc<Request>>),
    /// Removes the entry of the request, and refuses its claims until a time.
    Release(Arc<Request>, i64),
    /// Draws a number: the first call of a client, and a token for the planted bug.
    Draw,
}

/// The reply to a call.
#[derive(Debug, Clone)]
pub enum Reply {
    /// The lock is granted.
    Granted(Grant),
    /// The request is in the queue.
    Queued {
        /// The number of its entry.
        position: u64,
        /// The number of conflicting entries ahead.
        ahead: usize,
        /// The time after which another claim is worthwhile.
        left: Duration,
    },
    /// The claim has expired.
    Expired,
    /// The server does not execute the call at present.
    Refused,
    /// The states of the entries.
    Kept(Vec<Kept>),
    /// True if there was an entry.
    Released(bool),
    /// A number.
    Drawn(u64),
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim { request, ticket, .. } => {
                write!(f, "claims {} {} with ticket {ticket}", request.name, request.mode)
            }
            Self::KeepAlive(requests) => write!(f, "keeps {} entries alive", requests.len()),
            Self::Release(request, _) => write!(f, "releases {} {}", request.name, request.mode),
            Self::Draw => f.write_str("draws a number"),
        }
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted(grant) => write!(f, "granted with token {}", grant.token),
            Self::Queued { position, ahead, .. } => write!(f, "queued at {position} behind {ahead}"),
            Self::Expired => f.write_str("expired"),
            Self::Refused => f.write_str("refused"),
            Self::Kept(states) => write!(f, "{states:?}"),
            Self::Released(true) => f.write_str("released"),
            Self::Released(false) => f.write_str("no entry"),
            Self::Drawn(number) => write!(f, "{number}"),
        }
    }
}

/// The state of an entry after a keep-alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// It holds the lock.
    Held,
    /// It is in the queue.
    Queued,
    /// There is no such entry.
    Gone,
}

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
    /// The holds that have expired, for the planted bug.
    expired: Vec<Entry>,
    notifications: Vec<(Subscriber, Handover)>,
    /// The grants, for the check.
    grants: Vec<GrantRecord>,
    /// The requests that were released, for the check.
    ended: BTreeSet<RequestId>,
    /// The claims that had an effect after the release of their request, with their times.
    late: Vec<(i64, LockName)>,
}

#[derive(Debug, Clone)]
struct Entry {
    request: Arc<Request>,
    queue_entry: QueueEntry,
    token: Option<u64>,
    expires_us: i64,
    subscriber: Subscriber,
    ticket: u64,
}

impl Entry {
    fn grant(&mut self, token: u64, expires_us: i64) {
        (self.queue_entry.held, self.token, self.expires_us) = (true, Some(token), expires_us);
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
            Call::Release(request, late_us) => {
                Reply::Released(self.release(&mut state, now, &request, late_us))
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
        state.settle(&request.name, now, Some(request.id), self.has(Planted::RevivedHold));
        let mut entries = state.locks.remove(&request.name).unwrap_or_default();
        let known = entries.iter().position(|entry| entry.request.id == request.id);
        let at = known.unwrap_or_else(|| {
            let queue_entry = QueueEntry { seq: state.draw(), mode: request.mode, held: false };
            let (request, subscriber) = (request.clone(), subscriber.clone());
            entries.push(Entry { request, queue_entry, token, expires_us: 0, subscriber, ticket });
            entries.len() - 1
        });
        let entry = entries[at].queue_entry;
        let reply = if entry.held || !is_blocked(&entries, entry) {
            let token = entries[at].token.unwrap_or_else(|| state.draw());
            if !entry.held {
                state.grants.push(entries[at].record(token, now));
            }
            entries[at].grant(token, now + micros(request.ttl));
            FencingToken::new(token.cast_signed())
                .map_or(Reply::Expired, |token| Reply::Granted(Grant::new(token, request.ttl)))
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
            Some(entry) if entry.queue_entry.held => {
                entry.expires_us = now + micros(request.ttl);
                Kept::Held
            }
            Some(entry) => {
                entry.expires_us = now + micros(request.queue_lease());
                Kept::Queued
            }
            None => Kept::Gone,
        }
    }

    fn release(&self, state: &mut State, now: i64, request: &Arc<Request>, late_us: i64) -> bool {
        state.ended.insert(request.id);
        if late_us > now {
            state.released.insert(request.id, late_us);
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
        removed
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

    /// Returns the time at which the hold of `name` with `token` expires, unless it was renewed later; `None` if it has ended.
    #[must_use]
    pub fn expires(&self, name: &LockName, token: FencingToken) -> Option<i64> {
        let state = lock(&self.state);
        let holds = |entry: &&Entry| entry.queue_entry.held && entry.token == Some(token.get());
        Some(state.locks.get(name)?.iter().find(holds)?.expires_us)
    }

    /// Returns the live entries at `now`.
    #[must_use]
    pub fn live(&self, now: i64) -> Vec<LiveEntry> {
        let state = lock(&self.state);
        let live = state.locks.iter().flat_map(|(name, entries)| {
            let live: Vec<Entry> = entries.iter().filter(|entry| entry.expires_us > now).cloned().collect();
            let entry = |entry: &Entry| LiveEntry {
                name: name.clone(),
                token: entry.token.filter(|_| entry.queue_entry.held),
                is_free_to_go: !entry.queue_entry.held && !is_blocked(&live, entry.queue_entry),
                owner: Some(entry.request.owner.as_str().to_owned()),
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
