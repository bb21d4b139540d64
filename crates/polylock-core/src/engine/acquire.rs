//! The acquisition of a lock from the side of the caller, which waits for its result.
//! [`acquisition_task`](super::acquisition_task) is the work, on the I/O thread of the store or in its context.

use std::{
    pin::pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::sync::oneshot;
use tracing::Span;

use super::{
    acquisition::{FirstClaim, Limits},
    acquisition_task::{Caller, Parts, run},
    first_claim::acquire_on_caller,
    granted::Granted,
    shared_hold::{SharedHold, StoreHandle},
};
use crate::{Error, NotAcquired, Operation, Progress, Request, Result};

/// Acquires the lock of `request`. If `reentrant`, enters the hold that its owner already has.
pub(crate) async fn acquire(
    handle: Arc<StoreHandle>,
    mut request: Request,
    reentrant: bool,
    mut limits: Limits,
    progress: Option<Progress>,
) -> Result<Arc<SharedHold>> {
    let began = handle.context.now();
    let span = tracing::info_span!(
        "polylock.acquire",
        lock.name = %request.name,
        lock.mode = %request.mode,
        lock.backend = handle.context.backend(),
        lock.owner = %request.owner,
        lock.fencing_token = tracing::field::Empty,
        lock.wait_ms = tracing::field::Empty,
        lock.queue_position = tracing::field::Empty,
        otel.kind = "client",
        otel.status_code = tracing::field::Empty,
    );
    request.wants_position = progress.is_some() || tracing::enabled!(tracing::Level::DEBUG);
    let wait = limits.wait;
    loop {
        // The time for which earlier attempts have waited.
        let passed = handle.context.now().since(began);
        let attempt = once(&handle, request.clone(), reentrant, limits.clone(), progress.clone(), &span);
        let outcome = match attempt.await {
            // The lock was granted at the moment of the shutdown, which releases it, unless the drop does.
            Ok(_) if handle.context.lifecycle.is_shut_down() => Err(Error::ShutDown),
            Ok(granted) => {
                let received = |hold: &Arc<SharedHold>| span.in_scope(|| hold.hold().receive());
                let Some(shared_hold) = granted.into_hold().filter(received) else {
                    // The lock was granted while this future was not polled, and passed on: the request goes back to the end of the queue.
                    request = request.with_new_id();
                    limits.wait = wait.map(|wait| (began + wait).since(handle.context.now()));
                    continue;
                };
                Ok(shared_hold)
            }
            Err(error) => Err(after(passed, error)),
        };
        let waited = u64::try_from(handle.context.now().since(began).as_millis()).unwrap_or(u64::MAX);
        span.record("lock.wait_ms", waited);
        let failed = outcome.as_ref().is_err_and(|error| !error.is_not_acquired());
        span.record("otel.status_code", if failed { "ERROR" } else { "OK" });
        if let Ok(shared_hold) = &outcome {
            span.record("lock.fencing_token", shared_hold.hold().token().get());
        }
        return outcome;
    }
}

/// Returns the error of an attempt that began after others had waited for `passed`.
fn after(passed: Duration, error: Error) -> Error {
    match error {
        Error::NotAcquired { name, reason: NotAcquired::TimedOut { waited } } => {
            Error::NotAcquired { name, reason: NotAcquired::TimedOut { waited: passed + waited } }
        }
        error => error,
    }
}

async fn once(
    handle: &Arc<StoreHandle>,
    request: Request,
    reentrant: bool,
    limits: Limits,
    progress: Option<Progress>,
    span: &Span,
) -> Result<Granted> {
    let acquiring = handle.context.lifecycle.begin()?;
    let (reply_sender, reply) = oneshot::channel();
    let (given_up, position) = (Arc::new(OnceLock::new()), Arc::new(AtomicU32::new(0)));
    let caller = Caller::new(handle.clone(), given_up.clone());
    let mut parts = Parts {
        handle: handle.clone(),
        acquiring,
        request: Arc::new(request),
        reentrant,
        limits,
        began: handle.context.now(),
        first: FirstClaim::NotSent,
        local: None,
        reply: reply_sender,
        given_up,
        position: position.clone(),
        progress,
        span: span.id(),
    };
    let outcome = match parts.caller_store() {
        Some((store, permit)) => acquire_on_caller(parts, store, permit, caller, reply).await,
        None => {
            let mut acquisition = handle.foreground.begin(Operation::Claim, run(parts))?;
            let polled = async { drop((&mut acquisition).await) };
            caller.wait_for(receive_while_polling(reply, polled)).await
        }
    };
    match position.load(Ordering::Relaxed) {
        0 => {}
        position => drop(span.record("lock.queue_position", position)),
    }
    outcome
}

/// Returns the output of `reply`, and polls `work`, which produces it, in the meantime.
async fn receive_while_polling<T>(reply: impl Future<Output = T>, work: impl Future<Output = ()>) -> T {
    let mut reply = pin!(reply);
    tokio::select! {
        biased;
        reply = &mut reply => return reply,
        () = work => {}
    }
    reply.await
}
