//! The waiters of one process, of which one checks the lock for all.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    future,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use polylock_core::{
    Backend, Capabilities, ClaimOutcome, Clock, KeepAlive, Locks, Release, Request, Result, Store,
    SystemClock, Wake, memory,
};

const TTL: Duration = Duration::from_millis(2400);

/// The in-memory store, which notifies no waiter.
#[derive(Debug)]
struct Silent {
    inner: Store,
    /// The last claim of each request.
    claimed: Mutex<Vec<Request>>,
}

#[async_trait]
impl Backend for Silent {
    fn capabilities(&self) -> &Capabilities {
        self.inner.backend.capabilities()
    }

    async fn claim(&self, request: &Request) -> Result<ClaimOutcome> {
        self.claimed.lock().unwrap().push(request.clone());
        self.inner.backend.claim(request).await
    }

    async fn wait(&self, _: &Request) -> Result<Wake> {
        future::pending().await
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        self.inner.backend.keep_alive(requests).await
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        self.inner.backend.release(request).await
    }
}

impl Silent {
    /// Waits until the waiters have these labels, in the order of the queue.
    async fn until_waiters_are(&self, labels: &[&str]) {
        let inspect = self.inner.inspect.as_ref().unwrap();
        for _ in 0..2000 {
            let status = inspect.inspect(&"n".parse().unwrap()).await.unwrap();
            if status.waiters.iter().map(|waiter| waiter.label.as_str()).eq(labels.iter().copied()) {
                return;
            }
            SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(5)).await;
        }
        panic!("the waiters are not {labels:?} after ten seconds");
    }
}

/// The entry of the first waiter is lost, and created again behind that of the second one.
#[tokio::test]
async fn the_first_waiter_of_the_store_checks_the_lock() {
    let store = Arc::new(Silent { inner: memory::connect(), claimed: Mutex::default() });
    let locks = Locks::new(Store::new(store.clone()));
    let holder = locks.lock("n").ttl(TTL).acquire().await.unwrap();
    let wait = |label: &str| tokio::spawn(locks.lock("n").ttl(TTL).label(label).acquire());
    let a = wait("a");
    store.until_waiters_are(&["a"]).await;
    let b = wait("b");
    store.until_waiters_are(&["a", "b"]).await;
    let of_a = store
        .claimed
        .lock()
        .unwrap()
        .iter()
        .find(|claim| claim.label.as_ref().is_some_and(|label| label.as_str() == "a"))
        .cloned();
    store.release(&of_a.unwrap()).await.unwrap();
    store.until_waiters_are(&["b", "a"]).await;
    holder.release().await.unwrap();
    let limit = SystemClock.now() + Duration::from_secs(10);
    let b = SystemClock.before(limit, b).await.expect("it is granted the lock").unwrap().unwrap();
    b.release().await.unwrap();
    let a = SystemClock.before(limit, a).await.expect("it is granted the lock").unwrap().unwrap();
    a.release().await.unwrap();
}
