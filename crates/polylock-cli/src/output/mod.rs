//! What polylock says: notes and errors on stderr, data on stdout, events as JSON lines.

mod event;
mod table;
mod waiting;
mod warnings;

use std::{
    fmt,
    io::{self, Write as _},
};

use anstyle::{AnsiColor, Style};

pub(crate) use event::{Event, Sink, What};
pub(crate) use table::{described, lock_object, lock_text, milliseconds, notice_text, seconds};
pub(crate) use waiting::{Waiting, position};

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
    fn warning(&self, text: impl fmt::Display) {
        if !self.quiet && self.is_text() {
            say(WARNING, format_args!("warning: {text}"));
        }
    }

    /// What is good to know.
    pub(crate) fn note(&self, text: impl fmt::Display) {
        if !self.quiet && self.is_text() {
            say(NOTE, text);
        }
    }

    /// What must be known, also by those who asked for quiet.
    pub(crate) fn warn(&self, text: impl fmt::Display) {
        if self.is_text() {
            say(ERROR, text);
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
            Format::Text => say(ERROR, &failure.message),
            Format::Json | Format::Jsonl => {
                let what = serde_json::json!({
                    "ts": crate::wall_clock::timestamp(), "event": "error",
                    "exit_code": failure.code, "reason": failure.message,
                });
                line(what);
            }
        }
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

/// One line on stderr. If that is gone, nobody is left to tell.
fn say(style: Style, text: impl fmt::Display) {
    writeln!(anstream::stderr(), "{style}polylock:{style:#} {text}").ok();
}

/// One line of JSON on stderr.
fn line(object: impl fmt::Display) {
    writeln!(io::stderr(), "{object}").ok();
}
