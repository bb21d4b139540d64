//! The waiting display: the holder of the lock, the queue position, and the time waited.

use std::time::Duration;

use polylock::{Clock, LockName, LockStatus, Moment, Outage, OwnerId, SystemClock};

use super::{
    Output,
    screen::Bar,
    table::{notice_text, ordinal, owner_and_label, rounded, seconds},
};

/// The interval between lines with `--verbose` if there is no terminal.
const REPEAT_INTERVAL: Duration = Duration::from_secs(30);

/// The duration from which an outage is reported if there is no terminal.
const OUTAGE_DELAY: Duration = Duration::from_secs(1);

/// The display of one wait: a line that is redrawn on a terminal, otherwise an occasional line.
#[derive(Debug)]
pub(crate) struct WaitDisplay {
    output: Output,
    /// The store, without secrets.
    store: String,
    spinner: Option<Bar>,
    last_shown: Option<Duration>,
    /// True if the last line reported an outage.
    outage_is_shown: bool,
}

impl WaitDisplay {
    /// Starts the display. On a terminal it has a spinner.
    pub(crate) fn begin(output: Output, store: &str) -> Self {
        let hidden = output.is_quiet() || !output.is_text();
        let spinner = if hidden { None } else { Bar::on_terminal(None, "{spinner} {msg}") };
        Self { output, store: store.to_owned(), spinner, last_shown: None, outage_is_shown: false }
    }

    /// Returns true if anything is displayed.
    pub(crate) fn is_shown(&self) -> bool {
        !self.output.is_quiet() && self.output.is_text()
    }

    /// Returns true if it is displayed more than once.
    pub(crate) fn is_repeated(&self) -> bool {
        self.spinner.is_some() || self.is_shown() && self.output.is_verbose()
    }

    /// Displays the wait.
    pub(crate) fn show(&mut self, state: &WaitState<'_>) {
        let line = format!("{} · in {}", state.line(), self.store);
        if let Some(bar) = &self.spinner {
            bar.set_message(line);
            bar.tick();
            return;
        }
        let is_due = self.last_shown.is_none_or(|last_shown| {
            self.output.is_verbose() && state.waited >= last_shown + REPEAT_INTERVAL
        });
        // An outage is reported once, if it lasts.
        let is_outage_due =
            state.outage.is_some_and(|outage| SystemClock.now().since(outage.since) >= OUTAGE_DELAY);
        if is_due || is_outage_due && !self.outage_is_shown {
            self.last_shown = Some(state.waited);
            self.output.note(format!("waiting for {line}"));
        }
        self.outage_is_shown = is_outage_due;
    }
}

/// The state of a wait, as it is displayed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WaitState<'a> {
    name: &'a LockName,
    /// The lock, and the owner of this process.
    status: Option<(&'a LockStatus, &'a OwnerId)>,
    waited: Duration,
    limit: Option<Duration>,
    outage: Option<&'a Outage>,
    /// True if the store is being opened, and has not replied yet.
    is_silent: bool,
}

impl<'a> WaitState<'a> {
    pub(crate) fn new(
        name: &'a LockName,
        status: Option<(&'a LockStatus, &'a OwnerId)>,
        waited: Duration,
        limit: Option<Duration>,
    ) -> Self {
        Self { name, status, waited, limit, outage: None, is_silent: false }
    }

    /// Returns the state before the first reply of the store.
    pub(crate) const fn of_silent_store(self) -> Self {
        Self { is_silent: true, ..self }
    }

    /// Returns the state during an outage of the store.
    pub(crate) fn during<'b>(self, outage: &'b Outage) -> WaitState<'b>
    where
        'a: 'b,
    {
        WaitState { outage: Some(outage), ..self }
    }

    /// `orders: held by host-a:4711 (nightly report), token 41, for 2m 3s, lease 27s · you are 2nd of 3 · waited 12s of 5m`
    fn line(&self) -> String {
        let mut parts = Vec::new();
        if let Some(outage) = self.outage {
            let now = SystemClock.now();
            // An election waits without a limit.
            let end = if outage.until == Moment::NEVER {
                String::new()
            } else {
                format!(", giving up in {}", seconds(outage.until.since(now)))
            };
            parts.push(format!(
                "store unavailable for {}{end} ({})",
                seconds(now.since(outage.since)),
                outage.error
            ));
        } else if self.is_silent {
            parts.push("the store has not replied yet".to_owned());
        } else if let Some((status, owner)) = self.status {
            parts.extend(holders(status));
            if let Some(index) = status.queue_position(owner) {
                parts.push(format!("you are {} of {}", ordinal(index), status.waiters.len()));
            }
        }
        let limit = self.limit.map_or_else(String::new, |limit| format!(" of {}", rounded(limit)));
        parts.push(format!("waited {}{limit}", seconds(self.waited)));
        format!("{}: {}", self.name, parts.join(" · "))
    }
}

/// Returns the holders of the lock; `None` if it is free.
fn holders(status: &LockStatus) -> Option<String> {
    let (holder, others) = status.holders.split_first()?;
    let token = holder.token.map_or_else(String::new, |token| format!(", token {token}"));
    let others = if others.is_empty() { String::new() } else { format!(" and {} more", others.len()) };
    let broken =
        holder.broken.as_ref().map_or_else(String::new, |notice| format!(", {}", notice_text(notice)));
    Some(format!(
        "held by {}{others}{token}, for {}, lease {}{broken}",
        owner_and_label(holder),
        seconds(holder.age),
        seconds(holder.expires_in)
    ))
}

#[cfg(test)]
mod tests {
    use polylock::{Entry, FencingToken, Mode};

    use super::*;

    #[test]
    fn the_line_shows_the_holder_and_the_queue_position() {
        let id = |text: &str| OwnerId::new(text).unwrap();
        let entry = |holder: &str, label: &str, token: Option<i64>| {
            Entry::new(
                Mode::Exclusive,
                id(holder),
                label,
                token.and_then(FencingToken::new),
                Duration::from_millis(123_400),
                Duration::from_millis(27_900),
            )
        };
        let name = LockName::new("orders").unwrap();
        let status = LockStatus::new(
            name.clone(),
            vec![entry("host-a:4711", "nightly report", Some(41))],
            vec![entry("b:1", "", None), entry("me:2", "", None), entry("c:3", "", None)],
        );
        let owner = id("me:2");
        let waited = Duration::from_millis(12_345);
        let state = WaitState::new(&name, Some((&status, &owner)), waited, None);
        let text = state.line();
        assert_eq!(
            text,
            "orders: held by host-a:4711 (nightly report), token 41, for 2m 3s, lease 27s · you are 2nd of 3 · waited 12s"
        );
        let limit = Some(Duration::from_secs(300));
        assert_eq!(WaitState::new(&name, None, Duration::ZERO, limit).line(), "orders: waited 0s of 5m");
    }
}
