//! The shutdown of the locks of a store: it ends acquisitions and holds, and releases everything.

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures_util::{FutureExt, future};

use super::keeper::Keeper;
use crate::{LockName, Operation, Result, ShutdownReport, io, observer, process};

/// Shuts the locks down, or waits for the shutdown that has begun before. The work is a task of the I/O thread, so it continues if the
/// caller drops this future.
pub(crate) async fn shut_down(keeper: &Arc<Keeper>) -> Result<ShutdownReport> {
    let context = keeper.context();
    if context.lifecycle.shut_down() {
        let keeper = keeper.clone();
        let work = async move {
            let outcome = AssertUnwindSafe(end_all(&keeper)).catch_unwind().await;
            keeper.context().lifecycle.complete(outcome.map_err(|panic| io::panicked(&*panic)));
        };
        if let Err(error) = context.spawn(Operation::Release, work) {
            context.lifecycle.complete(Err(error.chain()));
        }
    }
    let outcome = context.lifecycle.completed().await;
    outcome.map_err(|cause| io::failed(context.backend(), Operation::Release, cause))
}

async fn end_all(keeper: &Arc<Keeper>) -> ShutdownReport {
    let context = keeper.context();
    let by = context.now() + context.options.ttl;
    let idle = async {
        tokio::select! {
            biased;
            () = context.lifecycle.idle() => {}
            () = context.until(by) => {}
        }
    };
    let mut report = ShutdownReport::default();
    let (released, ()) = future::join(release_all(keeper), idle).await;
    // An acquisition may have been granted its lock at the moment at which the shutdown began.
    for (name, release) in released.into_iter().chain(release_all(keeper).await) {
        report.add(name, release);
    }
    report.unconfirmed = context.lifecycle.acquisitions();
    let done = async {
        context.pending.drained().await;
        // A recorder or a log writer that blocks does not keep the shutdown from its end.
        observer::flushed().await;
    };
    tokio::select! {
        biased;
        () = done => {}
        () = context.until(by) => {}
    }
    report
}

/// Ends and releases all holds. A hold is lost for its guard before the release is sent.
async fn release_all(keeper: &Arc<Keeper>) -> Vec<(LockName, Result<()>)> {
    let releases = keeper.shut_down().into_iter().map(|(hold, until)| {
        let under_way = keeper.context().pending.begin();
        let (name, backend) = (hold.name().clone(), keeper.context().backend());
        // Each is a task of its own, as those of dropped guards are.
        let releasing = match hold.parked_until() {
            Some(end) => process::spawn(hold.park(until, end, under_way)),
            None => process::spawn(hold.release(until, "shutdown", 0, under_way)),
        };
        async move {
            let failed = |error| Err(io::failed(backend, Operation::Release, io::join_error(error)));
            (name, releasing.await.unwrap_or_else(failed))
        }
    });
    future::join_all(releases).await
}
