//! The releases and parks of a hold have no effect when they have been given up: another process may extend it.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use polylock_core::{
    Backend, Capabilities, ClaimOutcome, Clock, Fault, FencingToken, Guard, KeepAlive, Locks, Moment,
    Operation, Options, Park, Release, Request, Result, Store, SystemClock, Unavailable, Wake, memory,
    time_limit, transition,
};

const TTL: Duration = Duration::from_secs(5);

/// The two clocks are read one after the other.
const TOLERANCE: Duration = Duration::from_millis(1);

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

/// Releases a hold, parks one, and drops one. Returns how much later than the deadline of its hold each message may have an effect.
async fn limits_of_ends(is_adopted: bool) -> Vec<Duration> {
    let limits = Arc::<Mutex<Vec<Moment>>>::default();
    let backend = Arc::new(Recording { inner: memory::connect(), limits: limits.clone() });
    let mut store = Store::new(backend.clone());
    store.park = Some(backend);
    let locks = Locks::new(store);
    let mut deadlines = Vec::new();
    let mut acquire = async || {
        let mut guard = locks.lock("a").ttl(TTL).acquire().await.unwrap();
        if is_adopted {
            let handle = guard.into_handle().await.unwrap();
            guard = locks.adopt(&handle).await.unwrap();
        }
        deadlines.push(guard.deadline());
        guard
    };
    acquire().await.release().await.unwrap();
    acquire().await.release_after(Duration::from_millis(100)).await.unwrap();
    drop(acquire().await);
    assert!(locks.close(LONG).await);
    let limits = limits.lock().unwrap().clone();
    assert_eq!(limits.len(), deadlines.len());
    limits.iter().zip(&deadlines).map(|(limit, deadline)| limit.since(*deadline)).collect()
}

/// Another process may have given such a hold a longer lease.
#[tokio::test]
async fn a_release_of_a_hold_that_others_know_is_repeated_for_an_outage() {
    let [_, parked, dropped] = limits_of_ends(true).await[..] else { panic!("three messages") };
    assert!(parked <= TOLERANCE, "{parked:?}");
    assert!(dropped > TTL && dropped <= Options::default().outage, "{dropped:?}");
}

/// No other process can extend such a hold, and a renewal without a reply may have.
#[tokio::test]
async fn a_release_of_another_hold_is_repeated_for_a_lease() {
    let [_, parked, dropped] = limits_of_ends(false).await[..] else { panic!("three messages") };
    assert!(parked <= TOLERANCE, "{parked:?}");
    assert!(!dropped.is_zero() && dropped <= TTL, "{dropped:?}");
}

/// A store that does not reply to what ends a hold.
#[derive(Debug)]
struct Silent(Store);

impl Silent {
    async fn give_up<T>(operation: Operation) -> Result<T> {
        SystemClock.sleep_until(SystemClock.now() + time_limit::within(LONG)).await;
        Err(Unavailable::new("silent", operation, Fault::Temporary, "no reply").into())
    }
}

#[async_trait]
impl Backend for Silent {
    fn capabilities(&self) -> &Capabilities {
        self.0.backend.capabilities()
    }

    async fn claim(&self, request: &Request) -> Result<ClaimOutcome> {
        self.0.backend.claim(request).await
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        self.0.backend.wait(request).await
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        self.0.backend.keep_alive(requests).await
    }

    async fn release(&self, _: &Request) -> Result<Release> {
        Self::give_up(Operation::Release).await
    }
}

#[async_trait]
impl Park for Silent {
    async fn park(&self, _: &Request, _: FencingToken, _: Duration) -> Result<Release> {
        Self::give_up(Operation::Renew).await
    }
}

/// 1. The new one of two stores does not reply, until the caller gives up.
/// 2. The old one is asked then, and must do nothing: another process has extended the hold.
async fn a_failed_end_changes_nothing_in_the_old_store(name: &str, end: impl AsyncFn(Guard) -> Result<()>) {
    let ttl = Duration::from_millis(300);
    let silent = Arc::new(Silent(memory::connect()));
    let mut new = silent.0.clone();
    new.backend = silent.clone();
    new.park = Some(silent);
    let both = transition::both(memory::named(name), new).unwrap();
    let mut options = Options::default();
    options.outage = ttl;
    let locks = Locks::builder(both).options(options).build();
    let guard = locks.lock("a").ttl(ttl).acquire().await.unwrap();
    let adopted = locks.adopt_for(&guard.handle().unwrap(), LONG).await.unwrap();
    assert!(end(guard).await.unwrap_err().is_temporary());
    // Longer than what is parked lasts.
    SystemClock.sleep_until(SystemClock.now() + ttl).await;
    let old = Locks::new(memory::named(name));
    assert_eq!(old.inspect("a").await.unwrap().holders.len(), 1);
    adopted.leave_to_expire().unwrap();
}

#[tokio::test]
async fn a_park_that_has_failed_in_the_new_store_is_none_in_the_old_one() {
    a_failed_end_changes_nothing_in_the_old_store("parked", async |guard| {
        guard.release_after(Duration::from_millis(100)).await
    })
    .await;
}

#[tokio::test]
async fn a_release_that_has_failed_in_the_new_store_is_none_in_the_old_one() {
    a_failed_end_changes_nothing_in_the_old_store("released", async |guard| guard.release().await).await;
}
