//! The status log of one run: the lines of the status file.

use std::time::Duration;

use polylock::{FencingToken, Guard, LockName, LostReason, Mode, OwnerId};

use crate::output::{Event, EventKind, Sink, milliseconds};

/// Writes the events of one run.
#[derive(Debug)]
pub(super) struct StatusLog {
    sink: Sink,
    pub(super) name: LockName,
    pub(super) mode: Mode,
    pub(super) owner: OwnerId,
    pub(super) label: String,
    pub(super) backend: Option<&'static str>,
    token: Option<FencingToken>,
}

impl StatusLog {
    pub(super) fn new(sink: Sink, name: LockName, mode: Mode, owner: OwnerId, label: String) -> Self {
        Self { sink, name, mode, owner, label, backend: None, token: None }
    }

    /// Returns true if the events are written to any destination.
    pub(super) fn has_destination(&self) -> bool {
        self.sink.has_destination()
    }

    /// Writes an event of the current time.
    pub(super) fn write(&mut self, kind: EventKind) {
        let event = self.event(kind);
        self.sink.write(&event);
    }

    /// Writes an event of the held lock.
    pub(super) fn write_hold(&mut self, kind: EventKind, guard: &Guard) {
        self.token = Some(guard.fencing_token());
        let mut event = self.event(kind);
        event.expires_in_ms = Some(milliseconds(guard.remaining()));
        self.sink.write(&event);
    }

    /// Writes that the lock is left to expire in `time`.
    pub(super) fn expires(&mut self, time: Duration) {
        let mut event = self.event(EventKind::Expired);
        event.expires_in_ms = Some(milliseconds(time));
        self.sink.write(&event);
    }

    /// Writes the position in the queue, counted from one.
    pub(super) fn queued(&mut self, position: usize) {
        let mut event = self.event(EventKind::Queued);
        event.position = Some(position);
        self.sink.write(&event);
    }

    /// Writes that the lock was lost; if it was broken, with the owner and the reason of the break.
    pub(super) fn lost(&mut self, reason: &LostReason) {
        let mut event = self.event(EventKind::Lost);
        event.reason = Some(reason.to_string());
        if let LostReason::Broken(notice) = reason {
            event = event.broken(notice);
        }
        self.sink.write(&event);
    }

    /// Writes an event with its reason.
    pub(super) fn write_with_reason(&mut self, kind: EventKind, reason: String) {
        let mut event = self.event(kind);
        event.reason = Some(reason);
        self.sink.write(&event);
    }

    /// Writes the last line.
    pub(super) fn verdict(&mut self, verdict: &'static str, exit_code: Option<u8>, reason: Option<String>) {
        let mut event = self.event(EventKind::Verdict);
        event.verdict = Some(verdict);
        event.exit_code = exit_code;
        event.reason = reason;
        self.sink.write(&event);
    }

    /// Waits until all lines are written, as long as they are read.
    pub(super) fn finish(&self) {
        self.sink.finish();
    }

    fn event(&self, kind: EventKind) -> Event {
        let mut event =
            Event::new(kind, self.name.as_str(), self.mode, &self.owner, &self.label).token(self.token);
        event.backend = self.backend;
        event
    }
}
