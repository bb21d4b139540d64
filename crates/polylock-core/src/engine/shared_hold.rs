//! A hold that belongs to one guard or, reentrantly, to several: the last one releases it.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};
use tokio::sync::oneshot;

use super::{
    context::StoreHandle,
    hold::{Hold, Phase},
    pending::WorkGuard,
    reentry::Slot,
};
use crate::{Backend, Grant, HoldLifetime, Moment, Operation, Request, Result, io};

#[derive(Debug)]
pub(crate) struct SharedHold {
    hold: Arc<Hold>,
    handle: Arc<StoreHandle>,
    /// The slot in which reentrant attempts find this hold.
    _slot: Option<Slot>,
    /// True if an explicit release replaces that of the drop.
    released: bool,
}

impl SharedHold {
    /// Begins the hold of a grant with a claim that was sent at `sent`.
    pub(super) fn begin(
        handle: Arc<StoreHandle>,
        request: Arc<Request>,
        slot: Option<Slot>,
        grant: Grant,
        sent: Moment,
    ) -> Arc<Self> {
        let hold = Hold::start(handle.0.clone(), request, grant, sent);
        Arc::new(Self { hold, handle, _slot: slot, released: false })
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    /// Releases the lock and waits until the store has confirmed it, or for `limit`: then the release continues in the background.
    pub(crate) async fn release(mut self, limit: Option<Duration>) -> Result<()> {
        let hold = self.hold.clone();
        let context = hold.context.clone();
        let under_way = self.handle.0.pending.begin();
        let releasing = match hold.leave() {
            Ok(until) => {
                self.released = true;
                let releasing = Releasing { hold: hold.clone(), until, limit, under_way };
                if let Some(store) = context.foreground.store(&context) {
                    return releasing.release_on_caller(store).await;
                }
                releasing.until_released(0).boxed()
            }
            Err(ended) if hold.is_broken() => {
                self.released = true;
                let refused = ended.into_result(hold.name());
                let released = hold.clone().release_broken(under_way).map(|()| refused);
                wait_at_most(hold.clone(), limit, released.boxed()).boxed()
            }
            Err(ended) => return ended.into_result(hold.name()),
        };
        let releasing = context.begin(Operation::Release, releasing)?;
        let failed = |cause| Err(io::failed(context.backend(), Operation::Release, cause));
        releasing.await.unwrap_or_else(failed)
    }

    /// Keeps the lock until `end`: by a lease that ends then, as soon as the store can give it, otherwise by renewals and a
    /// release.
    pub(crate) async fn release_at(mut self, end: Moment) -> Result<()> {
        let hold = self.hold.clone();
        let can = hold.context.store.backend.capabilities();
        let (shortest, longest) = match can.hold_lifetime {
            HoldLifetime::Lease => (*can.ttl.start(), *can.ttl.end()),
            // Such a hold would end with this process.
            HoldLifetime::Session => (Duration::MAX, Duration::ZERO),
        };
        let left = || end.since(hold.context.now());
        if left() > longest {
            self.keep_until(end - longest).await?;
        }
        if left() < shortest {
            self.keep_until(end).await?;
            return self.release(None).await;
        }
        let until =
            hold.leave().or_else(|ended| ended.into_result(hold.name()).map(|()| Moment::default()))?;
        let under_way = self.handle.0.pending.begin();
        self.released = true;
        let parking = hold.context.begin(Operation::Renew, hold.clone().park(until, end, under_way))?;
        parking.await.unwrap_or_else(|cause| Err(io::failed(hold.context.backend(), Operation::Renew, cause)))
    }

    /// Waits until `at` while the lock is renewed.
    ///
    /// # Errors
    /// If the lock is lost meanwhile.
    async fn keep_until(&self, at: Moment) -> Result<()> {
        let hold = self.hold.clone();
        let kept = self.hold.context.begin(Operation::Renew, async move {
            let mut phase = hold.watch();
            tokio::select! {
                // The hold also ends if the caller drops its future.
                _ = phase.wait_for(|phase| !matches!(phase, Phase::Held { .. })) => {}
                () = hold.context.until(at) => {}
            }
        })?;
        kept.await.ok();
        self.hold.check().map(|_| ()).or_else(|ended| ended.into_result(self.hold.name()))
    }
}

/// The label of an explicit release in the metrics.
const EXPLICIT: &str = "explicit";

/// An explicit release.
struct Releasing {
    hold: Arc<Hold>,
    /// The time until which it is retried.
    until: Moment,
    /// The time that the holder waits for it; no limit if `None`.
    limit: Option<Duration>,
    under_way: WorkGuard,
}

impl Releasing {
    /// Releases on `store`, driven by the caller. After a temporary error or a take-over, the release continues on the I/O thread.
    async fn release_on_caller(self, store: Arc<dyn Backend>) -> Result<()> {
        let (hold, context) = (self.hold.clone(), self.hold.context.clone());
        let release = {
            let request = hold.request.clone();
            async move { store.release(&request).await }
        };
        let release = context.measured(Operation::Release, Some(hold.name()), release);
        let (sender, outcome) = oneshot::channel();
        let continue_on_thread = |(releasing, reply): (Self, oneshot::Sender<_>)| {
            let context = releasing.hold.context.clone();
            let releasing = releasing.until_released(1).map(|outcome| drop(reply.send(outcome)));
            // An error means that there is no thread. The caller then receives an error instead of a reply.
            context.spawn(Operation::Release, releasing).ok();
        };
        match context
            .foreground
            .begin(&context, Operation::Release, release, (self, sender), continue_on_thread)
            .await
        {
            Some((Err(error), rest)) if error.is_temporary() => continue_on_thread(rest),
            Some((result, (releasing, _))) => return hold.released(result, EXPLICIT, releasing.under_way),
            None => {}
        }
        outcome.await.unwrap_or_else(|_| {
            let cause = "the release ended without a result".to_owned();
            Err(io::failed(context.backend(), Operation::Release, cause))
        })
    }

    /// Returns the outcome for the holder; `attempts` have been made before.
    fn until_released(self, attempts: u32) -> impl Future<Output = Result<()>> + Send + use<> {
        let Self { hold, until, limit, under_way } = self;
        let releasing = hold.clone().release(until, EXPLICIT, attempts, under_way).boxed();
        wait_at_most(hold, limit, releasing)
    }
}

/// Returns the outcome of `releasing`, or `Ok` after `limit`; `releasing` continues in any case.
async fn wait_at_most(
    hold: Arc<Hold>,
    limit: Option<Duration>,
    releasing: BoxFuture<'static, Result<()>>,
) -> Result<()> {
    let Some(limit) = limit else { return releasing.await };
    let releasing = tokio::spawn(releasing);
    tokio::select! {
        outcome = releasing => outcome.unwrap_or(Ok(())),
        () = hold.context.until(hold.context.now() + limit) => Ok(()),
    }
}

impl Drop for SharedHold {
    fn drop(&mut self) {
        if self.released {
            return;
        }
        let releasing = match self.hold.leave() {
            Ok(until) => {
                let under_way = self.handle.0.pending.begin();
                self.hold.clone().release(until, "drop", 0, under_way).map(drop).boxed()
            }
            Err(_) if self.hold.is_broken() => {
                self.hold.clone().release_broken(self.handle.0.pending.begin()).boxed()
            }
            // The hold was lost or released before.
            Err(_) => return,
        };
        // An error means that there is no thread, and so there is no hold either.
        self.hold.context.spawn(Operation::Release, releasing).ok();
    }
}
