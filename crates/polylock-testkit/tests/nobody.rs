//! Nobody keeps a lock without knowing it: neither a caller that was told that it has none, nor one that is not polled.
#![allow(clippy::unwrap_used, reason = "a test")]

mod unreliable;

use std::{
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use async_trait::async_trait;
use polylock_core::{
    Backend, BreakOrder, Capabilities, ClaimOutcome, Entry, Error, FirstStep, Guard, Inspect, KeepAlive,
    KeepRecord, LockName, LockStatus, Locks, Mode, OnceBegin, OwnerId, Record, Release, Request, Result,
    Store, StoredRecord, Wake, memory,
    metrics::{Measured, Metrics},
};
use polylock_testkit::{ManualClock, faults::wrap};
use tokio::sync::watch;
use unreliable::{locks_by, pass, running, soon};

/// Longer than any test, also by a clock that runs faster.
const HOUR: Duration = Duration::from_secs(3600);
/// Longer than the time for which a caller that is not polled keeps a lock.
const UNPOLLED: Duration = Request::MAX_QUEUE_LEASE.saturating_mul(2);

/// The in-memory store, declared as one whose operations begin on its I/O thread: from its first poll on, a request goes on by itself.
#[derive(Debug)]
struct OnThread {
    inner: Arc<dyn Backend>,
    capabilities: Capabilities,
}

#[async_trait]
impl Backend for OnThread {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn claim(&self, request: &Request) -> Result<ClaimOutcome> {
        self.inner.claim(request).await
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        self.inner.wait(request).await
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        self.inner.keep_alive(requests).await
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        self.inner.release(request).await
    }
}

/// Counts the acquisitions that were granted their lock.
#[derive(Debug, Default)]
struct Granted(watch::Sender<u32>);

impl Metrics for Granted {
    fn record(&self, _: &'static str, _: &LockName, measured: Measured) {
        if let Measured::Acquire { outcome: "acquired", .. } = measured {
            self.0.send_modify(|count| *count += 1);
        }
    }
}

/// Two users of one store. The acquisitions of the first one are counted, and its times are those of a clock.
struct Two {
    clock: ManualClock,
    locks: Locks,
    other: Locks,
    granted: Arc<Granted>,
}

impl Two {
    fn new() -> Self {
        let (clock, store, granted) = (ManualClock::new(), memory::connect(), Arc::new(Granted::default()));
        let on_thread = wrap(store.clone(), |inner| {
            let mut capabilities = inner.capabilities().clone();
            capabilities.first_step = FirstStep::Thread;
            Arc::new(OnThread { inner, capabilities })
        });
        let locks = Locks::builder(on_thread).clock(Arc::new(clock.clone())).metrics(granted.clone()).build();
        Self { clock, locks, other: Locks::new(store), granted }
    }

    /// Waits until `count` acquisitions of the first user were granted their lock.
    async fn until_granted(&self, count: u32) {
        drop(soon(self.granted.0.subscribe().wait_for(|granted| *granted == count)).await);
    }

    /// Polls `waiting` until a request waits for the lock `name`, and no more.
    async fn poll_until_queued<T>(&self, waiting: &mut (impl Future<Output = T> + Unpin), name: &str) {
        let is_queued = async || !self.other.inspect(name).await.unwrap().waiters.is_empty();
        let mut queued = pin!(soon(until(is_queued)));
        tokio::select! {
            biased;
            _ = waiting => panic!("it has not waited"),
            () = &mut queued => {}
        }
    }

    async fn is_free(&self, name: &str) -> bool {
        self.other.lock(name).try_acquire().await.unwrap().is_some()
    }
}

async fn until(condition: impl AsyncFn() -> bool) {
    while !condition().await {
        tokio::task::yield_now().await;
    }
}

async fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    std::future::poll_fn(|context| match Pin::new(&mut *future).poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

async fn acquired(locks: &Locks, name: &str) -> Guard {
    soon(locks.lock(name).acquire()).await.unwrap()
}

#[tokio::test]
async fn a_set_that_is_busy_keeps_none_of_its_locks_for_their_min_hold() {
    let two = Two::new();
    let holder = acquired(&two.other, "b").await;
    let set = || two.locks.lock_many(["a", "b"]).min_hold(HOUR);
    assert!(set().try_acquire().await.unwrap().is_none());
    acquired(&two.other, "a").await.release().await.unwrap();
    let mut dropped = Box::pin(set().acquire());
    two.poll_until_queued(&mut dropped, "b").await;
    assert!(!two.is_free("a").await, "it has its first lock");
    drop(dropped);
    acquired(&two.other, "a").await.release().await.unwrap();
    holder.release().await.unwrap();
    soon(set().acquire()).await.unwrap().release().await.unwrap();
    assert!(!two.is_free("a").await, "a set that somebody got is kept");
}

#[tokio::test]
async fn a_set_that_is_not_polled_keeps_none_of_its_locks_for_their_min_hold() {
    let two = Two::new();
    let holder = acquired(&two.other, "b").await;
    let mut unpolled = Box::pin(two.locks.lock_many(["a", "b"]).ttl(HOUR).min_hold(HOUR).acquire());
    two.poll_until_queued(&mut unpolled, "b").await;
    pass(&two.clock, UNPOLLED).await;
    acquired(&two.other, "a").await.release().await.unwrap();
    holder.release().await.unwrap();
}

/// The inner set enters the lock that its owner has received before.
#[tokio::test]
async fn a_set_that_is_busy_does_not_end_the_min_hold_of_an_outer_guard() {
    let two = Two::new();
    let (locks, owner) = (&two.locks, OwnerId::unique());
    let _busy = acquired(&two.other, "b").await;
    let outer = locks.lock("a").reentrant(&owner).min_hold(HOUR).acquire().await.unwrap();
    let inner = locks.lock_many(["a", "b"]).reentrant(&owner).try_acquire().await.unwrap();
    assert!(inner.is_none());
    outer.release().await.unwrap();
    assert!(!two.is_free("a").await);
}

#[tokio::test]
async fn a_shutdown_keeps_only_a_lock_that_its_holder_has_received() {
    let two = Two::new();
    let received = two.locks.lock("a").min_hold(HOUR).acquire().await.unwrap();
    let busy = acquired(&two.other, "c").await;
    let mut set = Box::pin(two.locks.lock_many(["b", "c"]).min_hold(HOUR).acquire());
    two.poll_until_queued(&mut set, "c").await;
    let holder = acquired(&two.other, "d").await;
    let mut unpolled = Box::pin(two.locks.lock("d").min_hold(HOUR).acquire());
    two.poll_until_queued(&mut unpolled, "d").await;
    holder.release().await.unwrap();
    two.until_granted(3).await;
    let report = soon(two.locks.shutdown()).await.unwrap();
    assert_eq!((report.released, report.is_complete()), (3, true), "{report:?}");
    assert!(matches!(soon(set).await, Err(Error::ShutDown)));
    assert!(matches!(soon(unpolled).await, Err(Error::ShutDown)));
    assert!(!two.is_free("a").await, "its holder may have begun its work");
    assert!(two.is_free("b").await, "its caller waited for another lock, too");
    assert!(two.is_free("d").await, "its caller was told that it has not got it");
    drop((received, busy));
}

/// Returns two acquisitions of one owner, which are not polled from the release of the lock on.
async fn entering(two: &Two) -> [impl Future<Output = Result<Guard>> + Unpin; 2] {
    let (owner, holder) = (OwnerId::unique(), acquired(&two.other, "a").await);
    let entering = || Box::pin(two.locks.lock("a").reentrant(&owner).acquire());
    let mut both = [entering(), entering()];
    two.poll_until_queued(&mut both[0], "a").await;
    assert!(poll_once(&mut both[1]).await.is_none());
    holder.release().await.unwrap();
    both
}

/// Returns the first guard of an owner, and its second acquisition, which has entered the hold and was not polled since.
async fn entered(two: &Two) -> (Guard, impl Future<Output = Result<Guard>> + Unpin) {
    let [first, second] = entering(two).await;
    let first = soon(first).await.unwrap();
    two.until_granted(2).await;
    (first, second)
}

#[tokio::test]
async fn an_entry_that_is_not_polled_does_not_keep_the_lock() {
    let two = Two::new();
    let (first, mut second) = entered(&two).await;
    first.release().await.unwrap();
    let next = two.other.lock("a").try_acquire().await.unwrap().expect("nobody holds it");
    // When it is polled again, it waits like a new request.
    two.poll_until_queued(&mut second, "a").await;
    next.release().await.unwrap();
    assert!(soon(second).await.unwrap().is_held());
}

#[tokio::test]
async fn the_first_of_two_acquisitions_does_not_keep_the_lock_of_the_second_while_it_is_not_polled() {
    let two = Two::new();
    let [mut first, second] = entering(&two).await;
    two.until_granted(2).await;
    soon(second).await.unwrap().release().await.unwrap();
    let next = two.other.lock("a").try_acquire().await.unwrap().expect("nobody holds it");
    two.poll_until_queued(&mut first, "a").await;
    next.release().await.unwrap();
    assert!(soon(first).await.unwrap().is_held());
}

#[tokio::test]
async fn an_entry_that_is_polled_in_time_shares_the_hold() {
    let two = Two::new();
    let (first, second) = entered(&two).await;
    let second = soon(second).await.unwrap();
    assert_eq!(first.fencing_token(), second.fencing_token());
    first.release().await.unwrap();
    assert!(!two.is_free("a").await && second.is_held());
}

/// 1. An upgrade waits for a reader. 2. The reader leaves, and the hold is converted. 3. The future is dropped before it is polled again.
#[tokio::test]
async fn an_upgrade_that_is_dropped_after_its_grant_is_undone() {
    for (held, kept) in [(Mode::Shared, Mode::Shared), (Mode::Null, Mode::ConcurrentRead)] {
        let two = Two::new();
        let owner = OwnerId::unique();
        let lock = || two.locks.lock("a").mode(held).ttl(HOUR).reentrant(&owner);
        let (mut guard, same_hold) = (lock().acquire().await.unwrap(), lock().acquire().await.unwrap());
        let reader = two.other.lock("a").shared().acquire().await.unwrap();
        let mut upgrade = guard.upgrade(Mode::Exclusive).into_future();
        assert!(poll_once(&mut upgrade).await.is_none());
        reader.release().await.unwrap();
        running(&two.clock, until(async || same_hold.mode() == Mode::Exclusive)).await;
        drop(upgrade);
        soon(until(async || same_hold.mode() == kept)).await;
        let beside = soon(two.other.lock("a").mode(kept).acquire()).await.unwrap();
        beside.release().await.unwrap();
        // The next conversion has the present token of the hold.
        running(&two.clock, guard.upgrade(Mode::Exclusive)).await.unwrap();
        assert!(!two.is_free("a").await && same_hold.mode() == Mode::Exclusive);
    }
}

/// The in-memory store. From one call on, it does not reply to inspections, nor to operations on records, until it is told to.
#[derive(Debug)]
struct Silent {
    below: Store,
    /// The calls that are left before the silence, and 0 since then; `None` after it.
    left: watch::Sender<Option<u32>>,
}

impl Silent {
    /// Returns a store that does not reply to the next call after `calls` of them.
    fn after(calls: u32) -> Arc<Self> {
        Arc::new(Self { below: memory::connect(), left: watch::Sender::new(Some(calls + 1)) })
    }

    fn locks(self: &Arc<Self>, clock: &ManualClock) -> Locks {
        locks_by(
            clock,
            Store { inspect: Some(self.clone()), records: Some(self.clone()), ..self.below.clone() },
        )
    }

    fn other(&self) -> Locks {
        Locks::new(self.below.clone())
    }

    fn speak(&self) {
        self.left.send_replace(None);
    }

    async fn reply(&self) {
        self.left.send_modify(|left| *left = left.map(|left| left.saturating_sub(1)));
        drop(self.left.subscribe().wait_for(|left| *left != Some(0)).await);
    }

    /// Polls `acquiring` until the silence has begun.
    async fn poll_until_silent<T>(&self, acquiring: &mut (impl Future<Output = T> + Unpin)) {
        let mut changes = self.left.subscribe();
        let mut silent = pin!(soon(changes.wait_for(|left| *left == Some(0))));
        tokio::select! {
            biased;
            _ = acquiring => panic!("it has not waited for a reply"),
            _ = &mut silent => {}
        }
    }
}

#[async_trait]
impl Inspect for Silent {
    async fn inspect(&self, name: &LockName) -> Result<LockStatus> {
        self.reply().await;
        self.below.inspect.as_ref().unwrap().inspect(name).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockStatus>> {
        self.reply().await;
        self.below.inspect.as_ref().unwrap().list(prefix).await
    }

    fn lists_semaphores(&self) -> bool {
        true
    }

    async fn break_lock(&self, name: &LockName, order: &BreakOrder) -> Result<Vec<Entry>> {
        self.below.inspect.as_ref().unwrap().break_lock(name, order).await
    }
}

#[async_trait]
impl KeepRecord for Silent {
    async fn read_record(&self, name: &LockName) -> Result<StoredRecord> {
        self.reply().await;
        self.below.records.as_ref().unwrap().read_record(name).await
    }

    async fn write_record(&self, name: &LockName, record: &Record, keep: Duration) -> Result<()> {
        self.reply().await;
        self.below.records.as_ref().unwrap().write_record(name, record, keep).await
    }
}

#[tokio::test]
async fn a_semaphore_that_is_not_polled_keeps_no_slot() {
    for is_try in [true, false] {
        let (clock, store) = (ManualClock::new(), Silent::after(0));
        let semaphore = store.locks(&clock).semaphore("n", 1);
        let mut unpolled = Box::pin(async move {
            match is_try {
                true => semaphore.try_acquire().await.map(Option::unwrap),
                false => semaphore.acquire().await,
            }
        });
        store.poll_until_silent(&mut unpolled).await;
        assert!(store.other().semaphore("n", 1).try_acquire().await.unwrap().is_none(), "it is granted");
        pass(&clock, UNPOLLED).await;
        soon(store.other().semaphore("n", 1).acquire()).await.unwrap().release().await.unwrap();
        store.speak();
        assert!(running(&clock, unpolled).await.unwrap().is_held(), "it begins again: {is_try}");
    }
}

/// The caller is polled, and the store does not reply to the check of the number of slots.
#[tokio::test]
async fn a_slot_is_not_kept_from_its_caller_by_an_inspection_without_a_reply() {
    let (clock, store) = (ManualClock::new(), Silent::after(0));
    let locks = store.locks(&clock);
    let guard = running(&clock, locks.semaphore("n", 1).acquire()).await.unwrap();
    assert!(guard.is_held());
    store.speak();
    guard.release().await.unwrap();
}

/// The second call is the read under the lock, the third one the write.
#[tokio::test]
async fn a_job_that_is_not_polled_does_not_keep_its_lock() {
    for (replies, ttl) in [(1, HOUR), (2, UNPOLLED)] {
        let (clock, store) = (ManualClock::new(), Silent::after(replies));
        let job = store.locks(&clock).once("n").ttl(ttl).retries(1);
        let mut unpolled = Box::pin(job.begin());
        store.poll_until_silent(&mut unpolled).await;
        assert!(store.other().lock("n").try_acquire().await.unwrap().is_none(), "it is granted");
        pass(&clock, 2 * UNPOLLED).await;
        // The clock runs: otherwise the lock would not be renewed, and its lease would end.
        running(&clock, acquired(&store.other(), "n")).await.release().await.unwrap();
        store.speak();
        let begun = running(&clock, unpolled).await.unwrap();
        let OnceBegin::Due(attempt) = begun else { panic!("{begun:?}") };
        assert!(attempt.guard.is_held(), "it begins again after {replies} replies");
    }
}
