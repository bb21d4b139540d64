//! Fencing tokens: one more than the last that is written at the lock's blob, under the lease.
//!
//! Who has acquired the lease, and nobody else, may write. The answer to the acquisition tells the blob's ETag, which leases do
//! not change; so who remembers the token that it wrote with the same ETag need not read it.
//!
//! The blob is never deleted by a store. If somebody else does, the number in it is gone with it, and the first token of the new
//! blob is made of the service's clock: the next whole second in microseconds. It is greater than all tokens before:
//! 1. those of the old blob began at the second after its first grant, in microseconds, and each is one more than the last;
//! 2. there are less than a million grants in a second, so they have never passed the service's clock by more than that one
//!    second;
//! 3. the new blob is granted first in a later second than the old one was: then its first token is greater. (Two blobs of one
//!    name that are both made and granted within one second are not told apart.)

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use azure_core::{http::Etag, time::OffsetDateTime};
use polylock_core::{FencingToken, LockName};

use crate::record::Record;

/// Of how many locks the last record is remembered. One that is not costs a request more.
const REMEMBERED: usize = 4096;

/// The token after `last`, or the first of a blob that has none.
pub(crate) fn next(last: Option<&Record>, date: OffsetDateTime) -> Option<FencingToken> {
    match last {
        Some(last) => FencingToken::new(last.token.as_i64().checked_add(1)?),
        None => FencingToken::new(date.unix_timestamp().checked_add(1)?.checked_mul(1_000_000)?),
    }
}

/// What was last written at blobs, and the ETag that they have had since.
#[derive(Debug, Default)]
pub(crate) struct Remembered(Mutex<HashMap<LockName, (Etag, Record)>>);

impl Remembered {
    /// What is written at the blob of `name` if it has this ETag.
    pub(crate) fn find(&self, name: &LockName, etag: Option<&Etag>) -> Option<Record> {
        let remembered = self.lock();
        let (of, record) = remembered.get(name)?;
        (Some(of) == etag).then(|| record.clone())
    }

    pub(crate) fn keep(&self, name: &LockName, etag: Etag, record: Record) {
        let mut remembered = self.lock();
        if remembered.len() >= REMEMBERED && !remembered.contains_key(name) {
            remembered.clear();
        }
        remembered.insert(name.clone(), (etag, record));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LockName, (Etag, Record)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polylock_core::{Mode, Request};
    use std::time::Duration;

    fn record(name: &str, token: i64) -> (LockName, Record) {
        let name = LockName::new(name).unwrap();
        let request = Request::new(name.clone(), Mode::Exclusive, Duration::from_secs(15));
        (name, Record::new(&request, FencingToken::new(token).unwrap(), request.ttl))
    }

    fn at(seconds: i64) -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp(seconds).unwrap()
    }

    #[test]
    fn tokens_count_on_and_start_beyond_all_that_may_have_been_before() {
        let (_, last) = record("n", 41);
        assert_eq!(next(Some(&last), at(1_800_000_000)).map(FencingToken::get), Some(42));
        let first = next(None, at(1_800_000_000)).unwrap();
        // Granted a million times in its first second.
        let last = record("n", first.as_i64() + 999_999).1;
        assert!(next(None, at(1_800_000_001)) > next(Some(&last), at(1_800_000_001)).map(|_| last.token));
        assert!(first.get() < 1 << 53, "a number that a script reads exactly");
        assert_eq!(next(Some(&record("n", i64::MAX).1), at(0)), None);
    }

    #[test]
    fn what_has_changed_is_not_remembered() {
        let remembered = Remembered::default();
        let ((name, mine), (other, _)) = (record("n", 1), record("m", 1));
        remembered.keep(&name, Etag::from("1"), mine.clone());
        assert_eq!(remembered.find(&name, Some(&Etag::from("1"))), Some(mine));
        assert_eq!(remembered.find(&name, Some(&Etag::from("2"))), None);
        assert_eq!(remembered.find(&name, None), None);
        assert_eq!(remembered.find(&other, Some(&Etag::from("1"))), None);
        for number in 0..REMEMBERED * 2 {
            let (name, record) = record(&number.to_string(), 1);
            remembered.keep(&name, Etag::from("1"), record);
        }
        assert!(remembered.lock().len() <= REMEMBERED);
    }
}
