//! No user code and no other store can delay or end a renewal: log writers, metrics recorders, clocks, stores that block.
//!
//! The process has one log writer, so it blocks for all tests of this program at once.
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "blocking a thread for some time is what is tested")]

use std::{
    fmt, io,
    sync::{
        Arc, LazyLock, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use async_trait::async_trait;
use polylock_core::{
    Backend, Capabilities, ClaimOutcome, Clock, KeepAlive, LockName, Locks, LostReason, Moment, Release,
    Request, Result, Store, SystemClock, Wake,
    clock::Sleep,
    memory,
    metrics::{Measured, Metrics},
};

/// Several TTLs pass while something is blocked.
const TTL: Duration = Duration::from_secs(2);
const BLOCKED: Duration = Duration::from_secs(6);

/// The log, with a writer that can be blocked.
#[derive(Clone, Default)]
struct Log {
    text: Arc<Mutex<String>>,
    gate: Arc<Mutex<()>>,
}

static LOG: LazyLock<Log> = LazyLock::new(|| {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .init();
    log
});

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _open = self.gate.lock().unwrap();
        self.text.lock().unwrap().push_str(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Waits until the log has a line with all of `words`, and returns it.
async fn logged(words: &[&str]) -> String {
    let by = SystemClock.now() + Duration::from_secs(20);
    loop {
        let text = LOG.text.lock().unwrap().clone();
        if let Some(line) = text.lines().find(|line| words.iter().all(|word| line.contains(word))) {
            return line.to_owned();
        }
        assert!(SystemClock.now() < by, "{words:?} in {text}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Holds a lock for `time`, many times its lease, and fails if the lock is lost.
async fn hold_for(locks: &Locks, name: &str, time: Duration) {
    let guard = locks.lock(name).ttl(TTL).acquire().await.unwrap();
    let until = SystemClock.now() + time;
    while SystemClock.now() < until {
        guard.ensure_held().unwrap();
        tokio::time::sleep(TTL / 10).await;
    }
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::await_holding_lock, reason = "the await comes after it")]
async fn a_log_writer_that_blocks_loses_no_lock() {
    LazyLock::force(&LOG);
    let locks = Locks::new(memory::connect());
    let guard = locks.lock("kept").ttl(TTL).acquire().await.unwrap();
    let mut others = Vec::new();
    for name in 0..100 {
        others.push(locks.lock(name.to_string()).acquire().await.unwrap());
    }
    let blocked = LOG.gate.lock().unwrap();
    // Each release is logged by the thread that renews.
    drop(others);
    let until = SystemClock.now() + BLOCKED;
    while SystemClock.now() < until {
        guard.ensure_held().unwrap();
        thread::sleep(TTL / 10);
    }
    drop(blocked);
    logged(&["released", "lock.name=99"]).await;
    guard.release().await.unwrap();
}

/// A recorder that panics or blocks in each call.
#[derive(Debug)]
struct FaultyMetrics {
    blocks: bool,
    called: AtomicU64,
}

impl Metrics for FaultyMetrics {
    fn record(&self, _: &'static str, _: &LockName, measured: Measured) {
        self.called.fetch_add(1, Ordering::SeqCst);
        if self.blocks {
            thread::sleep(Duration::from_millis(100));
        } else {
            std::panic::resume_unwind(Box::new(format!("planted at {measured:?}")));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recorder_that_panics_or_blocks_in_every_call_loses_no_lock() {
    LazyLock::force(&LOG);
    for blocks in [false, true] {
        let metrics = Arc::new(FaultyMetrics { blocks, called: AtomicU64::new(0) });
        let locks = Locks::builder(memory::connect()).metrics(metrics.clone()).build();
        hold_for(&locks, "n", 2 * TTL).await;
        assert!(locks.lock("n").try_acquire().await.unwrap().is_some(), "released");
        while metrics.called.load(Ordering::SeqCst) < 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    // The next report after a second has passed makes the observer log its counts.
    let locks = Locks::new(memory::connect());
    hold_for(&locks, "n", Duration::from_millis(1500)).await;
    logged(&["ERROR", "has panicked"]).await;
}

/// A clock that panics on the threads of the library once the flag is set.
#[derive(Debug, Default)]
struct FaultyClock(AtomicBool);

impl Clock for FaultyClock {
    fn now(&self) -> Moment {
        let current = thread::current();
        let is_library_thread = current.name().is_some_and(|name| name.starts_with("polylock-"));
        if is_library_thread && self.0.load(Ordering::SeqCst) {
            std::panic::resume_unwind(Box::new("a planted panic of the clock"));
        }
        SystemClock.now()
    }

    fn sleep_until(&self, at: Moment) -> Sleep {
        SystemClock.sleep_until(at)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_watchdog_notifies_the_guard_and_releases_the_lock() {
    LazyLock::force(&LOG);
    let (store, clock) = (memory::connect(), Arc::new(FaultyClock::default()));
    let locks = Locks::builder(store.clone()).clock(clock.clone()).build();
    let guard = locks.lock("n").ttl(Duration::from_secs(12)).acquire().await.unwrap();
    clock.0.store(true, Ordering::SeqCst);
    let lost = tokio::time::timeout(Duration::from_secs(6), guard.lost()).await.expect("notified");
    assert_eq!(lost, LostReason::WatchdogFailed);
    assert_eq!(guard.ensure_held().unwrap_err().lost(), Some(&LostReason::WatchdogFailed));
    logged(&["ERROR", "has failed", "a planted panic of the clock"]).await;
    let others = Locks::new(store);
    let next = tokio::time::timeout(Duration::from_secs(4), others.lock("n").acquire()).await;
    drop(next.expect("released before its lease has ended").unwrap());
}

/// A third-party store with renewals that block the thread on which they are polled.
struct BlockingStore(Store, Capabilities);

impl fmt::Debug for BlockingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Blocking")
    }
}

#[async_trait]
impl Backend for BlockingStore {
    fn capabilities(&self) -> &Capabilities {
        &self.1
    }

    async fn claim(&self, request: &Request) -> Result<ClaimOutcome> {
        self.0.backend.claim(request).await
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        self.0.backend.wait(request).await
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        thread::sleep(BLOCKED);
        self.0.backend.keep_alive(requests).await
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        self.0.backend.release(request).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocking_store_loses_no_lock_of_another_store_and_is_named() {
    LazyLock::force(&LOG);
    let inner = memory::connect();
    let mut capabilities = inner.backend.capabilities().clone();
    capabilities.backend = "files";
    let blocking = Locks::new(Store::new(Arc::new(BlockingStore(inner, capabilities))));
    let healthy = Locks::new(memory::connect());
    let victim = blocking.lock("slow").ttl(TTL).acquire().await.unwrap();
    hold_for(&healthy, "healthy", BLOCKED).await;
    assert_eq!(victim.ensure_held().unwrap_err().lost(), Some(&LostReason::DeadlineReached));
    logged(&["WARN", "has blocked its I/O thread", "files", "renew"]).await;
}
