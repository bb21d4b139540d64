//! One hold in the hands of one guard or, reentrantly, of several: the last one to go releases it.

use std::sync::Arc;

use futures_util::FutureExt;

use super::{hold::Hold, reentry::Slot, shared::Front};
use crate::{Grant, Moment, Operation, Request, Result, io};

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
    /// Begins the hold of a grant whose claim was sent at `sent`. Must be called in the context of the `polylock-io` thread,
    /// where the watchdog lives.
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

    /// Releases the lock and waits until the store has confirmed it.
    pub(crate) async fn release(mut self) -> Result<()> {
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
        let mut releasing = hold.shared.begin(releasing)?;
        releasing
            .end()
            .await
            .unwrap_or_else(|cause| Err(io::failed(hold.shared.backend(), Operation::Release, cause)))
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
        io::spawn(releasing).map(drop).ok();
    }
}
