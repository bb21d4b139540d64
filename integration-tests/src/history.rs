//! The critical sections that the processes of a test record. [`polylock_testkit::history`] checks them, and
//! [`polylock_bench::Summary`] has their numbers.

use std::{fs, io, path::Path};

use polylock_testkit::history::Section;

/// Reads the sections that all processes recorded, each in its own file in `directory`.
///
/// # Panics
/// If they can't be read.
#[must_use]
pub fn read_all(directory: &Path) -> Vec<Section> {
    let read = |file: io::Result<fs::DirEntry>| fs::read_to_string(file?.path());
    let texts =
        fs::read_dir(directory).and_then(|files| files.map(read).collect::<io::Result<Vec<String>>>());
    let text = texts.unwrap_or_else(|error| panic!("{}: {error}", directory.display())).concat();
    polylock_testkit::history::read(&text).unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
}
