//! The shutdown of a store's locks: everything ends and is released, once, whatever else happens at that moment.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{self, Context},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::FutureExt;
use polylock_core::{
    Backend, Capabilities, ClaimOutcome, Clock, Error, Fault, KeepAlive, LockStatus, Locks, LostReason,
    Operation, Options, Release, Request, Result, ShutdownReport, Store, SystemClock, Unavailable, Wake,
    memory,
};
use tokio::{runtime::Handle, task::JoinHandle};

fn locks() -> Locks {
    Locks::new(memory::connect())
}

fn assert_shut_down<T>(outcome: Result<T>) {
    assert!(matches!(outcome, Err(Error::ShutDown)), "{:?}", outcome.err());
}

#[tokio::test]
async fn holds_and_waiters_end_and_work_is_dropped() {
    let store = memory::connect();
    let (locks, other) = (Locks::new(store.clone()), Locks::new(store));
    let guards =
        [locks.lock("a").acquire().await.unwrap(), locks.lock("b").shared().acquire().await.unwrap()];
    let lost = guards[0].lost();
    let work = tokio::spawn(locks.lock("c").acquire().await.unwrap().run(std::future::pending::<()>()));
    let elsewhere = other.lock("d").acquire().await.unwrap();
    let waiter = tokio::spawn(locks.lock("d").acquire());
    while other.inspect("d").await.unwrap().waiters.is_empty() {
        tokio::task::yield_now().await;
    }
    let report = locks.clone().shutdown().await.unwrap();
    assert_eq!((report.released, report.is_complete()), (3, true), "{report:?}");
    assert_shut_down(waiter.await.unwrap());
    assert_eq!(work.await.unwrap().unwrap_err().lost(), Some(&LostReason::ShutDown));
    assert_eq!(lost.await, LostReason::ShutDown);
    for guard in guards {
        assert_eq!(guard.release().await.unwrap_err().lost(), Some(&LostReason::ShutDown));
    }
    assert_shut_down(locks.lock("a").acquire().await);
    assert_shut_down(locks.lock("a").try_acquire().await);
    // Nothing is left in the store, and its other users are not affected.
    for name in ["a", "b", "c"] {
        assert!(other.lock(name).try_acquire().await.unwrap().is_some(), "{name}");
    }
    assert!(elsewhere.is_held() && other.inspect("d").await.unwrap().waiters.is_empty());
    assert_eq!(locks.shutdown().await.unwrap().released, 3, "a second call returns the same report");
}

#[tokio::test]
async fn a_shutdown_that_is_dropped_continues() {
    let locks = locks();
    let guard = locks.lock("a").acquire().await.unwrap();
    drop(locks.shutdown().now_or_never());
    assert_eq!(guard.lost().await, LostReason::ShutDown);
    assert_eq!(locks.shutdown().await.unwrap().released, 1);
}

#[tokio::test]
async fn a_leader_and_a_candidate_leave_their_election() {
    let store = memory::connect();
    let (locks, other) = (Locks::new(store.clone()), Locks::new(store));
    let run = |locks: &Locks| {
        let election = locks.election("a");
        tokio::spawn(election.run(async move |_| std::future::pending::<()>().await))
    };
    let leader = run(&locks);
    while other.inspect("a").await.unwrap().holders.is_empty() {
        tokio::task::yield_now().await;
    }
    let candidate = run(&other);
    while locks.inspect("a").await.unwrap().waiters.is_empty() {
        tokio::task::yield_now().await;
    }
    for (locks, task) in [(&other, candidate), (&locks, leader)] {
        assert!(locks.shutdown().await.unwrap().is_complete());
        assert_shut_down(task.await.unwrap());
    }
    assert!(locks.inspect("a").await.unwrap().is_free());
}

#[tokio::test]
async fn of_an_owner_that_has_reentered_is_one_release() {
    let (locks, owner) = (locks(), polylock_core::OwnerId::unique());
    let outer = locks.lock("a").reentrant(&owner).acquire().await.unwrap();
    let inner = locks.lock("a").reentrant(&owner).acquire().await.unwrap();
    let report = locks.shutdown().await.unwrap();
    assert_eq!(report.released, 1);
    assert!(!outer.is_held() && !inner.is_held());
    assert_shut_down(locks.lock("a").reentrant(&owner).acquire().await);
}

#[tokio::test]
async fn waits_for_the_release_of_a_guard_that_was_dropped() {
    let store = Slow::connect(true);
    let (locks, release) = (store.locks(Duration::from_secs(10)), store.is_silent.clone());
    drop(locks.lock("a").acquire().await.unwrap());
    let mut shutdown = Box::pin(locks.shutdown());
    assert!(
        tokio::time::timeout(Duration::from_millis(50), &mut shutdown).await.is_err(),
        "it has not waited"
    );
    release.store(false, Ordering::SeqCst);
    let report = shutdown.await.unwrap();
    assert_eq!((report.released, report.is_complete()), (0, true), "{report:?}");
    assert!(locks.inspect("a").await.is_err(), "a store without inspection");
    assert!(Locks::new(Store::new(store.inner)).lock("a").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn a_release_that_is_not_confirmed_is_reported_by_its_name() {
    let store = Slow::connect(true);
    let locks = store.locks(Duration::from_millis(600));
    let guards = [locks.lock("a").acquire().await.unwrap(), locks.lock("b").acquire().await.unwrap()];
    let report = locks.shutdown().await.unwrap();
    let mut failed: Vec<_> = report.failed.iter().map(|failed| failed.name.as_str()).collect();
    failed.sort_unstable();
    assert_eq!((failed, report.released, report.is_complete()), (vec!["a", "b"], 0, false));
    assert!(report.failed.iter().all(|failed| failed.error.is_temporary()), "{report:?}");
    assert!(
        guards.iter().all(|guard| guard.ensure_held().unwrap_err().lost() == Some(&LostReason::ShutDown))
    );
}

/// Every acquisition that races with the shutdown either fails or is released; none is left behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaves_nothing_of_acquisitions_at_the_same_time() {
    for round in 0..100 {
        let store = memory::connect();
        let (locks, other) = (Locks::new(store.clone()), Locks::new(store));
        let tasks: Vec<_> = (0..4)
            .map(|task| {
                let locks = locks.clone();
                tokio::spawn(async move {
                    let mut kept = Vec::new();
                    for number in 0.. {
                        match locks.lock(format!("{task}/{number}")).acquire().await {
                            Ok(guard) => kept.push(guard),
                            Err(error) => {
                                assert!(matches!(error, Error::ShutDown), "{error}");
                                break;
                            }
                        }
                    }
                    kept
                })
            })
            .collect();
        for _ in 0..round % 20 {
            tokio::task::yield_now().await;
        }
        let report = locks.shutdown().await.unwrap();
        assert!(report.is_complete(), "{report:?}");
        let left = other.list("").await.unwrap();
        assert!(left.is_empty(), "round {round}: {left:?}");
        let mut kept = 0;
        for task in tasks {
            let guards = task.await.unwrap();
            assert!(guards.iter().all(|guard| !guard.is_held()));
            kept += guards.len();
        }
        assert!(kept <= report.released, "{kept} guards, {report:?}");
    }
}

/// The report of a shutdown, and what the store has then.
type Finished = (ShutdownReport, Vec<LockStatus>);

/// The wake-up of a task that watches a hold: the thread that ends the hold runs a shutdown, before it continues.
struct ShutDownFirst {
    locks: Locks,
    other: Locks,
    shutdown: Mutex<Option<JoinHandle<Finished>>>,
    runtime: Handle,
}

impl task::Wake for ShutDownFirst {
    fn wake(self: Arc<Self>) {
        let (locks, other) = (self.locks.clone(), self.other.clone());
        let shutdown = self
            .runtime
            .spawn(async move { (locks.shutdown().await.unwrap(), other.list("").await.unwrap()) });
        let by = SystemClock.now() + Duration::from_millis(300);
        while !shutdown.is_finished() && SystemClock.now() < by {
            std::thread::yield_now();
        }
        *self.shutdown.lock().unwrap() = Some(shutdown);
    }
}

/// 1. A guard is dropped, and its hold has ended. 2. The shutdown finds no hold any more. 3. The drop sends its release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waits_for_the_release_of_a_guard_whose_drop_is_in_progress() {
    let store = memory::connect();
    let (locks, other) = (Locks::new(store.clone()), Locks::new(store));
    let guard = locks.lock("a").acquire().await.unwrap();
    let mut lost = Box::pin(guard.lost());
    let (shutdown, runtime) = (Mutex::default(), Handle::current());
    let first = Arc::new(ShutDownFirst { locks, other, shutdown, runtime });
    assert!(lost.poll_unpin(&mut Context::from_waker(&first.clone().into())).is_pending());
    drop(guard);
    let shutdown = first.shutdown.lock().unwrap().take().unwrap();
    let (report, left) = shutdown.await.unwrap();
    assert!(report.is_complete() && left.is_empty(), "{report:?}, {left:?}");
}

/// A store that does not reply to releases while it is silent.
#[derive(Debug, Clone)]
struct Slow {
    inner: Arc<dyn Backend>,
    is_silent: Arc<AtomicBool>,
}

impl Slow {
    fn connect(is_silent: bool) -> Self {
        Self { inner: memory::connect().backend, is_silent: Arc::new(is_silent.into()) }
    }

    fn locks(&self, ttl: Duration) -> Locks {
        let mut options = Options::default();
        options.ttl = ttl;
        Locks::builder(Store::new(Arc::new(self.clone()))).options(options).build()
    }
}

#[async_trait]
impl Backend for Slow {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
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
        if self.is_silent.load(Ordering::SeqCst) {
            let capabilities = self.capabilities();
            return Err(Unavailable::new(
                capabilities.backend,
                Operation::Release,
                Fault::Temporary,
                "the server is silent",
            )
            .into());
        }
        self.inner.release(request).await
    }
}
