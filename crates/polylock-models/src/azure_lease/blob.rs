//! The blob of a lock: the effects of the service's operations.

/// The duration of a lease, in ticks.
pub(super) const TTL: u8 = 2;

/// The last grant, in the metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Record {
    pub(super) token: u8,
    /// The request with this number plus one; 0 for none.
    pub(super) grant: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Lease {
    pub(super) request: usize,
    pub(super) expires: u8,
    is_breaking: bool,
}

/// The reply to an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Reply {
    /// The lease was acquired; the blob has this ETag.
    Acquired(u8),
    /// Another request has the lease.
    Leased,
    /// The request's own lease was broken, and lasts for its remaining time.
    Breaking,
    /// The state of the blob under the request's lease.
    State(u8, Record),
    /// The grant was written; the blob has this ETag.
    Written(u8),
    /// The blob has another ETag.
    Changed,
    Done,
    /// The request does not have the lease.
    Gone,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Blob {
    /// The last lease, until it is released. It may have expired.
    lease: Option<Lease>,
    pub(super) record: Record,
    pub(super) etag: u8,
}

impl Blob {
    /// Returns the lease that keeps others out.
    pub(super) fn lease(&self, now: u8) -> Option<Lease> {
        self.lease.filter(|lease| lease.expires > now)
    }

    fn has(&self, request: usize, now: u8) -> bool {
        self.lease(now).is_some_and(|lease| lease.request == request)
    }

    pub(super) fn acquire(&mut self, request: usize, now: u8) -> Reply {
        match self.lease(now) {
            Some(lease) if lease.request != request => Reply::Leased,
            Some(lease) if lease.is_breaking => Reply::Breaking,
            _ => {
                self.lease = Some(Lease { request, expires: now + TTL, is_breaking: false });
                Reply::Acquired(self.etag)
            }
        }
    }

    pub(super) fn read(&self, request: usize, now: u8) -> Reply {
        if self.has(request, now) { Reply::State(self.etag, self.record) } else { Reply::Gone }
    }

    /// Writes a grant, if the blob has the ETag `before`.
    pub(super) fn write(&mut self, request: usize, before: Option<u8>, token: u8, now: u8) -> Reply {
        if !self.has(request, now) {
            return Reply::Gone;
        }
        if before.is_some_and(|etag| etag != self.etag) {
            return Reply::Changed;
        }
        self.etag += 1;
        self.record = Record { token, grant: request + 1 };
        Reply::Written(self.etag)
    }

    /// Renews the lease, also after its end if nobody else has had it.
    pub(super) fn renew(&mut self, request: usize, now: u8) -> Reply {
        match &mut self.lease {
            Some(lease) if lease.request == request && !lease.is_breaking => {
                lease.expires = now + TTL;
                Reply::Done
            }
            _ => Reply::Gone,
        }
    }

    pub(super) fn release(&mut self, request: usize) -> Reply {
        match self.lease.take_if(|lease| lease.request == request) {
            Some(_) => Reply::Done,
            None => Reply::Gone,
        }
    }

    /// Breaks the lease: now, or at the end of its remaining time. The request may still release it.
    pub(super) fn break_lease(&mut self, is_now: bool, now: u8) {
        if let Some(lease) = &mut self.lease {
            lease.is_breaking = true;
            lease.expires = if is_now { now } else { lease.expires };
        }
    }

    /// Acquires and releases a lease that was broken, so that its former holder can't release it. Another lease stays.
    pub(super) fn revoke(&mut self, now: u8) {
        self.lease = self.lease(now);
    }
}
