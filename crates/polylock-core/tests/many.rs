//! Several locks together: tests of behaviour that the conformance suite does not reach from outside.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll, Wake as WakeTask},
    thread::Thread,
    time::Duration,
};

use async_trait::async_trait;
use polylock_core::{
    Backend, Capabilities, ClaimOutcome, Clock, Error, InvalidName, KeepAlive, Locks, LostReason, Mode,
    MultiGuard, NotAcquired, OwnerId, Release, Request, Result, Store, SystemClock, Wake, memory,
};

fn locks() -> Locks {
    Locks::new(memory::connect())
}

/// The in-memory store, which counts the claims, and replies to them late.
#[derive(Debug)]
struct Counting {
    inner: Arc<dyn Backend>,
    claims: AtomicU32,
    delay: Duration,
}

impl Counting {
    fn new(delay: Duration) -> Arc<Self> {
        Arc::new(Self { inner: memory::connect().backend, claims: AtomicU32::default(), delay })
    }
}

#[async_trait]
impl Backend for Counting {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn claim(&self, request: &Request) -> Result<ClaimOutcome> {
        self.claims.fetch_add(1, Ordering::Relaxed);
        let outcome = self.inner.claim(request).await;
        SystemClock.sleep_until(SystemClock.now() + self.delay).await;
        outcome
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

#[tokio::test]
async fn every_setting_is_checked_before_anything_is_sent() {
    let store = Counting::new(Duration::ZERO);
    let locks = Locks::new(Store::new(store.clone()));
    let invalid = locks.lock_many(["a", ""]).acquire().await.unwrap_err();
    assert!(matches!(invalid, Error::InvalidName(InvalidName::Empty)), "{invalid}");
    let none = locks.lock_many([""; 0]).acquire().await.unwrap_err();
    assert!(matches!(none, Error::Config(_)), "{none}");
    let ttl = locks.lock_many(["a", "b"]).ttl(Duration::ZERO).try_acquire().await.unwrap_err();
    assert!(matches!(ttl, Error::InvalidTtl { .. }), "{ttl}");
    let label = locks.lock_many(["a", "b"]).label("two\nlines").acquire().await.unwrap_err();
    assert!(matches!(label, Error::Config(_)), "{label}");
    assert_eq!(store.claims.load(Ordering::Relaxed), 0);
    // One claim for each lock.
    locks.lock_many(["b", "a", "b"]).acquire().await.unwrap().release().await.unwrap();
    assert_eq!(store.claims.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn the_settings_apply_to_each_lock() {
    let (locks, owner) = (locks(), OwnerId::unique());
    let ttl = Duration::from_secs(7);
    let many = locks.lock_many(["a", "b"]).ttl(ttl).shared().owner(&owner).label("report");
    let (first, second) = (many.clone().acquire().await.unwrap(), many.acquire().await.unwrap());
    assert!(first.fencing_tokens().zip(second.fencing_tokens()).all(|(one, other)| one.1 < other.1));
    assert_eq!(first.fencing_token("a"), first.guard("a").map(polylock_core::Guard::fencing_token));
    assert!(first.guard("c").is_none() && first.fencing_token("c").is_none());
    for name in ["a", "b"] {
        let status = locks.inspect(name).await.unwrap();
        assert_eq!(status.holders.len(), 2);
        for holder in status.holders {
            assert_eq!((holder.mode, holder.owner.as_str()), (Mode::Shared, owner.as_str()));
            assert_eq!(holder.label, "report");
            assert!(holder.expires_in <= ttl);
        }
    }
    drop(first);
    second.release_after(Duration::from_secs(60)).await.unwrap();
    assert!(locks.lock_many(["b", "c"]).try_acquire().await.unwrap().is_none(), "kept for a minute");
    locks.lock_many(["c", "d"]).acquire().await.unwrap().leave_to_expire().unwrap();
    assert!(locks.lock("d").try_acquire().await.unwrap().is_none());
}

#[tokio::test]
async fn the_error_states_the_lock_that_was_not_acquired_and_the_whole_wait() {
    let locks = locks();
    let holder = locks.lock("b").acquire().await.unwrap();
    let busy = locks.lock_many(["a", "b"]).wait(Duration::ZERO).acquire().await.unwrap_err();
    assert!(
        matches!(&busy, Error::NotAcquired { name, reason: NotAcquired::Busy } if name.as_str() == "b"),
        "{busy}"
    );
    let (began, wait) = (SystemClock.now(), Duration::from_millis(200));
    let late = locks.lock_many(["c", "b"]).wait(wait).acquire().await.unwrap_err();
    let took = SystemClock.now().since(began);
    match late {
        Error::NotAcquired { name, reason: NotAcquired::TimedOut { waited } } => {
            assert_eq!(name.as_str(), "b");
            assert!(waited >= wait && waited <= took, "{waited:?}");
        }
        other => panic!("{other}"),
    }
    holder.release().await.unwrap();
}

#[tokio::test]
async fn an_owner_enters_the_locks_that_it_holds() {
    let (locks, owner) = (locks(), OwnerId::unique());
    let outer = locks.lock_many(["a", "b"]).reentrant(&owner).acquire().await.unwrap();
    let inner = locks.lock_many(["b", "c"]).reentrant(&owner).acquire().await.unwrap();
    assert_eq!(outer.fencing_token("b"), inner.fencing_token("b"));
    outer.release().await.unwrap();
    assert!(locks.lock("b").try_acquire().await.unwrap().is_none(), "the inner guard holds it");
    inner.release().await.unwrap();
    locks.lock_many(["a", "b", "c"]).try_acquire().await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn one_guard_is_a_set_of_one() {
    let locks = locks();
    let guard = locks.lock("a").acquire().await.unwrap();
    let (token, deadline) = (guard.fencing_token(), guard.deadline());
    let set = MultiGuard::from(guard);
    assert!(set.is_held() && set.deadline() == deadline && set.fencing_token("a") == Some(token));
    assert!(set.remaining() > Duration::from_secs(1));
    assert_eq!(set.run(async { 7 }).await.unwrap(), 7);
    locks.lock("a").try_acquire().await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_renewal_of_all_locks_moves_the_deadline() {
    let guard = locks().lock_many(["a", "b", "c"]).ttl(Duration::from_millis(2400)).acquire().await.unwrap();
    let mut last = guard.deadline();
    for _ in 0..3 {
        let renewed = SystemClock.before(SystemClock.now() + Duration::from_secs(30), guard.renewed()).await;
        let deadline = renewed.expect("renewed in time").expect("held");
        assert!(deadline > last, "{deadline:?} is not after {last:?}");
        last = deadline;
    }
    guard.ensure_held().unwrap();
}

#[tokio::test]
async fn the_break_of_one_lock_stops_the_work_and_names_it() {
    let locks = locks();
    let guard = locks.lock_many(["a", "b"]).acquire().await.unwrap();
    locks.break_lock("b").await.unwrap();
    let error = guard.run(std::future::pending::<()>()).await.unwrap_err();
    assert!(matches!(&error, Error::Lost { name, .. } if name.as_str() == "b"), "{error}");
    locks
        .lock_many(["a", "b"])
        .wait(Duration::from_secs(20))
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

/// An executor that only parks its thread, and no runtime.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl WakeTask for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        std::thread::park();
    }
}

#[test]
fn works_from_any_executor() {
    let locks = locks();
    let holder = block_on(locks.lock("b").acquire()).unwrap();
    let waiting = std::thread::spawn({
        let locks = locks.clone();
        move || block_on(locks.lock_many(["a", "b"]).acquire()).map(drop)
    });
    while block_on(locks.inspect("b")).unwrap().waiters.is_empty() {
        std::thread::yield_now();
    }
    assert!(block_on(locks.lock("a").try_acquire()).unwrap().is_none(), "the waiter holds it");
    drop(holder);
    waiting.join().unwrap().unwrap();
    assert!(block_on(locks.clone().close(Duration::from_secs(20))));
    assert!(block_on(locks.inspect("a")).unwrap().is_free());
}

/// Otherwise the try would begin again for ever: each time the first lock would be lost before the second one is granted.
#[tokio::test]
async fn a_try_of_several_locks_ends_if_the_first_one_lasts_for_too_short_a_time() {
    let locks = Locks::new(Store::new(Counting::new(Duration::from_millis(60))));
    let both = locks.lock_many(["a", "b"]).max_hold(Duration::from_millis(100));
    let outcome = tokio::time::timeout(Duration::from_secs(10), both.try_acquire()).await.unwrap();
    let Err(Error::Lost { name, reason: LostReason::MaxHold }) = outcome else { panic!("{outcome:?}") };
    assert_eq!(name.as_str(), "a");
    assert!(locks.lock("a").try_acquire().await.unwrap().is_some(), "it is released");
}
