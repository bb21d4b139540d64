//! Gives a hold a lease of another duration, never a shorter one; and ends a hold for all processes that know it.
//!
//! A renewal extends by the duration of the last acquisition, and no reply names that duration. Several processes may renew one hold, with
//! different TTLs. So the record in the blob has the greatest TTL of the hold, and orders the acquisitions:
//! 1. The TTL is written to the record, if it is greater than the one there and the blob is unchanged.
//! 2. The lease is acquired again, for the TTL in the record, if the blob is unchanged since.
//!
//! No acquisition is for less than the record's TTL, and one that is overtaken by another process's longer TTL is refused by the service, however
//! late it arrives. If the process dies between the two steps, the lease is shorter than the record's TTL. So the TTL of a record says nothing
//! about the lease: a process that has not acquired the lease itself does so before it relies on a duration.
//!
//! The service lets a lease that was broken, and has ended, be acquired again with its id. A break may come between the two steps, and so
//! the hold is broken again if it has a notice after step 2. The notice is written before the lease is broken.
//!
//! It also lets a lease be acquired again with its id after its release. So before the release of a hold that other processes know, its
//! record is written anew, as that of no request: an adoption that read the old one is refused in step 1 or 2, however late it arrives, and one that
//! reads the new one finds no hold.
//!
//! The acquisition of a claim has no such condition, because its client does not know the blob yet. A late copy makes the duration that of the claim,
//! which is in the record if one could arrive when that was written. As long as it may, nobody relies on more than that, and the lease is acquired
//! anew with each renewal.

use std::time::Duration;

use polylock_core::{Clock, Moment, Request, SystemClock};

use crate::{
    backend::{AzureBackend, IfHeld, TRIES, whole_seconds},
    error::{Cause, Refusal, is_gone},
    record::{Fingerprint, Record},
    wire::LeaseId,
};

impl AzureBackend {
    /// Makes the lease of `request`, which holds the lock, last for its TTL or the one in the record, whichever is greater. Returns the
    /// duration to rely on, and the time from which it counts.
    pub(crate) async fn prolong(
        &self,
        request: &Request,
        timeout: Duration,
    ) -> Result<IfHeld<(Duration, Moment)>, Cause> {
        let (name, lease_id) = (&request.name, LeaseId::of(request.id));
        for _ in 0..TRIES {
            let (record, mut etag) = match self.held_record(request, timeout).await? {
                Ok(held) => held,
                Err(refusal) => return Ok(Err(refusal)),
            };
            let lease = record.ttl.max(whole_seconds(request.ttl));
            let (token, claim) = (record.token, record.claim);
            if record.ttl < lease {
                let longer = Record { ttl: lease, ..record };
                match self.write_record(request, longer, etag.as_ref(), timeout).await {
                    Ok(after) => etag = after,
                    Err(cause) if cause.refusal() == Some(Refusal::Changed) => continue,
                    Err(cause) if is_gone(&cause) => return Ok(Err(cause.refusal())),
                    Err(cause) => return Err(cause),
                }
            }
            let sent = SystemClock.now();
            self.attempts.update(request, |attempt| attempt.lease.may_hold = true);
            let reply = self.blobs.acquire(name, &lease_id, lease, etag.as_ref(), timeout).await;
            self.record_unanswered(request, &reply);
            match reply {
                Ok(_) => {
                    if self.notice_of(name, &Fingerprint::of(request.id), timeout).await?.is_some() {
                        match self.blobs.break_lease(name, false, etag.as_ref(), timeout).await {
                            Err(cause) if cause.refusal().is_none() => return Err(cause),
                            _ => return Ok(Err(Some(Refusal::Breaking))),
                        }
                    }
                    return Ok(Ok(self.attempts.update(request, |attempt| {
                        attempt.token = Some(token);
                        (attempt.reliable(lease, claim, sent), sent)
                    })));
                }
                Err(cause) => match cause.refusal() {
                    Some(Refusal::Changed) => {}
                    // It was broken right before.
                    Some(Refusal::Breaking) => {
                        self.mark_broken(request);
                        return Ok(Err(cause.refusal()));
                    }
                    // It has expired right before.
                    Some(Refusal::Leased) => return Ok(Err(cause.refusal())),
                    _ if is_gone(&cause) => return Ok(Err(cause.refusal())),
                    _ => return Err(cause),
                },
            }
        }
        Err(Cause::lease_keeps_changing())
    }

    /// Writes in the record of `request` that its hold has ended. Returns false if it does not hold the lock any more.
    pub(crate) async fn end_record(&self, request: &Request, timeout: Duration) -> Result<bool, Cause> {
        for _ in 0..TRIES {
            let Ok((record, etag)) = self.held_record(request, timeout).await? else { return Ok(false) };
            let ended = Record { grant: Fingerprint::ended(), ..record };
            match self.write_record(request, ended, etag.as_ref(), timeout).await {
                Ok(_) => return Ok(true),
                Err(cause) if cause.refusal() == Some(Refusal::Changed) => {}
                Err(cause) if is_gone(&cause) => return Ok(false),
                Err(cause) => return Err(cause),
            }
        }
        Err(Cause::lease_keeps_changing())
    }
}
