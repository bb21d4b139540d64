//! One of the servers, and its votes.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use polylock_core::{Clock, LockName, Moment, Operation, Request, RequestId, Result, SystemClock};
use redis::{FromRedisValue, ScriptInvocation};

use super::{
    membership::{Membership, Observed},
    scripts::{Member, Renewal, Scripts},
    tally::Extension,
};
use crate::{
    call::Call,
    checkup::Health,
    link::{Link, Peer},
};

/// The call of a script, for the server at the other end of a connection.
type ScriptCall<'a> = &'a (dyn Fn(&Peer) -> ScriptInvocation<'a> + Sync);

/// A script's reply: word, number, ms, clock in us, membership, and the notice or the outcomes. See `scripts/common.lua`.
type Reply<T = Vec<u8>> = (i64, i64, i64, i64, Vec<u8>, T);

/// The first number of a reply.
mod word {
    pub(super) const HELD: i64 = 0;
    pub(super) const YES: i64 = 1;
    pub(super) const STALE: i64 = 2;
    pub(super) const TOO_FAR: i64 = 3;
    pub(super) const NO: i64 = 4;
    pub(super) const MARKED: i64 = 5;
}

/// One of the servers.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) link: Link,
    /// For how long the votes of a server that may have lost some do not count; `None` if restarts are trusted.
    delay: Option<Duration>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Its clock, in us since 1970, and when the reply with it arrived.
    clock: Option<(Moment, i64)>,
    membership: Membership,
}

/// A server's reply to a proposal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) vote: Vote,
    /// Whether the server's votes count.
    pub(super) counts: bool,
}

/// A server's vote, or its refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Vote {
    /// It has a vote for this number of the request, for this long.
    Yes(i64, Duration),
    /// Another request has its vote, for this number and this long.
    Held(i64, Duration),
    /// It has accepted this number, and refuses those that are not greater.
    Stale(i64),
    /// The number is far ahead of its clock.
    TooFar,
}

/// A server's reply to a renewal of several requests.
#[derive(Debug)]
pub(super) struct Extensions {
    /// Of each request, with a break notice or an empty text.
    pub(super) each: Vec<(Extension, String)>,
    /// Whether the server's votes count.
    pub(super) counts: bool,
}

/// The outcome of a message that may leave votes.
#[derive(Debug)]
pub(super) struct Ballot<T = Answer> {
    pub(super) answer: Result<T>,
    pub(super) was_sent: bool,
    /// Whether a copy of it may still be carried out, at any time.
    pub(super) may_come_late: bool,
}

/// A server's reply to a withdrawal.
#[derive(Debug)]
pub(super) struct Withdrawn {
    /// Whether there was a vote.
    pub(super) removed: bool,
    /// Whether an earlier copy of the message may have removed it.
    pub(super) may_be_repeated: bool,
    /// Of a break by force, or empty.
    pub(super) notice: String,
}

/// The outcome of a withdrawal.
#[derive(Debug)]
pub(super) struct Withdrawal {
    pub(super) reply: Result<Withdrawn>,
    pub(super) was_sent: bool,
}

impl Node {
    /// The server of `link`.
    pub(super) fn new(link: Link, delay: Option<Duration>) -> Self {
        Self { link, delay, state: Mutex::default() }
    }

    /// The server, without secrets.
    pub(super) fn address(&self) -> &str {
        self.link.address()
    }

    /// Its clock, in us since 1970, if it is known.
    pub(super) fn clock_us(&self) -> Option<i64> {
        let (received, clock) = self.state().clock?;
        let since = SystemClock.now().since(received).as_micros();
        Some(clock.saturating_add(i64::try_from(since).unwrap_or(i64::MAX)))
    }

    /// How long it takes until its votes count; `None` if they do, as far as is known.
    pub(super) fn remaining_delay(&self) -> Option<Duration> {
        self.state().membership.remaining(self.delay?, SystemClock.now())
    }

    /// Connects. Returns the state of the server, and whether its votes count.
    ///
    /// # Errors
    /// If it can't be reached or used.
    pub(super) async fn meet(&self, scripts: &Scripts, timeout: Duration) -> Result<(Health, Observed)> {
        let (live, _) =
            self.link.live().await.map_err(|cause| self.link.failed(Operation::Connect, cause))?;
        let health = live.peer.health.clone();
        self.observe_clock(health.clock_us);
        if self.delay.is_none() {
            return Ok((health, Observed::Counts));
        }
        let call = |peer: &Peer| scripts.member(&self.member(peer));
        let (_, observed) = self.run::<Vec<u8>>(Operation::Connect, timeout, &call).await.outcome?;
        Ok((health, observed))
    }

    /// Ends the server's delay, if there is one. Returns whether it did.
    ///
    /// # Errors
    /// If it can't be reached.
    pub(super) async fn admit(&self, scripts: &Scripts, timeout: Duration) -> Result<bool> {
        let Some(delay) = self.delay.filter(|_| self.remaining_delay().is_some()) else { return Ok(false) };
        let call = |peer: &Peer| {
            let mut member = self.member(peer);
            if let Some(observed) = self.state().membership.admission(&member.run, &nonce(), delay) {
                member.observed = observed;
            }
            scripts.member(&member)
        };
        let (_, observed) = self.run::<Vec<u8>>(Operation::Connect, timeout, &call).await.outcome?;
        Ok(observed == Observed::Counts)
    }

    /// Proposes `number` for `request`, whose numbers up to `withdrawn` are withdrawn.
    pub(super) async fn propose(
        &self,
        scripts: &Scripts,
        request: &Request,
        number: i64,
        withdrawn: i64,
        channel: &str,
        timeout: Duration,
    ) -> Ballot {
        let call = |peer: &Peer| scripts.propose(&self.member(peer), request, number, withdrawn, channel);
        self.vote(Operation::Claim, timeout, &call).await
    }

    /// Extends its votes for these numbers of requests; `restores` for a server that has lost the votes.
    pub(super) async fn keep_alive(
        &self,
        scripts: &Scripts,
        batch: &[Renewal],
        restores: bool,
        timeout: Duration,
    ) -> Ballot<Extensions> {
        let call = |peer: &Peer| scripts.keep_alive(&self.member(peer), batch, restores);
        let Seen { outcome, was_sent, may_come_late } =
            self.run::<Vec<(i64, Vec<u8>)>>(Operation::Renew, timeout, &call).await;
        let answer = outcome.and_then(|((.., outcomes), observed)| {
            let counts = self.counts(observed);
            let each = outcomes.iter().map(|(word, notice)| Some((extension(*word)?, text(notice))));
            match each.collect::<Option<Vec<_>>>() {
                Some(each) if each.len() == batch.len() => Ok(Extensions { each, counts }),
                _ => Err(self
                    .link
                    .unexpected(Operation::Renew, "the outcomes of a renewal that make no sense")),
            }
        });
        Ballot { answer, was_sent, may_come_late }
    }

    /// Withdraws its votes for numbers of `request` up to `number`; `channel`, unless empty, does not wait any more.
    pub(super) async fn withdraw(
        &self,
        scripts: &Scripts,
        request: RequestId,
        name: &LockName,
        number: i64,
        channel: &str,
        timeout: Duration,
    ) -> Withdrawal {
        let id = request.to_bytes();
        let call = |_: &Peer| scripts.release(&id, name, number, channel);
        let reply = self.link.call(Operation::Release, timeout, Call::Script(&call)).await;
        let (was_sent, may_be_repeated) = (reply.was_sent, reply.may_come_late);
        let outcome = reply.outcome.and_then(|value| self.link.read::<Reply>(Operation::Release, value));
        let reply = outcome.map(|(word, _, _, clock, _, notice)| {
            self.observe_clock(clock);
            Withdrawn { removed: word == word::YES, may_be_repeated, notice: text(&notice) }
        });
        Withdrawal { reply, was_sent }
    }

    /// Breaks its vote. Returns the notice that counts; `None` if it had no vote to break.
    ///
    /// # Errors
    /// If it can't be reached.
    pub(super) async fn break_lock(&self, timeout: Duration, call: ScriptCall<'_>) -> Result<Option<String>> {
        let value = self.link.call(Operation::Break, timeout, Call::Script(call)).await.outcome?;
        let (word, _, _, _, _, notice): Reply = self.link.read(Operation::Break, value)?;
        Ok((word == word::YES).then(|| text(&notice)))
    }

    async fn vote(&self, operation: Operation, timeout: Duration, call: ScriptCall<'_>) -> Ballot {
        let Seen { outcome, was_sent, may_come_late } = self.run::<Vec<u8>>(operation, timeout, call).await;
        let answer = outcome.and_then(|((word, number, ms, ..), observed)| {
            let counts = self.counts(observed);
            let left = Duration::from_millis(u64::try_from(ms).unwrap_or(0));
            let vote = match word {
                word::YES => Vote::Yes(number, left),
                word::HELD => Vote::Held(number, left),
                word::STALE => Vote::Stale(number),
                word::TOO_FAR => Vote::TooFar,
                word => return Err(self.link.unexpected(operation, format_args!("vote {word}"))),
            };
            Ok(Answer { vote, counts })
        });
        Ballot { answer, was_sent, may_come_late }
    }

    /// Whether the server's votes count. Warns if they do not any more.
    fn counts(&self, observed: Observed) -> bool {
        if observed == (Observed::Delayed { begins: true }) {
            tracing::warn!(
                server = self.address(),
                "the server was restarted or has lost its data, and may have forgotten votes: its votes count in {:.0?}, \
                 when every lease of before has expired",
                self.remaining_delay().unwrap_or_default()
            );
        }
        observed == Observed::Counts
    }

    /// Runs a script that returns the membership, and notes it.
    async fn run<T: FromRedisValue>(
        &self,
        operation: Operation,
        timeout: Duration,
        call: ScriptCall<'_>,
    ) -> Seen<T> {
        let reply = self.link.call(operation, timeout, Call::Script(call)).await;
        // The delay of a server counts from here, after the arrival of the reply, and never from the sending.
        let now = SystemClock.now();
        let (was_sent, may_come_late) = (reply.was_sent, reply.may_come_late);
        let outcome = reply.outcome.and_then(|value| self.link.read::<Reply<T>>(operation, value));
        let outcome = outcome.map(|seen| {
            self.observe_clock(seen.3);
            let run = reply.peer.as_ref().and_then(|(peer, _)| peer.health.run.as_deref());
            let membership = String::from_utf8_lossy(&seen.4);
            let observed = self.state().membership.observe(run.unwrap_or_default(), &membership, now);
            (seen, observed)
        });
        Seen { outcome, was_sent, may_come_late }
    }

    fn member(&self, peer: &Peer) -> Member {
        let is_durable = peer.health.is_durable;
        let (Some(delay), Some(run)) = (self.delay, peer.health.run.clone()) else {
            return Member { run: String::new(), is_durable, observed: String::new() };
        };
        let observed = self.state().membership.argument(&run, &nonce(), delay, SystemClock.now());
        Member { run, is_durable, observed }
    }

    fn observe_clock(&self, clock_us: i64) {
        self.state().clock = Some((SystemClock.now(), clock_us));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The outcome of a script that returns the membership.
struct Seen<T> {
    outcome: Result<(Reply<T>, Observed)>,
    was_sent: bool,
    may_come_late: bool,
}

/// The outcome of a renewal of one request, by the word of the script.
const fn extension(word: i64) -> Option<Extension> {
    match word {
        word::YES => Some(Extension::Extended),
        word::MARKED => Some(Extension::Marked),
        word::NO => Some(Extension::Absent),
        _ => None,
    }
}

/// A nonce for a server that has no membership yet.
fn nonce() -> String {
    format!("{:016x}", fastrand::u64(..))
}

/// A text that others may have written.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
