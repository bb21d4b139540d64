//! Claims and releases of one request take turns.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use polylock_core::{Clock, Request, SystemClock, requests::RequestTable, sync::lock};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// The time after the last operation of a request for which it is recorded: longer than any operation of a store takes, and a copy of a claim
/// may arrive late after a release.
const RECORDED: Duration = Duration::from_secs(120);

/// The requests of which operations were received.
///
/// A client may repeat an operation before this server has carried out the first one, and a store expects the operations of a request one
/// after the other:
/// 1. A client sends a claim, and loses its connection.
/// 2. The client gives the request up, and releases it here, while the claim is being carried out.
/// 3. Without turns, the release could find nothing, and the claim would take the lock for nobody.
///
/// A claim without an expiry, in [`holds`](crate::holds), could arrive even later. So it is refused if its request was released.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    requests: Mutex<RequestTable<Arc<AsyncMutex<bool>>>>,
}

/// The turn of an operation; it lasts until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn(OwnedMutexGuard<bool>);

impl Turn {
    /// Returns true if the request was released before.
    pub(crate) fn is_released(&self) -> bool {
        *self.0
    }
}

impl Turns {
    /// Waits for the turn of an operation of `request`, in order of arrival.
    pub(crate) async fn next(&self, request: &Request) -> Turn {
        let mutex = {
            let now = SystemClock.now();
            self.lock().update(request.id, now, now + RECORDED, Arc::default).clone()
        };
        Turn(mutex.lock_owned().await)
    }

    /// Records that `request` is released in this turn.
    pub(crate) fn release(&self, request: &Request, turn: &mut Turn) {
        *turn.0 = true;
        self.lock().keep_until(&request.id, SystemClock.now() + RECORDED);
    }

    fn lock(&self) -> MutexGuard<'_, RequestTable<Arc<AsyncMutex<bool>>>> {
        lock(&self.requests)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use futures_util::FutureExt;
    use polylock_core::{LockName, Mode};

    use super::*;

    #[tokio::test]
    async fn operations_of_a_request_take_turns_and_no_claim_follows_a_release() {
        let turns = Turns::default();
        let request = || Request::new(LockName::new("n").unwrap(), Mode::Exclusive, Duration::from_secs(30));
        let [one, other] = [request(), request()];
        let claim = turns.next(&one).await;
        let mut releasing = Box::pin(turns.next(&one));
        assert!(releasing.as_mut().now_or_never().is_none());
        assert!(!turns.next(&other).await.is_released());
        drop(claim);
        let mut release = releasing.await;
        turns.release(&one, &mut release);
        drop(release);
        assert!(turns.next(&one).await.is_released());
    }
}
