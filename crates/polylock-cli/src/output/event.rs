//! Events as JSON lines: stable, documented in `polylock run --help`.

use std::{
    fs::{File, OpenOptions},
    io::Write,
    path::PathBuf,
};

use polylock::{BreakNotice, FencingToken, Mode, OwnerId};
use serde::Serialize;

use super::Output;
use crate::{
    exit::{CANT_CREATE, Failure},
    wall_clock,
};

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum What {
    Queued,
    Acquired,
    Renewed,
    Lost,
    Unkillable,
    Released,
    Expired,
    Broken,
    Verdict,
}

/// One line. The first ten keys are always there.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Event {
    pub(crate) ts: String,
    pub(crate) event: What,
    pub(crate) name: String,
    pub(crate) mode: &'static str,
    pub(crate) owner: String,
    pub(crate) label: String,
    pub(crate) fencing_token: Option<u64>,
    pub(crate) expires_in_ms: Option<u64>,
    pub(crate) position: Option<usize>,
    pub(crate) backend: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) verdict: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exit_code: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// Whether the lock was broken by force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) forced: Option<bool>,
    /// Who broke the lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) by: Option<String>,
    /// For what reason it was broken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) broken_reason: Option<String>,
}

impl Event {
    /// The event that `event` happened just now.
    pub(crate) fn new(event: What, name: &str, mode: Mode, owner: &OwnerId, label: &str) -> Self {
        Self {
            ts: wall_clock::timestamp(),
            event,
            name: name.to_owned(),
            mode: mode.code(),
            owner: owner.to_string(),
            label: label.to_owned(),
            fencing_token: None,
            expires_in_ms: None,
            position: None,
            backend: None,
            verdict: None,
            exit_code: None,
            reason: None,
            forced: None,
            by: None,
            broken_reason: None,
        }
    }

    /// Of a lock that was broken.
    pub(crate) fn broken(mut self, notice: &BreakNotice) -> Self {
        self.by = notice.by.as_ref().map(ToString::to_string);
        self.broken_reason = notice.reason.as_ref().map(|reason| reason.as_str().to_owned());
        self
    }

    pub(crate) fn token(mut self, token: Option<FencingToken>) -> Self {
        self.fencing_token = token.map(FencingToken::get);
        self
    }

    /// As one line of JSON, without the line's end.
    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Where events go: the status file or descriptor, and stderr with `--output json`.
#[derive(Debug)]
pub(crate) struct Sink {
    file: Option<File>,
    stderr: bool,
}

impl Sink {
    /// Opens the status descriptor, or empties or makes the status file.
    pub(crate) fn open(fd: Option<u32>, path: Option<PathBuf>, output: &Output) -> Result<Self, Failure> {
        let file = match (fd, path) {
            (Some(fd), _) => {
                // Opening its name is the way to a descriptor from outside without raw descriptors.
                let name = PathBuf::from(format!("/dev/fd/{fd}"));
                Some((OpenOptions::new().append(true).open(&name), name))
            }
            (None, Some(path)) => {
                let made = File::create(&path).and_then(|_| OpenOptions::new().append(true).open(&path));
                Some((made, path))
            }
            (None, None) => None,
        };
        let file = match file {
            Some((Err(error), name)) => {
                let problem = format!("status: {} can't be written: {error}", name.display());
                return Err(Failure::new(CANT_CREATE, problem));
            }
            Some((Ok(file), _)) => Some(file),
            None => None,
        };
        Ok(Self { file, stderr: !output.is_text() })
    }

    /// Writes one line. A reader that has gone away must not end what runs under the lock.
    pub(crate) fn write(&mut self, event: &Event) {
        let line = event.to_json() + "\n";
        if self.stderr {
            std::io::stderr().write_all(line.as_bytes()).ok();
        }
        if let Some(file) = &mut self.file
            && file.write_all(line.as_bytes()).is_err()
        {
            self.file = None;
        }
    }
}
