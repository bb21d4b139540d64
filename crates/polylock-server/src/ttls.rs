//! The TTLs of holds, for the renewals that name none.

use std::{sync::Mutex, time::Duration};

use polylock_core::{Clock, RequestId, SystemClock, requests::RequestTable, sync::lock};

/// The TTLs of the holds that clients have acquired or renewed on this server, each kept for as long as the hold may last, and once more.
#[derive(Debug, Default)]
pub(crate) struct Ttls(Mutex<RequestTable<Duration>>);

impl Ttls {
    /// Records the TTL of a hold.
    pub(crate) fn record(&self, id: RequestId, ttl: Duration) {
        let now = SystemClock.now();
        *lock(&self.0).update(id, now, now + 2 * ttl, || ttl) = ttl;
    }

    /// Returns the TTL of a hold that was acquired or renewed here.
    pub(crate) fn of(&self, id: RequestId) -> Option<Duration> {
        lock(&self.0).get(&id).copied()
    }
}
