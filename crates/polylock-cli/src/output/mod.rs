//! What polylock says: notes and errors on stderr, data on stdout, events as JSON lines.

mod event;
mod sink;
mod stderr;
mod table;
mod waiting;
mod warnings;
mod writer;

use std::{
    fmt,
    io::{self, Write as _},
};

use anstyle::{AnsiColor, Style};

pub(crate) use event::{Event, What};
pub(crate) use sink::Sink;
pub(crate) use table::{described, lock_object, lock_text, milliseconds, notice_text, rounded, seconds};
pub(crate) use waiting::{Seen, Waiting, position};

use self::writer::Weight;
use crate::{
    args::{Color, Format, Global},
    exit::{Failure, INTERNAL},
};

/// How to speak.
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
        // A panic is reported without waiting for a reader of stderr either: unwinding then releases the lock.
        std::panic::set_hook(Box::new(|panic| say(ERROR, panic, Weight::Essential)));
        let output = Self { format: global.output, quiet: global.quiet, verbose: global.verbose };
        warnings::show(output);
        output
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    pub(crate) fn is_verbose(&self) -> bool {
        self.verbose
    }

    pub(crate) fn is_text(&self) -> bool {
        self.format == Format::Text
    }

    /// What a store warns of: something about it may break locks.
    pub(crate) fn warning(&self, text: impl fmt::Display) {
        if !self.quiet && self.is_text() {
            say(WARNING, format_args!("warning: {text}"), Weight::Ordinary);
        }
    }

    /// What is good to know.
    pub(crate) fn note(&self, text: impl fmt::Display) {
        if !self.quiet && self.is_text() {
            say(NOTE, text, Weight::Ordinary);
        }
    }

    /// What must be known, also by those who asked for quiet.
    pub(crate) fn warn(&self, text: impl fmt::Display) {
        if self.is_text() {
            say(ERROR, text, Weight::Ordinary);
        }
    }

    /// What only the curious want to know.
    pub(crate) fn detail(&self, text: impl fmt::Display) {
        if self.verbose {
            self.note(text);
        }
    }

    /// What went wrong.
    pub(crate) fn error(&self, failure: &Failure) {
        match self.format {
            Format::Text => say(ERROR, &failure.message, Weight::Essential),
            Format::Json | Format::Jsonl => {
                let what = serde_json::json!({
                    "ts": crate::wall_clock::timestamp(), "event": "error",
                    "exit_code": failure.code, "reason": failure.message,
                });
                stderr::json(&what.to_string(), Weight::Essential);
            }
        }
    }

    /// A question on stderr, written when this returns.
    pub(crate) fn question(&self, text: &str) {
        stderr::text(text.to_owned(), Weight::Essential);
        stderr::flush();
    }

    /// Waits until everything was written, as long as somebody reads it.
    pub(crate) fn finish(&self) {
        stderr::flush();
    }

    /// Data on stdout. A reader that has gone away is no error: it has had what it wanted.
    pub(crate) fn data(&self, text: &str) -> Result<(), Failure> {
        let mut stdout = anstream::stdout().lock();
        match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(Failure::new(INTERNAL, format!("can't write to stdout: {error}")))
            }
            _ => Ok(()),
        }
    }
}

/// Queues one line for stderr.
fn say(style: Style, text: impl fmt::Display, weight: Weight) {
    stderr::line(&format!("{style}polylock:{style:#} {text}"), weight);
}
