//! The terms of candidates in other processes: each term has a file, in which its leader records its work.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::Path,
};

use polylock::Moment;

/// A term, as its leader has recorded it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    /// The fencing token.
    pub token: u64,
    /// The process of the leader.
    pub process: u32,
    /// The first poll of the work.
    pub start: Moment,
    /// The last poll of the work in which the term had not ended.
    pub last: Moment,
    /// The number of polls in which the term had ended. The process may be stopped between the check of the lock and such a poll; no library
    /// can prevent that.
    pub late: u64,
}

impl Recorded {
    const SIZE: usize = 32;

    fn to_bytes(self) -> [u8; Self::SIZE] {
        let words = [u64::from(self.process), self.start.as_nanos(), self.last.as_nanos(), self.late];
        let mut bytes = [0; Self::SIZE];
        for (part, word) in bytes.chunks_exact_mut(8).zip(words) {
            part.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn from_bytes(token: u64, bytes: &[u8]) -> Option<Self> {
        let bytes: [u8; Self::SIZE] = bytes.try_into().ok()?;
        let mut words = bytes
            .chunks_exact(8)
            .map(|part| part.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)));
        let process = u32::try_from(words.next()?).ok()?;
        let (start, last) = (Moment::from_nanos(words.next()?), Moment::from_nanos(words.next()?));
        Some(Self { token, process, start, last, late: words.next()? })
    }
}

/// The file of a term.
#[derive(Debug)]
pub struct Journal {
    file: File,
    term: Recorded,
}

impl Journal {
    /// Creates the file of a term in `directory`.
    ///
    /// # Errors
    /// If the file can't be created: another term may have had the same token.
    pub fn create(directory: &Path, token: u64, process: u32, start: Moment) -> io::Result<Self> {
        let term = Recorded { token, process, start, last: start, late: 0 };
        let journal = Self { file: File::create_new(directory.join(token.to_string()))?, term };
        journal.write()?;
        Ok(journal)
    }

    /// Records a poll of the work at `now`.
    ///
    /// # Errors
    /// If the file can't be written.
    pub fn polled(&mut self, now: Moment, is_leading: bool) -> io::Result<()> {
        if is_leading {
            self.term.last = now
        } else {
            self.term.late += 1
        }
        self.write()
    }

    fn write(&self) -> io::Result<()> {
        self.file.write_all_at(&self.term.to_bytes(), 0)
    }
}

/// Returns the terms that have been recorded in `directory`, sorted by token.
///
/// # Panics
/// If the directory can't be read, or has another file.
#[must_use]
pub fn terms(directory: &Path) -> Vec<Recorded> {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut terms: Vec<Recorded> = entries
        .flatten()
        .filter_map(|entry| {
            let token = entry.file_name().to_string_lossy().parse();
            let token = token.unwrap_or_else(|_| panic!("{} is no term", entry.path().display()));
            // The file of a term that begins now may be empty.
            Recorded::from_bytes(token, &fs::read(entry.path()).unwrap_or_default())
        })
        .collect();
    terms.sort_by_key(|term| term.token);
    terms
}

/// Returns the pairs of terms in which the work of the first one did not end before that of the second one.
#[must_use]
pub fn overlaps(terms: &[Recorded]) -> Vec<(Recorded, Recorded)> {
    let pairs = terms
        .iter()
        .enumerate()
        .flat_map(|(at, term)| terms[at + 1..].iter().map(move |next| (*term, *next)));
    pairs.filter(|(term, next)| term.last >= next.start).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_read_as_they_were_recorded_and_overlaps_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let at = Moment::from_nanos;
        let mut first = Journal::create(directory.path(), 7, 40, at(1000)).unwrap();
        first.polled(at(2000), true).unwrap();
        first.polled(at(9000), false).unwrap();
        Journal::create(directory.path(), 12, 41, at(3000)).unwrap();
        File::create(directory.path().join("13")).unwrap();
        let found = terms(directory.path());
        assert_eq!(found[0], Recorded { token: 7, process: 40, start: at(1000), last: at(2000), late: 1 });
        assert_eq!((found.len(), found[1].token, found[1].process), (2, 12, 41));
        assert_eq!(overlaps(&found), []);
        first.polled(at(3000), true).unwrap();
        assert_eq!(overlaps(&terms(directory.path())).len(), 1);
        assert!(Journal::create(directory.path(), 7, 42, at(1)).is_err(), "a token was granted twice");
    }
}
