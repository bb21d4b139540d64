//! Claims that wait for other claims of the same process.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::future::join_all;
use polylock_core::{
    Backend, Capabilities, ClaimOutcome, Clock, KeepAlive, Locks, Release, Request, Result, Store,
    SystemClock, Wake, memory,
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
