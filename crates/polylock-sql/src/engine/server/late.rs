//! Claims that the server may execute after the release that follows them.
//!
//! A claim expires by the server's clock (see [`Server::query_expiring`](super::pool::Server::query_expiring)). Until then the server may
//! execute a copy of it that was sent on a connection that was given up before the reply:
//! 1. the client sends a claim, and the connection breaks, or the caller drops the claim;
//! 2. the client sends the claim again on another connection, or nothing more;
//! 3. the client releases the request;
//! 4. the first copy arrives and takes the lock, though no caller is left to release it.
//!
//! So the release leaves a record of the request in the database, which makes it refuse the claim, until every copy has expired. If other
//! processes may know the request, they may have sent copies that this one knows nothing of, so each release leaves such a record.

use std::sync::{Mutex, MutexGuard};

use polylock_core::{Clock, Moment, RequestId, SystemClock, requests::RequestTable, sync::lock};

/// The requests with a claim that may be executed late, each kept until the last copy of it has expired.
#[derive(Debug, Default)]
pub(crate) struct LateClaims(Mutex<RequestTable<()>>);

impl LateClaims {
    /// Returns the time until which a copy of a claim of `request` may be executed; `None` if none can be.
    pub(crate) fn until(&self, request: RequestId) -> Option<Moment> {
        self.lock().until(&request).filter(|until| *until > SystemClock.now())
    }

    /// Returns the number of records.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    fn record(&self, request: RequestId, until: Moment) {
        self.lock().update(request, SystemClock.now(), until, || ());
    }

    fn lock(&self) -> MutexGuard<'_, RequestTable<()>> {
        lock(&self.0)
    }
}

/// A claim in flight, which expires at `until`. When dropped, it records that copies of it may be executed late, if any can be.
#[derive(Debug)]
pub(crate) struct ClaimInFlight<'a> {
    late: &'a LateClaims,
    /// `None` for an operation that no release follows.
    request: Option<RequestId>,
    until: Moment,
    /// True if a copy was sent and not answered.
    pub(crate) is_unanswered: bool,
}

impl<'a> ClaimInFlight<'a> {
    pub(crate) const fn new(late: &'a LateClaims, request: Option<RequestId>, until: Moment) -> Self {
        Self { late, request, until, is_unanswered: false }
    }
}

impl Drop for ClaimInFlight<'_> {
    fn drop(&mut self) {
        if let (true, Some(request)) = (self.is_unanswered, self.request) {
            self.late.record(request, self.until);
        }
    }
}
