//! What is written down about one run: the lines of the status file.

use polylock::{Guard, LockName, Mode, OwnerId};

use crate::output::{Event, Sink, What, milliseconds};

/// What one run writes down.
#[derive(Debug)]
pub(super) struct Journal {
    sink: Sink,
    pub(super) name: LockName,
    pub(super) mode: Mode,
    pub(super) owner: OwnerId,
    pub(super) label: String,
    pub(super) backend: Option<&'static str>,
    token: Option<polylock::FencingToken>,
}

impl Journal {
    pub(super) fn new(sink: Sink, name: LockName, mode: Mode, owner: OwnerId, label: String) -> Self {
        Self { sink, name, mode, owner, label, backend: None, token: None }
    }

    /// The event that `what` happened just now.
    pub(super) fn event(&self, what: What) -> Event {
        let mut event =
            Event::new(what, self.name.as_str(), self.mode, &self.owner, &self.label).token(self.token);
        event.backend = self.backend;
        event
    }

    /// Writes it down.
    pub(super) fn write(&mut self, event: &Event) {
        self.sink.write(event);
    }

    /// Writes down what happened to the lock that is held.
    pub(super) fn held(&mut self, what: What, guard: &Guard) {
        self.token = Some(guard.fencing_token());
        let mut event = self.event(what);
        event.expires_in_ms = Some(milliseconds(guard.remaining()));
        self.write(&event);
    }

    /// Writes down the last line.
    pub(super) fn verdict(&mut self, verdict: &'static str, exit_code: Option<u8>, reason: Option<String>) {
        let mut event = self.event(What::Verdict);
        event.verdict = Some(verdict);
        event.exit_code = exit_code;
        event.reason = reason;
        self.write(&event);
    }
}
