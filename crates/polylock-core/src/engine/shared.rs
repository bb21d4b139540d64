//! What every lock of one store shares inside core, and the one way in which core calls the store.

use std::{
    future::Future,
    sync::{Arc, OnceLock},
};

use super::{
    backoff::Backoff,
    gauges::Gauges,
    pending::{AT_EXIT, Pending},
    reentry::Reentry,
};
use crate::{
    Clock, Error, Fault, Label, LockName, Moment, Operation, Options, OwnerId, Release, Renewal, Request,
    Result, Store, Unavailable,
    backend::Backend,
    io::{self, Begun, Io},
    metrics::{Measured, Metrics},
    observer,
};

/// What every lock of one store shares.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Store,
    pub(crate) options: Options,
    /// Who acquires, unless a lock says otherwise; this process if nothing is set.
    pub(crate) owner: Option<OwnerId>,
    pub(crate) label: Option<Label>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Whether that is the machine's, by which the delay of a wake-up can be measured.
    pub(crate) is_system_clock: bool,
    pub(crate) metrics: Option<Arc<dyn Metrics>>,
    pub(crate) gauges: Arc<Gauges>,
    pub(crate) pending: Arc<Pending>,
    pub(crate) reentry: Reentry,
    /// The thread that everything of this store runs on, once it was needed.
    pub(crate) io: OnceLock<&'static Io>,
}

/// The user's side of it: when the last `Locks`, `Lock` and `Guard` have gone, waits a moment for their releases.
#[derive(Debug)]
pub(crate) struct Front(pub(crate) Arc<Shared>);

impl Drop for Front {
    fn drop(&mut self) {
        self.0.pending.wait(AT_EXIT);
    }
}

impl Shared {
    pub(crate) fn backend(&self) -> &'static str {
        self.store.backend.capabilities().backend
    }

    /// Begins `future`, which belongs to the store's I/O thread from then on.
    pub(crate) fn begin<F>(&self, what: Operation, future: F) -> Result<Begun<F::Output>>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.io()?.begin(what.as_str(), self.store.backend.capabilities().first_step, future)
    }

    /// Starts `future` on the store's I/O thread.
    pub(crate) fn spawn<F>(&self, what: Operation, future: F) -> Result<()>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.io()?.spawn(what.as_str(), future).map(drop)
    }

    fn io(&self) -> Result<&'static Io> {
        if let Some(io) = self.io.get() {
            return Ok(io);
        }
        let io = Io::of(self.backend())?;
        Ok(self.io.get_or_init(|| io))
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Ready once `at` has come.
    pub(crate) async fn until(&self, at: Moment) {
        if at == Moment::NEVER {
            std::future::pending::<()>().await;
        }
        self.clock.sleep_until(at).await;
        if let (true, Some(io)) = (self.is_system_clock, self.io.get()) {
            io.delays().woken(at);
        }
    }

    /// Has the observer thread pass a measurement to the user's recorder.
    pub(crate) fn record(&self, name: &LockName, measured: Measured) {
        if let Some(metrics) = &self.metrics {
            let (metrics, backend, name) = (metrics.clone(), self.backend(), name.clone());
            observer::report(move || metrics.record(backend, &name, measured));
        }
    }

    /// Starts an operation on the store: it goes on to its end though nobody waits for it, and a panic in it is an answer
    /// like any other. The request is on its way when this returns, if the store can send it at once.
    pub(crate) fn start<T, F>(
        self: &Arc<Self>,
        operation: Operation,
        request: &Arc<Request>,
        call: impl FnOnce(Arc<dyn Backend>, Arc<Request>) -> F,
    ) -> Running<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let work = call(self.store.backend.clone(), request.clone());
        let (shared, name) = (self.clone(), request.name.clone());
        let task = self.begin(operation, async move {
            if shared.metrics.is_none() {
                return work.await;
            }
            let began = shared.now();
            let answer = work.await;
            shared.record(&name, Measured::Operation { operation, took: shared.now().since(began) });
            answer
        });
        let task = task.unwrap_or_else(|error| Begun::Ended(Some(Err(error.to_string()))));
        Running { backend: self.backend(), operation, task }
    }

    /// Releases or withdraws `request`, and retries until the store has answered or `until` has come, when the lease has
    /// ended it.
    ///
    /// Only the first attempt that is sent can report [`Release::Lost`]: after one whose reply was lost, a missing entry may be
    /// that one's work.
    pub(crate) async fn release_until(
        self: &Arc<Self>,
        request: &Arc<Request>,
        until: Moment,
    ) -> Result<Release> {
        let mut backoff = Backoff::up_to(request.ttl / 10);
        let mut may_have_released = false;
        loop {
            let mut release = self.start(Operation::Release, request, |store, request| async move {
                store.release(&request).await
            });
            let answer = tokio::select! {
                biased;
                answer = release.answer() => answer,
                () = self.until(until) => Err(self.silent(Operation::Release)),
            };
            let error = match answer {
                Ok(Release::Lost(_)) if may_have_released => return Ok(Release::Released),
                Ok(outcome) => return Ok(outcome),
                Err(error) => error,
            };
            may_have_released = true;
            let again = self.now() + backoff.next();
            if !error.is_temporary() || again >= until {
                tracing::warn!(
                    lock.name = %request.name, error = &error as &dyn std::error::Error,
                    "release not acknowledged; the lock is free when its lease has run out",
                );
                return Err(error);
            }
            self.until(again).await;
        }
    }

    /// Renews `request` with a lease that ends at `end`, and retries until the store has answered or `until` has come, when the
    /// present lease has ended.
    pub(crate) async fn renew_for_the_last_time(
        self: &Arc<Self>,
        request: &Arc<Request>,
        until: Moment,
        end: Moment,
    ) -> Result<Renewal> {
        let mut backoff = Backoff::up_to(request.ttl / 10);
        let shortest = *self.store.backend.capabilities().ttl.start();
        loop {
            let ttl = end.since(self.now()).max(shortest);
            let last = Arc::new(Request { ttl, ..Request::clone(request) });
            let mut renewal = self
                .start(Operation::Renew, &last, |store, request| async move { store.renew(&request).await });
            let answer = tokio::select! {
                biased;
                answer = renewal.answer() => answer,
                () = self.until(until) => Err(self.silent(Operation::Renew)),
            };
            let error = match answer {
                Ok(outcome) => return Ok(outcome),
                Err(error) => error,
            };
            let again = self.now() + backoff.next();
            if !error.is_temporary() || again >= until {
                tracing::warn!(
                    lock.name = %request.name, error = &error as &dyn std::error::Error,
                    "last renewal not acknowledged; the lock is free when its present lease has run out",
                );
                return Err(error);
            }
            self.until(again).await;
        }
    }

    /// The store has not answered in time.
    pub(crate) fn silent(&self, operation: Operation) -> Error {
        Unavailable::new(self.backend(), operation, Fault::Temporary, "no answer in time").into()
    }
}

/// An operation under way. Dropping it does not stop it.
#[derive(Debug)]
pub(crate) struct Running<T> {
    backend: &'static str,
    operation: Operation,
    task: Begun<Result<T>>,
}

impl<T> Running<T> {
    /// What the store answers. May be dropped and called again until it has answered.
    pub(crate) async fn answer(&mut self) -> Result<T> {
        self.task.end().await.map_err(|cause| io::failed(self.backend, self.operation, cause))?
    }
}
