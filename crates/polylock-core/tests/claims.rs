//! Claims that wait for other claims of the same process.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures_util::future::join_all;
use polylock_core::{
    Backend, Capabilities, ClaimOutcome, Clock, Fault, KeepAlive, Locks, Operation, Order, Release, Request,
    Result, Store, SystemClock, Unavailable, Wake, memory,
};

/// The in-memory store, with claims that take some time or hang.
#[derive(Debug)]
struct Slow {
    inner: Arc<dyn Backend>,
    capabilities: Capabilities,
    takes: Duration,
}

/// Creates the locks of a store with at most four claims in flight.
fn slow(backend: &'static str, takes: Duration) -> Locks {
    let inner = memory::connect().backend;
    let mut capabilities = inner.capabilities().clone();
    (capabilities.backend, capabilities.claims_at_once) = (backend, 4);
    Locks::new(Store::new(Arc::new(Slow { inner, capabilities, takes })))
}

#[async_trait]
impl Backend for Slow {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn claim(&self, request: &Request) -> Result<ClaimOutcome> {
        SystemClock.sleep_until(SystemClock.now() + self.takes).await;
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

/// Returns the number of each outcome of `count` concurrent acquisitions with a short wait: granted, timed out, unavailable.
async fn outcomes(locks: &Locks, count: usize) -> [usize; 3] {
    let locks = (0..count).map(|number| locks.lock(number.to_string()).wait(Duration::from_millis(100)));
    let outcomes = join_all(locks.map(polylock_core::Lock::acquire)).await;
    let mut counts = [0; 3];
    for outcome in &outcomes {
        let kind = match outcome {
            Ok(_) => 0,
            Err(error) if error.is_not_acquired() => 1,
            Err(_) => 2,
        };
        counts[kind] += 1;
    }
    counts
}

#[tokio::test]
async fn a_wait_for_claims_of_the_same_process_is_not_a_store_failure() {
    let locks = slow("slow", Duration::from_millis(20));
    let [granted, timed_out, unavailable] = outcomes(&locks, 1000).await;
    assert!(granted > 0 && timed_out > 0, "{granted} granted, {timed_out} timed out");
    assert_eq!(unavailable, 0);
}

#[tokio::test]
async fn a_store_that_hangs_is_unavailable_to_all() {
    let locks = slow("hanging", Duration::from_secs(30));
    let began = SystemClock.now();
    assert_eq!(outcomes(&locks, 100).await, [0, 0, 100]);
    let took = SystemClock.now().since(began);
    assert!(took < Duration::from_secs(10), "{took:?}");
}

/// A store without a queue that cannot be reached.
#[derive(Debug)]
struct Unreachable {
    capabilities: Capabilities,
    /// The number of claims that fail; later ones have no reply.
    failing: AtomicUsize,
}

impl Unreachable {
    fn locks(failing: usize) -> Locks {
        let mut capabilities = memory::connect().backend.capabilities().clone();
        capabilities.order = Order::Unordered;
        let failing = AtomicUsize::new(failing);
        Locks::new(Store::new(Arc::new(Self { capabilities, failing })))
    }

    fn error(operation: Operation) -> polylock_core::Error {
        Unavailable::new("unreachable", operation, Fault::Temporary, "connection refused").into()
    }
}

#[async_trait]
impl Backend for Unreachable {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn claim(&self, _: &Request) -> Result<ClaimOutcome> {
        let left = self.failing.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        if left.is_err() {
            std::future::pending::<()>().await;
        }
        Err(Self::error(Operation::Claim))
    }

    async fn wait(&self, _: &Request) -> Result<Wake> {
        Err(Self::error(Operation::Wait))
    }

    async fn keep_alive(&self, _: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        Err(Self::error(Operation::Renew))
    }

    async fn release(&self, _: &Request) -> Result<Release> {
        Err(Self::error(Operation::Release))
    }
}

/// 1. An acquisition fails in an outage, and its rollback is retried until its TTL is over;
/// 2. another acquisition begins, and claims, so it finds the outage, too.
#[tokio::test]
async fn an_acquisition_does_not_wait_for_the_rollback_of_an_earlier_one() {
    let locks = Unreachable::locks(usize::MAX);
    for _ in 0..2 {
        let acquisition = locks.lock("a").outage(Duration::from_millis(100)).acquire();
        let outcome = tokio::time::timeout(Duration::from_secs(10), acquisition).await;
        assert!(outcome.expect("the limit for outages ends it").unwrap_err().is_temporary());
    }
}

#[tokio::test]
async fn a_wait_that_ends_during_an_outage_reports_the_last_error_of_the_store() {
    for (failing, cause) in [(0, "no reply in time"), (1, "connection refused")] {
        let error = Unreachable::locks(failing).lock("a").wait(Duration::from_millis(600)).acquire().await;
        let text = error.unwrap_err().chain();
        assert!(text.contains(cause), "{failing} failures: {text}");
    }
}
