//! The file of `--html`.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::fifo::{is_fifo, is_without_reader, open_at_once};
use crate::exit::{CANT_CREATE, Failure};

/// A file that is opened before the work for its page begins, so that one that can't be written is reported at once.
#[derive(Debug)]
pub(crate) struct PageFile {
    path: PathBuf,
    file: File,
}

impl PageFile {
    /// Opens the file, and leaves its text as it is. A FIFO must have a reader.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let opened = match is_fifo(path) {
            true => open_at_once(path).and_then(|file| {
                let flags = fcntl_getfl(&file)?;
                fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
                Ok(file)
            }),
            false => OpenOptions::new().create(true).write(true).truncate(false).open(path),
        };
        let file = opened.map_err(|error| match is_without_reader(&error) {
            true => not_written(path, &"nobody reads this FIFO"),
            false => not_written(path, &error),
        })?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Replaces its text.
    pub(crate) fn write(mut self, page: &str) -> Result<(), Failure> {
        let written = self.truncate().and_then(|()| self.file.write_all(page.as_bytes()));
        written.map_err(|error| not_written(&self.path, &error))
    }

    fn truncate(&self) -> io::Result<()> {
        // A pipe and a terminal have no length.
        if self.file.metadata()?.is_file() { self.file.set_len(0) } else { Ok(()) }
    }
}

fn not_written(path: &Path, problem: &dyn std::fmt::Display) -> Failure {
    Failure::new(CANT_CREATE, format!("{} can't be written: {problem}", path.display()))
}
