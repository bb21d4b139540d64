//! One of the servers, and its votes.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use polylock_core::{Clock, Moment, Operation, Request, Result, SystemClock};
use redis::ScriptInvocation;

use super::scripts::Scripts;
use crate::link::{Answer, Link, Question};

/// One of the servers.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) link: Link,
    /// How long it must have run to have a vote.
    youth: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Its clock, in us since 1970, and when it said so.
    clock: Option<(Moment, i64)>,
    /// When it began to have a vote, or will.
    grown_up: Option<Moment>,
}

/// What a node says to a proposal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Vote {
    /// The lock is the request's there, with this token.
    Yes(i64),
    /// So it is, but the node has restarted and may have forgotten that it was another's.
    Young,
    /// Another request has it, with this token, for this long.
    Held(i64, Duration),
    /// It has accepted this number, and takes none that is not greater.
    Stale(i64),
    /// The number is far ahead of its clock.
    TooFar,
    /// The lock is not the request's.
    No,
}

/// What came of asking a node.
pub(super) struct Ballot {
    pub(super) vote: Result<Vote>,
    /// Whether the node may have done what it was asked, or may do so yet.
    pub(super) may_count: bool,
}

impl Node {
    /// The server of `link`, which has a vote once it has run for `youth`.
    pub(super) fn new(link: Link, youth: Duration) -> Self {
        Self { link, youth, state: Mutex::default() }
    }

    /// The server, without secrets.
    pub(super) fn place(&self) -> &str {
        self.link.place()
    }

    /// Its clock by now, in us since 1970, if it has told.
    pub(super) fn clock_us(&self) -> Option<i64> {
        let (told, clock) = self.state.lock().unwrap_or_else(PoisonError::into_inner).clock?;
        let since = SystemClock.now().since(told).as_micros();
        Some(clock.saturating_add(i64::try_from(since).unwrap_or(i64::MAX)))
    }

    /// How long it has no vote yet, by what its last answer came with.
    pub(super) fn youth(&self) -> Option<Duration> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (now, grown_up) = (SystemClock.now(), state.grown_up?);
        (grown_up > now).then(|| grown_up.since(now))
    }

    /// Proposes `number` for `request`; `channel` is told when it is worth trying again.
    pub(super) async fn propose(
        &self,
        scripts: &Scripts,
        request: &Request,
        number: i64,
        channel: &str,
        patience: Duration,
    ) -> Ballot {
        self.vote(Operation::Claim, patience, &scripts.propose(request, number, channel)).await
    }

    pub(super) async fn renew(
        &self,
        scripts: &Scripts,
        request: &Request,
        number: i64,
        brings_back: bool,
        patience: Duration,
    ) -> Ballot {
        self.vote(Operation::Renew, patience, &scripts.renew(request, number, brings_back)).await
    }

    /// Takes back its vote for `request`, for all numbers up to `number`; `channel` waits no more.
    pub(super) async fn release(
        &self,
        scripts: &Scripts,
        request: &Request,
        number: i64,
        channel: &str,
        patience: Duration,
    ) -> Result<()> {
        self.tell(Operation::Release, patience, &scripts.release(request, number, channel)).await
    }

    /// Does as `call` says.
    pub(super) async fn tell(
        &self,
        operation: Operation,
        patience: Duration,
        call: &ScriptInvocation<'_>,
    ) -> Result<()> {
        let Answer { outcome, uptime, .. } = self.link.ask(operation, patience, Question::Script(call)).await;
        let _: [i64; 4] = self.link.read(operation, outcome?)?;
        self.told(uptime);
        Ok(())
    }

    async fn vote(&self, operation: Operation, patience: Duration, call: &ScriptInvocation<'_>) -> Ballot {
        let Answer { outcome, may_come_late, uptime } =
            self.link.ask(operation, patience, Question::Script(call)).await;
        let may_count = may_come_late || outcome.is_ok();
        let vote = outcome.and_then(|answer| self.link.read::<[i64; 4]>(operation, answer)).map(|answer| {
            let [word, number, left_ms, clock] = answer;
            let counts = self.told(uptime);
            self.says(clock);
            match word {
                1 if counts => Vote::Yes(number),
                1 => Vote::Young,
                0 => Vote::Held(number, Duration::from_millis(u64::try_from(left_ms).unwrap_or(0))),
                2 => Vote::Stale(number),
                3 => Vote::TooFar,
                _ => Vote::No,
            }
        });
        Ballot { vote, may_count }
    }

    /// It has answered, and had run for `uptime` by then; whether it has a vote.
    pub(super) fn told(&self, uptime: Option<Duration>) -> bool {
        let now = SystemClock.now();
        let youth = self.youth.saturating_sub(uptime.unwrap_or_default());
        self.state.lock().unwrap_or_else(PoisonError::into_inner).grown_up = Some(now + youth);
        youth.is_zero()
    }

    /// Its clock said this just now.
    pub(super) fn says(&self, clock_us: i64) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clock = Some((SystemClock.now(), clock_us));
    }
}
