//! The lease that a request may have, by the replies to its acquisitions. Pure: the store and its model in the tests share it.

use std::time::Duration;

use polylock_core::Moment;

/// The lease that a request may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct LeaseRecord {
    /// The time of the last acquisition of which a copy has no reply: it may still succeed.
    pub(super) unanswered: Option<Moment>,
    /// True if the request may have a lease.
    pub(super) may_hold: bool,
    /// The duration of the lease of a hold, and the time when it ends unless it is renewed.
    pub(super) held: Option<(Duration, Moment)>,
}

impl LeaseRecord {
    /// Records that an acquisition is about to be sent.
    pub(super) fn on_send(&mut self) {
        (self.may_hold, self.held) = (true, None);
    }

    /// Records that there is a copy of the acquisition without a reply.
    pub(super) fn on_no_reply(&mut self, now: Moment) {
        self.unanswered = Some(now);
    }

    /// Records that the request has no lease, except one that an unanswered acquisition may still obtain.
    pub(super) fn on_refusal(&mut self) {
        self.may_hold = self.unanswered.is_some();
    }

    /// Records a hold that was acquired or renewed by a request sent at `sent`.
    pub(super) fn on_grant(&mut self, lease: Duration, sent: Moment) {
        (self.may_hold, self.held) = (true, Some((lease, sent + lease)));
    }
}
