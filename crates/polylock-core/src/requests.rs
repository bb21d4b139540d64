//! Tables of a process about its requests, in bounded memory.
//!
//! A store may have to remember something about a request: a lease, an attempt without a reply, a release that is to be repeated.
//! Removing the record at the release is not enough: a hold may be [left to expire](crate::Guard::leave_to_expire), and a release may
//! never be confirmed. So every record expires, and each change of the record may extend it.

use std::{collections::HashMap, hash::Hash};

use crate::{Moment, RequestId};

/// The number of records below which expired ones are not removed.
const MIN_SWEEP: usize = 64;

/// The records of a process about its requests, each kept until a moment. See [`ExpiringTable`].
pub type RequestTable<T> = ExpiringTable<RequestId, T>;

/// A map with records that expire.
///
/// An insertion removes the expired records when the number of records has doubled since the last removal. So the table has at most
/// twice as many records as were live at once, and an insertion takes amortised constant time. [`get`](Self::get) returns an expired
/// record until it is removed: compare [`until`](Self::until) with the time if that matters.
///
/// The caller passes the current time, and protects the table with its own mutex, together with the state that changes with it.
///
/// ```
/// # use std::time::Duration;
/// # use polylock_core::{Clock, RequestId, SystemClock};
/// use polylock_core::requests::RequestTable;
///
/// let mut attempts = RequestTable::new();
/// let (request, now) = (RequestId::random(), SystemClock.now());
/// *attempts.update(request, now, now + Duration::from_secs(30), || 0) += 1;
/// *attempts.update(request, now, now + Duration::from_secs(60), || 0) += 1;
/// assert_eq!(attempts.get(&request), Some(&2));
/// assert_eq!(attempts.until(&request), Some(now + Duration::from_secs(60)));
///
/// // The holds of these requests were left to expire, so no release removes the records.
/// for _ in 0..1000 {
///     *attempts.update(RequestId::random(), now, now, || 0) += 1;
/// }
/// assert!(attempts.len() < 100);
/// assert_eq!(attempts.remove(&request), Some(2));
/// ```
#[derive(Debug, Clone)]
pub struct ExpiringTable<K, T> {
    records: HashMap<K, Record<T>>,
    /// The number of records at which the expired ones are removed.
    sweep_at: usize,
}

#[derive(Debug, Clone)]
struct Record<T> {
    until: Moment,
    state: T,
}

impl<K, T> Default for ExpiringTable<K, T> {
    fn default() -> Self {
        Self { records: HashMap::new(), sweep_at: MIN_SWEEP }
    }
}

impl<K: Eq + Hash, T> ExpiringTable<K, T> {
    /// Creates an empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the state of `key`.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<&T> {
        self.records.get(key).map(|record| &record.state)
    }

    /// Returns the state of `key`, to change it without extending the record.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut T> {
        self.records.get_mut(key).map(|record| &mut record.state)
    }

    /// Returns the moment until which the record of `key` is kept.
    #[must_use]
    pub fn until(&self, key: &K) -> Option<Moment> {
        self.records.get(key).map(|record| record.until)
    }

    /// Returns the state of `key`, after inserting `new()` if there is none. The record is kept until `until` at least.
    pub fn update(&mut self, key: K, now: Moment, until: Moment, new: impl FnOnce() -> T) -> &mut T {
        if self.records.len() >= self.sweep_at && !self.records.contains_key(&key) {
            self.records.retain(|_, record| record.until > now);
            self.sweep_at = MIN_SWEEP.max(2 * self.records.len());
            self.records.shrink_to(self.sweep_at);
        }
        let record = self.records.entry(key).or_insert_with(|| Record { until, state: new() });
        record.until = record.until.max(until);
        &mut record.state
    }

    /// Keeps the record of `key`, if there is one, until `until` at least.
    pub fn extend(&mut self, key: &K, until: Moment) {
        if let Some(record) = self.records.get_mut(key) {
            record.until = record.until.max(until);
        }
    }

    /// Keeps the record of `key`, if there is one, until `until`, even if that is earlier than before.
    pub fn keep_until(&mut self, key: &K, until: Moment) {
        if let Some(record) = self.records.get_mut(key) {
            record.until = until;
        }
    }

    /// Removes the record of `key`, and returns its state.
    pub fn remove(&mut self, key: &K) -> Option<T> {
        self.records.remove(key).map(|record| record.state)
    }

    /// Returns the records that have not expired, in any order.
    pub fn live(&self, now: Moment) -> impl Iterator<Item = (&K, &T)> {
        let live = self.records.iter().filter(move |(_, record)| record.until > now);
        live.map(|(key, record)| (key, &record.state))
    }

    /// Returns the number of records, including expired ones that were not removed yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Returns true if there are no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(ms: u64) -> Moment {
        Moment::default() + Duration::from_millis(ms)
    }

    #[test]
    fn a_record_is_kept_until_its_last_change_is_obsolete() {
        let (mut table, kept) = (RequestTable::new(), RequestId::random());
        let live = |table: &RequestTable<u32>, now| table.live(at(now)).count();
        table.update(kept, at(0), at(10), || 1);
        table.update(kept, at(5), at(15), || 2);
        table.update(kept, at(6), at(7), || 3);
        assert_eq!((table.get(&kept), table.until(&kept)), (Some(&1), Some(at(15))));
        table.extend(&kept, at(20));
        table.extend(&kept, at(1));
        assert_eq!((live(&table, 19), live(&table, 20)), (1, 0));
        table.keep_until(&kept, at(10_000));
        for _ in 0..10 * MIN_SWEEP {
            table.update(RequestId::random(), at(9999), at(9999), || 4);
        }
        *table.get_mut(&kept).unwrap() += 1;
        assert_eq!(table.remove(&kept), Some(2), "its last moment has not come");
        assert_eq!((table.remove(&kept), table.get(&kept), table.until(&kept)), (None, None, None));
        let (extended, unknown) = (table.len(), RequestId::random());
        table.extend(&unknown, at(1));
        table.keep_until(&unknown, at(1));
        assert_eq!(table.len(), extended, "a record is made by `update` alone");
    }

    /// A thousand records are needed at any time.
    #[test]
    fn memory_and_time_are_bounded() {
        let (mut table, mut most, mut visited, count) = (RequestTable::new(), 0, 0, 100_000);
        for number in 0..count {
            let (len, sweep_at) = (table.len(), table.sweep_at);
            table.update(RequestId::random(), at(number), at(number + 1000), || ());
            if table.len() <= len || table.sweep_at != sweep_at {
                visited += len as u64;
            }
            most = most.max(table.len());
        }
        assert!((1000..=2002).contains(&most), "{most} records");
        assert!(visited < 3 * count, "{visited} records were visited to find obsolete ones");
        assert!(!table.is_empty() && table.records.capacity() < 10_000);
    }
}
