//! The first claim of an acquisition, if the caller drives it on a connection of its own runtime (see
//! [`foreground`](super::foreground)).

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use super::{
    acquisition::FirstClaim,
    acquisition_task::{Caller, Parts, record_acquire, run},
    foreground::Driven,
    granted::Granted,
    shared_hold::SharedHold,
};
use crate::{Backend, ClaimOutcome, Error, NotAcquired, Operation, Order, Result, deadline};

impl Parts {
    /// Returns the store and the permit for the first claim, if the caller is to drive it.
    ///
    /// A reentrant acquisition begins on the I/O thread, and so does a waiter that must not claim because another waiter of this
    /// process is ahead.
    pub(super) fn caller_store(&mut self) -> Option<(Arc<dyn Backend>, OwnedSemaphorePermit)> {
        let context = &self.handle.context;
        if self.reentrant {
            return None;
        }
        let store = self.handle.foreground.store()?;
        if self.request.queues && context.store.backend.capabilities().order == Order::Unordered {
            let position = self.local.insert(context.local_queues.join(&self.request.name, None));
            if !position.is_first() {
                return None;
            }
        }
        Some((store, context.claims.clone().try_acquire_owned().ok()?))
    }
}

/// The acquisition while the caller drives its first claim. The fields are dropped in this order: the acquisition is abandoned
/// before it is handed over, so that the I/O thread does not claim for a caller that has gone.
struct Claiming<A> {
    caller: Caller,
    /// The result from the I/O thread, if the acquisition continues there.
    reply: A,
    driven: Driven<ClaimOutcome, (Parts, OwnedSemaphorePermit)>,
}

/// Acquires with a first claim that the caller drives. Unless that claim decides the acquisition, it continues on the I/O thread,
/// which sends `reply`.
pub(super) async fn acquire_on_caller<E>(
    parts: Parts,
    store: Arc<dyn Backend>,
    permit: OwnedSemaphorePermit,
    caller: Caller,
    reply: impl Future<Output = Result<Result<Granted>, E>>,
) -> Result<Granted> {
    let foreground = parts.handle.foreground.clone();
    let (context, request, sent) = (parts.handle.context.clone(), parts.request.clone(), parts.began);
    let claim = {
        let request = request.clone();
        let claim = async move { store.claim(&request).await };
        context.measured(Operation::Claim, Some(&parts.request.name), claim)
    };
    let driven = foreground.drive(Operation::Claim, claim, (parts, permit), |(parts, permit)| {
        drop(permit);
        continue_on_thread(parts, FirstClaim::Unknown);
    });
    let mut claiming = Claiming { caller, reply, driven };
    let claimed = (&mut claiming.driven).await;
    let Claiming { caller, reply, .. } = claiming;
    if let Some((outcome, (parts, permit))) = claimed {
        drop(permit);
        match outcome {
            Ok(ClaimOutcome::Granted(grant)) if deadline::of(sent, grant.lease) > context.now() => {
                parts.limits.failing.replied();
                record_acquire(&context, &request, sent, "acquired");
                let limits = parts.limits.hold;
                let shared_hold = SharedHold::begin(parts.handle, request, None, grant, sent, limits);
                return caller.complete(Ok(Granted::New(shared_hold)));
            }
            Ok(ClaimOutcome::Queued(position)) if !request.queues && !position.may_be_granted_late => {
                parts.limits.failing.replied();
                record_acquire(&context, &request, sent, "busy");
                let (name, reason) = (request.name.clone(), NotAcquired::Busy);
                return caller.complete(Err(Error::NotAcquired { name, reason }));
            }
            // The connection of the caller may have failed, and not the store.
            Err(error) if error.is_temporary() && error.retry_after().is_none() => {
                continue_on_thread(parts, FirstClaim::Unknown);
            }
            outcome => continue_on_thread(parts, FirstClaim::Replied(sent, outcome)),
        }
    }
    caller.wait_for(reply).await
}

/// Continues an acquisition on the I/O thread after the caller has driven its first claim.
fn continue_on_thread(mut parts: Parts, first: FirstClaim) {
    parts.first = first;
    let context = parts.handle.context.clone();
    // An error means that there is no thread. The caller then receives an error instead of a reply.
    context.spawn(Operation::Claim, run(parts)).ok();
}
