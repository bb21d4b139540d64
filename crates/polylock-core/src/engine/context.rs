//! The state that all locks of one store share inside core, and the single way in which core calls the store.

use std::{
    fmt,
    future::Future,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::Semaphore;

use super::{
    backoff::Backoff,
    gauges::{Gauge, Gauges},
    lifecycle::Lifecycle,
    local_queue::LocalQueues,
    pending::Pending,
};
use crate::{
    Clock, Error, Fault, FencingToken, HoldLifetime, KeepAlive, Label, LockName, LostReason, Moment,
    Operation, Options, OwnerId, Release, Request, Result, Store, SystemClock, Unavailable,
    backend::Backend,
    bug::Bug,
    deadlock::Look,
    io::{self, Io, Started},
    metrics::{Measured, Metrics},
    observer,
    process::{self, has_bug},
    time_limit,
};

/// The longest pause before a release is repeated, before the jitter: after a failed release, a lock is free at most a second after the store
/// is back.
const LONGEST_PAUSE: Duration = Duration::from_millis(400);

/// The state that all locks of one store share.
pub(crate) struct StoreContext {
    pub(crate) store: Store,
    pub(crate) options: Options,
    /// The owner of the locks, unless a lock has its own; this process if it is not set.
    pub(crate) owner: Option<OwnerId>,
    pub(crate) label: Option<Label>,
    pub(crate) clock: Arc<dyn Clock>,
    /// True if `clock` is the machine's, by which the delay of a wake-up can be measured.
    pub(crate) is_system_clock: bool,
    pub(crate) metrics: Option<Arc<dyn Metrics>>,
    /// True if holds last until the end of their leases although this process has ended.
    pub(crate) holds_outlive_process: bool,
    pub(crate) gauges: Arc<Gauges>,
    pub(crate) pending: Arc<Pending>,
    pub(crate) local_queues: Arc<LocalQueues>,
    pub(crate) lifecycle: Arc<Lifecycle>,
    /// One permit for each claim that may be in flight.
    pub(crate) claims: Arc<Semaphore>,
    /// The last look at the store for deadlocks.
    pub(crate) last_look: tokio::sync::Mutex<Option<Look>>,
    /// The number of operations that have succeeded on the store: while it grows, the store is not unavailable.
    pub(crate) replies: AtomicU64,
    /// True once a request of this program was accepted: its credentials and rights suffice.
    pub(crate) was_accepted: AtomicBool,
    /// The number of holds so far.
    pub(crate) holds: AtomicU64,
    /// The thread on which everything else of this store runs, once it was needed.
    pub(crate) io: OnceLock<&'static Io>,
}

impl fmt::Debug for StoreContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreContext")
            .field("store", &self.store.backend)
            .field("options", &self.options)
            .field("owner", &self.owner)
            .field("label", &self.label)
            .finish_non_exhaustive()
    }
}

impl StoreContext {
    pub(crate) fn backend(&self) -> &'static str {
        self.store.backend.capabilities().backend
    }

    /// Starts `future` on the store's I/O thread.
    pub(crate) fn spawn<F>(&self, operation: Operation, future: F) -> Result<()>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.io()?.spawn(operation.as_str(), future).map(drop)
    }

    pub(super) fn io(&self) -> Result<&'static Io> {
        if let Some(io) = self.io.get() {
            return Ok(io);
        }
        let io = Io::of(self.backend())?;
        Ok(self.io.get_or_init(|| io))
    }

    /// Checks that the store was opened by this process. An operation begins with it: in a child process made by `fork`, a mutex that another thread
    /// of the parent had at that time stays locked.
    pub(crate) fn ensure_own_process(&self) -> Result<()> {
        self.io()?.check_process()
    }

    /// Returns true if the store was opened by this process, and not by the one that it was forked from.
    pub(crate) fn is_own_process(&self) -> bool {
        self.io().is_ok_and(Io::is_own_process)
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Returns the time of the system's clock at which this store's clock shows `at`.
    pub(crate) fn system_time(&self, at: Moment) -> Moment {
        if self.is_system_clock || at == Moment::NEVER {
            return at;
        }
        SystemClock.now() + at.since(self.now())
    }

    /// Waits until `at`.
    pub(crate) async fn until(&self, at: Moment) {
        if at == Moment::NEVER {
            std::future::pending::<()>().await;
        }
        self.clock.sleep_until(at).await;
        self.timer_fired(at);
    }

    /// Reports that a timer for `at` has just woken a task of the I/O thread.
    pub(crate) fn timer_fired(&self, at: Moment) {
        if let (true, Some(io)) = (self.is_system_clock, self.io.get()) {
            io.delays().timer_fired(at);
        }
    }

    /// Makes the observer thread pass a measurement to the user's recorder.
    pub(crate) fn record(&self, name: &LockName, measured: Measured) {
        if let Some(metrics) = &self.metrics {
            let (metrics, backend, name) = (metrics.clone(), self.backend(), name.clone());
            observer::report(move || metrics.record(backend, &name, measured));
        }
    }

    /// Changes `gauge` of lock `name` by `step`, for the user's recorder.
    pub(crate) fn change_gauge(&self, gauge: Gauge, name: &LockName, step: i32) {
        if let Some(metrics) = &self.metrics {
            self.gauges.change(metrics.clone(), self.backend(), gauge, name, step);
        }
    }

    /// Returns `work` on the store, with its success counted and its time recorded.
    pub(crate) fn measured<T, F>(
        self: &Arc<Self>,
        operation: Operation,
        name: Option<&LockName>,
        work: F,
    ) -> impl Future<Output = Result<T>> + Send + use<T, F>
    where
        F: Future<Output = Result<T>> + Send,
    {
        let (context, name) = (self.clone(), name.cloned());
        async move {
            let began = context.metrics.is_some().then(|| context.now());
            let reply = work.await.map_err(|error| context.revoked(operation, error));
            if reply.is_ok() {
                context.replies.fetch_add(1, Ordering::Relaxed);
                if uses_lock(operation) {
                    context.was_accepted.store(true, Ordering::Relaxed);
                }
            }
            if let (Some(name), Some(began)) = (name, began) {
                context.record(&name, Measured::Operation { operation, took: context.now().since(began) });
            }
            reply
        }
    }

    /// Returns the error of `operation`, as [`Fault::Revoked`] if the store rejects what it has accepted before: a password is being replaced,
    /// or the server that was promoted does not know the user yet.
    pub(super) fn revoked(&self, operation: Operation, error: Error) -> Error {
        match error {
            Error::Unavailable(unavailable)
                if unavailable.rejects_credentials
                    && uses_lock(operation)
                    && self.was_accepted.load(Ordering::Relaxed) =>
            {
                Unavailable { fault: Fault::Revoked, ..unavailable }.into()
            }
            error => error,
        }
    }

    /// Returns the outcome of `work`, or a temporary error at `by`. The work then runs to its end: a store need not be cancel-safe.
    pub(crate) async fn bounded<T, F>(&self, operation: Operation, by: Moment, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        if by == Moment::NEVER {
            return work.await;
        }
        let work = process::spawn(work);
        tokio::select! {
            biased;
            reply = work => reply.map_err(|error| io::failed(self.backend(), operation, io::join_error(error)))?,
            () = self.until(by) => Err(self.reply_timed_out(operation)),
        }
    }

    /// Starts an operation on the store. It runs to its end even if no task waits for it, and a panic in it is an error like any
    /// other. The request has been sent when this returns, if the store can send it at once.
    pub(crate) fn start<T, F>(
        self: &Arc<Self>,
        operation: Operation,
        name: Option<&LockName>,
        call: impl FnOnce(Arc<dyn Backend>) -> F,
    ) -> Running<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let work = call(self.store.backend.clone());
        let work = self.measured(operation, name, work);
        let first_step = self.store.backend.capabilities().first_step;
        let task = self.io().and_then(|io| io.begin(operation.as_str(), first_step, work));
        let task = task.unwrap_or_else(|error| Started::Ended(Some(Err(error.to_string()))));
        Running { backend: self.backend(), operation, task }
    }

    /// Releases or withdraws `request`, and retries until the store has replied or until `until`, when the lease has expired.
    ///
    /// Only the first attempt that is sent can report [`Release::Lost`]: after an attempt with a lost reply, that attempt may have
    /// removed the missing entry. `attempts` have been made before.
    pub(crate) async fn release_until(
        self: &Arc<Self>,
        request: &Arc<Request>,
        until: Moment,
        mut attempts: u32,
    ) -> Result<Release> {
        let released = self.retry_until(until, Operation::Release, request, |store| {
            attempts += 1;
            let request = request.clone();
            async move { store.release(&request).await }
        });
        match released.await? {
            Release::Lost(_) if attempts > 1 => Ok(Release::Released),
            outcome => Ok(outcome),
        }
    }

    /// Renews the hold of `request`, and retries until the store has replied or until `until`.
    pub(crate) async fn renew_until(
        self: &Arc<Self>,
        request: &Arc<Request>,
        until: Moment,
    ) -> Result<KeepAlive> {
        let renewed = self.retry_until(until, Operation::Renew, request, |store| {
            let (context, requests) = (self.clone(), [request.clone()]);
            async move {
                match context.complete(1, store.keep_alive(&requests).await?)?.remove(0) {
                    KeepAlive::Unknown => Err(context.reply_timed_out(Operation::Renew)),
                    outcome => Ok(outcome),
                }
            }
        });
        renewed.await
    }

    /// Makes the hold of `request` with this token end at `end`, and retries until the store has replied or until `until`.
    ///
    /// A hold that is gone after `end` counts as parked if an attempt had no reply: it has ended as that attempt has asked for.
    pub(crate) async fn park_until(
        self: &Arc<Self>,
        request: &Arc<Request>,
        token: FencingToken,
        until: Moment,
        end: Moment,
    ) -> Result<Release> {
        let backend = self.backend();
        let Some(store) = self.store.park.clone() else {
            return Err(Error::Unsupported { backend, capability: "the end of a hold at a later time" });
        };
        let shortest = *self.store.backend.capabilities().ttl.start();
        let mut attempts = 0;
        let parked = self.retry_until(until, Operation::Renew, request, |_| {
            attempts += 1;
            let (store, request) = (store.clone(), request.clone());
            let left = end.since(self.now()).max(shortest);
            async move { store.park(&request, token, left).await }
        });
        match parked.await? {
            Release::Lost(LostReason::Gone) if attempts > 1 && self.now() >= end => Ok(Release::Released),
            outcome => Ok(outcome),
        }
    }

    /// Starts an operation that ends the hold or the queue entry of `request`, and retries it until the store has replied or until
    /// `until`.
    async fn retry_until<T, F>(
        self: &Arc<Self>,
        until: Moment,
        operation: Operation,
        request: &Request,
        mut call: impl FnMut(Arc<dyn Backend>) -> F,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let mut backoff = Backoff::up_to(LONGEST_PAUSE.min(request.ttl / 10));
        loop {
            let limit = self.system_time(until);
            let mut attempt =
                self.start(operation, Some(&request.name), |store| time_limit::until(limit, call(store)));
            let reply = tokio::select! {
                biased;
                reply = attempt.reply() => reply,
                () = self.until(until) => Err(self.reply_timed_out(operation)),
            };
            let error = match reply {
                Ok(outcome) => return Ok(outcome),
                Err(error) => error,
            };
            let again = self.now() + backoff.next();
            let gives_up = operation == Operation::Release && has_bug(Bug::UnrepeatedRelease);
            if !error.is_temporary() || again >= until || gives_up {
                tracing::warn!(
                    lock.name = %request.name, %operation, error = &error as &dyn std::error::Error,
                    "not acknowledged: the lock is free when its lease has expired",
                );
                return Err(error);
            }
            self.until(again).await;
        }
    }

    /// Checks that the store has returned an outcome for each of `count` requests: otherwise the outcomes can't be assigned to
    /// them.
    pub(crate) fn complete(&self, count: usize, outcomes: Vec<KeepAlive>) -> Result<Vec<KeepAlive>> {
        if outcomes.len() == count {
            return Ok(outcomes);
        }
        let cause = format!("the store has returned outcomes for {} of {count} requests", outcomes.len());
        Err(io::failed(self.backend(), Operation::Renew, cause))
    }

    /// Returns the shortest and the longest time for which the store keeps a hold without this process.
    pub(crate) fn parking_times(&self) -> (Duration, Duration) {
        let can = self.store.backend.capabilities();
        match can.hold_lifetime {
            HoldLifetime::Lease if self.store.park.is_some() => (*can.ttl.start(), *can.ttl.end()),
            // Such a hold would end with this process.
            HoldLifetime::Lease | HoldLifetime::Session => (Duration::MAX, Duration::ZERO),
        }
    }

    /// Returns the error of an operation without a reply in time.
    pub(crate) fn reply_timed_out(&self, operation: Operation) -> Error {
        Unavailable::new(self.backend(), operation, Fault::Temporary, "no reply in time").into()
    }
}

/// Returns true for the operations of each use of a lock.
const fn uses_lock(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::Claim | Operation::Wait | Operation::Renew | Operation::Convert | Operation::Release
    )
}

/// An operation in progress. Dropping it does not stop it.
#[derive(Debug)]
pub(crate) struct Running<T: Send + 'static> {
    backend: &'static str,
    operation: Operation,
    task: Started<Result<T>>,
}

impl<T: Send + 'static> Running<T> {
    /// Returns the reply of the store. The future may be dropped, and this called again, until there is a reply.
    pub(crate) async fn reply(&mut self) -> Result<T> {
        self.task.end().await.map_err(|cause| io::failed(self.backend, self.operation, cause))?
    }
}
