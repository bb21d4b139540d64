//! The lines of `polylock watch`, as text and as JSON.

use std::time::Duration;

use anstyle::{AnsiColor, Style};
use polylock::{Entry, LockName};
use serde::Serialize;

use super::{
    Output,
    table::{EntryObject, milliseconds, notice_text, ordinal, owner_and_label, rounded, seconds},
};
use crate::wall_clock;

/// One event, or one entry of the present state; documented in `polylock watch --help`.
#[derive(Debug, Serialize)]
pub(crate) struct WatchLine<'a> {
    ts: String,
    event: &'static str,
    backend: &'static str,
    name: Option<&'a str>,
    #[serde(flatten)]
    object: Option<EntryObject<'a>>,
    waited_ms: Option<u64>,
    /// The error of an outage.
    reason: Option<&'a str>,
    #[serde(skip)]
    entry: Option<&'a Entry>,
    #[serde(skip)]
    waited: Option<Duration>,
}

impl<'a> WatchLine<'a> {
    /// Creates a line of the current time.
    pub(crate) fn new(event: &'static str, backend: &'static str) -> Self {
        Self {
            ts: wall_clock::timestamp(),
            event,
            backend,
            name: None,
            object: None,
            waited_ms: None,
            reason: None,
            entry: None,
            waited: None,
        }
    }

    /// Adds a holder or a waiter of the lock `name`.
    pub(crate) fn entry(mut self, name: &'a LockName, entry: &'a Entry) -> Self {
        self.name = Some(name.as_str());
        self.object = Some(EntryObject::new(entry, None));
        self.entry = Some(entry);
        self
    }

    /// Adds the position in the queue.
    pub(crate) fn position(mut self, position: usize) -> Self {
        if let Some(object) = &mut self.object {
            object.position = Some(position);
        }
        self
    }

    /// Adds the time for which the holder had waited.
    pub(crate) fn waited(mut self, waited: Option<Duration>) -> Self {
        self.waited = waited;
        self.waited_ms = waited.map(milliseconds);
        self
    }

    /// Adds the error of an outage.
    pub(crate) fn reason(mut self, reason: &'a str) -> Self {
        self.reason = Some(reason);
        self
    }

    /// Returns the line in the format of the output.
    pub(crate) fn to_text(&self, output: &Output) -> String {
        if output.is_text() { self.text() } else { serde_json::to_string(self).unwrap_or_default() + "\n" }
    }

    fn text(&self) -> String {
        let style = match self.event {
            "granted" | "available" => AnsiColor::Green.on_default(),
            "broken" | "expired" | "unavailable" => AnsiColor::Red.on_default(),
            "queued" | "waiting" => AnsiColor::Yellow.on_default(),
            _ => Style::new(),
        };
        // The time of day in UTC, to the second.
        let time = self.ts.get(11..19).unwrap_or(&self.ts);
        let event = format!("{time}Z {style}{:8}{style:#}", self.event);
        let (Some(name), Some(entry)) = (self.name, self.entry) else {
            let reason = self.reason.unwrap_or("the store can be read again");
            return format!("{event} {reason}\n");
        };
        let name = LockName::new(name).map_or_else(|_| name.to_owned(), |name| name.to_string());
        format!("{event} {name}: {}, {}{}\n", owner_and_label(entry), entry.mode, self.details(entry))
    }

    fn details(&self, entry: &Entry) -> String {
        let position = self.object.as_ref().and_then(|object| object.position);
        let waited = self.waited.map_or_else(String::new, |waited| format!(", waited {}", rounded(waited)));
        let token = entry.token.map_or_else(String::new, |token| format!(", token {token}"));
        match (self.event, position) {
            (_, Some(position)) => format!(", {} in line, for {}", ordinal(position), seconds(entry.age)),
            ("granted", _) => format!("{token}{waited}"),
            ("broken", _) => {
                let notice = entry.broken.as_ref().map_or_else(|| "broken".to_owned(), notice_text);
                format!("{token}; {notice}")
            }
            _ => format!("{token}, for {}", seconds(entry.age)),
        }
    }
}

#[cfg(test)]
mod tests {
    use polylock::{FencingToken, Mode, OwnerId};

    use super::*;

    #[test]
    fn a_line_shows_the_event_and_its_entry() {
        let name = LockName::new("orders").unwrap();
        let owner = OwnerId::new("host-a:1").unwrap();
        let second = Duration::from_secs(1);
        let entry =
            |token| Entry::new(Mode::Exclusive, owner.clone(), "nightly", token, 3 * second, 27 * second);
        let text =
            |line: WatchLine<'_>| anstream::adapter::strip_str(&line.text()).to_string()[10..].to_owned();
        let holder = entry(FencingToken::new(6));
        let granted = || WatchLine::new("granted", "memory").entry(&name, &holder).waited(Some(2 * second));
        assert_eq!(text(granted()), "granted  orders: host-a:1 (nightly), EX, token 6, waited 2s\n");
        let (waiter, line) = (entry(None), WatchLine::new("queued", "memory"));
        let queued = line.entry(&name, &waiter).position(2);
        assert_eq!(text(queued), "queued   orders: host-a:1 (nightly), EX, 2nd in line, for 3s\n");
        let ended = WatchLine::new("ended", "memory").entry(&name, &holder);
        assert_eq!(text(ended), "ended    orders: host-a:1 (nightly), EX, token 6, for 3s\n");
        let outage = WatchLine::new("unavailable", "memory").reason("no reply");
        assert_eq!(text(outage), "unavailable no reply\n");
        let object: serde_json::Value =
            serde_json::from_str(&serde_json::to_string(&granted()).unwrap()).unwrap();
        assert_eq!((&object["event"], &object["fencing_token"]), (&"granted".into(), &6.into()));
        assert_eq!((&object["waited_ms"], &object["name"]), (&2000.into(), &"orders".into()));
    }
}
