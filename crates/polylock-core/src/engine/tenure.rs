//! One hold in the hands of one guard or, reentrantly, of several: the last one to go releases it.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};

use super::{
    hold::{Hold, Phase},
    reentry::Slot,
    shared::Front,
};
use crate::{Carrier, Grant, Moment, Operation, Request, Result, io};

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
        let under_way = self.front.0.pending.begin();
        let releasing = match hold.leave() {
            Ok(until) => hold.clone().release(until, "explicit", under_way).boxed(),
            Err(ended) if hold.is_broken() => {
                let refused = ended.into_result(hold.name());
                hold.clone().release_broken(under_way).map(|()| refused).boxed()
            }
            Err(ended) => return ended.into_result(hold.name()),
        };
        self.released = true;
        let releasing = match limit {
            Some(limit) => briefly(hold.clone(), limit, releasing).boxed(),
            None => releasing,
        };
        let mut releasing = hold.shared.begin(Operation::Release, releasing)?;
        releasing
            .end()
            .await
            .unwrap_or_else(|cause| Err(io::failed(hold.shared.backend(), Operation::Release, cause)))
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
        let mut parting = hold.shared.begin(Operation::Renew, hold.clone().park(until, end, under_way))?;
        parting
            .end()
            .await
            .unwrap_or_else(|cause| Err(io::failed(hold.shared.backend(), Operation::Renew, cause)))
    }

    /// Waits until `at` while the lock is renewed.
    ///
    /// # Errors
    /// If it is lost meanwhile.
    async fn keep_until(&self, at: Moment) -> Result<()> {
        let hold = self.hold.clone();
        let mut kept = self.hold.shared.begin(Operation::Renew, async move {
            let mut phase = hold.watch();
            tokio::select! {
                // Also when the caller is not interested any more.
                _ = phase.wait_for(|phase| !matches!(phase, Phase::Held { .. })) => {}
                () = hold.shared.until(at) => {}
            }
        })?;
        kept.end().await.ok();
        self.hold.check().map(|_| ()).or_else(|ended| ended.into_result(self.hold.name()))
    }
}

/// The outcome of `releasing`, if it comes within `limit`; it goes on in any case.
async fn briefly(hold: Arc<Hold>, limit: Duration, releasing: BoxFuture<'static, Result<()>>) -> Result<()> {
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
                self.hold.clone().release(until, "drop", under_way).map(drop).boxed()
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
