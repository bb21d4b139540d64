//! One hold in the hands of one guard or, reentrantly, of several: the last one to go releases it.

use std::sync::Arc;

use super::{hold::Hold, reentry::Slot, shared::Front};
use crate::{Grant, Moment, Operation, Request, Result, io};

#[derive(Debug)]
pub(crate) struct Tenure {
    hold: Arc<Hold>,
    front: Arc<Front>,
    /// Keeps the place where reentrant attempts find this.
    _slot: Option<Slot>,
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
        Arc::new(Self { hold, front, _slot: slot })
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    /// Releases the lock and waits until the store has confirmed it.
    pub(crate) async fn release(self) -> Result<()> {
        let until = match self.hold.leave() {
            Ok(until) => until,
            Err(ended) => return ended.into_result(self.hold.name()),
        };
        let under_way = self.front.0.pending.begin();
        let releasing = self.hold.clone().release(until, "explicit", under_way);
        let mut releasing = self.hold.shared.begin(releasing)?;
        releasing
            .end()
            .await
            .unwrap_or_else(|cause| Err(io::failed(self.hold.shared.backend(), Operation::Release, cause)))
    }
}

impl Drop for Tenure {
    fn drop(&mut self) {
        // If it was lost or released before, there is nothing left to do.
        if let Ok(until) = self.hold.leave() {
            let under_way = self.front.0.pending.begin();
            // Without the thread there is no hold either.
            io::spawn(self.hold.clone().release(until, "drop", under_way)).ok();
        }
    }
}
