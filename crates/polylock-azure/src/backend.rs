//! The store: one blob for each lock, whose lease is the lock.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use polylock_core::{
    Backend, Capabilities, Clock, KeepAlive, LostReason, Moment, Operation, Place, Release, Request, Result,
    Standing, SystemClock, Wake, line::Line,
};

use crate::{
    attempts::Attempts,
    blobs::Blobs,
    error::{Refusal, Trouble},
    record::{Fingerprint, Written},
    tokens::Remembered,
    turns::{self, Turn, Turns},
    wire::{LATE, LeaseId},
};

/// The pauses of a waiter, the shortest and the longest: each is twice the one before. Up to a quarter is taken off at random,
/// so that the waiters of many processes do not ask in step.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Place::MAX_RECHECK);

/// How often a claim makes what is missing, or begins anew.
pub(crate) const TRIES: u32 = 4;

/// The pauses between the releases of a lease that may come late, the shortest and the longest: an acquisition that arrives
/// keeps nobody out for longer than a second.
const AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(700));

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
pub(crate) fn whole_seconds(ttl: Duration) -> Duration {
    Duration::from_secs(ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0))
}

impl Leases {
    /// How long one request about `request` may take.
    pub(crate) fn patience(&self, request: &Request) -> Duration {
        self.request_timeout.min(request.ttl / 6)
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

    async fn extend(&self, request: &Request) -> Result<KeepAlive, Trouble> {
        let (lease_id, patience) = (LeaseId::of(request.id), self.patience(request));
        self.blobs.calm(request.ttl / 6).await;
        let Some(mut lease) = self.holds(request, patience).await? else {
            return Ok(KeepAlive::Lost(self.lost(request, None).await));
        };
        let mut sent = SystemClock.now();
        match self.blobs.renew(&request.name, &lease_id, patience).await {
            Ok(true) => {}
            // The emulator answers so when the lease was another's and has run out.
            Ok(false) => return Ok(KeepAlive::Lost(self.lost(request, None).await)),
            Err(trouble) if is_gone(&trouble) => {
                return Ok(KeepAlive::Lost(self.lost(request, trouble.refusal()).await));
            }
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
        Ok(KeepAlive::Held { lease })
    }

    /// Returns why `request` holds the lock no longer, or only until its release.
    async fn lost(&self, request: &Request, refusal: Option<Refusal>) -> LostReason {
        let reason = self.why_lost(request, refusal).await;
        if matches!(reason, LostReason::Broken(_)) {
            self.attempts.note(request, |attempt| attempt.broken = true);
        }
        reason
    }

    async fn give_back(&self, request: &Request) -> Result<Release, Trouble> {
        let attempt = self.attempts.find(request.id);
        let queued = self.waiters.leave(request);
        // What another process has asked for it, nobody here knows.
        if !attempt.map_or(!queued, |attempt| attempt.may_hold) {
            return Ok(if queued { Release::Released } else { Release::Lost(LostReason::Gone) });
        }
        let (lease, patience) = (LeaseId::of(request.id), self.patience(request));
        let outcome = match self.blobs.release(&request.name, &lease, patience).await {
            Ok(()) => Release::Released,
            Err(trouble) if is_gone(&trouble) => match queued || trouble.may_have_been_done() {
                true => Release::Released,
                false => Release::Lost(self.why_lost(request, trouble.refusal()).await),
            },
            Err(trouble) => return Err(trouble),
        };
        if let Some(unanswered) = attempt.and_then(|attempt| attempt.unanswered) {
            tokio::spawn(take_back(self.blobs.clone(), request.clone(), unanswered + LATE, patience));
        }
        let broken = matches!(outcome, Release::Lost(LostReason::Broken(_)));
        if broken || attempt.is_some_and(|attempt| attempt.broken) {
            self.drop_notice(request).await;
        }
        Ok(outcome)
    }

    /// The place of a request that is not to ask for the lock now.
    async fn place_in_line(&self, request: &Request) -> Option<Place> {
        let holds = self.attempts.find(request.id).is_some_and(|attempt| attempt.held.is_some());
        if !request.queues || holds {
            return None;
        }
        match self.waiters.join(request) {
            0 => self.leaves_it(request).await.map(|pause| Place::new(None, pause)),
            // Only the first of the line sends requests.
            before => Some(Place::new(u32::try_from(before).ok(), Place::MAX_RECHECK)),
        }
    }

    /// The place of a request that was refused the lock, because another has it.
    async fn place_of_refused(&self, request: &Request) -> Place {
        if request.queues {
            self.leave_a_mark(request).await;
        }
        let pause = self.attempts.note(request, |attempt| {
            attempt.pause = (attempt.pause * 2).clamp(PAUSES.0, PAUSES.1);
            attempt.pause.mul_f64(1.0 - fastrand::f64() / 4.0)
        });
        if !request.queues && self.attempts.find(request.id).is_some_and(|attempt| !attempt.may_hold) {
            self.attempts.forget(request.id);
        }
        Place::new(None, pause)
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

/// Releases the lease that an acquire request without a reply may still obtain:
/// 1. the request is sent, and given up when its time limit is over;
/// 2. its release is sent on another connection, overtakes it, and finds nothing;
/// 3. the acquire request arrives: without this, nobody has the lock until that lease has run out, after a minute at most.
async fn take_back(blobs: Arc<Blobs>, request: Request, until: Moment, patience: Duration) {
    let lease = LeaseId::of(request.id);
    let mut pause = AGAIN.0;
    while SystemClock.now() < until {
        SystemClock.sleep_until(SystemClock.now() + pause).await;
        pause = (pause * 2).min(AGAIN.1);
        match blobs.release(&request.name, &lease, patience).await {
            Err(trouble) if !is_gone(&trouble) => {
                tracing::debug!(?trouble, "a lease that may have come late could not be released yet");
            }
            _ => {}
        }
    }
}

#[async_trait]
impl Backend for Leases {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn claim(&self, request: &Request) -> Result<Standing> {
        if let Some(place) = self.place_in_line(request).await {
            return Ok(Standing::Queued(place));
        }
        let grant = self.take(request).await.map_err(|trouble| self.failed(Operation::Claim, trouble))?;
        let Some(grant) = grant else { return Ok(Standing::Queued(self.place_of_refused(request).await)) };
        self.waiters.leave(request);
        Ok(Standing::Held(grant))
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        let wake = self.waiters.rung(request).await;
        // Things have begun to move.
        self.attempts.note(request, |attempt| attempt.pause = Duration::ZERO);
        Ok(wake)
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        let [request] = requests else { return Ok(Vec::new()) };
        let outcome = self.extend(request).await.map_err(|trouble| self.failed(Operation::Renew, trouble))?;
        Ok(vec![outcome])
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        let outcome = self.give_back(request).await;
        let outcome = outcome.map_err(|trouble| self.failed(Operation::Release, trouble))?;
        if self.attempts.forget(request.id).is_some_and(|attempt| attempt.held.is_some()) {
            self.turns.released(&request.name);
        }
        self.waiters.wake(&request.name);
        Ok(outcome)
    }
}
