//! One hold in the hands of one guard or, reentrantly, of several: the last one to go releases it.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};
use tokio::sync::oneshot;

use super::{
    hold::{Hold, Phase},
    pending::Ticket,
    reentry::Slot,
    shared::Front,
};
use crate::{Backend, Carrier, Grant, Moment, Operation, Request, Result, io};

#[derive(Debug)]
pub(crate) struct Tenure {
    hold: Arc<Hold>,
    front: Arc<Front>,
    /// Keeps the place where reentrant attempts find this.
    _slot: Option<Slot>,
    /// Whether an explicit release has taken over what a drop would do.
    released: bool,
}

impl Tenure {
    /// Begins the hold of a grant whose claim was sent at `sent`.
    pub(super) fn begin(
        front: Arc<Front>,
        request: Arc<Request>,
        slot: Option<Slot>,
        grant: Grant,
        sent: Moment,
    ) -> Arc<Self> {
        let hold = Hold::start(front.0.clone(), request, grant, sent);
        Arc::new(Self { hold, front, _slot: slot, released: false })
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    /// Releases the lock and waits until the store has confirmed it, or for `limit`: then the release goes on in the background.
    pub(crate) async fn release(mut self, limit: Option<Duration>) -> Result<()> {
        let hold = self.hold.clone();
        let shared = hold.shared.clone();
        let under_way = self.front.0.pending.begin();
        let releasing = match hold.leave() {
            Ok(until) => {
                self.released = true;
                let releasing = Releasing { hold: hold.clone(), until, limit, under_way };
                if let Some(store) = shared.foreground.store(&shared) {
                    return releasing.here(store).await;
                }
                releasing.until_released(0).boxed()
            }
            Err(ended) if hold.is_broken() => {
                self.released = true;
                let refused = ended.into_result(hold.name());
                let released = hold.clone().release_broken(under_way).map(|()| refused);
                briefly(hold.clone(), limit, released.boxed()).boxed()
            }
            Err(ended) => return ended.into_result(hold.name()),
        };
        let releasing = shared.begin(Operation::Release, releasing)?;
        let failed = |cause| Err(io::failed(shared.backend(), Operation::Release, cause));
        releasing.await.unwrap_or_else(failed)
    }

    /// Keeps the lock until `end`: by a lease that ends then, as soon as the store can give it, else by renewals and a release.
    pub(crate) async fn release_at(mut self, end: Moment) -> Result<()> {
        let hold = self.hold.clone();
        let can = hold.shared.store.backend.capabilities();
        let (shortest, longest) = match can.carrier {
            Carrier::Entry => (*can.ttl.start(), *can.ttl.end()),
            // It would end with this process.
            Carrier::Connection => (Duration::MAX, Duration::ZERO),
        };
        let left = || end.since(hold.shared.now());
        if left() > longest {
            self.keep_until(end - longest).await?;
        }
        if left() < shortest {
            self.keep_until(end).await?;
            return self.release(None).await;
        }
        let until =
            hold.leave().or_else(|ended| ended.into_result(hold.name()).map(|()| Moment::default()))?;
        let under_way = self.front.0.pending.begin();
        self.released = true;
        let parting = hold.shared.begin(Operation::Renew, hold.clone().park(until, end, under_way))?;
        parting.await.unwrap_or_else(|cause| Err(io::failed(hold.shared.backend(), Operation::Renew, cause)))
    }

    /// Waits until `at` while the lock is renewed.
    ///
    /// # Errors
    /// If it is lost meanwhile.
    async fn keep_until(&self, at: Moment) -> Result<()> {
        let hold = self.hold.clone();
        let kept = self.hold.shared.begin(Operation::Renew, async move {
            let mut phase = hold.watch();
            tokio::select! {
                // Also when the caller is not interested any more.
                _ = phase.wait_for(|phase| !matches!(phase, Phase::Held { .. })) => {}
                () = hold.shared.until(at) => {}
            }
        })?;
        kept.await.ok();
        self.hold.check().map(|_| ()).or_else(|ended| ended.into_result(self.hold.name()))
    }
}

/// What an explicit release is called in the metrics.
const EXPLICIT: &str = "explicit";

/// An explicit release.
struct Releasing {
    hold: Arc<Hold>,
    /// Until when it is retried.
    until: Moment,
    /// For how long the holder waits for it.
    limit: Option<Duration>,
    under_way: Ticket,
}

impl Releasing {
    /// Releases on `store`, driven by the caller. Unless that succeeds at once, the I/O thread goes on.
    async fn here(self, store: Arc<dyn Backend>) -> Result<()> {
        let (hold, shared) = (self.hold.clone(), self.hold.shared.clone());
        let release = {
            let request = hold.request.clone();
            async move { store.release(&request).await }
        };
        let release = shared.measured(Operation::Release, Some(hold.name()), release);
        let (reply, outcome) = oneshot::channel();
        let go_on = |(releasing, reply): (Self, oneshot::Sender<_>)| {
            let shared = releasing.hold.shared.clone();
            let releasing = releasing.until_released(1).map(|outcome| drop(reply.send(outcome)));
            // An error means that there is no thread, and the caller sees that there is no answer.
            shared.spawn(Operation::Release, releasing).ok();
        };
        match shared.foreground.begin(&shared, Operation::Release, release, (self, reply), go_on).await {
            Some((Err(error), rest)) if error.is_temporary() => go_on(rest),
            Some((answer, (releasing, _))) => return hold.released(answer, EXPLICIT, releasing.under_way),
            None => {}
        }
        outcome.await.unwrap_or_else(|_| {
            let cause = "the release ended without an answer".to_owned();
            Err(io::failed(shared.backend(), Operation::Release, cause))
        })
    }

    /// The outcome for the holder; `attempts` were made before.
    fn until_released(self, attempts: u32) -> impl Future<Output = Result<()>> + Send + use<> {
        let Self { hold, until, limit, under_way } = self;
        let releasing = hold.clone().release(until, EXPLICIT, attempts, under_way).boxed();
        briefly(hold, limit, releasing)
    }
}

/// The outcome of `releasing`, if it comes within `limit`; it goes on in any case.
async fn briefly(
    hold: Arc<Hold>,
    limit: Option<Duration>,
    releasing: BoxFuture<'static, Result<()>>,
) -> Result<()> {
    let Some(limit) = limit else { return releasing.await };
    let releasing = tokio::spawn(releasing);
    tokio::select! {
        outcome = releasing => outcome.unwrap_or(Ok(())),
        () = hold.shared.until(hold.shared.now() + limit) => Ok(()),
    }
}

impl Drop for Tenure {
    fn drop(&mut self) {
        if self.released {
            return;
        }
        let releasing = match self.hold.leave() {
            Ok(until) => {
                let under_way = self.front.0.pending.begin();
                self.hold.clone().release(until, "drop", 0, under_way).map(drop).boxed()
            }
            Err(_) if self.hold.is_broken() => {
                self.hold.clone().release_broken(self.front.0.pending.begin()).boxed()
            }
            // It was lost or released before.
            Err(_) => return,
        };
        // An error means that there is no thread, and without it no hold either.
        self.hold.shared.spawn(Operation::Release, releasing).ok();
    }
}
