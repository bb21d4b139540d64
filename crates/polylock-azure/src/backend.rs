//! The store: the lease of a blob is the lock, with one blob for each lock.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use azure_core::http::Etag;
use polylock_core::{
    Backend, Capabilities, ClaimOutcome, Clock, Executor, FencingToken, HoldTerms, KeepAlive, LostReason,
    Mode, Moment, Operation, Park, QueuePosition, Release, Request, Result, SystemClock, Wake,
    waiter_queues::WaiterQueues,
};

use crate::{
    attempts::Attempts,
    blobs::Blobs,
    error::{Cause, Refusal, ignore_gone, is_gone},
    fairness::{self, Decision, Fairness},
    record::{Content, Fingerprint, Record},
    tokens::RecordCache,
    wire::{LeaseId, MAX_DELAY},
};

/// The number of attempts of a claim that creates a missing blob or container, or starts again.
pub(crate) const TRIES: u32 = 4;

/// The shortest and the longest pause between releases of a lease that may be obtained late. An acquisition that arrives late keeps others
/// out for a second at most.
const RELEASE_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(700));

/// The result for a request that may hold the lock. If it does not hold it, the error is the refusal that has shown this, if there was one.
pub(crate) type IfHeld<T> = Result<T, Option<Refusal>>;

/// The locks of one container.
pub(crate) struct AzureBackend {
    pub(crate) capabilities: Capabilities,
    pub(crate) blobs: Arc<Blobs>,
    pub(crate) attempts: Attempts,
    pub(crate) records: RecordCache,
    pub(crate) waiters: Arc<WaiterQueues>,
    pub(crate) fairness: Fairness,
    /// The text that identifies this process in its waiter markers.
    pub(crate) process: String,
    /// The URL of the container, for messages and errors.
    pub(crate) endpoint: String,
    pub(crate) operation_timeout: Duration,
    pub(crate) create_container: bool,
}

impl fmt::Debug for AzureBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AzureBackend").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

/// Returns the duration of a lease with this TTL: the service grants whole seconds.
pub(crate) fn whole_seconds(ttl: Duration) -> Duration {
    Duration::from_secs(ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0))
}

impl AzureBackend {
    /// Returns the time limit for one request about `request`.
    pub(crate) fn timeout(&self, request: &Request) -> Duration {
        self.operation_timeout.min(request.ttl / 6)
    }

    /// Returns a duration that the lease of `request` has at least, if this process knows it.
    fn known_lease(&self, request: &Request) -> Option<Duration> {
        let (lease, until) = self.attempts.find(request.id)?.lease.held?;
        (SystemClock.now() < until).then_some(lease)
    }

    /// Reads the grant of `request` if it holds the lock and its hold was not broken, with the ETag of its blob.
    pub(crate) async fn held_record(
        &self,
        request: &Request,
        timeout: Duration,
    ) -> Result<IfHeld<(Record, Option<Etag>)>, Cause> {
        match self.blobs.get_state(&request.name, Some(&LeaseId::of(request.id)), timeout).await {
            // Somebody who is not a client of this store may have broken it, without a notice.
            Ok(state) if state.breaking => {
                self.mark_broken(request);
                Ok(Err(Some(Refusal::Breaking)))
            }
            Ok(state) => Ok(match state.content {
                Content::Grant(record) if state.leased && record.grant == Fingerprint::of(request.id) => {
                    Ok((record, state.etag))
                }
                _ => Err(None),
            }),
            Err(cause) if is_gone(&cause) => Ok(Err(cause.refusal())),
            Err(cause) => Err(cause),
        }
    }

    async fn extend(&self, request: &Request) -> Result<KeepAlive, Cause> {
        let (lease_id, timeout) = (LeaseId::of(request.id), self.timeout(request));
        self.blobs.wait_until_allowed(request.ttl / 6).await;
        let known = self.known_lease(request).filter(|lease| *lease >= whole_seconds(request.ttl));
        let (lease, sent) = if let Some(lease) = known {
            let sent = SystemClock.now();
            match self.blobs.renew(&request.name, &lease_id, timeout).await {
                Ok(true) => (lease, sent),
                // The emulator replies so if the lease belonged to another client and has expired.
                Ok(false) => return Ok(KeepAlive::Lost(self.record_loss(request, None).await)),
                Err(cause) if is_gone(&cause) => {
                    return Ok(KeepAlive::Lost(self.record_loss(request, cause.refusal()).await));
                }
                Err(cause) => return Err(cause),
            }
        } else {
            // A renewal extends by the duration of the last acquisition, which is not known or too short.
            match self.prolong(request, timeout).await? {
                Ok(prolonged) => prolonged,
                Err(refusal) => return Ok(KeepAlive::Lost(self.record_loss(request, refusal).await)),
            }
        };
        let token = self.attempts.update(request, |attempt| {
            attempt.lease.on_grant(lease, sent);
            attempt.token
        });
        let terms = token.map(|token| HoldTerms::new(token, Mode::Exclusive));
        Ok(KeepAlive::Held { lease, terms })
    }

    /// Releases in the background the lease that an acquisition of `request` without a reply, sent before `unanswered`, may still obtain.
    fn release_late(&self, request: &Request, unanswered: Option<Moment>) {
        if let Some(unanswered) = unanswered {
            let (blobs, until) = (self.blobs.clone(), unanswered + MAX_DELAY);
            let timeout = self.timeout(request);
            Executor::current().spawn(release_late_lease(blobs, request.clone(), until, timeout));
        }
    }

    /// Records that the hold of `request` was broken. Its holder has the lease until it releases it.
    pub(crate) fn mark_broken(&self, request: &Request) {
        self.attempts.update(request, |attempt| (attempt.broken, attempt.lease.may_hold) = (true, true));
    }

    /// Returns the reason why `request` does not hold the lock any more, or only until its release.
    async fn record_loss(&self, request: &Request, refusal: Option<Refusal>) -> LostReason {
        let reason = self.loss_reason(request, refusal).await;
        if matches!(reason, LostReason::Broken(_)) {
            self.mark_broken(request);
        }
        // 1. A hold is broken, and its holder works until it finds out, or until its lease ends.
        // 2. An adoption by another task or process finds that it is broken. If it released the lease now, others would acquire it.
        // Nobody releases the lease of a hold that is gone.
        let unanswered = self.attempts.update(request, |attempt| {
            // Another process may have the lease, and a release by the handle ends it.
            attempt.lease.may_hold = true;
            if attempt.broken { None } else { attempt.lease.unanswered.take() }
        });
        self.release_late(request, unanswered);
        reason
    }

    async fn release_lease(&self, request: &Request) -> Result<Release, Cause> {
        let attempt = self.attempts.find(request.id);
        let queued = self.waiters.leave(request);
        // Requests of another process may have a lease that this process has no record of.
        if !attempt.map_or(!queued, |attempt| attempt.lease.may_hold) {
            return Ok(if queued { Release::Released } else { Release::Lost(LostReason::Gone) });
        }
        let (lease, timeout) = (LeaseId::of(request.id), self.timeout(request));
        // The lease may be released from then on by another process, whose adoption finds that the hold has ended.
        let has_ended = request.outlives_process && self.end_record(request, timeout).await?;
        let outcome = match self.blobs.release(&request.name, &lease, timeout).await {
            Ok(()) => Release::Released,
            Err(cause) if is_gone(&cause) => match queued || has_ended || cause.was_resent() {
                true => Release::Released,
                false => Release::Lost(self.loss_reason(request, cause.refusal()).await),
            },
            Err(cause) => return Err(cause),
        };
        // Another process that knows the request may have sent an acquisition that is still under way.
        let of_others = request.outlives_process.then(|| SystemClock.now());
        self.release_late(request, attempt.and_then(|attempt| attempt.lease.unanswered).max(of_others));
        if outcome == Release::Released && attempt.is_some_and(|attempt| attempt.broken) {
            self.delete_notice(request).await;
        }
        Ok(outcome)
    }

    /// Returns the time for which no request of this process claims the lock, so that others can.
    async fn yield_delay(&self, request: &Request) -> Option<Duration> {
        match self.fairness.decide(&request.name) {
            Decision::Proceed => None,
            Decision::Yield(delay) => Some(delay),
            Decision::CheckForOthers if self.is_awaited(request).await => {
                self.fairness.yield_to_others(&request.name);
                Some(QueuePosition::MAX_RECHECK)
            }
            Decision::CheckForOthers => {
                self.fairness.restart(&request.name);
                None
            }
        }
    }

    /// Returns true if another process waits for the lock of `request`. If its marker can't be read, the claim reports the cause.
    async fn is_awaited(&self, request: &Request) -> bool {
        let marker = self.blobs.read_marker(&request.name, self.timeout(request)).await.ok().flatten();
        marker.is_some_and(|(process, age)| process != self.process && age <= fairness::MARKER_LIFETIME)
    }

    /// Writes a waiter marker for other processes, if this request has waited for a moment and has not written one recently.
    async fn write_marker_if_due(&self, request: &Request) {
        let now = SystemClock.now();
        let due = self.attempts.update(request, |attempt| {
            let due = now > attempt.first_claim + fairness::MARKER_DELAY
                && attempt.marker_written.is_none_or(|written| now > written + fairness::MARKER_RENEWAL);
            if due {
                attempt.marker_written = Some(now);
            }
            due
        });
        if due
            && let Err(cause) =
                self.blobs.write_marker(&request.name, &self.process, self.timeout(request)).await
        {
            tracing::debug!(trouble = ?cause, "could not write the waiter marker");
        }
    }

    pub(crate) fn failed(&self, operation: Operation, cause: Cause) -> polylock_core::Error {
        cause.at(operation, &self.endpoint)
    }
}

/// Releases the lease that an acquire request without a reply may still obtain:
/// 1. the request is sent, and given up when its time limit is over;
/// 2. its release is sent on another connection, overtakes it, and finds no lease;
/// 3. the acquire request arrives before `until`: without this function, the lock has no holder until that lease expires, after a minute
///    at most.
///
/// Ends with the reply to a release that was sent after `until`, or when any such lease has expired.
async fn release_late_lease(blobs: Arc<Blobs>, request: Request, until: Moment, timeout: Duration) {
    let lease = LeaseId::of(request.id);
    let mut pause = RELEASE_PAUSES.0;
    while SystemClock.now() < until + whole_seconds(request.ttl) {
        SystemClock.sleep_until(SystemClock.now() + pause).await;
        pause = (pause * 2).min(RELEASE_PAUSES.1);
        let sent = SystemClock.now();
        match ignore_gone(blobs.release(&request.name, &lease, timeout).await) {
            Ok(()) if sent >= until => return,
            Ok(()) => {}
            Err(cause) => {
                tracing::debug!(trouble = ?cause, "could not release a lease that may have been granted late");
            }
        }
    }
}

#[async_trait]
impl Park for AzureBackend {
    /// The service has no order of requests, so a renewal that arrives late extends the lease, by a minute at most. The park itself is
    /// refused if the hold has got a longer lease in the meantime, and is repeated.
    async fn park(&self, request: &Request, token: FencingToken, left: Duration) -> Result<Release> {
        let parked = async {
            let (lease_id, timeout) = (LeaseId::of(request.id), self.timeout(request));
            for _ in 0..TRIES {
                let held = self.held_record(request, timeout).await?;
                let parked = held
                    .and_then(|(record, grant)| if record.token == token { Ok(grant) } else { Err(None) });
                let grant = match parked {
                    Ok(grant) => grant,
                    Err(refusal) => return Ok(Release::Lost(self.record_loss(request, refusal).await)),
                };
                let left = whole_seconds(left);
                let Err(cause) =
                    self.blobs.acquire(&request.name, &lease_id, left, grant.as_ref(), timeout).await
                else {
                    return Ok(Release::Released);
                };
                match cause.refusal() {
                    Some(Refusal::Changed) => {}
                    Some(refusal @ (Refusal::Leased | Refusal::Breaking)) => {
                        return Ok(Release::Lost(self.record_loss(request, Some(refusal)).await));
                    }
                    _ => return Err(cause),
                }
            }
            Err(Cause::lease_keeps_changing())
        };
        parked.await.map_err(|cause: Cause| self.failed(Operation::Renew, cause))
    }
}

#[async_trait]
impl Backend for AzureBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn claim(&self, request: &Request) -> Result<ClaimOutcome> {
        let queued = |ahead, recheck| Ok(ClaimOutcome::Queued(QueuePosition::new(ahead, recheck)));
        let is_held = self.attempts.find(request.id).is_some_and(|attempt| attempt.lease.held.is_some());
        if request.queues && !is_held {
            // Only the head of the local queue sends requests, and not as long as the lock is left to other processes.
            let ahead = self.waiters.join(request);
            if ahead > 0 {
                return queued(u32::try_from(ahead).ok(), QueuePosition::MAX_RECHECK);
            }
            if let Some(delay) = self.yield_delay(request).await {
                return queued(None, delay);
            }
        }
        let acquired = self.acquire(request).await;
        if let Some(grant) = acquired.map_err(|cause| self.failed(Operation::Claim, cause))? {
            self.waiters.leave(request);
            return Ok(ClaimOutcome::Granted(grant));
        }
        let (pause, may_hold) =
            self.attempts.update(request, |attempt| (attempt.next_pause(), attempt.lease.may_hold));
        if request.queues {
            self.write_marker_if_due(request).await;
        } else if !may_hold {
            self.attempts.remove(request.id);
        }
        Ok(ClaimOutcome::Queued(QueuePosition::new(None, pause).may_be_granted_late(may_hold)))
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        let wake = self.waiters.notified(request).await;
        // The lock may be free, so the pauses start again from the shortest.
        self.attempts.update(request, |attempt| attempt.pause = Duration::ZERO);
        Ok(wake)
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        let [request] = requests else { return Ok(Vec::new()) };
        let outcome = self.extend(request).await.map_err(|cause| self.failed(Operation::Renew, cause))?;
        Ok(vec![outcome])
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        let outcome = self.release_lease(request).await;
        let outcome = outcome.map_err(|cause| self.failed(Operation::Release, cause))?;
        if self.attempts.remove(request.id).is_some_and(|attempt| attempt.lease.held.is_some()) {
            self.fairness.released(&request.name);
        }
        self.waiters.wake(&request.name);
        Ok(outcome)
    }

    fn drop_waiter(&self, request: &Request) {
        self.waiters.leave(request);
    }

    fn request_records(&self) -> Option<usize> {
        Some(self.attempts.len())
    }
}
