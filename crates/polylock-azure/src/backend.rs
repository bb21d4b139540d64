//! The store: one blob for each lock, whose lease is the lock.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use polylock_core::{
    Backend, BreakNotice, Capabilities, Clock, Fault, FencingToken, Grant, LostReason, Moment, Operation,
    Place, Release, Renewal, Request, Result, Standing, SystemClock, Wake, line::Line,
};

use crate::{
    attempts::Attempts,
    blobs::{Acquired, Blobs},
    error::{Refusal, Trouble},
    record::{Fingerprint, Record, Written},
    tokens::{self, Remembered},
    turns::{self, Turn, Turns},
    wire::LeaseId,
};

/// The pauses of a waiter, the shortest and the longest: each is twice the one before. Up to a quarter is taken off at random,
/// so that the waiters of many processes do not ask in step.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Place::MAX_RECHECK);

/// How often a claim makes what is missing, or begins anew.
const TRIES: u32 = 4;

/// For how long an acquisition that was given up may come true yet: the service is told to work no longer on one than we wait.
const LATE: Duration = Duration::from_secs(10);

/// The locks of one container.
pub(crate) struct Leases {
    pub(crate) capabilities: Capabilities,
    pub(crate) blobs: Arc<Blobs>,
    pub(crate) attempts: Attempts,
    pub(crate) remembered: Remembered,
    pub(crate) waiters: Arc<Line>,
    pub(crate) turns: Turns,
    /// By which others know this process's marks.
    pub(crate) mark: String,
    /// For people and errors.
    pub(crate) place: String,
    pub(crate) request_timeout: Duration,
    pub(crate) create_container: bool,
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases").field("place", &self.place).finish_non_exhaustive()
    }
}

/// How long a lease lasts that is asked for with this TTL: the service gives whole seconds.
fn whole_seconds(ttl: Duration) -> Duration {
    Duration::from_secs(ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0))
}

impl Leases {
    /// How long one request about `request` may take.
    fn patience(&self, request: &Request) -> Duration {
        self.request_timeout.min(request.ttl / 6)
    }

    /// Takes the lock, if it is free or ours; `None` if another has it.
    async fn take(&self, request: &Request) -> Result<Option<Grant>, Trouble> {
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
        Acquired { mut etag, date }: Acquired,
        patience: Duration,
    ) -> Result<Option<FencingToken>, Trouble> {
        let date = date.ok_or_else(|| strange("an answer without a date"))?;
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
            let token = tokens::next(last.as_ref(), date)
                .ok_or_else(|| strange("a token that is the greatest there can be"))?;
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

    /// Whether `request` holds, for how long it was given the lease, and by whose word that is: ours as long as we count it
    /// as running, else the service's.
    async fn holds(&self, request: &Request, patience: Duration) -> Result<Option<Duration>, Trouble> {
        if let Some((lease, until)) = self.attempts.find(request.id).and_then(|attempt| attempt.held)
            && SystemClock.now() < until
        {
            return Ok(Some(lease));
        }
        // A lease that has run out could be renewed, if nobody has taken it: but that would be a new hold.
        match self.blobs.look(&request.name, Some(&LeaseId::of(request.id)), patience).await {
            Ok(seen) => Ok(match seen.written {
                Written::Grant(record) if seen.leased && record.grant == Fingerprint::of(request.id) => {
                    Some(record.ttl)
                }
                _ => None,
            }),
            Err(trouble) if is_gone(&trouble) => Ok(None),
            Err(trouble) => Err(trouble),
        }
    }

    async fn extend(&self, request: &Request) -> Result<Renewal, Trouble> {
        let (lease_id, patience) = (LeaseId::of(request.id), self.patience(request));
        self.blobs.calm(request.ttl / 6).await;
        let Some(mut lease) = self.holds(request, patience).await? else {
            return Ok(Renewal::Lost(LostReason::Gone));
        };
        let mut sent = SystemClock.now();
        match self.blobs.renew(&request.name, &lease_id, patience).await {
            Ok(true) => {}
            // The emulator answers so when the lease was another's and has run out.
            Ok(false) => return Ok(Renewal::Lost(LostReason::Gone)),
            Err(trouble) if trouble.refusal() == Some(Refusal::Broken) => {
                return Ok(Renewal::Lost(LostReason::Broken(BreakNotice::default())));
            }
            Err(trouble) if is_gone(&trouble) => return Ok(Renewal::Lost(LostReason::Gone)),
            Err(trouble) => return Err(trouble),
        }
        let wanted = whole_seconds(request.ttl);
        if lease != wanted {
            // A renewal extends by what was asked for at first. The lease is ours, so it can be acquired once more, for longer.
            sent = SystemClock.now();
            self.blobs.acquire(&request.name, &lease_id, wanted, patience).await?;
            lease = wanted;
        }
        self.attempts.note(request, |attempt| {
            attempt.may_hold = true;
            attempt.held = Some((lease, sent + lease));
        });
        Ok(Renewal::Renewed { lease })
    }

    async fn give_back(&self, request: &Request) -> Result<(), Trouble> {
        let attempt = self.attempts.find(request.id);
        let stood_in_line = self.waiters.leave(request);
        // What another process has asked for it, nobody here knows.
        let may_hold = attempt.map_or(!stood_in_line, |attempt| attempt.may_hold);
        if !may_hold {
            return Ok(());
        }
        let (lease, patience) = (LeaseId::of(request.id), self.patience(request));
        given_back(self.blobs.release(&request.name, &lease, patience).await)?;
        if let Some(unanswered) = attempt.and_then(|attempt| attempt.unanswered) {
            tokio::spawn(take_back(self.blobs.clone(), request.clone(), unanswered + LATE, patience));
        }
        Ok(())
    }

    /// For how long nobody here asks for the lock.
    async fn leaves_it(&self, request: &Request) -> Option<Duration> {
        match self.turns.of(&request.name) {
            Turn::Ours => return None,
            Turn::Nobodys(left) => return Some(left),
            Turn::Up => {}
        }
        let patience = self.patience(request);
        match self.blobs.mark(&request.name, patience).await {
            Ok(Some((whose, age))) if whose != self.mark && age <= turns::FRESH => {
                self.turns.leave_to_others(&request.name);
                Some(Place::MAX_RECHECK)
            }
            // If it can't be told, the claim finds out what is wrong.
            _ => {
                self.turns.begins_anew(&request.name);
                None
            }
        }
    }

    /// Tells other processes that this one waits, if that has lasted for a moment and was not told lately.
    async fn leave_a_mark(&self, request: &Request) {
        let now = SystemClock.now();
        let due = self.attempts.note(request, |attempt| {
            let due = now > attempt.began + turns::MOMENT
                && attempt.marked.is_none_or(|marked| now > marked + turns::RENEWED);
            if due {
                attempt.marked = Some(now);
            }
            due
        });
        if due
            && let Err(trouble) =
                self.blobs.leave_mark(&request.name, &self.mark, self.patience(request)).await
        {
            tracing::debug!(?trouble, "could not tell other processes that this one waits");
        }
    }

    pub(crate) fn failed(&self, operation: Operation, trouble: Trouble) -> polylock_core::Error {
        trouble.at(operation, &self.place)
    }
}

/// Whether a lease is definitely no more, or was never there.
pub(crate) fn is_gone(trouble: &Trouble) -> bool {
    use Refusal::{Broken, NoBlob, NoContainer, NotOurs};
    matches!(trouble.refusal(), Some(NoBlob | NoContainer | NotOurs | Broken))
}

/// What was to be made is there, whoever has made it.
pub(crate) fn made(answer: Result<(), Trouble>) -> Result<(), Trouble> {
    match answer {
        // The last two are what the service may say of a blob that is there, leased or not.
        Err(trouble)
            if matches!(trouble.refusal(), Some(Refusal::Exists | Refusal::NotOurs | Refusal::Changed)) =>
        {
            Ok(())
        }
        answer => answer,
    }
}

/// What is not there need not be released.
fn given_back(answer: Result<(), Trouble>) -> Result<(), Trouble> {
    match answer {
        Err(trouble) if is_gone(&trouble) => Ok(()),
        answer => answer,
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

/// Releases what an acquisition whose answer never came may have taken yet:
/// 1. the request is sent, and given up when time is up;
/// 2. its release is sent on another connection, overtakes it, and finds nothing;
/// 3. the acquisition is carried out after all: without this, nobody has the lock until that lease has run out.
async fn take_back(blobs: Arc<Blobs>, request: Request, until: Moment, patience: Duration) {
    let lease = LeaseId::of(request.id);
    let mut pause = Duration::from_millis(100);
    while SystemClock.now() < until {
        SystemClock.sleep_until(SystemClock.now() + pause).await;
        pause = (pause * 2).min(Duration::from_secs(2));
        if let Err(trouble) = given_back(blobs.release(&request.name, &lease, patience).await) {
            tracing::debug!(?trouble, "a lease that may have come late could not be released yet");
        }
    }
}

#[async_trait]
impl Backend for Leases {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn claim(&self, request: &Request) -> Result<Standing> {
        let holds = self.attempts.find(request.id).is_some_and(|attempt| attempt.held.is_some());
        if request.queues && !holds {
            let before = self.waiters.join(request);
            if before > 0 {
                // Whoever is first asks for all of them.
                return Ok(Standing::Queued(Place::new(u32::try_from(before).ok(), Place::MAX_RECHECK)));
            }
            if let Some(pause) = self.leaves_it(request).await {
                return Ok(Standing::Queued(Place::new(None, pause)));
            }
        }
        match self.take(request).await {
            Ok(Some(grant)) => {
                self.waiters.leave(request);
                Ok(Standing::Held(grant))
            }
            Ok(None) => {
                if request.queues {
                    self.leave_a_mark(request).await;
                }
                let pause = self.attempts.note(request, |attempt| {
                    attempt.pause = (attempt.pause * 2).clamp(PAUSES.0, PAUSES.1);
                    attempt.pause.mul_f64(1.0 - fastrand::f64() / 4.0)
                });
                if !request.queues && self.attempts.find(request.id).is_some_and(|attempt| !attempt.may_hold)
                {
                    self.attempts.forget(request.id);
                }
                Ok(Standing::Queued(Place::new(None, pause)))
            }
            Err(trouble) => Err(self.failed(Operation::Claim, trouble)),
        }
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        let wake = self.waiters.rung(request).await;
        // Things have begun to move.
        self.attempts.note(request, |attempt| attempt.pause = Duration::ZERO);
        Ok(wake)
    }

    async fn renew(&self, request: &Request) -> Result<Renewal> {
        self.extend(request).await.map_err(|trouble| self.failed(Operation::Renew, trouble))
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        self.give_back(request).await.map_err(|trouble| self.failed(Operation::Release, trouble))?;
        if self.attempts.forget(request.id).is_some_and(|attempt| attempt.held.is_some()) {
            self.turns.released(&request.name);
        }
        self.waiters.wake(&request.name);
        Ok(Release::Released)
    }
}
