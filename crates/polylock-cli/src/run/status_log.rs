//! The status log of one run: the lines of the status file.

use std::time::Duration;

use polylock::{FencingToken, LockName, LostReason, Mode, MultiGuard, OwnerId};

use super::lock_names::LockNames;
use crate::output::{AlsoLock, Event, EventKind, Sink, milliseconds};

/// Writes the events of one run.
#[derive(Debug)]
pub(super) struct StatusLog {
    sink: Sink,
    pub(super) names: LockNames,
    pub(super) mode: Mode,
    pub(super) owner: OwnerId,
    pub(super) label: String,
    pub(super) backend: Option<&'static str>,
    /// The tokens of the locks, in the order of their names here; empty before they are held.
    tokens: Vec<FencingToken>,
}

impl StatusLog {
    pub(super) fn new(sink: Sink, names: LockNames, mode: Mode, owner: OwnerId, label: String) -> Self {
        Self { sink, names, mode, owner, label, backend: None, tokens: Vec::new() }
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

    /// Writes an event of the held locks.
    pub(super) fn write_hold(&mut self, kind: EventKind, guard: &MultiGuard) {
        self.tokens = self.names.held().filter_map(|name| guard.fencing_token(name)).collect();
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

    /// Writes the position in the queue of the lock `name`, counted from one.
    pub(super) fn queued(&mut self, name: &LockName, position: usize) {
        let mut event = self.event_of(EventKind::Queued, name);
        event.position = Some(position);
        self.sink.write(&event);
    }

    /// Writes that the lock `name` was lost; if it was broken, with the owner and the reason of the break.
    pub(super) fn lost(&mut self, name: &LockName, reason: &LostReason) {
        let mut event = self.event_of(EventKind::Lost, name);
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

    /// Returns an event of all locks of the run.
    fn event(&self, kind: EventKind) -> Event {
        let mut event = self.event_of(kind, self.names.main());
        let tokens = self.tokens.iter().skip(1).map(|token| Some(token.get())).chain(std::iter::repeat(None));
        let also = self.names.also().iter().zip(tokens);
        event.also = also
            .map(|(name, fencing_token)| AlsoLock { name: name.as_str().to_owned(), fencing_token })
            .collect();
        event
    }

    /// Returns an event of the lock `name`.
    fn event_of(&self, kind: EventKind, name: &LockName) -> Event {
        let index =
            self.names.iter().zip(self.names.held()).position(|(of, held)| of == name || held == name);
        let token = index.and_then(|index| self.tokens.get(index).copied());
        let name = name.semaphore().unwrap_or(name.as_str());
        let mut event = Event::new(kind, name, self.mode, &self.owner, &self.label).token(token);
        event.backend = self.backend;
        event.slot = self.names.slot();
        event
    }
}
