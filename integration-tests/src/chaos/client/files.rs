//! The files in which a process writes what it has seen, and which survive it.

use std::{
    fmt,
    fs::{self, File},
    io::{self, Write},
    path::Path,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use polylock::Error;
use polylock_core::sync::lock;
use polylock_testkit::history::Section;

use crate::clock::now;

/// A process notes each pause of its own that is longer, with the time.
pub const STALL: Duration = Duration::from_millis(300);

/// The files in which a process writes what it has seen, by their extensions.
pub const FILES: [&str; 5] = ["sections", "stalls", "errors", "loads", "requests"];

/// The directory of the handles that nobody has taken, below that of the histories.
pub(super) const OFFERED: &str = "offered";

/// The directory of those that are being written, or were taken.
pub(super) const TAKEN: &str = "taken";

/// The files of a process. Each line is written at once, so that a kill loses none.
#[derive(Debug)]
pub(super) struct Files([Mutex<File>; FILES.len()]);

impl Files {
    pub(super) fn create(directory: &Path, name: &str) -> io::Result<Self> {
        fs::create_dir_all(directory.join(OFFERED))?;
        fs::create_dir_all(directory.join(TAKEN))?;
        let create = |kind: &str| File::create_new(directory.join(format!("{name}.{kind}"))).map(Mutex::new);
        let [sections, stalls, errors, loads, requests] = FILES;
        Ok(Self([create(sections)?, create(stalls)?, create(errors)?, create(loads)?, create(requests)?]))
    }

    pub(super) fn write(&self, kind: usize, line: impl fmt::Display) {
        // A process that can't write is of no use to the run.
        let written = lock(&self.0[kind]).write_all(format!("{line}\n").as_bytes());
        written.unwrap_or_else(|error| panic!("can't write the history: {error}"));
    }

    pub(super) fn section(&self, section: &Section) {
        self.write(0, section);
    }

    /// Writes an error that only a bug explains.
    pub(super) fn error(&self, client: &str, error: &Error) {
        self.write(2, format_args!("{} {client} {}", now().as_nanos(), error.chain()));
    }
}

/// Notes the times at which this process did not run: it was stopped, or the machine was busy.
pub(super) fn note_stalls(files: Arc<Files>) {
    thread::spawn(move || {
        let mut last = now();
        loop {
            thread::park_timeout(STALL / 10);
            let woken = now();
            if woken.since(last) > STALL {
                files.write(1, format_args!("{} {}", last.as_nanos(), woken.as_nanos()));
            }
            last = woken;
        }
    });
}
