//! Outages of a store: what waits for their end, and what fails at once.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use polylock_core::{
    Backend, Capabilities, ClaimOutcome, Clock, Error, Fault, KeepAlive, Locks, Operation, Release, Request,
    Result, Store, SystemClock, Unavailable, Wake, memory,
};

/// Much longer than a test.
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(300);

/// The reason of a failure: the error for an operation.
type Cause = fn(Operation) -> Error;

fn of(operation: Operation, fault: Fault) -> Unavailable {
    Unavailable::new("failing", operation, fault, "refused")
}

const TEMPORARY: Cause = |operation| of(operation, Fault::Temporary).into();
const PERMANENT: Cause = |operation| of(operation, Fault::Permanent).into();
const DELAYED: Cause = |operation| of(operation, Fault::Temporary).retry_after(LONG).into();
const WRONG_PASSWORD: Cause =
    |operation| Error::from(of(operation, Fault::Denied)).rejecting_credentials(true);
const MISSING_RIGHT: Cause = |operation| of(operation, Fault::Denied).into();

/// The in-memory store, which fails for this reason until that is ended.
#[derive(Debug, Default, Clone)]
struct Failing(Arc<Mutex<Option<Cause>>>);

impl Failing {
    fn set(&self, cause: Option<Cause>) {
        *self.0.lock().unwrap() = cause;
    }

    fn check(&self, operation: Operation) -> Result<()> {
        let cause = *self.0.lock().unwrap();
        cause.map_or(Ok(()), |cause| Err(cause(operation)))
    }

    /// Ends the fault after [`SHORT`].
    fn end_soon(&self) {
        let this = self.clone();
        tokio::spawn(async move {
            SystemClock.sleep_until(SystemClock.now() + SHORT).await;
            this.set(None);
        });
    }
}

#[derive(Debug)]
struct Refusing {
    inner: Arc<dyn Backend>,
    failing: Failing,
}

#[async_trait]
impl Backend for Refusing {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn claim(&self, request: &Request) -> Result<ClaimOutcome> {
        self.failing.check(Operation::Claim)?;
        self.inner.claim(request).await
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        self.inner.wait(request).await
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        self.failing.check(Operation::Renew)?;
        self.inner.keep_alive(requests).await
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        self.failing.check(Operation::Release)?;
        self.inner.release(request).await
    }
}

fn locks() -> (Locks, Failing) {
    let failing = Failing::default();
    let store = Refusing { inner: memory::connect().backend, failing: failing.clone() };
    (Locks::new(Store::new(Arc::new(store))), failing)
}

fn fault(error: &Error) -> Fault {
    let Error::Unavailable(error) = error else { panic!("{error:?}") };
    error.fault
}

#[tokio::test]
async fn a_user_who_was_never_accepted_is_told_at_once() {
    let (locks, failing) = locks();
    failing.set(Some(WRONG_PASSWORD));
    assert_eq!(fault(&locks.lock("a").outage(LONG).acquire().await.unwrap_err()), Fault::Denied);
}

#[tokio::test]
async fn a_user_who_was_accepted_before_waits_for_the_end_of_the_refusal() {
    let (locks, failing) = locks();
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
    failing.set(Some(WRONG_PASSWORD));
    let error = locks.lock("a").outage(SHORT).acquire().await.unwrap_err();
    assert!(fault(&error) == Fault::Revoked && error.is_temporary(), "{error:?}");
    failing.end_soon();
    let guard = locks.lock("a").outage(LONG).acquire().await.unwrap();
    failing.set(Some(WRONG_PASSWORD));
    failing.end_soon();
    guard.release().await.unwrap();
    failing.set(Some(PERMANENT));
    assert_eq!(fault(&locks.lock("a").outage(LONG).acquire().await.unwrap_err()), Fault::Permanent);
    // A user may have a right to one lock and not to another.
    failing.set(Some(MISSING_RIGHT));
    assert_eq!(fault(&locks.lock("b").outage(LONG).acquire().await.unwrap_err()), Fault::Denied);
}

#[tokio::test]
async fn a_try_waits_for_the_store_if_it_has_an_outage_of_its_own() {
    let (locks, failing) = locks();
    failing.set(Some(TEMPORARY));
    let began = SystemClock.now();
    assert!(locks.lock("a").try_acquire().await.is_err());
    assert!(locks.lock("a").wait(Duration::ZERO).acquire().await.is_err());
    assert!(locks.lock_many(["a", "b"]).try_acquire().await.is_err());
    assert!(locks.semaphore("s", 2).try_acquire().await.is_err());
    assert!(SystemClock.now().since(began) < SHORT, "without one it fails at once");

    let error = locks.lock("a").outage(SHORT).try_acquire().await.unwrap_err();
    assert!(fault(&error) == Fault::Temporary && SystemClock.now().since(began) >= SHORT, "{error:?}");
    let wait = locks.lock("a").outage(LONG).wait(SHORT).try_acquire().await.unwrap_err();
    assert_eq!(fault(&wait), Fault::Temporary, "its wait limits that");

    failing.end_soon();
    let guard = locks.lock("a").outage(LONG).try_acquire().await.unwrap().unwrap();
    failing.set(Some(TEMPORARY));
    failing.end_soon();
    // It does not wait for the other holder.
    assert!(locks.lock("a").outage(LONG).try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();

    for _ in 0..2 {
        failing.set(Some(TEMPORARY));
        failing.end_soon();
        let all = locks.lock_many(["a", "b"]).outage(LONG).try_acquire().await.unwrap().unwrap();
        all.release().await.unwrap();
        failing.set(Some(TEMPORARY));
        failing.end_soon();
        locks.semaphore("s", 2).outage(LONG).try_acquire().await.unwrap().unwrap().release().await.unwrap();
    }
}

/// A delay that the store states is no outage, but a try has no other limit.
#[tokio::test]
async fn a_try_waits_no_longer_than_its_outage_for_a_store_that_states_a_delay() {
    let (locks, failing) = locks();
    failing.set(Some(DELAYED));
    let began = SystemClock.now();
    assert!(locks.lock("a").try_acquire().await.is_err());
    assert!(SystemClock.now().since(began) < SHORT);
    let lock = locks.lock("a").outage(SHORT);
    let tried = SystemClock.before(began + 10 * SHORT, lock.try_acquire()).await;
    let error = tried.expect("it waits for longer than its outage").unwrap_err();
    assert!(error.is_temporary(), "{error:?}");
}
