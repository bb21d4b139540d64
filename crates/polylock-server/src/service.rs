//! A store that is offered to clients.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use polylock_core::{
    Backend, Clock, Error, Fault, HoldLifetime, LockName, Locks, LostReason, Moment, Operation, Release,
    Request, Result, Store, SystemClock, Unavailable, duration, metrics::Metrics, time_limit,
};
use polylock_protocol::{InvalidBody, StoreBody};
use tokio::sync::{Semaphore, broadcast, watch};

use crate::{
    access::Access, clock::ServerClock, readers::READERS, readiness::Readiness, renewals::Renewals, tls::Tls,
    ttls::Ttls, turns::Turns, waiters::Waiters, watches::Watches,
};

/// The number of names of broken locks that a slow reader may be behind.
const ALERTS: usize = 1024;

/// A store that is offered to the clients of a server. Copies share it.
#[derive(Debug, Clone)]
pub struct Service {
    inner: Arc<Inner>,
    pub(crate) access: Arc<Access>,
    pub(crate) tls: Option<Tls>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) store: Store,
    /// The locks of the streams, and the operations of clients.
    pub(crate) locks: Locks,
    pub(crate) clock: ServerClock,
    pub(crate) turns: Turns,
    pub(crate) waiters: Waiters,
    pub(crate) renewals: Arc<Renewals>,
    pub(crate) ttls: Ttls,
    pub(crate) alerts: broadcast::Sender<LockName>,
    pub(crate) readiness: Readiness,
    /// The places of the readers of events.
    pub(crate) readers: Arc<Semaphore>,
    pub(crate) watches: Arc<Watches>,
    /// As many copies of it as streams hold locks.
    pub(crate) held: Arc<()>,
    /// True once the server shuts down.
    closes: watch::Sender<bool>,
}

impl Service {
    /// Offers `store` to all clients of this machine.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a store with holds that last as long as a connection or a session: the one of the server would keep the
    /// locks of clients that have died.
    pub fn new(store: Store) -> Result<Self> {
        Self::measured(store, None)
    }

    /// Offers `store` as [`new`](Self::new) does, and sends the measurements of the locks of streams to `metrics`.
    ///
    /// # Errors
    /// The same as [`new`](Self::new).
    pub fn measured(store: Store, metrics: Option<Arc<dyn Metrics>>) -> Result<Self> {
        let capabilities = store.backend.capabilities();
        if capabilities.hold_lifetime == HoldLifetime::Session {
            let capability =
                "clients of a lock service, because its locks last as long as the server's own session";
            return Err(Error::Unsupported { backend: capabilities.backend, capability });
        }
        let (alerts, _) = broadcast::channel(ALERTS);
        if let Some(source) = &store.alerts {
            let alerts = alerts.clone();
            source.listen(move |name| {
                // Without a reader there is nobody to notify.
                alerts.send(name.clone()).ok();
                true
            });
        }
        // A client counts on its lease although this server may have ended.
        let mut locks = Locks::builder(store.clone()).holds_outlive_process();
        if let Some(metrics) = metrics {
            locks = locks.metrics(metrics);
        }
        let locks = locks.build();
        let inner = Arc::new(Inner {
            store,
            locks,
            clock: ServerClock::new(),
            turns: Turns::default(),
            waiters: Waiters::default(),
            renewals: Arc::default(),
            ttls: Ttls::default(),
            alerts,
            readiness: Readiness::default(),
            readers: Arc::new(Semaphore::new(READERS)),
            watches: Arc::default(),
            held: Arc::default(),
            closes: watch::Sender::default(),
        });
        Ok(Self { inner, access: Arc::new(Access::open()), tls: None })
    }

    /// Offers the store to these callers.
    #[must_use]
    pub fn access(self, access: Access) -> Self {
        Self { access: Arc::new(access), ..self }
    }

    /// Returns the callers, to [replace](Access::replace) them while the service runs.
    #[must_use]
    pub fn callers(&self) -> Arc<Access> {
        self.access.clone()
    }

    /// Encrypts the connections.
    #[must_use]
    pub fn tls(self, tls: Tls) -> Self {
        Self { tls: Some(tls), ..self }
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }
}

impl Inner {
    pub(crate) fn description(&self) -> StoreBody {
        let Store { backend, inspect, alerts, raise, records, convert, park } = &self.store;
        let capabilities = backend.capabilities();
        StoreBody {
            store: capabilities.backend.to_owned(),
            capabilities: capabilities.into(),
            inspects: inspect.is_some(),
            alerts: alerts.is_some(),
            raises: raise.is_some(),
            keeps_records: records.is_some(),
            converts: convert.is_some(),
            parks: park.is_some(),
        }
    }

    /// Ends all streams. The locks that they hold stay taken for their leases.
    pub(crate) fn close(&self) {
        self.closes.send_replace(true);
    }

    /// Returns true once the server shuts down.
    pub(crate) fn is_closing(&self) -> bool {
        *self.closes.borrow()
    }

    /// Waits until the server shuts down.
    pub(crate) async fn closes(&self) {
        let mut closes = self.closes.subscribe();
        // The sender is never dropped before.
        closes.wait_for(|closes| *closes).await.ok();
    }

    /// Drops the waiters of clients that have gone.
    pub(crate) fn drop_waiters(&self, now: Moment) {
        for request in self.waiters.take_expired(now) {
            self.store.backend.drop_waiter(&request);
        }
    }

    /// Releases `request`, unless its client has given that up at `limit`. No claim of it follows.
    pub(crate) async fn release(self: &Arc<Self>, request: Request, limit: Moment) -> Result<Release> {
        let once = Arc::new((request, AtomicBool::new(false)));
        let service = self.clone();
        let release = self.locks.on_store(Operation::Release, move |backend| {
            let (service, once) = (service.clone(), once.clone());
            async move {
                let (request, has_begun) = &*once;
                let mut turn = service.turns.next(request).await;
                if SystemClock.now() >= limit {
                    // Another process may have continued with the request: it is not released.
                    let cause = "its client has given it up";
                    return Err(Unavailable::new(
                        backend.capabilities().backend,
                        Operation::Release,
                        Fault::Temporary,
                        cause,
                    )
                    .into());
                }
                service.turns.release(request, &mut turn);
                service.waiters.remove(request);
                let is_repeated = has_begun.swap(true, Ordering::Relaxed);
                Ok(match time_limit::until(limit, backend.release(request)).await? {
                    // The first attempt may have removed the entry.
                    Release::Lost(LostReason::Gone) if is_repeated => Release::Released,
                    outcome => outcome,
                })
            }
        });
        release.await
    }

    /// Checks that the store accepts a lease of this time, which is in `field` of a body.
    pub(crate) fn ensure_ttl(&self, field: &'static str, ttl: Duration) -> Result<(), InvalidBody> {
        let accepted = &self.store.backend.capabilities().ttl;
        if accepted.contains(&ttl) {
            return Ok(());
        }
        let [shortest, longest] = [accepted.start(), accepted.end()].map(|time| duration::format(*time));
        Err(InvalidBody::new(field, format!("the store accepts {shortest} to {longest}")))
    }

    /// Carries an operation out on the thread of the store, to its end: even if the client disconnects.
    pub(crate) async fn run<T, F>(
        self: &Arc<Self>,
        operation: impl FnOnce(Arc<Self>, Arc<dyn Backend>) -> F,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let backend = self.store.backend.clone();
        let name = backend.capabilities().backend;
        polylock_core::io::run(name, operation(self.clone(), backend)).await?
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use async_trait::async_trait;
    use polylock_core::{Capabilities, ClaimOutcome, KeepAlive, Mode, Wake, memory};

    use super::*;

    /// A store that carries the releases on the connections of a runtime out, and does not reply to them.
    #[derive(Debug)]
    struct Silent {
        inner: Arc<dyn Backend>,
        is_here: bool,
    }

    #[async_trait]
    impl Backend for Silent {
        fn capabilities(&self) -> &Capabilities {
            self.inner.capabilities()
        }

        fn here(&self) -> Option<Arc<dyn Backend>> {
            Some(Arc::new(Self { inner: self.inner.clone(), is_here: true }))
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
            let outcome = self.inner.release(request).await;
            if self.is_here {
                std::future::pending::<()>().await;
            }
            outcome
        }
    }

    #[tokio::test]
    async fn a_release_that_is_repeated_is_no_loss() {
        let store = Arc::new(Silent { inner: memory::connect().backend, is_here: false });
        let service = Service::new(Store::new(store.clone())).unwrap();
        let request = || Request::new(LockName::new("n").unwrap(), Mode::Exclusive, Duration::from_secs(30));
        let (held, other) = (request(), request());
        store.claim(&held).await.unwrap();
        assert_eq!(service.inner().release(held, Moment::NEVER).await.unwrap(), Release::Released);
        let claimed = store.claim(&other).await.unwrap();
        assert!(matches!(claimed, ClaimOutcome::Granted(_)), "{claimed:?}");
    }
}
