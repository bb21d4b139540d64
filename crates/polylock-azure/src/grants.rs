//! Acquires a lock: leases its blob, and writes the grant to the blob under the lease.

use std::time::Duration;

use azure_core::http::Etag;
use polylock_core::{Clock, Fault, FencingToken, Grant, Request, SystemClock};

use crate::{
    backend::{AzureBackend, TRIES, whole_seconds},
    blobs::Acquired,
    error::{Cause, Refusal, ignore_exists, is_gone},
    record::{Content, Fingerprint, Record},
    tokens,
    wire::{LeaseId, MAX_DELAY},
};

impl AzureBackend {
    /// Acquires the lock if it is free or held by this request; returns `None` if another client has it.
    pub(crate) async fn acquire(&self, request: &Request) -> Result<Option<Grant>, Cause> {
        let (lease, timeout) = (LeaseId::of(request.id), self.timeout(request));
        let duration = whole_seconds(request.ttl);
        for _ in 0..TRIES {
            self.blobs.wait_until_allowed(request.ttl / 6).await;
            let sent = SystemClock.now();
            self.attempts.update(request, |attempt| attempt.lease.on_send());
            let reply = self.blobs.acquire(&request.name, &lease, duration, None, timeout).await;
            self.record_unanswered(request, &reply);
            let acquired = match reply {
                Ok(acquired) => acquired,
                Err(cause) => {
                    match cause.refusal() {
                        Some(Refusal::NoBlob) => {
                            ignore_exists(self.blobs.create(&request.name, timeout).await)?;
                        }
                        Some(Refusal::NoContainer) if self.create_container => {
                            ignore_exists(self.blobs.create_container(timeout).await)?;
                        }
                        Some(Refusal::Leased) => {
                            self.attempts.update(request, |attempt| attempt.lease.on_refusal());
                            return Ok(None);
                        }
                        // An earlier attempt has acquired it. It is released with the request and no sooner: a late copy of that release would
                        // end a later lease with this id.
                        Some(Refusal::Breaking) => {
                            self.mark_broken(request);
                            return Ok(None);
                        }
                        _ => return Err(cause),
                    }
                    self.attempts.update(request, |attempt| attempt.lease.on_refusal());
                    continue;
                }
            };
            let Some((token, is_as_recorded)) = self.write_grant(request, &lease, acquired, timeout).await?
            else {
                continue;
            };
            let (lease, sent) = match is_as_recorded {
                true => (duration, sent),
                // Another process may have given the hold a longer lease, which this acquisition has shortened until now.
                false => match self.prolong(request, timeout).await? {
                    Ok(prolonged) => prolonged,
                    Err(_) => continue,
                },
            };
            self.attempts.update(request, |attempt| {
                attempt.lease.on_grant(lease, sent);
                attempt.token = Some(token);
            });
            self.fairness.granted(&request.name);
            return Ok(Some(Grant::new(token, lease)));
        }
        let advice = "the lock's blob was deleted, or its lease broken, several times: try again";
        Err(Cause::Unusable(Fault::Temporary, advice.to_owned()))
    }

    /// Records if a copy of an acquisition may still arrive.
    pub(crate) fn record_unanswered(&self, request: &Request, reply: &Result<Acquired, Cause>) {
        let is_unanswered = match reply {
            Ok(acquired) => acquired.was_resent,
            Err(cause) => cause.refusal().is_none() || cause.was_resent(),
        };
        if is_unanswered {
            self.attempts.update(request, |attempt| attempt.lease.on_no_reply(SystemClock.now()));
        }
    }

    /// Returns the duration that a copy of the claim of `request` would give the lease, if one may still arrive.
    fn late_claim(&self, request: &Request) -> Option<Duration> {
        let unanswered = self.attempts.find(request.id)?.lease.unanswered?;
        (SystemClock.now() < unanswered + MAX_DELAY).then_some(whole_seconds(request.ttl))
    }

    /// Writes a record under the lease of `request`, if the blob is unchanged. Returns the new ETag.
    pub(crate) async fn write_record(
        &self,
        request: &Request,
        record: Record,
        before: Option<&Etag>,
        timeout: Duration,
    ) -> Result<Option<Etag>, Cause> {
        let (name, lease) = (&request.name, LeaseId::of(request.id));
        let after = self.blobs.write(name, &lease, &record, before, timeout).await?;
        if let Some(etag) = after.clone() {
            self.records.insert(name, etag, record);
        }
        Ok(after)
    }

    /// Returns the token of a lease that was just acquired, after writing it to the blob; or that of an earlier attempt. Returns true
    /// with it if the lease has the duration in the blob; `None` if the lease has ended in the meantime.
    async fn write_grant(
        &self,
        request: &Request,
        lease: &LeaseId,
        acquired: Acquired,
        timeout: Duration,
    ) -> Result<Option<(FencingToken, bool)>, Cause> {
        let mut etag = acquired.etag.clone();
        let mut cached = self.records.find(&request.name, etag.as_ref());
        for _ in 0..TRIES {
            let last = match cached.take() {
                Some(record) => Some(record),
                None => match self.blobs.get_state(&request.name, Some(lease), timeout).await {
                    Ok(state) => {
                        etag = state.etag;
                        match state.content {
                            Content::Grant(record) => Some(record),
                            Content::NeverGranted => None,
                            Content::Foreign => return Err(foreign_blob()),
                        }
                    }
                    Err(cause) if is_gone(&cause) => return Ok(None),
                    Err(cause) => return Err(cause),
                },
            };
            let (record, granted) = if let Some(record) = &last
                && record.grant == Fingerprint::of(request.id)
                && !self.attempts.find(request.id).is_some_and(|attempt| attempt.broken)
            {
                // An earlier attempt has written the grant, and it was neither replaced nor broken.
                let written = (record.token, record.ttl == whole_seconds(request.ttl));
                let claim = record.claim.or(self.late_claim(request));
                if record.claim == claim {
                    return Ok(Some(written));
                }
                (Record { claim, ..record.clone() }, written)
            } else {
                let token = tokens::next_token(last.as_ref(), &acquired)
                    .ok_or_else(|| unexpected_reply("no date, or the greatest possible token"))?;
                let new = Record::new(request, token, whole_seconds(request.ttl));
                (Record { claim: self.late_claim(request), ..new }, (token, true))
            };
            match self.write_record(request, record, etag.as_ref(), timeout).await {
                Ok(_) => return Ok(Some(granted)),
                Err(cause) if is_gone(&cause) => return Ok(None),
                // The blob has changed, because an administrator or an earlier attempt has written it: it is read again.
                Err(cause) if cause.refusal() == Some(Refusal::Changed) => {}
                Err(cause) => return Err(cause),
            }
        }
        let advice = "another program keeps writing to the lock's blob: use a path for locks only";
        Err(Cause::Unusable(Fault::Temporary, advice.to_owned()))
    }
}

fn unexpected_reply(problem: &str) -> Cause {
    Cause::Unusable(Fault::Permanent, format!("unexpected reply: {problem}"))
}

fn foreign_blob() -> Cause {
    let advice = "the lock's blob was not made by polylock, or another program has written to it: choose another path in \
                  the container, or delete the blob";
    Cause::Unusable(Fault::Permanent, advice.to_owned())
}
