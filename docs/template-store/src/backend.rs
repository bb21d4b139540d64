//! The contract of [`polylock_core::backend`], in compare-and-set operations on one record for each lock.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use polylock_core::{
    Backend, Capabilities, ClaimOutcome, Error, Fault, FencingToken, Grant, KeepAlive, LostReason, Operation,
    QueuePosition, Release, Request, Result, Wake, failure::At, waiter_queues::WaiterQueues,
};

use crate::{
    NAME,
    kv::{Kv, Record},
};

/// The pause until a waiter claims again: waiters of other processes are not notified.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The time for which a request is granted nothing after its release, if other processes know it: far longer than an operation takes.
const REFUSED: Duration = Duration::from_secs(30);
/// The attempts to change a record that others change at the same time.
const ATTEMPTS: usize = 100;

/// The locks of one namespace.
#[derive(Debug)]
pub(crate) struct TemplateBackend {
    kv: Kv,
    capabilities: Capabilities,
    /// The waiters of this process.
    waiters: WaiterQueues,
}

impl TemplateBackend {
    pub(crate) fn new(kv: Kv, capabilities: Capabilities) -> Self {
        Self { kv, capabilities, waiters: WaiterQueues::default() }
    }

    fn contended(operation: Operation) -> Error {
        let at = At { backend: NAME, operation, endpoint: "this process" };
        at.advise(Fault::Temporary, "other requests keep changing the lock: try again")
    }
}

#[async_trait]
impl Backend for TemplateBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn claim(&self, request: &Request) -> Result<ClaimOutcome> {
        if request.queues {
            // From now on, a release in this process wakes it. Core lets only the first waiter of a process claim.
            self.waiters.join(request);
        }
        for _ in 0..ATTEMPTS {
            let (record, now) = self.kv.get(&request.name).await;
            if record.ended.iter().any(|(ended, until)| *ended == request.id && *until > now) {
                // Another process has released it, and this claim is late.
                return Ok(ClaimOutcome::Queued(QueuePosition::new(None, POLL_INTERVAL)));
            }
            match record.hold.filter(|(_, end)| *end > now) {
                // A repeated claim returns its own grant.
                Some((holder, end)) if holder == request.id => {
                    self.waiters.leave(request);
                    return Ok(ClaimOutcome::Granted(Grant::new(token(record.token)?, end.since(now))));
                }
                Some((_, end)) => {
                    return Ok(ClaimOutcome::Queued(QueuePosition::new(
                        None,
                        POLL_INTERVAL.min(end.since(now)),
                    )));
                }
                None => {}
            }
            let hold = Some((request.id, now + request.ttl));
            let drawn = record.token + 1;
            let granted = Record { token: drawn, hold, ..record };
            // A claim that arrives after its release fails here: the release has changed the version.
            if self.kv.put(&request.name, granted).await {
                self.waiters.leave(request);
                return Ok(ClaimOutcome::Granted(Grant::new(token(drawn)?, request.ttl)));
            }
        }
        Err(Self::contended(Operation::Claim))
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        Ok(self.waiters.notified(request).await)
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        let mut outcomes = Vec::with_capacity(requests.len());
        for request in requests {
            let mut outcome = KeepAlive::Unknown;
            for _ in 0..ATTEMPTS {
                let (record, now) = self.kv.get(&request.name).await;
                // An expired hold is never revived.
                let Some((_, end)) = record.hold.filter(|(holder, end)| *holder == request.id && *end > now)
                else {
                    outcome = KeepAlive::Lost(LostReason::Gone);
                    break;
                };
                // A renewal that arrives late, or with a shorter TTL, never shortens the lease.
                let end = end.max(now + request.ttl);
                let hold = Some((request.id, end));
                if self.kv.put(&request.name, Record { hold, ..record }).await {
                    // No conversion changes the terms of a hold.
                    outcome = KeepAlive::Held { lease: end.since(now), terms: None };
                    break;
                }
            }
            outcomes.push(outcome);
        }
        Ok(outcomes)
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        let was_queued = self.waiters.leave(request);
        for _ in 0..ATTEMPTS {
            let (mut record, now) = self.kv.get(&request.name).await;
            let (is_holder, is_live) = match record.hold {
                Some((holder, end)) => (holder == request.id, end > now),
                None => (false, false),
            };
            // Written in any case: the new version makes the server refuse a claim that is still on its way.
            let hold = record.hold.filter(|_| !is_holder);
            record.ended.retain(|(_, until)| *until > now);
            if request.outlives_process {
                record.ended.push((request.id, now + REFUSED));
            }
            if self.kv.put(&request.name, Record { hold, ..record }).await {
                self.waiters.wake(&request.name);
                let had_entry = was_queued || is_holder && is_live;
                return Ok(if had_entry { Release::Released } else { Release::Lost(LostReason::Gone) });
            }
        }
        Err(Self::contended(Operation::Release))
    }

    fn drop_waiter(&self, request: &Request) {
        self.waiters.leave(request);
    }
}

/// Returns the token of a record. It is positive once the lock was granted.
fn token(number: i64) -> Result<FencingToken> {
    let at = At { backend: NAME, operation: Operation::Claim, endpoint: "this process" };
    FencingToken::new(number).ok_or_else(|| at.advise(Fault::Permanent, "the record has no valid token"))
}
