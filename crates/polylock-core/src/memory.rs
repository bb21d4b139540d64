//! The in-memory store: the reference for all other stores, and a real lock for the tasks of one process.
//!
//! Exclusion, order and tokens hold as long as the process runs. The store keeps only the entries in use, and the records of jobs.

mod interfaces;
mod records;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;

use self::records::Records;
use crate::{
    Backend, BreakNotice, Capabilities, ClaimOutcome, Clock, Conversion, ConversionOutcome, Entry, Fencing,
    FencingToken, Grant, HoldAlerts, HoldTerms, KeepAlive, LockName, LockStatus, LostReason, Mode, Moment,
    Notifications, Operation, OwnerId, QueuePosition, Release, Request, RequestId, Result, Scope, Store,
    SystemClock, Wake,
    queue::{self, ConversionRule, OtherHolder, QueueEntry},
    requests::{ExpiringTable, RequestTable},
    sync::lock,
    time_limit,
    wakeups::Wakeups,
};

/// The name of the store.
const NAME: &str = "memory";

/// The time after its release for which a request that others may know is granted nothing.
const REFUSED: Duration = time_limit::LONGEST;

/// Creates a separate store.
#[must_use]
pub fn connect() -> Store {
    open(Arc::new(Space::new(Arc::new(SystemClock))))
}

/// Returns the store `name` of this process: the same store for the same name, as long as it is in use.
#[must_use]
pub fn named(name: &str) -> Store {
    static SPACES: Mutex<BTreeMap<String, Weak<Space>>> = Mutex::new(BTreeMap::new());
    let mut spaces = lock(&SPACES);
    spaces.retain(|_, space| space.strong_count() > 0);
    let space = spaces.get(name).and_then(Weak::upgrade);
    let space = space.unwrap_or_else(|| {
        let space = Arc::new(Space::new(Arc::new(SystemClock)));
        spaces.insert(name.to_owned(), Arc::downgrade(&space));
        space
    });
    open(space)
}

/// Creates a store with leases that run by `clock`.
#[must_use]
pub fn with_clock(clock: Arc<dyn Clock>) -> Store {
    open(Arc::new(Space::new(clock)))
}

fn open(space: Arc<Space>) -> Store {
    let ttl = Duration::from_millis(50)..=Duration::from_secs(24 * 3600);
    let mut capabilities = Capabilities::new(NAME, ttl);
    capabilities.notifications = Notifications::Pushed;
    capabilities.fencing = Fencing::WhileRunning;
    capabilities.scope = Scope::Process;
    let (alerts, records) = (space.alerts.clone(), space.records.clone());
    let backend = Arc::new(MemoryBackend { space, capabilities });
    Store::inspectable(backend.clone())
        .alerting(alerts)
        .raising(backend.clone())
        .recording(records)
        .converting(backend.clone())
        .parking(backend)
}

#[derive(Debug)]
struct MemoryBackend {
    space: Arc<Space>,
    capabilities: Capabilities,
}

#[derive(Debug)]
struct Space {
    clock: Arc<dyn Clock>,
    wakeups: Wakeups,
    alerts: Arc<HoldAlerts>,
    /// Grows with each operation that may have changed a lock.
    version: AtomicU64,
    state: Mutex<State>,
    records: Arc<Records>,
}

#[derive(Debug, Default)]
struct State {
    /// One counter for all names, so that tokens also grow after a name was removed.
    token: u64,
    seq: u64,
    /// The entries of each lock, kept until the last of them has expired.
    locks: ExpiringTable<LockName, Vec<Record>>,
    /// The holds that were broken by force, each kept until its holder has stopped in any case.
    broken: RequestTable<BreakNotice>,
    /// The requests that were released although another process, or another task, may claim for them again, each kept for a while.
    refused: RequestTable<()>,
}

#[derive(Debug)]
struct Record {
    id: RequestId,
    queue_entry: QueueEntry,
    token: Option<FencingToken>,
    since: Moment,
    expires: Moment,
    owner: OwnerId,
    label: String,
    broken: Option<BreakNotice>,
    /// The mode of a conversion that waits.
    wanted: Option<Mode>,
    /// True if no keep-alive extends it.
    parked: bool,
}

impl Space {
    fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            records: Arc::new(Records::new(clock.clone())),
            clock,
            wakeups: Wakeups::default(),
            alerts: Arc::default(),
            version: AtomicU64::default(),
            state: Mutex::default(),
        }
    }

    /// Records that a lock may have changed.
    fn changed(&self) {
        self.version.fetch_add(1, Ordering::Relaxed);
    }

    /// Runs `work` on the live entries of `name`, after expired entries were removed and their waiters notified.
    fn on<T>(
        &self,
        name: &LockName,
        work: impl FnOnce(&mut Vec<Record>, &mut Counters<'_>, Moment) -> T,
    ) -> T {
        let mut guard = self.lock();
        let State { token, seq, locks, broken, refused } = &mut *guard;
        let now = self.clock.now();
        let entries = locks.update(name.clone(), now, now, Vec::new);
        entries.retain(|entry| {
            let live = entry.expires > now;
            if !live {
                self.wakeups.notify(entry.id);
            }
            live
        });
        let result = work(entries, &mut Counters { token, seq, broken, refused }, now);
        match entries.iter().map(|entry| entry.expires).max() {
            Some(until) => locks.keep_until(name, until),
            None => drop(locks.remove(name)),
        }
        result
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn claim(&self, request: &Request) -> ClaimOutcome {
        self.on(&request.name, |entries, counters, now| {
            let known = entries.iter().position(|entry| entry.id == request.id);
            if let Some(Record { token: Some(token), expires, .. }) = known.map(|at| &entries[at]) {
                return ClaimOutcome::Granted(Grant::new(*token, expires.since(now)));
            }
            if counters.refused.until(&request.id).is_some_and(|until| until > now) {
                return ClaimOutcome::Queued(QueuePosition::new(None, QueuePosition::MAX_RECHECK));
            }
            let seq = known.map_or(*counters.seq + 1, |at| entries[at].queue_entry.seq);
            let queue_entries: Vec<QueueEntry> = entries.iter().map(Record::effective).collect();
            let ahead = queue::blockers(&queue_entries, seq, request.mode).count();
            let blocker = queue::watched(&queue_entries, seq, request.mode)
                .and_then(|watched| entries.iter().find(|entry| entry.queue_entry.seq == watched.seq))
                .map(|entry| (entry.id, entry.expires.since(now)));

            if let Some((watched, left)) = blocker {
                if request.queues {
                    self.wakeups.register(request).queued_behind(watched);
                    let at = known.unwrap_or_else(|| entries.join(request, counters, now));
                    entries[at].expires = now + request.queue_lease();
                }
                let position = QueuePosition::new(u32::try_from(ahead).ok(), left);
                return ClaimOutcome::Queued(position.number(Some(seq)));
            }
            let at = known.unwrap_or_else(|| entries.join(request, counters, now));
            let token = counters.draw();
            let entry = &mut entries[at];
            entry.token = Some(token);
            entry.queue_entry.held = true;
            (entry.since, entry.expires) = (now, now + request.ttl);
            self.wakeups.remove(request.id);
            ClaimOutcome::Granted(Grant::new(token, request.ttl))
        })
    }

    fn keep_alive(&self, request: &Request) -> KeepAlive {
        self.on(&request.name, |entries, counters, now| {
            let Some(entry) = entries.iter_mut().find(|entry| entry.id == request.id) else {
                return KeepAlive::Lost(counters.lost(request));
            };
            match (entry.token, &entry.broken) {
                (_, Some(notice)) => KeepAlive::Lost(LostReason::Broken(notice.clone())),
                (Some(_), None) if entry.parked => KeepAlive::Lost(LostReason::Gone),
                (Some(token), None) => {
                    entry.expires = entry.expires.max(now + request.ttl);
                    let terms = HoldTerms::new(token, entry.queue_entry.mode);
                    KeepAlive::Held { lease: entry.expires.since(now), terms: Some(terms) }
                }
                (None, None) => {
                    entry.expires = entry.expires.max(now + request.queue_lease());
                    KeepAlive::Queued
                }
            }
        })
    }

    fn park(&self, request: &Request, token: FencingToken, left: Duration) -> Release {
        self.on(&request.name, |entries, counters, now| {
            let entry = entries.iter_mut().find(|entry| entry.id == request.id && entry.token == Some(token));
            let Some(entry) = entry else { return Release::Lost(counters.lost(request)) };
            if let Some(notice) = &entry.broken {
                return Release::Lost(LostReason::Broken(notice.clone()));
            }
            if !entry.parked {
                (entry.parked, entry.expires) = (true, now + left);
            }
            Release::Released
        })
    }

    fn convert(&self, request: &Request, conversion: &Conversion) -> ConversionOutcome {
        self.on(&request.name, |entries, counters, now| {
            let Some(at) = entries.iter().position(|entry| entry.id == request.id) else {
                return ConversionOutcome::Lost(counters.lost(request));
            };
            match (entries[at].token, &entries[at].broken) {
                (_, Some(notice)) => return ConversionOutcome::Lost(LostReason::Broken(notice.clone())),
                (None, None) => return ConversionOutcome::Lost(LostReason::Gone),
                (Some(_), None) if entries[at].parked => return ConversionOutcome::Lost(LostReason::Gone),
                (Some(token), None) if token != conversion.from => {
                    return ConversionOutcome::OtherToken(token);
                }
                (Some(_), None) => {}
            }
            let holders = entries.iter().filter(|other| other.queue_entry.held && other.id != request.id);
            let others: Vec<OtherHolder> = holders.clone().map(Record::other_holder).collect();
            let rule = match conversion.is_upgrade() {
                true => queue::conversion(&others, conversion.held, conversion.to),
                false => ConversionRule::Convert,
            };
            let recheck_after = holders.map(|other| other.expires.since(now)).max().unwrap_or_default();
            let entry = &mut entries[at];
            match rule {
                ConversionRule::Convert => {
                    let token = counters.draw();
                    entry.token = Some(token);
                    (entry.queue_entry.mode, entry.wanted) = (conversion.to, None);
                    // Those that waited for it check again.
                    self.wakeups.notify(entry.id);
                    ConversionOutcome::Converted(token)
                }
                ConversionRule::Mark | ConversionRule::Behind => {
                    if rule == ConversionRule::Mark && conversion.waits {
                        entry.wanted = Some(conversion.to);
                    }
                    ConversionOutcome::Blocked { recheck_after }
                }
                ConversionRule::Deadlock => ConversionOutcome::Deadlock,
            }
        })
    }

    fn status(name: LockName, entries: &[Record], now: Moment) -> LockStatus {
        let entry = |record: &Record| record.entry(now);
        let (mut holders, waiters): (Vec<_>, Vec<_>) = entries
            .iter()
            .filter(|entry| entry.expires > now)
            .map(entry)
            .partition(|entry| entry.token.is_some());
        holders.sort_by_key(|holder| holder.token);
        LockStatus::new(name, holders, waiters)
    }
}

struct Counters<'a> {
    token: &'a mut u64,
    seq: &'a mut u64,
    broken: &'a mut RequestTable<BreakNotice>,
    refused: &'a mut RequestTable<()>,
}

impl Counters<'_> {
    fn draw(&mut self) -> FencingToken {
        *self.token += 1;
        match FencingToken::new(*self.token) {
            Some(token) => token,
            None => unreachable!("2^63 grants take longer than the process lasts"),
        }
    }

    /// Returns the reason for the end of the hold of `request`, which has no entry.
    fn lost(&self, request: &Request) -> LostReason {
        self.broken.get(&request.id).cloned().map_or(LostReason::Gone, LostReason::Broken)
    }
}

trait Join {
    fn join(&mut self, request: &Request, counters: &mut Counters<'_>, now: Moment) -> usize;
}

impl Join for Vec<Record> {
    /// Appends a waiter and returns its index.
    fn join(&mut self, request: &Request, counters: &mut Counters<'_>, now: Moment) -> usize {
        *counters.seq += 1;
        self.push(Record {
            id: request.id,
            queue_entry: QueueEntry { seq: *counters.seq, mode: request.mode, held: false },
            token: None,
            since: now,
            expires: now + request.queue_lease(),
            owner: request.owner.clone(),
            label: request.label.as_ref().map(|label| label.as_str().to_owned()).unwrap_or_default(),
            broken: None,
            wanted: None,
            parked: false,
        });
        self.len() - 1
    }
}

impl Record {
    /// Returns the entry as other requests are checked against it.
    fn effective(&self) -> QueueEntry {
        QueueEntry { mode: self.other_holder().effective(), ..self.queue_entry }
    }

    fn other_holder(&self) -> OtherHolder {
        OtherHolder { mode: self.queue_entry.mode, wanted: self.wanted }
    }

    fn entry(&self, now: Moment) -> Entry {
        let (age, left) = (now.since(self.since), self.expires.since(now));
        Entry::new(self.queue_entry.mode, self.owner.clone(), &self.label, self.token, age, left)
            .broken(self.broken.clone())
    }
}

#[async_trait]
impl Backend for MemoryBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn claim(&self, request: &Request) -> Result<ClaimOutcome> {
        let outcome = self.space.claim(request);
        self.space.changed();
        Ok(outcome)
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        Ok(self.space.wakeups.notified(request.id).await)
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        Ok(requests.iter().map(|request| self.space.keep_alive(request)).collect())
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        time_limit::check(NAME, Operation::Release)?;
        let outcome = self.space.on(&request.name, |entries, counters, now| {
            let before = entries.len();
            entries.retain(|entry| entry.id != request.id);
            let outcome = if entries.len() < before {
                Release::Released
            } else {
                Release::Lost(counters.lost(request))
            };
            if request.outlives_process {
                counters.refused.update(request.id, now, now + REFUSED, || ());
            }
            outcome
        });
        self.space.wakeups.remove(request.id);
        self.space.wakeups.notify(request.id);
        self.space.changed();
        Ok(outcome)
    }

    fn drop_waiter(&self, request: &Request) {
        self.space.wakeups.remove(request.id);
    }

    fn request_records(&self) -> Option<usize> {
        let state = self.space.lock();
        Some(state.locks.len() + state.broken.len() + state.refused.len())
    }
}

/// The grant rule has its own tests; these cover the rest of the store.
#[cfg(test)]
mod tests {
    use super::*;

    fn request(mode: Mode) -> Request {
        Request::new(LockName::new("n").unwrap(), mode, Duration::from_secs(9))
    }

    #[test]
    fn a_repeated_claim_returns_its_own_grant() {
        let store = Space::new(Arc::new(SystemClock));
        let claimant = request(Mode::Exclusive);
        let ClaimOutcome::Granted(first) = store.claim(&claimant) else { panic!("free") };
        let ClaimOutcome::Granted(again) = store.claim(&claimant) else { panic!("mine") };
        assert_eq!(first.token, again.token);
        assert!(again.lease <= first.lease);
        store.on(&claimant.name, |entries, _, _| entries.clear());
        assert!(store.lock().locks.is_empty());
        let ClaimOutcome::Granted(second) = store.claim(&request(Mode::Exclusive)) else { panic!("free") };
        assert!(second.token > first.token);
    }

    #[test]
    fn a_claim_without_queueing_leaves_no_entry() {
        let store = Space::new(Arc::new(SystemClock));
        let (holder, mut claimant) = (request(Mode::Exclusive), request(Mode::Shared));
        claimant.queues = false;
        store.claim(&holder);
        assert!(matches!(store.claim(&claimant), ClaimOutcome::Queued(_)));
        assert_eq!(store.lock().locks.get(&claimant.name).map(Vec::len), Some(1));
        assert!(store.wakeups.is_empty());
    }
}
