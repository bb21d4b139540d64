//! The status log of one run: the lines of the status file.

use std::time::Duration;

use polylock::{FencingToken, Guard, LockName, LostReason, Mode, OwnerId};

use crate::output::{Event, Sink, What, milliseconds};

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

    /// Whether the events are written anywhere.
    pub(super) fn is_read(&self) -> bool {
        self.sink.is_read()
    }

    /// Writes that `what` happened just now.
    pub(super) fn write(&mut self, what: What) {
        let event = self.event(what);
        self.sink.write(&event);
    }

    /// Writes `what` happened to the lock that is held.
    pub(super) fn held(&mut self, what: What, guard: &Guard) {
        self.token = Some(guard.fencing_token());
        let mut event = self.event(what);
        event.expires_in_ms = Some(milliseconds(guard.remaining()));
        self.sink.write(&event);
    }

    /// Writes that the lock is left to expire in `time`.
    pub(super) fn expires(&mut self, time: Duration) {
        let mut event = self.event(What::Expired);
        event.expires_in_ms = Some(milliseconds(time));
        self.sink.write(&event);
    }

    /// Writes the position in the queue, counted from one.
    pub(super) fn queued(&mut self, position: usize) {
        let mut event = self.event(What::Queued);
        event.position = Some(position);
        self.sink.write(&event);
    }

    /// Writes that the lock was lost; of a lock that was broken, by whom and for what reason.
    pub(super) fn lost(&mut self, reason: &LostReason) {
        let mut event = self.event(What::Lost);
        event.reason = Some(reason.to_string());
        if let LostReason::Broken(notice) = reason {
            event = event.broken(notice);
        }
        self.sink.write(&event);
    }

    /// Writes `what` with its reason.
    pub(super) fn because(&mut self, what: What, reason: String) {
        let mut event = self.event(what);
        event.reason = Some(reason);
        self.sink.write(&event);
    }

    /// Writes the last line.
    pub(super) fn verdict(&mut self, verdict: &'static str, exit_code: Option<u8>, reason: Option<String>) {
        let mut event = self.event(What::Verdict);
        event.verdict = Some(verdict);
        event.exit_code = exit_code;
        event.reason = reason;
        self.sink.write(&event);
    }

    /// Waits until everything was written, as long as somebody reads it.
    pub(super) fn finish(&self) {
        self.sink.finish();
    }

    fn event(&self, what: What) -> Event {
        let mut event =
            Event::new(what, self.name.as_str(), self.mode, &self.owner, &self.label).token(self.token);
        event.backend = self.backend;
        event
    }
}
