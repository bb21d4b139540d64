//! A wall clock of its own for a server, which a test may step. A library that is loaded before those of the server adds an offset to the
//! machine's clock; a C compiler builds it.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::FileExt,
    time::Duration,
};

use super::keeper::Keeper;

/// The wall clock of a server.
#[derive(Debug)]
pub(super) struct WallClock {
    offset: File,
    /// The words before the command of the server.
    pub(super) words: [String; 3],
}

impl WallClock {
    /// Builds the library in the directory of `keeper`. The clock shows the machine's time.
    ///
    /// # Panics
    /// If that is not possible.
    pub(super) fn prepare(keeper: &mut Keeper) -> Self {
        let source = keeper.write("wall_clock.c", include_str!("wall_clock.c"));
        let (library, file) = (keeper.file("wall_clock.so"), keeper.file("wall_clock.offset"));
        keeper.run(["cc", "-O1", "-shared", "-fPIC", "-o", &library, &source]);
        let offset = OpenOptions::new().write(true).create(true).truncate(true).open(&file);
        let offset = offset.unwrap_or_else(|error| panic!("{file}: {error}"));
        let words = ["env".to_owned(), format!("LD_PRELOAD={library}"), format!("POLYLOCK_CLOCK={file}")];
        let clock = Self { offset, words };
        clock.set(true, Duration::ZERO);
        clock
    }

    /// Sets it to this time before or after the machine's.
    ///
    /// # Panics
    /// If the file can't be written.
    pub(super) fn set(&self, is_ahead: bool, by: Duration) {
        let by = i64::try_from(by.as_nanos()).unwrap_or(i64::MAX);
        let offset = if is_ahead { by } else { -by };
        let written = self.offset.write_all_at(&offset.to_ne_bytes(), 0);
        written.unwrap_or_else(|error| panic!("a wall clock: {error}"));
    }
}
