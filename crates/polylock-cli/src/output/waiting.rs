//! The waiting display: the holder of the lock, the queue position, and the time waited.

use std::{
    fmt::Write as _,
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};
use polylock::{Clock, LockName, LockStatus, Outage, OwnerId, SystemClock};

use super::{
    Output, stderr,
    table::{notice_text, ordinal, owner_and_label, rounded, seconds},
};

/// The interval between lines with `--verbose` if there is no terminal.
const REPEAT_INTERVAL: Duration = Duration::from_secs(30);

/// The duration from which an outage is reported if there is no terminal.
const OUTAGE_DELAY: Duration = Duration::from_secs(1);

/// The maximum number of frames in a second.
const FRAMES_PER_SECOND: u8 = 20;

/// The terminal on stderr. Drawing does not wait for it: a frame is dropped if the previous one has not been written.
#[derive(Debug, Default)]
struct Screen {
    frame: Mutex<String>,
    /// True if the next frame removes the display.
    is_last: Arc<AtomicBool>,
}

impl Screen {
    fn add(&self, text: std::fmt::Arguments<'_>) -> io::Result<()> {
        self.frame.lock().unwrap_or_else(PoisonError::into_inner).write_fmt(text).map_err(io::Error::other)
    }

    /// Moves the cursor by `number` cells in a direction.
    fn step(&self, number: usize, direction: char) -> io::Result<()> {
        if number == 0 { Ok(()) } else { self.add(format_args!("\u{1b}[{number}{direction}")) }
    }
}

impl TermLike for Screen {
    fn width(&self) -> u16 {
        match rustix::termios::tcgetwinsize(io::stderr()) {
            Ok(size) if size.ws_col > 0 => size.ws_col,
            _ => 80,
        }
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.step(n, 'A')
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.step(n, 'B')
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.step(n, 'C')
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.step(n, 'D')
    }

    fn write_line(&self, s: &str) -> io::Result<()> {
        self.add(format_args!("{s}\n"))
    }

    fn write_str(&self, s: &str) -> io::Result<()> {
        self.add(format_args!("{s}"))
    }

    fn clear_line(&self) -> io::Result<()> {
        self.add(format_args!("\r\u{1b}[2K"))
    }

    fn flush(&self) -> io::Result<()> {
        let frame = std::mem::take(&mut *self.frame.lock().unwrap_or_else(PoisonError::into_inner));
        stderr::draw(frame, self.is_last.load(Ordering::Relaxed));
        Ok(())
    }
}

/// The display of one wait: a line that is redrawn on a terminal, otherwise an occasional line.
#[derive(Debug)]
pub(crate) struct WaitDisplay {
    output: Output,
    /// The store, without secrets.
    store: String,
    spinner: Option<ProgressBar>,
    is_last: Arc<AtomicBool>,
    last_shown: Option<Duration>,
    /// True if the last line reported an outage.
    outage_is_shown: bool,
}

impl WaitDisplay {
    /// Starts the display. On a terminal it has a spinner.
    pub(crate) fn begin(output: Output, store: &str) -> Self {
        let hidden = output.is_quiet() || !output.is_text();
        let screen = Screen::default();
        let is_last = screen.is_last.clone();
        let target = || ProgressDrawTarget::term_like_with_hz(Box::new(screen), FRAMES_PER_SECOND);
        let spinner = (!hidden && !ProgressDrawTarget::stderr().is_hidden())
            .then(|| ProgressBar::with_draw_target(None, target()));
        if let (Some(bar), Ok(style)) = (&spinner, ProgressStyle::with_template("{spinner} {msg}")) {
            bar.set_style(style);
        }
        Self { output, store: store.to_owned(), spinner, is_last, last_shown: None, outage_is_shown: false }
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
}

impl<'a> WaitState<'a> {
    pub(crate) fn new(
        name: &'a LockName,
        status: Option<(&'a LockStatus, &'a OwnerId)>,
        waited: Duration,
        limit: Option<Duration>,
    ) -> Self {
        Self { name, status, waited, limit, outage: None }
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
            parts.push(format!(
                "store unreachable for {}, giving up in {} ({})",
                seconds(now.since(outage.since)),
                seconds(outage.until.since(now)),
                outage.error
            ));
        } else if let Some((status, owner)) = self.status {
            parts.extend(holders(status));
            if let Some(index) = position(status, owner) {
                parts.push(format!("you are {} of {}", ordinal(index), status.waiters.len()));
            }
        }
        let limit = self.limit.map_or_else(String::new, |limit| format!(" of {}", rounded(limit)));
        parts.push(format!("waited {}{limit}", seconds(self.waited)));
        format!("{}: {}", self.name, parts.join(" · "))
    }
}

impl Drop for WaitDisplay {
    fn drop(&mut self) {
        if let Some(bar) = &self.spinner {
            self.is_last.store(true, Ordering::Relaxed);
            bar.finish_and_clear();
        }
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

/// Returns the queue position of `owner`, counted from one.
pub(crate) fn position(status: &LockStatus, owner: &OwnerId) -> Option<usize> {
    status.waiters.iter().position(|waiter| waiter.owner == *owner).map(|index| index + 1)
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
