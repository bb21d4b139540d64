//! The in-memory store: the reference for every other, and a real lock for the tasks of one process.
//!
//! Exclusion, order and tokens hold for as long as the process runs. Nothing is kept beyond the entries in use.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use async_trait::async_trait;

use crate::{
    Backend, BreakNotice, BreakOrder, Capabilities, Clock, Entry, Fencing, FencingToken, Grant, HoldAlerts,
    Inspect, KeepAlive, LockName, LockStatus, LostReason, Moment, OwnerId, Place, Reach, Release, Request,
    RequestId, Result, Standing, Store, SystemClock, Wake, WakeUp,
    hub::Hub,
    queue::{self, Standpoint},
};

/// A new store of its own.
#[must_use]
pub fn connect() -> Store {
    open(Arc::new(Space::new(Arc::new(SystemClock))))
}

/// The store `name` of this process: the same one for the same name, for as long as anybody uses it.
#[must_use]
pub fn named(name: &str) -> Store {
    static SPACES: Mutex<BTreeMap<String, Weak<Space>>> = Mutex::new(BTreeMap::new());
    let mut spaces = SPACES.lock().unwrap_or_else(PoisonError::into_inner);
    spaces.retain(|_, space| space.strong_count() > 0);
    let space = spaces.get(name).and_then(Weak::upgrade);
    let space = space.unwrap_or_else(|| {
        let space = Arc::new(Space::new(Arc::new(SystemClock)));
        spaces.insert(name.to_owned(), Arc::downgrade(&space));
        space
    });
    open(space)
}

/// A new store whose leases run by `clock`.
#[must_use]
pub fn with_clock(clock: Arc<dyn Clock>) -> Store {
    open(Arc::new(Space::new(clock)))
}

fn open(space: Arc<Space>) -> Store {
    let ttl = Duration::from_millis(50)..=Duration::from_secs(24 * 3600);
    let mut capabilities = Capabilities::new("memory", ttl);
    capabilities.wake = WakeUp::Pushed;
    capabilities.fencing = Fencing::WhileRunning;
    capabilities.reach = Reach::Process;
    let alerts = space.alerts.clone();
    Store::inspectable(Arc::new(Memory { space, capabilities })).alerting(alerts)
}

#[derive(Debug)]
struct Memory {
    space: Arc<Space>,
    capabilities: Capabilities,
}

#[derive(Debug)]
struct Space {
    clock: Arc<dyn Clock>,
    hub: Hub,
    alerts: Arc<HoldAlerts>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// One counter for all names: what was handed out stays handed out when a name is forgotten.
    token: u64,
    seq: u64,
    locks: HashMap<LockName, Vec<Record>>,
    /// The holds that were broken by force, with the time after which their holders have stopped in any case.
    broken: HashMap<RequestId, (BreakNotice, Moment)>,
}

#[derive(Debug)]
struct Record {
    id: RequestId,
    standpoint: Standpoint,
    token: Option<FencingToken>,
    since: Moment,
    expires: Moment,
    owner: OwnerId,
    label: String,
    broken: Option<BreakNotice>,
}

impl Space {
    fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, hub: Hub::new(), alerts: Arc::default(), state: Mutex::default() }
    }

    /// Works on the live entries of `name`; what has expired is gone before, and who waited for it is told.
    fn on<T>(
        &self,
        name: &LockName,
        work: impl FnOnce(&mut Vec<Record>, &mut Counters<'_>, Moment) -> T,
    ) -> T {
        let mut guard = self.lock();
        let State { token, seq, locks, broken } = &mut *guard;
        let now = self.clock.now();
        broken.retain(|_, (_, until)| *until > now);
        let entries = locks.entry(name.clone()).or_default();
        entries.retain(|entry| {
            let live = entry.expires > now;
            if !live {
                self.hub.ring(entry.id);
            }
            live
        });
        let result = work(entries, &mut Counters { token, seq, broken }, now);
        if entries.is_empty() {
            locks.remove(name);
        }
        result
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn claim(&self, request: &Request) -> Standing {
        self.on(&request.name, |entries, counters, now| {
            let known = entries.iter().position(|entry| entry.id == request.id);
            if let Some(Record { token: Some(token), expires, .. }) = known.map(|at| &entries[at]) {
                return Standing::Held(Grant::new(*token, expires.since(now)));
            }
            let seq = known.map_or(*counters.seq + 1, |at| entries[at].standpoint.seq);
            let standpoints: Vec<Standpoint> = entries.iter().map(|entry| entry.standpoint).collect();
            let ahead = queue::blockers(&standpoints, seq, request.mode).count();
            let blocker = queue::watched(&standpoints, seq, request.mode)
                .and_then(|watched| entries.iter().find(|entry| entry.standpoint.seq == watched.seq))
                .map(|entry| (entry.id, entry.expires.since(now)));

            if let Some((watched, left)) = blocker {
                if request.queues {
                    self.hub.expect(request, watched);
                    let at = known.unwrap_or_else(|| entries.join(request, counters, now));
                    entries[at].expires = now + request.place_ttl();
                }
                return Standing::Queued(Place::new(u32::try_from(ahead).ok(), left));
            }
            let at = known.unwrap_or_else(|| entries.join(request, counters, now));
            *counters.token += 1;
            let entry = &mut entries[at];
            entry.token = FencingToken::new(*counters.token);
            entry.standpoint.held = true;
            (entry.since, entry.expires) = (now, now + request.ttl);
            self.hub.forget(request.id);
            match entry.token {
                Some(token) => Standing::Held(Grant::new(token, request.ttl)),
                None => unreachable!("2^63 grants take longer than the process lasts"),
            }
        })
    }

    fn keep_alive(&self, request: &Request) -> KeepAlive {
        self.on(&request.name, |entries, counters, now| {
            let Some(mine) = entries.iter_mut().find(|entry| entry.id == request.id) else {
                return KeepAlive::Lost(counters.lost(request));
            };
            match (mine.token, &mine.broken) {
                (_, Some(notice)) => KeepAlive::Lost(LostReason::Broken(notice.clone())),
                (Some(_), None) => {
                    mine.expires = now + request.ttl;
                    KeepAlive::Held { lease: request.ttl }
                }
                (None, None) => {
                    mine.expires = now + request.place_ttl();
                    KeepAlive::Queued
                }
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
    broken: &'a mut HashMap<RequestId, (BreakNotice, Moment)>,
}

impl Counters<'_> {
    /// Why the hold of `request`, which has no entry, ended.
    fn lost(&self, request: &Request) -> LostReason {
        let notice = self.broken.get(&request.id);
        notice.map_or(LostReason::Gone, |(notice, _)| LostReason::Broken(notice.clone()))
    }
}

trait Join {
    fn join(&mut self, request: &Request, counters: &mut Counters<'_>, now: Moment) -> usize;
}

impl Join for Vec<Record> {
    /// Appends a waiter; its index.
    fn join(&mut self, request: &Request, counters: &mut Counters<'_>, now: Moment) -> usize {
        *counters.seq += 1;
        self.push(Record {
            id: request.id,
            standpoint: Standpoint { seq: *counters.seq, mode: request.mode, held: false },
            token: None,
            since: now,
            expires: now + request.place_ttl(),
            owner: request.owner.clone(),
            label: request.label.as_ref().map(|label| label.as_str().to_owned()).unwrap_or_default(),
            broken: None,
        });
        self.len() - 1
    }
}

impl Record {
    fn entry(&self, now: Moment) -> Entry {
        let (age, left) = (now.since(self.since), self.expires.since(now));
        Entry::new(self.standpoint.mode, self.owner.clone(), &self.label, self.token, age, left)
            .broken(self.broken.clone())
    }
}

#[async_trait]
impl Backend for Memory {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn claim(&self, request: &Request) -> Result<Standing> {
        Ok(self.space.claim(request))
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        Ok(self.space.hub.rung(request.id).await)
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        Ok(requests.iter().map(|request| self.space.keep_alive(request)).collect())
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        let outcome = self.space.on(&request.name, |entries, counters, _| {
            let before = entries.len();
            entries.retain(|entry| entry.id != request.id);
            let outcome = if entries.len() < before {
                Release::Released
            } else {
                Release::Lost(counters.lost(request))
            };
            counters.broken.remove(&request.id);
            outcome
        });
        self.space.hub.forget(request.id);
        self.space.hub.ring(request.id);
        Ok(outcome)
    }
}

#[async_trait]
impl Inspect for Memory {
    async fn inspect(&self, name: &LockName) -> Result<LockStatus> {
        Ok(self.space.on(name, |entries, _, now| Space::status(name.clone(), entries, now)))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockStatus>> {
        let (state, now) = (self.space.lock(), self.space.clock.now());
        let mut locks: Vec<LockStatus> = state
            .locks
            .iter()
            .filter(|(name, _)| name.as_str().starts_with(prefix))
            .map(|(name, entries)| Space::status(name.clone(), entries, now))
            .filter(|status| !status.is_free())
            .collect();
        locks.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(locks)
    }

    async fn break_lock(&self, name: &LockName, order: &BreakOrder) -> Result<Vec<Entry>> {
        let broken = self.space.on(name, |entries, counters, now| {
            if order.force {
                let removed: Vec<Record> = entries.extract_if(.., |entry| entry.standpoint.held).collect();
                for entry in &removed {
                    counters.broken.insert(entry.id, (order.notice.clone(), entry.expires));
                    self.space.hub.ring(entry.id);
                }
                return removed.iter().map(|entry| entry.entry(now)).collect();
            }
            let held = entries.iter_mut().filter(|entry| entry.standpoint.held);
            held.map(|entry| {
                entry.broken.get_or_insert_with(|| order.notice.clone());
                entry.entry(now)
            })
            .collect()
        });
        self.space.alerts.check(name);
        Ok(broken)
    }
}

/// The modes come from the pure rule; this is what only the store does.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mode;

    fn request(mode: Mode) -> Request {
        Request::new(LockName::new("n").unwrap(), mode, Duration::from_secs(9))
    }

    #[test]
    fn a_claim_repeated_finds_its_own_grant_and_nothing_is_left_after_the_release() {
        let store = Space::new(Arc::new(SystemClock));
        let me = request(Mode::Exclusive);
        let Standing::Held(first) = store.claim(&me) else { panic!("free") };
        let Standing::Held(again) = store.claim(&me) else { panic!("mine") };
        assert_eq!(first.token, again.token);
        assert!(again.lease <= first.lease);
        store.on(&me.name, |entries, _, _| entries.clear());
        assert!(store.lock().locks.is_empty());
        let Standing::Held(second) = store.claim(&request(Mode::Exclusive)) else { panic!("free") };
        assert!(second.token > first.token);
    }

    #[test]
    fn who_does_not_queue_leaves_nothing() {
        let store = Space::new(Arc::new(SystemClock));
        let (holder, mut me) = (request(Mode::Exclusive), request(Mode::Shared));
        me.queues = false;
        store.claim(&holder);
        assert!(matches!(store.claim(&me), Standing::Queued(_)));
        assert_eq!(store.lock().locks[&me.name].len(), 1);
        assert!(store.hub.is_empty());
    }
}
