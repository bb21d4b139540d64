//! One hold in the hands of one guard or, reentrantly, of several: the last one to go releases it.

use std::sync::Arc;

use super::{
    hold::{Farewell, Hold},
    reentry::Slot,
    shared::Front,
};
use crate::{Grant, Moment, Request};

#[derive(Debug)]
pub(crate) struct Tenure {
    hold: Arc<Hold>,
    front: Arc<Front>,
    /// Keeps the place where reentrant attempts find this.
    _slot: Option<Slot>,
}

impl Tenure {
    /// Begins the hold of a grant whose claim was sent at `sent`. Must be called on the `polylock-io` thread, where the
    /// watchdog lives.
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

    pub(crate) fn front(&self) -> &Front {
        &self.front
    }
}

impl Drop for Tenure {
    fn drop(&mut self) {
        let under_way = self.front.0.pending.begin();
        // If it was lost before, the watchdog has told.
        self.hold.leave(Farewell::Release { reply: None, under_way }).ok();
    }
}
