//! Fencing tokens: one more than the last token in the lock's blob, written under the lease.
//!
//! Only the client that has acquired the lease may write. The reply to the acquisition contains the blob's ETag, which leases do not
//! change. So a client that remembers the token that it wrote with the same ETag need not read it.
//!
//! A store never deletes the blob. If another program does, the number in it is lost, too, and the first token of the new blob comes from
//! the service's clock, in microseconds. It is greater than all tokens of the old blob:
//! 1. The service's ETags are times: of the last change of the blob, in units of 100 ns since the year 1. `Last-Modified` has their
//!    whole seconds. The first token of a blob is the time of its creation plus one second.
//! 2. Each later token is one more, and a grant takes longer than a microsecond. So the tokens of a blob never pass the current time
//!    plus one second.
//! 3. The new blob was created after the last grant of the old one.
//!
//! An emulator's ETags are random. If an ETag does not agree with `Last-Modified`, the first token is the next whole second after the first
//! grant. Then two blobs of one name that are both created and granted within one second are not distinguished.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
};

use azure_core::{http::Etag, time::OffsetDateTime};
use polylock_core::{FencingToken, LockName, sync::lock};

use crate::{blobs::Acquired, record::Record};

/// The number of locks with a cached record. A lock without one costs one more request.
const CACHE_SIZE: usize = 4096;

/// Returns the token after `last`, or the first token of a blob without one.
pub(crate) fn next_token(last: Option<&Record>, acquired: &Acquired) -> Option<FencingToken> {
    match last {
        Some(last) => FencingToken::new(last.token.as_i64().checked_add(1)?),
        None => FencingToken::new(change_time(acquired)?.checked_add(SECOND)?),
    }
}

/// A second in the unit of tokens.
const SECOND: i64 = 1_000_000;

/// Returns the time in microseconds of the blob's last change, if its ETag is a time; otherwise the second when its lease was acquired.
fn change_time(acquired: &Acquired) -> Option<i64> {
    let modified = acquired.modified.map(OffsetDateTime::unix_timestamp);
    let exact =
        acquired.etag.as_ref().and_then(micros).filter(|micros| Some(micros.div_euclid(SECOND)) == modified);
    exact.or_else(|| acquired.date?.unix_timestamp().checked_mul(SECOND))
}

/// Converts an ETag such as `"0x8D7BB11167352C9"` into its time, in microseconds since 1970.
fn micros(etag: &Etag) -> Option<i64> {
    const SINCE_THE_YEAR_1: i64 = 62_135_596_800 * SECOND;
    let ticks = etag.as_ref().trim_matches('"').strip_prefix("0x")?;
    Some(i64::from_str_radix(ticks, 16).ok()? / 10 - SINCE_THE_YEAR_1)
}

/// The records that this process has written last, each with the ETag of its blob.
#[derive(Debug, Default)]
pub(crate) struct RecordCache(Mutex<HashMap<LockName, (Etag, Record)>>);

impl RecordCache {
    /// Returns the record in the blob of `name` if the blob has this ETag.
    pub(crate) fn find(&self, name: &LockName, etag: Option<&Etag>) -> Option<Record> {
        let records = self.lock();
        let (known, record) = records.get(name)?;
        (Some(known) == etag).then(|| record.clone())
    }

    pub(crate) fn insert(&self, name: &LockName, etag: Etag, record: Record) {
        let mut records = self.lock();
        if records.len() >= CACHE_SIZE && !records.contains_key(name) {
            records.clear();
        }
        records.insert(name.clone(), (etag, record));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LockName, (Etag, Record)>> {
        lock(&self.0)
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

    /// Returns an acquisition at this second, with an ETag that is not a time.
    fn acquired(seconds: i64) -> Acquired {
        let etag = Some(Etag::from("\"0x1F\""));
        Acquired { etag, modified: Some(at(seconds)), date: Some(at(seconds)), was_resent: false }
    }

    #[test]
    fn tokens_grow_by_one_and_first_tokens_exceed_all_earlier_ones() {
        let (_, last) = record("n", 41);
        assert_eq!(next_token(Some(&last), &acquired(1_800_000_000)).map(FencingToken::get), Some(42));
        let first = next_token(None, &acquired(1_800_000_000)).unwrap();
        // A million grants in the first second of the blob.
        let last = record("n", first.as_i64() + 999_999).1;
        assert!(next_token(None, &acquired(1_800_000_001)).unwrap() > last.token);
        assert!(first.get() < 1 << 53, "a number that a script reads exactly");
        assert_eq!(next_token(Some(&record("n", i64::MAX).1), &acquired(0)), None);
    }

    /// Uses pairs that the service has returned.
    #[test]
    fn an_etag_is_the_time_of_the_last_change() {
        for (etag, seconds, fraction) in [
            ("\"0x8D909AE32CABAB6\"", 1_619_549_803, 74_219),
            ("\"0x8D7BB11167352C9\"", 1_582_758_636, 170_925),
            ("0x8D6F9CB01A9AB64", 1_561_507_962, 107_786),
        ] {
            let acquired = Acquired {
                etag: Some(Etag::from(etag)),
                modified: Some(at(seconds)),
                // The clock of another machine of the service, which may be a second behind.
                date: Some(at(seconds - 1)),
                was_resent: false,
            };
            let first = next_token(None, &acquired).unwrap().as_i64();
            assert_eq!(first, (seconds + 1) * SECOND + fraction, "{etag}");
            // The blob is deleted, and created again a millisecond later.
            let later = format!(
                "0x{:X}",
                micros(&Etag::from(etag))
                    .map(|_| i64::from_str_radix(etag.trim_matches('"').trim_start_matches("0x"), 16)
                        .unwrap()
                        + 10_000)
                    .unwrap()
            );
            let again = Acquired { etag: Some(Etag::from(later)), ..acquired };
            assert_eq!(next_token(None, &again).unwrap().as_i64(), first + 1000);
        }
    }

    #[test]
    fn an_etag_that_is_not_a_time_is_ignored() {
        let seconds = 1_582_758_636;
        let plain = next_token(None, &acquired(seconds));
        assert_eq!(plain.unwrap().as_i64(), (seconds + 1) * SECOND);
        for etag in [
            "",
            "\"\"",
            "0x",
            "0x8D7BB11167352C9F",
            "W/\"0x8D7BB11167352C9\"",
            "\"0x8D7BB111F7352C9\"",
            "8D7BB11167352C9",
            "0x-8",
            "\u{e9}",
        ] {
            let acquired = Acquired { etag: Some(Etag::from(etag)), ..acquired(seconds) };
            assert_eq!(next_token(None, &acquired), plain, "{etag}");
        }
        assert_eq!(next_token(None, &Acquired { etag: None, modified: None, ..acquired(seconds) }), plain);
        assert_eq!(
            next_token(None, &Acquired { etag: None, modified: None, date: None, ..acquired(seconds) }),
            None
        );
    }

    #[test]
    fn a_changed_etag_misses_the_cache() {
        let records = RecordCache::default();
        let ((name, written), (other, _)) = (record("n", 1), record("m", 1));
        records.insert(&name, Etag::from("1"), written.clone());
        assert_eq!(records.find(&name, Some(&Etag::from("1"))), Some(written));
        assert_eq!(records.find(&name, Some(&Etag::from("2"))), None);
        assert_eq!(records.find(&name, None), None);
        assert_eq!(records.find(&other, Some(&Etag::from("1"))), None);
        for number in 0..CACHE_SIZE * 2 {
            let (name, record) = record(&number.to_string(), 1);
            records.insert(&name, Etag::from("1"), record);
        }
        assert!(records.lock().len() <= CACHE_SIZE);
    }
}
