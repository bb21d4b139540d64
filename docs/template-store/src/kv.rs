//! The client of the server: versioned records, changed by compare-and-set. Here they are in this process.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use polylock_core::{Clock, LockName, Moment, RequestId, SystemClock};

/// The server's data of one lock. It is never deleted, because the next token depends on it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Record {
    /// Changes with every write.
    pub(crate) version: u64,
    pub(crate) token: i64,
    /// The holder, and the end of its lease by the server's clock.
    pub(crate) hold: Option<(RequestId, Moment)>,
    /// The requests that were released although other processes may know them, and the time until which each is granted nothing.
    pub(crate) ended: Vec<(RequestId, Moment)>,
}

/// A connection to a namespace.
#[derive(Debug, Clone)]
pub(crate) struct Kv(Arc<Mutex<HashMap<LockName, Record>>>);

impl Kv {
    /// Connects to the namespace `name`, the same one for the same name.
    pub(crate) fn named(name: &str) -> Self {
        static ALL: Mutex<BTreeMap<String, Kv>> = Mutex::new(BTreeMap::new());
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(name.to_owned()).or_insert_with(|| Self(Arc::default())).clone()
    }

    /// Returns the record of a lock, and the server's clock. A lock that was never used has an empty record.
    pub(crate) async fn get(&self, name: &LockName) -> (Record, Moment) {
        (self.lock().get(name).cloned().unwrap_or_default(), SystemClock.now())
    }

    /// Replaces the record of a lock if its version is still that of `record`, and returns true if it did.
    pub(crate) async fn put(&self, name: &LockName, record: Record) -> bool {
        let mut all = self.lock();
        let stored = all.entry(name.clone()).or_default();
        let is_current = stored.version == record.version;
        if is_current {
            *stored = Record { version: record.version + 1, ..record };
        }
        is_current
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LockName, Record>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
