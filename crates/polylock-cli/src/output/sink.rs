//! The destinations of events: the status file or descriptor, and stderr with `--output json`.

use std::{
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{OFlags, fcntl_getfl},
    io::Errno,
};

use super::{
    Event, EventKind, Output,
    fifo::{is_fifo, is_without_reader, open_at_once},
    stderr,
    writer::{Weight, Writer},
};
use crate::exit::{CANT_CREATE, Failure};

/// Writes events without waiting for a reader.
#[derive(Debug)]
pub(crate) struct Sink {
    status: Option<Writer>,
    stderr: bool,
    output: Output,
    /// True if an unread status file or descriptor was reported.
    is_reported: bool,
}

impl Sink {
    /// Opens the status descriptor, or truncates or creates the status file.
    pub(crate) fn open(fd: Option<u32>, path: Option<PathBuf>, output: &Output) -> Result<Self, Failure> {
        let file = match (fd, path) {
            (Some(fd), _) => Some((descriptor(fd).and_then(Writer::start), format!("file descriptor {fd}"))),
            (None, Some(path)) => {
                let name = path.display().to_string();
                Some((open_file(path, output), name))
            }
            (None, None) => None,
        };
        let status = file.map(|(writer, name)| {
            writer.map_err(|error| {
                Failure::new(
                    CANT_CREATE,
                    format!("status: {name} can't be written: {error}; use a writable file or descriptor"),
                )
            })
        });
        Ok(Self {
            status: status.transpose()?,
            stderr: !output.is_text(),
            output: *output,
            is_reported: false,
        })
    }

    /// Returns true if the events are written to any destination.
    pub(crate) fn has_destination(&self) -> bool {
        self.status.is_some() || self.stderr
    }

    /// Writes one line. A closed or stalled reader must not end the command under the lock.
    pub(crate) fn write(&mut self, event: &Event) {
        let (line, weight) = (line(event), event.event.weight());
        let report = |dropped: u64| {
            let mut report = Event { event: EventKind::Dropped, ..event.clone() };
            report.dropped = Some(dropped);
            line_of_report(report)
        };
        if self.stderr {
            match stderr::dropped(weight) {
                0 => {}
                dropped => drop(stderr::event(report(dropped), Weight::Essential)),
            }
            stderr::event(line.clone(), weight);
        }
        let Some(status) = &self.status else { return };
        match status.dropped(weight) {
            0 => {}
            dropped => drop(status.send(report(dropped), Weight::Essential)),
        }
        if !status.send(line, weight) && !std::mem::replace(&mut self.is_reported, true) {
            self.output.alert("the events in the status file or descriptor are not read; further events are dropped until they are");
        }
    }

    /// Waits until all events are written, as long as they are read.
    pub(crate) fn finish(&self) {
        if let Some(status) = &self.status {
            status.flush();
        }
    }
}

fn line(event: &Event) -> Vec<u8> {
    (event.to_json() + "\n").into_bytes()
}

/// Returns the line of a report on dropped events. It has only the first ten keys of the event that follows it.
fn line_of_report(mut report: Event) -> Vec<u8> {
    (report.verdict, report.exit_code, report.reason) = (None, None, None);
    (report.forced, report.by, report.broken_reason) = (None, None, None);
    (report.expires_in_ms, report.position) = (None, None);
    line(&report)
}

/// Opens the status file, and truncates or creates it.
///
/// Opening a FIFO blocks until somebody reads it, so a thread does that if nobody does yet.
fn open_file(path: PathBuf, output: &Output) -> io::Result<Writer> {
    if !is_fifo(&path) {
        let opened = File::create(&path).and_then(|_| OpenOptions::new().append(true).open(&path));
        return opened.and_then(Writer::start);
    }
    match open_at_once(&path) {
        Err(error) if is_without_reader(&error) => {
            output.note(format!(
                "nobody reads the FIFO {} yet; the events are written when somebody does",
                path.display()
            ));
            Writer::start_with(move || OpenOptions::new().append(true).open(path))
        }
        opened => opened.and_then(Writer::start),
    }
}

/// The directory with an entry for each open descriptor of this process.
const DESCRIPTORS: &str = if cfg!(target_os = "linux") { "/proc/self/fd" } else { "/dev/fd" };

/// Checks that the caller has opened the descriptor with this number. Call it before this process opens any: the number could become one of
/// its own, to which [`Sink::open`] would write.
///
/// # Errors
/// If it is not open.
pub(crate) fn ensure_inherited(fd: u32) -> Result<(), Failure> {
    // No descriptor is opened for this look, so it can't find itself.
    let entry = fs::symlink_metadata(format!("{DESCRIPTORS}/{fd}"));
    match entry {
        Err(error) if error.kind() == io::ErrorKind::NotFound && Path::new(DESCRIPTORS).is_dir() => {
            let problem = format!(
                "status: file descriptor {fd} is not open; open it for the command, as in {fd}>events"
            );
            Err(Failure::new(CANT_CREATE, problem))
        }
        _ => Ok(()),
    }
}

/// Opens a copy of the inherited descriptor with this number.
fn descriptor(number: u32) -> io::Result<File> {
    // Opening it by name would fail for a socket, and for a file that this user can't open.
    let file = copy(number).or_else(|error| match error.raw_os_error() {
        Some(number) if number == Errno::BADF.raw_os_error() => Err(error),
        // This is an old kernel, or a filter of system calls. The reader of a pipe may have closed its end.
        _ => open_at_once(Path::new(&format!("/dev/fd/{number}"))),
    })?;
    let mode = fcntl_getfl(&file)? & OFlags::RWMODE;
    if mode == OFlags::RDONLY { Err(io::Error::other("it is open for reading only")) } else { Ok(file) }
}

/// Returns a copy of a descriptor of which only the number is known.
#[cfg(target_os = "linux")]
fn copy(number: u32) -> io::Result<File> {
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
    let number = i32::try_from(number).map_err(|_| io::Error::from(Errno::BADF))?;
    let this = pidfd_open(getpid(), PidfdFlags::empty())?;
    Ok(pidfd_getfd(this, number, PidfdGetfdFlags::empty())?.into())
}

#[cfg(not(target_os = "linux"))]
fn copy(_: u32) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}
