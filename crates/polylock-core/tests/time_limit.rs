//! The releases and parks of a hold have no effect after its deadline in this process: another process may extend it.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use polylock_core::{
    Backend, Capabilities, ClaimOutcome, Clock, FencingToken, KeepAlive, Locks, Moment, Park, Release,
    Request, Result, Store, SystemClock, Wake, memory, time_limit,
};

/// Longer than a lease.
const LONG: Duration = Duration::from_secs(3600);

/// A store that records until when its messages may have an effect.
#[derive(Debug)]
struct Recording {
    inner: Store,
    limits: Arc<Mutex<Vec<Moment>>>,
}

impl Recording {
    fn record(&self) {
        self.limits.lock().unwrap().push(SystemClock.now() + time_limit::within(LONG));
    }
}

#[async_trait]
impl Backend for Recording {
    fn capabilities(&self) -> &Capabilities {
        self.inner.backend.capabilities()
    }

    async fn claim(&self, request: &Request) -> Result<ClaimOutcome> {
        self.inner.backend.claim(request).await
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        self.inner.backend.wait(request).await
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        self.inner.backend.keep_alive(requests).await
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        self.record();
        self.inner.backend.release(request).await
    }
}

#[async_trait]
impl Park for Recording {
    async fn park(&self, request: &Request, token: FencingToken, left: Duration) -> Result<Release> {
        self.record();
        self.inner.park.as_ref().unwrap().park(request, token, left).await
    }
}

#[tokio::test]
async fn a_message_that_ends_a_hold_expires_with_its_deadline() {
    let limits = Arc::<Mutex<Vec<Moment>>>::default();
    let backend = Arc::new(Recording { inner: memory::connect(), limits: limits.clone() });
    let mut store = Store::new(backend.clone());
    store.park = Some(backend);
    let locks = Locks::new(store);
    let mut deadlines = Vec::new();
    let mut acquire = async || {
        let guard = locks.lock("a").ttl(Duration::from_secs(5)).acquire().await.unwrap();
        deadlines.push(guard.deadline());
        guard
    };
    acquire().await.release().await.unwrap();
    acquire().await.release_after(Duration::from_millis(100)).await.unwrap();
    drop(acquire().await);
    assert!(locks.close(LONG).await);
    let limits = limits.lock().unwrap().clone();
    assert_eq!(limits.len(), 3);
    for (limit, deadline) in limits.iter().zip(&deadlines) {
        assert!(*limit <= *deadline + Duration::from_millis(1), "{limit:?} {deadline:?}");
    }
}
