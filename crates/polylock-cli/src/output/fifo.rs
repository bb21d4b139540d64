//! Named pipes. Opening one for writing blocks until a process reads it, which may be never.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileTypeExt,
    path::Path,
};

use rustix::{
    fs::{Mode, OFlags, open},
    io::Errno,
};

pub(super) fn is_fifo(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.file_type().is_fifo())
}

/// Opens an existing file, pipe or terminal to append to it, without waiting. A write to it may return
/// [`WouldBlock`](io::ErrorKind::WouldBlock).
///
/// # Errors
/// For instance if it is a FIFO [without a reader](is_without_reader).
pub(super) fn open_at_once(path: &Path) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(open(path, flags, Mode::empty())?.into())
}

/// Returns true if [`open_at_once`] has failed because nobody reads the FIFO.
pub(super) fn is_without_reader(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NXIO.raw_os_error())
}
