//! Claims and releases of one request take turns.

use std::sync::{Arc, Mutex};

use polylock_core::{Clock, Request, SystemClock, requests::RequestTable};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// The requests of which operations were received, each with a mutex.
///
/// A client may repeat an operation before this server has carried out the first one, and a store expects the operations of a request one
/// after the other:
/// 1. A client sends a claim, and loses its connection.
/// 2. The client gives the request up, and releases it here. The release finds nothing.
/// 3. The claim is carried out: without a turn, it would take the lock for nobody.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    requests: Mutex<RequestTable<Arc<AsyncMutex<()>>>>,
}

impl Turns {
    /// Waits for the turn of an operation of `request`, in order of arrival. It lasts until the guard is dropped.
    pub(crate) async fn next(&self, request: &Request) -> OwnedMutexGuard<()> {
        let mutex = {
            let now = SystemClock.now();
            let mut requests = self.requests.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            requests.update(request.id, now, request.obsolete_at(now), Arc::default).clone()
        };
        mutex.lock_owned().await
    }
}
