//! The output of polylock: notes and errors on stderr, data on stdout, events as JSON lines.

mod event;
mod fifo;
#[cfg(test)]
mod fuzz;
#[cfg(feature = "check")]
mod page;
mod screen;
mod sink;
mod stderr;
mod table;
mod waiting;
mod warnings;
mod watch;
mod writer;

use std::{
    fmt,
    io::{self, Write as _},
};

use anstyle::{AnsiColor, Style};

pub(crate) use event::{AlsoLock, Event, EventKind};
#[cfg(feature = "check")]
pub(crate) use page::PageFile;
#[cfg(feature = "check")]
pub(crate) use screen::Bar;
pub(crate) use sink::{Sink, ensure_inherited};
pub(crate) use table::{
    Recipes, last_run_text, lock_object, lock_text, milliseconds, notice_text, owner_and_label, rounded,
    seconds, semaphore_text,
};
pub(crate) use waiting::{WaitDisplay, WaitState};
#[cfg(any(feature = "check", feature = "top"))]
pub(crate) use warnings::capture as capture_warnings;
pub(crate) use watch::WatchLine;

use self::writer::Weight;
use crate::{
    args::{Color, Format, Global},
    exit::{Failure, INTERNAL},
};

/// The options of the output.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    pub(crate) format: Format,
    quiet: bool,
    verbose: bool,
}

const ERROR: Style = AnsiColor::Red.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const NOTE: Style = AnsiColor::Cyan.on_default();

impl Output {
    pub(crate) fn new(global: &Global) -> Self {
        let choice = match global.color {
            Color::Auto => anstream::ColorChoice::Auto,
            Color::Always => anstream::ColorChoice::Always,
            Color::Never => anstream::ColorChoice::Never,
        };
        choice.write_global();
        // A panic is also reported without waiting for a reader of stderr: unwinding then releases the lock.
        std::panic::set_hook(Box::new(|panic| queue_line(ERROR, panic, Weight::Essential)));
        let output = Self { format: global.output, quiet: global.quiet, verbose: global.verbose };
        warnings::show(move |text| output.warning(text));
        output
    }

    /// Returns an output for a process that prints data only, without the hooks of [`new`](Self::new).
    pub(crate) const fn of_worker() -> Self {
        Self { format: Format::Text, quiet: true, verbose: false }
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    pub(crate) fn is_verbose(&self) -> bool {
        self.verbose
    }

    pub(crate) fn is_text(&self) -> bool {
        !self.format.is_json()
    }

    /// Prints a warning of a store: its configuration may break locks.
    pub(crate) fn warning(&self, text: impl fmt::Display) {
        if !self.quiet && self.is_text() {
            queue_line(WARNING, format_args!("warning: {text}"), Weight::Ordinary);
        }
    }

    /// Prints a note.
    pub(crate) fn note(&self, text: impl fmt::Display) {
        if !self.quiet && self.is_text() {
            queue_line(NOTE, text, Weight::Ordinary);
        }
    }

    /// Prints an important message, also with `--quiet`.
    pub(crate) fn alert(&self, text: impl fmt::Display) {
        if self.is_text() {
            queue_line(ERROR, text, Weight::Ordinary);
        }
    }

    /// Prints a detail, with `--verbose` only.
    pub(crate) fn detail(&self, text: impl fmt::Display) {
        if self.verbose {
            self.note(text);
        }
    }

    /// Prints an error.
    pub(crate) fn error(&self, failure: &Failure) {
        match self.format {
            Format::Text | Format::Markdown => queue_line(ERROR, &failure.message, Weight::Essential),
            Format::Json | Format::Jsonl => {
                let event = serde_json::json!({
                    "ts": crate::wall_clock::timestamp(), "event": "error",
                    "exit_code": failure.code, "reason": failure.message,
                });
                stderr::json(&event.to_string(), Weight::Essential);
            }
        }
    }

    /// Prints a question on stderr, and returns when it is written.
    pub(crate) fn question(&self, text: &str) {
        stderr::text(text.to_owned(), Weight::Essential);
        stderr::flush();
    }

    /// Waits until all output is written, as long as it is read.
    pub(crate) fn finish(&self) {
        stderr::flush();
    }

    /// Prints data on stdout. A closed reader is not an error: it has read enough.
    pub(crate) fn data(&self, text: &str) -> Result<(), Failure> {
        self.stream(text).map(drop)
    }

    /// Prints data that somebody has to receive on stdout. A closed reader is an error.
    pub(crate) fn deliver(&self, text: &str) -> Result<(), Failure> {
        match self.stream(text)? {
            true => Ok(()),
            false => Err(Failure::new(INTERNAL, "can't write to stdout: it is a closed pipe")),
        }
    }

    /// Prints the next part of data without an end on stdout. Returns false if the reader has gone away.
    pub(crate) fn stream(&self, text: &str) -> Result<bool, Failure> {
        let mut stdout = anstream::stdout().lock();
        match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(Failure::new(INTERNAL, format!("can't write to stdout: {error}"))),
            Ok(()) => Ok(true),
        }
    }
}

/// Queues one line for stderr.
fn queue_line(style: Style, text: impl fmt::Display, weight: Weight) {
    stderr::line(&format!("{style}polylock:{style:#} {text}"), weight);
}
