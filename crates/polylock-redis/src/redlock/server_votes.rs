//! The state of one request at one server: the numbers for which that server may have a vote.

use polylock_core::Moment;

/// The state of one request at one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Server {
    /// The greatest number for which the server may have a vote, or may still give one; 0 if there is none.
    pub(super) open: i64,
    /// The number of messages with the number `open` that have no definite reply; [`STICKY`] if no reply to them can close it.
    pub(super) unresolved: u8,
    /// The number that was open before `open`; 0 if none was.
    pub(super) before: i64,
    /// The greatest number of which the server has acknowledged the withdrawal.
    pub(super) acknowledged: i64,
    /// The server's reply to the release.
    pub(super) reply: Reply,
    /// True if a release was sent to the server that it may have executed without a reply, or with one that arrives after another's.
    pub(super) is_uncertain: bool,
    /// The time at which a withdrawal was sent that has no reply yet.
    pub(super) under_way: Option<Moment>,
    /// True if the server may still execute a withdrawal of any number, which was sent before the first proposal of this record.
    pub(super) is_barred: bool,
}

pub(super) const STICKY: u8 = u8::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) enum Reply {
    #[default]
    Missing,
    /// The server has removed its vote, or may have removed it for an earlier release without a reply.
    Removed,
    /// The server had no vote.
    Absent,
}

impl Server {
    pub(super) fn on_send(&mut self, number: i64) {
        if number > self.open {
            (self.before, self.open, self.unresolved) = (self.open, number, 1);
        } else if number == self.open {
            self.unresolved = self.unresolved.saturating_add(1);
        }
    }

    pub(super) fn on_vote(&mut self, number: i64) {
        if number > self.acknowledged && number >= self.open {
            (self.open, self.unresolved) = (number, STICKY);
        }
    }

    pub(super) fn on_refusal(&mut self, number: i64) {
        if number != self.open || self.unresolved == STICKY {
            return;
        }
        self.unresolved = self.unresolved.saturating_sub(1);
        if self.unresolved == 0 {
            // The number that was open before is open again. The messages that made it so are not known any more.
            let open = if self.before > self.acknowledged { self.before } else { 0 };
            (self.open, self.unresolved, self.before) = (open, STICKY, 0);
        }
    }

    pub(super) fn on_acknowledgement(&mut self, number: i64) {
        self.acknowledged = self.acknowledged.max(number);
        if self.open <= number {
            (self.open, self.before) = (0, 0);
        }
    }

    /// Returns true if the server may still execute a withdrawal that was sent to it.
    pub(super) const fn may_execute_late(&self) -> bool {
        self.open > 0 || self.is_uncertain
    }

    /// Returns true if the server has to acknowledge the withdrawal of `withdrawn`.
    pub(super) const fn must_acknowledge(&self, withdrawn: i64) -> bool {
        0 < self.open && self.open <= withdrawn
    }
}
