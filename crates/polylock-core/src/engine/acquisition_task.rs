//! The task of an acquisition: its loop, and then the result for the caller, or the rollback if the acquisition has failed or was
//! abandoned. [`acquisition`](super::acquisition) is the loop.
//!
//! An acquisition belongs to the store's I/O thread, so that a drop of the caller's future at any point interrupts nothing
//! half-way. Otherwise this race would be possible:
//! 1. `acquire` sends a claim.
//! 2. The caller drops its future.
//! 3. A release is sent on another connection and overtakes the claim. It finds nothing to undo.
//! 4. The claim arrives and takes a lock without an owner, which blocks all other requests for a lease.
//!
//! Here the release is sent only after the reply to the claim. The exception is the first claim on a store that lets the caller
//! drive it (see [`foreground`](super::foreground)): if the caller drops that claim, the release makes the store reject it from
//! then on.

use std::{
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{Arc, OnceLock, atomic::AtomicU32},
    time::Duration,
};

use futures_util::FutureExt;
use tokio::sync::oneshot;
use tracing::span;

use super::{
    acquisition::{Acquired, Acquisition, FirstClaim, Limits},
    context::{Running, StoreContext},
    deadlock_check,
    granted::Granted,
    lifecycle::Acquiring,
    local_queue::LocalPosition,
    pending::WorkGuard,
    shared_hold::{SharedHold, StoreHandle},
};
use crate::{
    ClaimOutcome, Error, Moment, NotAcquired, Operation, Progress, Request, Result, io, metrics::Measured,
};

/// The longest time that a caller without the lock is kept for the withdrawal of its request.
const WITHDRAWAL: Duration = Duration::from_millis(500);

/// The longest time after its last reply, or the time limit of that reply, for which a store may execute a copy of a claim: see
/// [`Backend::claim`](crate::Backend::claim).
const LATEST_COPY: Duration = Duration::from_secs(2);

/// The caller's end of an acquisition. If it is dropped before the reply, it counts the rollback as pending.
pub(super) struct Caller {
    handle: Arc<StoreHandle>,
    given_up: Arc<OnceLock<WorkGuard>>,
    completed: bool,
}

impl Caller {
    pub(super) const fn new(handle: Arc<StoreHandle>, given_up: Arc<OnceLock<WorkGuard>>) -> Self {
        Self { handle, given_up, completed: false }
    }

    pub(super) async fn wait_for<E>(
        self,
        reply: impl Future<Output = Result<Result<Granted>, E>>,
    ) -> Result<Granted> {
        let no_result = |_| Err(io::without_result(self.handle.context.backend(), Operation::Claim));
        let outcome = reply.await.unwrap_or_else(no_result);
        self.complete(outcome)
    }

    pub(super) fn complete(mut self, outcome: Result<Granted>) -> Result<Granted> {
        self.completed = true;
        outcome
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        if !self.completed {
            // The acquisition holds the other end of this cell until the rollback is complete.
            self.given_up.get_or_init(|| self.handle.context.pending.begin());
        }
    }
}

/// The parts of an acquisition.
pub(super) struct Parts {
    pub(super) handle: Arc<StoreHandle>,
    /// Dropped when the acquisition has ended, and its hold is registered or its rollback is complete.
    pub(super) acquiring: Acquiring,
    pub(super) request: Arc<Request>,
    pub(super) reentrant: bool,
    pub(super) limits: Limits,
    pub(super) began: Moment,
    pub(super) first: FirstClaim,
    /// The position among the waiters of this process, if it is joined before the first claim.
    pub(super) local: Option<LocalPosition>,
    pub(super) reply: oneshot::Sender<Result<Granted>>,
    pub(super) given_up: Arc<OnceLock<WorkGuard>>,
    /// The last queue position that the store has reported, counted from 1; 0 for none.
    pub(super) position: Arc<AtomicU32>,
    /// The progress that the caller reads.
    pub(super) progress: Option<Progress>,
    /// The parent span of the log events.
    pub(super) span: Option<span::Id>,
}

/// Runs an acquisition to its end, on the I/O thread or in its context.
pub(super) async fn run(parts: Parts) {
    let Parts {
        handle,
        acquiring: _acquiring,
        request,
        reentrant,
        limits,
        began,
        first,
        local,
        mut reply,
        given_up,
        position,
        progress,
        span,
    } = parts;
    let context = handle.context.clone();
    let slot = reentrant.then(|| handle.reentry.slot(&request));
    let (hold_limits, deadlock_check) = (limits.hold, limits.deadlock_check);
    let mut acquisition = Acquisition {
        context: &context,
        keeper: &handle.keeper,
        request: &request,
        began,
        give_up: limits.wait.map_or(Moment::NEVER, |wait| began + wait),
        limits,
        claim: None,
        may_have_entry: !matches!(first, FirstClaim::NotSent),
        first,
        waiting: None,
        local,
        position: &position,
        progress: progress.as_ref(),
        reader: None,
        span: span.clone(),
    };
    let mut entered = None;
    let outcome = tokio::select! {
        biased;
        // Checked first, so that an abandoned acquisition does not claim again.
        () = reply.closed() => Ok(None),
        () = context.lifecycle.shutdown_begun() => Err(Error::ShutDown),
        cycle = deadlock_check::victim(&context, &request, began, deadlock_check) => {
            Err(Error::Deadlock { name: request.name.clone(), cycle: cycle.to_string() })
        }
        outcome = AssertUnwindSafe(acquisition.run(slot.as_ref(), &mut entered)).catch_unwind() => match outcome {
            Ok(outcome) => outcome.map(Some),
            Err(panic) => Err(io::failed(context.backend(), Operation::Wait, io::panicked(&*panic))),
        },
    };
    record_acquire(&context, &request, began, outcome_label(&outcome));
    let result = match outcome {
        Ok(Some(Acquired::Reentered(shared_hold))) => Ok(Granted::Entered(shared_hold)),
        Ok(Some(Acquired::New { grant, sent })) => {
            let shared_hold = SharedHold::begin(handle, request, slot, grant, sent, hold_limits);
            if let Some(entered) = &mut entered {
                **entered = Arc::downgrade(&shared_hold);
            }
            Ok(Granted::new(shared_hold, reentrant))
        }
        Ok(None) => {
            tracing::debug!(parent: span, lock.name = %request.name, "dropped by the caller");
            drop(entered);
            Rollback::of(acquisition).run(&context, &request).await;
            return drop(given_up);
        }
        Err(error) => {
            let rollback = Rollback::of(acquisition);
            let under_way = rollback.needed.then(|| context.pending.begin());
            drop(entered);
            let mut rollback = pin!(rollback.run(&context, &request));
            if error.is_not_acquired() || matches!(error, Error::Deadlock { .. }) {
                // When the caller receives the error, its request is out of the queue, and no copy of its claim can be granted any more,
                // if the store replies.
                tokio::select! {
                    biased;
                    () = &mut rollback => {
                        drop(reply.send(Err(error)));
                        return drop((under_way, given_up));
                    }
                    () = context.until(context.now() + WITHDRAWAL) => {}
                }
            }
            drop(reply.send(Err(error)));
            rollback.await;
            return drop((under_way, given_up));
        }
    };
    drop(entered);
    // If the caller has gone, the guard is dropped here, and the drop releases the lock.
    drop(reply.send(result));
    drop(given_up);
}

/// Records the metrics of an acquisition that has ended.
pub(super) fn record_acquire(
    context: &Arc<StoreContext>,
    request: &Request,
    began: Moment,
    outcome: &'static str,
) {
    context.record(&request.name, Measured::Acquire { took: context.now().since(began), outcome });
}

fn outcome_label(outcome: &Result<Option<Acquired>>) -> &'static str {
    match outcome {
        Ok(Some(_)) => "acquired",
        Ok(None) | Err(Error::ShutDown) => "cancelled",
        Err(Error::NotAcquired { reason: NotAcquired::Busy, .. }) => "busy",
        Err(Error::NotAcquired { .. }) => "timeout",
        Err(Error::Deadlock { .. }) => "deadlock",
        Err(_) => "error",
    }
}

/// The rollback of an acquisition that has failed.
struct Rollback {
    needed: bool,
    claim: Option<Running<ClaimOutcome>>,
}

impl Rollback {
    /// Ends an acquisition that has failed. Its entry is not kept alive any more, and the next waiter of this process does not wait for
    /// the rollback, which may take until the end of an outage.
    fn of(acquisition: Acquisition<'_>) -> Self {
        Self { needed: acquisition.may_have_entry, claim: acquisition.claim }
    }

    async fn run(self, context: &Arc<StoreContext>, request: &Arc<Request>) {
        if let Some(mut claim) = self.claim {
            // The reply is not used; only the end of the claim matters: see the module.
            drop(claim.reply().await);
        }
        if self.needed {
            // A copy of the claim begins the lease of the entry again. A failure has been logged; the entry expires in any case.
            context.release_until(request, context.now() + LATEST_COPY + request.ttl, 0).await.ok();
        }
    }
}
