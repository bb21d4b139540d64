//! Acquiring a lock: its blob is leased, and the grant is written at the blob under the lease.

use std::time::Duration;

use polylock_core::{Clock, Fault, FencingToken, Grant, Request, SystemClock};

use crate::{
    backend::{Leases, TRIES, is_gone, made, whole_seconds},
    blobs::Acquired,
    error::{Refusal, Trouble},
    record::{Fingerprint, Record, Written},
    tokens,
    wire::LeaseId,
};

impl Leases {
    /// Takes the lock, if it is free or ours; `None` if another has it.
    pub(crate) async fn take(&self, request: &Request) -> Result<Option<Grant>, Trouble> {
        let (lease, patience) = (LeaseId::of(request.id), self.patience(request));
        let lasts = whole_seconds(request.ttl);
        for _ in 0..TRIES {
            self.blobs.calm(request.ttl / 6).await;
            let sent = SystemClock.now();
            self.attempts.note(request, |attempt| {
                attempt.may_hold = true;
                attempt.held = None;
            });
            let acquired = match self.blobs.acquire(&request.name, &lease, lasts, patience).await {
                Ok(acquired) => acquired,
                Err(trouble) => {
                    match trouble.refusal() {
                        Some(Refusal::NoBlob) => made(self.blobs.make(&request.name, patience).await)?,
                        Some(Refusal::NoContainer) if self.create_container => {
                            made(self.blobs.make_container(patience).await)?;
                        }
                        Some(Refusal::Taken) => {
                            self.refused(request);
                            return Ok(None);
                        }
                        None => {
                            self.attempts
                                .note(request, |attempt| attempt.unanswered = Some(SystemClock.now()));
                            return Err(trouble);
                        }
                        Some(_) => return Err(trouble),
                    }
                    self.refused(request);
                    continue;
                }
            };
            if let Some(token) = self.fence(request, &lease, acquired, patience).await? {
                self.attempts.note(request, |attempt| attempt.held = Some((lasts, sent + lasts)));
                self.turns.granted(&request.name);
                return Ok(Some(Grant::new(token, lasts)));
            }
        }
        let advice = "the lock's blob is deleted, or its lease broken, again and again";
        Err(Trouble::Unfit(Fault::Temporary, advice.to_owned()))
    }

    /// The request has no lease, unless one comes true that was not answered.
    fn refused(&self, request: &Request) {
        self.attempts.note(request, |attempt| attempt.may_hold = attempt.unanswered.is_some());
    }

    /// The token of a lease that was just acquired, written at the blob; `None` if the lease has gone meanwhile.
    async fn fence(
        &self,
        request: &Request,
        lease: &LeaseId,
        acquired: Acquired,
        patience: Duration,
    ) -> Result<Option<FencingToken>, Trouble> {
        let mut etag = acquired.etag.clone();
        let mut known = self.remembered.find(&request.name, etag.as_ref());
        for _ in 0..TRIES {
            let last = match known.take() {
                Some(record) => Some(record),
                None => match self.blobs.look(&request.name, Some(lease), patience).await {
                    Ok(seen) => {
                        etag = seen.etag;
                        match seen.written {
                            Written::Grant(record) => Some(record),
                            Written::Nothing => None,
                            Written::Strange => return Err(not_ours_to_write()),
                        }
                    }
                    Err(trouble) if is_gone(&trouble) => return Ok(None),
                    Err(trouble) => return Err(trouble),
                },
            };
            if let Some(record) = &last
                && record.grant == Fingerprint::of(request.id)
            {
                // An earlier try has written it, and nobody else since.
                return Ok(Some(record.token));
            }
            let token = tokens::next(last.as_ref(), &acquired).ok_or_else(|| {
                strange("a token that is the greatest there can be, or an answer without a date")
            })?;
            let record = Record::new(request, token, whole_seconds(request.ttl));
            match self.blobs.write(&request.name, lease, &record, etag.as_ref(), patience).await {
                Ok(after) => {
                    if let Some(etag) = after {
                        self.remembered.keep(&request.name, etag, record);
                    }
                    return Ok(Some(token));
                }
                Err(trouble) if is_gone(&trouble) => return Ok(None),
                // It is not as we thought, because an administrator or an earlier try of ours has written: look again.
                Err(trouble) if trouble.refusal() == Some(Refusal::Changed) => {}
                Err(trouble) => return Err(trouble),
            }
        }
        let advice = "something else writes to the lock's blob all the time";
        Err(Trouble::Unfit(Fault::Temporary, advice.to_owned()))
    }
}

fn strange(what: &str) -> Trouble {
    Trouble::Unfit(Fault::Permanent, format!("the service has given {what}"))
}

fn not_ours_to_write() -> Trouble {
    let advice = "the lock's blob is there, but was not made by polylock, or was written to by something else: choose another \
                  path in the container, or delete the blob";
    Trouble::Unfit(Fault::Permanent, advice.to_owned())
}
