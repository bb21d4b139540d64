//! A watch: the events of the locks of a store, for a display or a program that reacts to them.

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
    sync::Arc,
    time::Duration,
};

use futures_util::{Stream, stream};
use tokio::sync::oneshot;

use crate::{
    Change, Error, Inspect, LockName, LockStatus, Moment, Operation, Outage, Result, WatchEvent, WatchState,
    WatchedLock,
    engine::{StoreContext, StoreHandle},
    io,
    watched::compare,
};

/// The pause after a read, for each command that it has sent. A waiter sends a claim every second and a keep-alive every 1.7 s: more.
const PER_COMMAND: Duration = Duration::from_millis(650);
/// The shortest and the longest pause after a read. The longest one limits the age of a display of many locks.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// The pause after a read, as a multiple of its duration.
const PER_DURATION: u32 = 20;
/// The interval at which a store with a [version](Inspect::version) is checked for changes.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// The shortest pause after a read of a store with a version.
const BETWEEN_CHANGES: Duration = Duration::from_millis(250);
/// The pause after which a store with a version is read without a change, because an expiry does not change the version.
const UNCHANGED: Duration = Duration::from_secs(2);

/// The locks that are watched.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    Prefix(String),
    Lock(LockName),
}

/// The events of some locks, from [`Locks::watch`](crate::Locks::watch): grants, waits, losses and breaks.
///
/// ```
/// use polylock_core::{ChangeKind, Locks, WatchEvent, memory};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let locks = Locks::new(memory::connect());
/// let mut watch = locks.watch("orders/").await?;
/// assert!(watch.state().locks.is_empty()); // the state at the begin
/// let guard = locks.lock("orders/42").acquire().await?;
/// if let WatchEvent::Changed(change) = watch.next().await {
///     assert!(matches!(change.kind, ChangeKind::Granted { .. }));
///     assert_eq!((change.name().as_str(), change.entry.token), ("orders/42", Some(guard.fencing_token())));
/// }
/// # Ok::<(), polylock_core::Error>(()) }).unwrap();
/// ```
///
/// # What a watch shows
///
/// A watch reads the holders and waiters of the locks, and compares each state with the one before. A hold or a waiter that comes and goes
/// between two reads is not shown. The reason for the end of a hold is not stored: [`ChangeKind`](crate::ChangeKind) states what the events
/// know of it. A break by force and a release look the same.
///
/// # Cost
///
/// The store is read while [`next`](Self::next) or [`refresh`](Self::refresh) waits, and at most once after that. The in-memory store and SQLite
/// are read when something has changed, at most four times a second. Other stores are read every second, which costs them less than one
/// waiter. A read of many locks takes several commands on some stores (Redis, ZooKeeper, Azure Blob Storage: one for each lock). The
/// pause after it grows with their number, so that the cost stays below that of one waiter, but not beyond ten seconds.
///
/// An outage of the store is an event, and the watch goes on after it. A watch never delays a renewal or a release.
#[derive(Debug)]
pub struct Watch {
    handle: Arc<StoreHandle>,
    inspect: Arc<dyn Inspect>,
    target: Target,
    state: Arc<WatchState>,
    /// The events that [`next`](Self::next) has not returned yet.
    events: VecDeque<WatchEvent>,
    /// The read that is due next, or is under way.
    reading: Option<Reading>,
    /// The version of the store before the last read.
    version: Option<u64>,
    /// The times from which the store is read again: if it has changed, and in any case.
    due: (Moment, Moment),
}

impl Watch {
    pub(crate) async fn open(handle: Arc<StoreHandle>, target: Target) -> Result<Self> {
        let context = &handle.context;
        let Some(inspect) = context.store.inspect.clone() else {
            return Err(Error::Unsupported { backend: context.backend(), capability: "inspection" });
        };
        let due = (context.now(), context.now());
        let (state, events) = Default::default();
        let mut watch = Self { handle, inspect, target, state, events, reading: None, version: None, due };
        let read = watch.read().await?;
        let found = read.result?;
        watch.schedule(read.began, read.ended, found.len(), read.version);
        watch.merge(found, read.ended);
        Ok(watch)
    }

    /// Returns the state of the last read. A clone of the `Arc` keeps it while the watch goes on, without a copy of the locks.
    #[must_use]
    pub fn state(&self) -> &Arc<WatchState> {
        &self.state
    }

    /// Waits for the next event after the state at the begin.
    ///
    /// # Cancel safety
    /// Dropping the future loses no event.
    pub async fn next(&mut self) -> WatchEvent {
        loop {
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            self.events = self.refresh().await.into();
        }
    }

    /// Waits until the store was read again, and returns the events since the last read, of which there may be none: for a display of
    /// [`state`](Self::state).
    ///
    /// # Cancel safety
    /// Dropping the future loses no event.
    pub async fn refresh(&mut self) -> Vec<WatchEvent> {
        let read = self.read().await.unwrap_or_else(|error| {
            let now = self.handle.context.now();
            Read { began: now, ended: now, version: None, result: Err(error) }
        });
        let locks = read.result.as_ref().map_or(0, Vec::len);
        self.schedule(read.began, read.ended, locks, read.version);
        let mut events = mem::take(&mut self.events);
        match read.result {
            Ok(found) => {
                if self.state.outage.is_some() {
                    events.push_back(WatchEvent::Available);
                }
                events.extend(self.merge(found, read.ended).into_iter().map(WatchEvent::Changed));
            }
            Err(error) => events.extend(self.failed(read.began, &error).map(WatchEvent::Unavailable)),
        }
        events.into()
    }

    /// Makes the next read due at once, for a user who does not want to wait for it.
    pub fn hurry(&mut self) {
        self.due = Default::default();
        self.reading = None;
    }

    /// Returns the events as a stream without an end.
    pub fn into_stream(self) -> impl Stream<Item = WatchEvent> + Send {
        stream::unfold(self, async |mut watch| {
            let event = watch.next().await;
            Some((event, watch))
        })
    }

    /// Returns the next read. If this future is dropped, the next call returns the same read, so drops cost the store nothing.
    async fn read(&mut self) -> Result<Read> {
        let reading = match &mut self.reading {
            Some(reading) => reading,
            none => {
                let (context, inspect) = (&self.handle.context, &self.inspect);
                match Reading::start(context, inspect, &self.target, self.version, self.due) {
                    Ok(started) => none.insert(started),
                    // In a child process made by `fork`, it fails for ever. That was reported.
                    Err(_) if self.state.outage.is_some() => std::future::pending().await,
                    Err(error) => return Err(error),
                }
            }
        };
        let read = (&mut reading.0).await;
        self.reading = None;
        let ended =
            || io::failed(self.handle.context.backend(), Operation::Inspect, "the store panicked".to_owned());
        read.map_err(|_| ended())
    }

    /// Determines when the next read is due.
    fn schedule(&mut self, began: Moment, ended: Moment, locks: usize, version: Option<u64>) {
        let commands = u32::try_from(self.inspect_commands(locks)).unwrap_or(u32::MAX);
        let cost = PER_COMMAND.saturating_mul(commands).clamp(PAUSES.0, PAUSES.1);
        let busy = ended.since(began).saturating_mul(PER_DURATION);
        self.due = match version {
            Some(_) => (ended + BETWEEN_CHANGES.max(busy), ended + UNCHANGED.max(busy)),
            None => (Moment::NEVER, ended + cost.max(busy)),
        };
        self.version = version;
    }

    fn inspect_commands(&self, locks: usize) -> usize {
        match self.target {
            Target::Prefix(_) => self.inspect.list_commands(locks),
            Target::Lock(_) => 1,
        }
    }

    /// Replaces the state by the locks `found` at `now`, without an outage, and returns the changes. A lock that is missing is free.
    fn merge(&mut self, found: Vec<LockStatus>, now: Moment) -> Vec<Change> {
        let WatchState { locks: mut before, read_at, .. } = Arc::unwrap_or_clone(mem::take(&mut self.state));
        let free = |name: LockName| LockStatus::new(name, Vec::new(), Vec::new());
        let mut changes = Vec::new();
        let mut after = BTreeMap::new();
        let mut pairs: Vec<_> =
            found.into_iter().map(|status| (before.remove(&status.name), status)).collect();
        pairs.extend(before.into_iter().map(|(name, old)| (Some(old), free(name))));
        for (old, status) in pairs {
            let old =
                old.unwrap_or_else(|| Arc::new(WatchedLock::new(free(status.name.clone()), read_at, None)));
            let changed = compare(&old, &status, now);
            let lock = Arc::new(WatchedLock::new(status, now, Some(&old)));
            if !lock.status.is_free() {
                after.insert(lock.status.name.clone(), lock.clone());
            }
            changes.extend(changed.into_iter().map(|(kind, entry)| Change {
                kind,
                entry,
                lock: lock.clone(),
            }));
        }
        self.state = Arc::new(WatchState { locks: after, read_at: now, outage: None });
        changes
    }

    /// Records a failed read. Returns the outage if it begins with this.
    fn failed(&mut self, since: Moment, error: &Error) -> Option<Outage> {
        let error = error.chain();
        let state = Arc::make_mut(&mut self.state);
        if let Some(known) = &mut state.outage {
            known.error = error;
            return None;
        }
        let outage = Outage { since, until: Moment::NEVER, error };
        state.outage = Some(outage.clone());
        Some(outage)
    }
}

/// A read of the store.
#[derive(Debug)]
struct Read {
    began: Moment,
    ended: Moment,
    version: Option<u64>,
    result: Result<Vec<LockStatus>>,
}

/// A read of the store that is due, or is under way.
#[derive(Debug)]
struct Reading(oneshot::Receiver<Read>);

impl Reading {
    /// Starts a task on the I/O thread, to which timers and the store belong. It reads the store when its version differs from `before`, from
    /// the first time of `due` on, and at the second one in any case. A drop of the reading ends the task, except in the middle of a read: a
    /// store need not be cancel-safe.
    fn start(
        context: &Arc<StoreContext>,
        inspect: &Arc<dyn Inspect>,
        target: &Target,
        before: Option<u64>,
        due: (Moment, Moment),
    ) -> Result<Self> {
        let (mut sender, receiver) = oneshot::channel();
        let (store, inspect, target) = (context.clone(), inspect.clone(), target.clone());
        context.spawn(Operation::Inspect, async move {
            let (mut check_at, due) = due;
            loop {
                tokio::select! {
                    biased;
                    () = sender.closed() => return,
                    () = store.until(check_at.min(due)) => {}
                }
                if check_at >= due || !matches!(inspect.version().await, Ok(version) if version == before) {
                    break;
                }
                check_at = store.now() + CHECK_INTERVAL;
            }
            let began = store.now();
            // The version precedes the read, so a change in between is found by the next check.
            let (version, result) = match (inspect.version().await, target) {
                (Err(error), _) => (None, Err(error)),
                (Ok(version), Target::Prefix(prefix)) => (version, inspect.list(&prefix).await),
                (Ok(version), Target::Lock(name)) => {
                    (version, inspect.inspect(&name).await.map(|status| vec![status]))
                }
            };
            sender.send(Read { began, ended: store.now(), version, result }).ok();
        })?;
        Ok(Self(receiver))
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    };

    use async_trait::async_trait;
    use futures_util::StreamExt;

    use super::*;
    use crate::{BreakOrder, Clock, Entry, Fault, Locks, Store, SystemClock, Unavailable, memory};

    /// The in-memory store without a version, like a store on a server. It counts the lists, and can fail.
    #[derive(Debug)]
    struct Polled {
        inspect: Arc<dyn Inspect>,
        lists: AtomicUsize,
        fails: AtomicBool,
        /// If it is some, a list waits for its next value.
        gate: std::sync::Mutex<Option<tokio::sync::watch::Receiver<bool>>>,
    }

    #[async_trait]
    impl Inspect for Polled {
        async fn inspect(&self, name: &LockName) -> Result<LockStatus> {
            self.inspect.inspect(name).await
        }

        async fn list(&self, prefix: &str) -> Result<Vec<LockStatus>> {
            self.lists.fetch_add(1, Ordering::Relaxed);
            if self.fails.load(Ordering::Relaxed) {
                let failed =
                    Unavailable::new("memory", Operation::Inspect, Fault::Temporary, "it was unplugged");
                return Err(failed.into());
            }
            let gate = self.gate.lock().unwrap().take();
            if let Some(mut gate) = gate {
                gate.changed().await.unwrap();
            }
            self.inspect.list(prefix).await
        }

        async fn break_lock(&self, name: &LockName, order: &BreakOrder) -> Result<Vec<Entry>> {
            self.inspect.break_lock(name, order).await
        }
    }

    fn polled() -> (Locks, Arc<Polled>) {
        let store = memory::connect();
        let inspect = store.inspect.clone().unwrap();
        let (lists, fails, gate) = Default::default();
        let polled = Arc::new(Polled { inspect, lists, fails, gate });
        (Locks::new(Store { inspect: Some(polled.clone()), ..store }), polled)
    }

    fn text(event: &WatchEvent) -> String {
        match event {
            WatchEvent::Changed(change) => format!("{} {}", change.kind.as_str(), change.name()),
            WatchEvent::Unavailable(outage) => format!("unavailable: {}", outage.error),
            WatchEvent::Available => "available".to_owned(),
        }
    }

    #[tokio::test]
    async fn grants_waits_breaks_and_ends_of_the_watched_locks_are_events() {
        let (locks, _) = polled();
        let watch = locks.watch("a/").await.unwrap();
        let mut events = pin!(watch.into_stream());
        let _other = locks.lock("b").acquire().await.unwrap();
        let first = locks.lock("a/1").acquire().await.unwrap();
        assert_eq!(text(&events.next().await.unwrap()), "granted a/1");
        let second = tokio::spawn(locks.lock("a/1").acquire());
        assert_eq!(text(&events.next().await.unwrap()), "queued a/1");
        locks.break_lock("a/1").reason("test").await.unwrap();
        assert_eq!(text(&events.next().await.unwrap()), "broken a/1");
        drop(first);
        let second = second.await.unwrap().unwrap();
        assert_eq!(text(&events.next().await.unwrap()), "ended a/1");
        let WatchEvent::Changed(change) = events.next().await.unwrap() else { panic!() };
        assert_eq!((change.kind.as_str(), change.entry.token), ("granted", Some(second.fencing_token())));
        second.release().await.unwrap();
        assert_eq!(text(&events.next().await.unwrap()), "ended a/1");
    }

    #[tokio::test]
    async fn one_lock_is_watched_alone() {
        let (locks, store) = polled();
        let mut watch = locks.watch_lock("a").await.unwrap();
        let _guards = (locks.lock("a/1").acquire().await.unwrap(), locks.lock("a").acquire().await.unwrap());
        assert_eq!(text(&watch.next().await), "granted a");
        assert_eq!(watch.state().locks.len(), 1);
        assert_eq!(store.lists.load(Ordering::Relaxed), 0);
        assert!(locks.watch_lock("").await.is_err());
    }

    #[tokio::test]
    async fn an_outage_is_an_event_and_the_watch_goes_on() {
        let (locks, store) = polled();
        let mut watch = locks.watch("").await.unwrap();
        store.fails.store(true, Ordering::Relaxed);
        let begin = text(&watch.next().await);
        assert!(begin.starts_with("unavailable: ") && begin.ends_with("it was unplugged"), "{begin}");
        assert!(watch.refresh().await.is_empty(), "an outage is reported once");
        let _guard = locks.lock("a").acquire().await.unwrap();
        store.fails.store(false, Ordering::Relaxed);
        assert_eq!(text(&watch.next().await), "available");
        assert_eq!(text(&watch.next().await), "granted a");
        assert!(watch.state().outage.is_none());
        store.fails.store(true, Ordering::Relaxed);
        assert!(locks.watch("").await.is_err(), "the first read fails");
    }

    /// A dropped future must neither lose an event nor read the store more often.
    #[tokio::test]
    async fn a_watch_reads_once_a_second_also_if_its_futures_are_dropped() {
        let (locks, store) = polled();
        let mut watch = locks.watch("").await.unwrap();
        let _guard = locks.lock("a").acquire().await.unwrap();
        let began = SystemClock.now();
        let event = loop {
            let at = SystemClock.now() + Duration::from_millis(3);
            if let Some(event) = SystemClock.before(at, watch.next()).await {
                break event;
            }
        };
        assert_eq!(text(&event), "granted a");
        assert!(SystemClock.now().since(began) > PAUSES.0 / 2);
        assert_eq!(store.lists.load(Ordering::Relaxed), 2);
        watch.hurry();
        watch.refresh().await;
        assert_eq!(store.lists.load(Ordering::Relaxed), 3);
    }

    /// A display drops its future for each frame. A read that takes longer than that must end some day, and must not begin anew.
    #[tokio::test]
    async fn a_slow_read_is_not_repeated_if_its_future_is_dropped() {
        let (locks, store) = polled();
        let mut watch = locks.watch("").await.unwrap();
        let _guard = locks.lock("a").acquire().await.unwrap();
        let (send, mut slow) = tokio::sync::watch::channel(true);
        slow.mark_unchanged();
        *store.gate.lock().unwrap() = Some(slow);
        watch.hurry();
        let frame = async |watch: &mut Watch| {
            SystemClock.before(SystemClock.now() + Duration::from_millis(20), watch.next()).await
        };
        while store.lists.load(Ordering::Relaxed) < 2 {
            assert!(frame(&mut watch).await.is_none());
        }
        for _ in 0..5 {
            assert!(frame(&mut watch).await.is_none());
        }
        send.send(false).unwrap();
        assert_eq!(text(&watch.next().await), "granted a");
        assert_eq!(store.lists.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn the_pause_grows_with_the_commands_and_the_duration_of_a_read() {
        let (locks, _) = polled();
        let mut watch = locks.watch("").await.unwrap();
        let began = Moment::from_nanos(0);
        let pause = |watch: &mut Watch, milliseconds: u64, locks: usize, version: Option<u64>| {
            let ended = began + Duration::from_millis(milliseconds);
            watch.schedule(began, ended, locks, version);
            (watch.due.0.since(ended).min(PAUSES.1), watch.due.1.since(ended))
        };
        let never = PAUSES.1;
        assert_eq!(pause(&mut watch, 1, 0, None), (never, Duration::from_secs(1)));
        assert_eq!(pause(&mut watch, 1, 9, None), (never, PER_COMMAND * 10));
        assert_eq!(pause(&mut watch, 1, 10_000, None), (never, PAUSES.1));
        assert_eq!(pause(&mut watch, 3000, 10_000, None), (never, Duration::from_secs(60)));
        assert_eq!(pause(&mut watch, 1, 10_000, Some(1)), (BETWEEN_CHANGES, UNCHANGED));
        assert_eq!(pause(&mut watch, 50, 10_000, Some(1)), (Duration::from_secs(1), UNCHANGED));
    }

    #[tokio::test]
    async fn a_store_that_cannot_be_inspected_cannot_be_watched() {
        let store = memory::connect();
        let locks = Locks::new(Store::new(store.backend));
        let error = locks.watch("").await.unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    }
}
