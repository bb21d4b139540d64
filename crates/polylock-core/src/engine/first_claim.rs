//! The first claim of an acquisition, where the caller drives it on a connection of its own runtime (see
//! [`foreground`](super::foreground)).

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use super::{
    acquire::{Parts, record_acquire, run},
    tenure::Tenure,
};
use crate::{Backend, Error, Moment, NotAcquired, Operation, Order, Result, Standing, invariant};

/// The claim that the caller has driven.
#[derive(Debug)]
pub(super) enum FirstClaim {
    NotSent,
    /// It may have reached the store, and its outcome is unknown.
    Unknown,
    /// It was sent at that time.
    Answered(Moment, Result<Standing>),
}

impl Parts {
    /// The store and the permit for the first claim if the caller is to drive it.
    ///
    /// A reentrant holder begins on the I/O thread, and so does a waiter that must not claim because another one of this process is
    /// ahead.
    pub(super) fn claims_here(&mut self) -> Option<(Arc<dyn Backend>, OwnedSemaphorePermit)> {
        let shared = &self.front.0;
        if self.reentrant {
            return None;
        }
        let store = shared.foreground.store(shared)?;
        if self.request.queues && shared.store.backend.capabilities().order == Order::Unordered {
            let position = self.local.insert(shared.local_queues.join(&self.request.name));
            if !position.is_first() {
                return None;
            }
        }
        Some((store, shared.claims.clone().try_acquire_owned().ok()?))
    }
}

/// Sends the first claim, driven by the caller. Unless that decides the acquisition, it goes on, on the I/O thread.
pub(super) async fn claim_here(
    parts: Parts,
    store: Arc<dyn Backend>,
    permit: OwnedSemaphorePermit,
) -> Option<Result<Arc<Tenure>>> {
    let (shared, request, sent) = (parts.front.0.clone(), parts.request.clone(), parts.began);
    let claim = {
        let request = request.clone();
        let claim = async move { store.claim(&request).await };
        shared.measured(Operation::Claim, Some(&parts.request.name), claim)
    };
    let driven =
        shared.foreground.begin(&shared, Operation::Claim, claim, (parts, permit), |(parts, permit)| {
            drop(permit);
            go_on(parts, FirstClaim::Unknown);
        });
    let (answer, (parts, permit)) = driven.await?;
    drop(permit);
    match answer {
        Ok(Standing::Held(grant)) if invariant::deadline(sent, grant.lease) > shared.now() => {
            record_acquire(&shared, &request, sent, "acquired");
            Some(Ok(Tenure::begin(parts.front, request, None, grant, sent)))
        }
        Ok(Standing::Queued(_)) if !request.queues => {
            record_acquire(&shared, &request, sent, "busy");
            Some(Err(Error::NotAcquired { name: request.name.clone(), reason: NotAcquired::Busy }))
        }
        answer => {
            go_on(parts, FirstClaim::Answered(sent, answer));
            None
        }
    }
}

/// Has the I/O thread continue an acquisition whose first claim was driven by the caller.
fn go_on(mut parts: Parts, first: FirstClaim) {
    parts.first = first;
    let shared = parts.front.0.clone();
    // An error means that there is no thread, and the caller sees that there is no answer.
    shared.spawn(Operation::Claim, run(parts)).ok();
}
