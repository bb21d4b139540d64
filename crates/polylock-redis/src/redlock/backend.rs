//! The store: proposals, and what a majority makes of them.
//!
//! After Redlock (<https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>), with numbers: a proposal
//! carries one, a node accepts only a greater one than before, and the number that a majority has accepted is the token.
//! Two majorities share a node, which has accepted the one before the other, so no token is given twice; and if one request
//! had the lock before another asked for it, the node that they share makes the later token the greater one.

use std::{collections::HashMap, fmt, str, sync::Arc, time::Duration};

use async_trait::async_trait;
use polylock_core::{
    Backend, Capabilities, Clock, FencingToken, Grant, LockName, LostReason, Operation, Place, Release,
    Renewal, Request, Result, Standing, SystemClock, Wake, line::Line,
};

use super::{
    attempts::{Attempt, Attempts},
    node::{Node, Vote},
    numbers::Numbers,
    poll::{poll, quorum, too_few},
    scripts::Scripts,
};
use crate::link::News;

/// How often a waiter asks, though it is told.
const RECHECK: Duration = Duration::from_millis(500);
/// How long it waits, at random, after votes were split.
const SPLIT: std::ops::Range<u64> = 1..20;
/// How often a number is proposed until a claim has failed.
const TRIES: u32 = 5;
/// For how long a vote that is lost on the way, for a lease however short, is asked back.
const LATE: Duration = Duration::from_secs(60);
/// The pauses between.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));

/// The locks of all servers.
pub(super) struct Redlock {
    pub(super) capabilities: Capabilities,
    pub(super) nodes: Vec<Arc<Node>>,
    pub(super) scripts: Arc<Scripts>,
    pub(super) numbers: Numbers,
    pub(super) attempts: Attempts,
    pub(super) waiters: Arc<Line>,
    pub(super) channel: String,
    /// How long a node may take.
    pub(super) patience: Duration,
}

/// What a node has told the waiters of this process.
pub(super) fn hear(waiters: &Line, news: News<'_>) {
    let name = match news {
        News::Published(name) => str::from_utf8(name).ok().and_then(|name| LockName::new(name).ok()),
        News::Lost => None,
    };
    match name {
        Some(name) => waiters.wake(&name),
        None => waiters.wake_all(),
    }
}

/// What a proposal came to.
enum Outcome {
    Held(Grant),
    /// Another has it, for at least so long if nobody releases it.
    Taken(Duration),
    /// Nobody has a majority.
    Split,
    /// The number was too small.
    Outnumbered,
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<&str> = self.nodes.iter().map(|node| node.place()).collect();
        f.debug_struct("Redlock").field("nodes", &nodes).finish_non_exhaustive()
    }
}

impl Redlock {
    fn quorum(&self) -> usize {
        quorum(self.nodes.len())
    }

    /// Those of the nodes that have told.
    fn clocks(&self) -> Vec<i64> {
        self.nodes.iter().filter_map(|node| node.clock_us()).collect()
    }

    /// How long a node may take to answer about `request`.
    fn patience(&self, request: &Request) -> Duration {
        self.patience.min(request.ttl / 5)
    }

    /// Proposes a number for `request`, and takes back all votes if they are too few.
    async fn propose(&self, request: &Request, attempt: &Arc<Attempt>) -> Result<Outcome> {
        let began = SystemClock.now();
        let number = self.numbers.next(self.clocks());
        attempt.proposes(number);
        let patience = self.patience(request);
        let channel = if request.queues { self.channel.clone() } else { String::new() };
        let ask = |index, node: Arc<Node>| {
            let (scripts, request, attempt, channel) =
                (self.scripts.clone(), request.clone(), attempt.clone(), channel.clone());
            let before = attempt.asks(index);
            async move {
                let ballot = node.propose(&scripts, &request, number, &channel, patience).await;
                if !ballot.may_count && !before && attempt.number() == number {
                    attempt.clear(index);
                }
                ballot.vote
            }
        };
        let (mut yes, mut others) = (HashMap::<i64, usize>::new(), 0);
        let votes = poll(Operation::Claim, &self.nodes, patience, ask, |vote| {
            if let Ok(Vote::Yes(token)) = vote
                && attempt.counts(*token)
            {
                let votes = yes.entry(*token).or_default();
                *votes += 1;
                return *votes >= self.quorum();
            }
            others += 1;
            // The rest can't make a majority any more.
            self.nodes.len() - others < self.quorum()
        })
        .await;

        let agreed = yes.iter().find(|(_, votes)| **votes >= self.quorum()).map(|(token, _)| *token);
        let left = request.ttl.saturating_sub(SystemClock.now().since(began));
        if let (Some(token), false) = (agreed.and_then(FencingToken::new), left.is_zero()) {
            attempt.holds(token.as_i64());
            return Ok(Outcome::Held(Grant::new(token, request.ttl)));
        }
        attempt.undoes();
        let answering = votes.iter().filter(|vote| matches!(vote, Some(Ok(_)))).count();
        self.take_back(request, attempt, answering).await;

        let (mut held, mut left, mut dead) = (HashMap::<i64, usize>::new(), Duration::MAX, 0);
        let mut stale = Vec::new();
        for vote in &votes {
            match vote {
                Some(Ok(Vote::Held(token, for_another))) => {
                    attempt.waits();
                    *held.entry(*token).or_default() += 1;
                    left = left.min(*for_another);
                }
                Some(Ok(Vote::Stale(last))) => stale.push(*last),
                Some(Ok(Vote::Young) | Err(_)) => dead += 1,
                _ => {}
            }
        }
        self.numbers.saw(&stale, self.nodes.len() - self.quorum(), self.clocks());
        if self.nodes.len() - dead < self.quorum() {
            return Err(too_few(Operation::Claim, &self.nodes, votes));
        }
        Ok(if held.values().any(|votes| *votes >= self.quorum()) {
            Outcome::Taken(left)
        } else if !stale.is_empty() && held.is_empty() {
            Outcome::Outnumbered
        } else {
            Outcome::Split
        })
    }

    /// Gives the vote for `number` back to those nodes that have lost it, now that a majority has extended it.
    fn bring_back(&self, request: &Request, number: i64, votes: &[Option<Result<Vote>>]) {
        for (node, vote) in self.nodes.iter().zip(votes) {
            if matches!(vote, Some(Ok(Vote::No))) {
                let (node, scripts, request) = (node.clone(), self.scripts.clone(), request.clone());
                let patience = self.patience(&request);
                // Next time, if it fails. A release that is quicker has the node refuse.
                tokio::spawn(async move {
                    drop(node.renew(&scripts, &request, number, true, patience).await.vote);
                });
            }
        }
    }

    /// Has all nodes take back their votes, and waits for as many as have said something.
    async fn take_back(&self, request: &Request, attempt: &Arc<Attempt>, mut answering: usize) {
        self.release_all(request, attempt, "", |answer| {
            answering -= usize::from(answer.is_ok() && answering > 0);
            answering == 0
        })
        .await;
    }

    /// Releases `request` on all nodes that may have voted for it, which are asked until they have answered; and on all, if
    /// `channel` is not empty, which waits no more.
    async fn release_all(
        &self,
        request: &Request,
        attempt: &Arc<Attempt>,
        channel: &str,
        enough: impl FnMut(&Result<()>) -> bool,
    ) -> Vec<Option<Result<()>>> {
        let (number, patience) = (attempt.number(), self.patience(request));
        let release = |index, node: Arc<Node>| {
            let (scripts, request, attempt, channel) =
                (self.scripts.clone(), request.clone(), attempt.clone(), channel.to_owned());
            async move {
                if !attempt.may_have(index) && channel.is_empty() {
                    return Ok(());
                }
                let released = node.release(&scripts, &request, number, &channel, patience).await;
                match &released {
                    Ok(()) if attempt.number() == number => attempt.clear(index),
                    Err(_) if attempt.may_have(index) => {
                        tokio::spawn(ask_back(node, scripts, request, attempt, index, patience));
                    }
                    _ => {}
                }
                released
            }
        };
        poll(Operation::Release, &self.nodes, patience, release, enough).await
    }
}

/// Asks a node for its vote for `request` until it gives it back, or the vote has run out, wherever it was on its way.
async fn ask_back(
    node: Arc<Node>,
    scripts: Arc<Scripts>,
    request: Request,
    attempt: Arc<Attempt>,
    index: usize,
    patience: Duration,
) {
    let (number, until) = (attempt.number(), SystemClock.now() + request.ttl.max(LATE));
    let mut pause = PAUSES.0;
    while SystemClock.now() < until && attempt.may_have(index) && attempt.number() == number {
        SystemClock.sleep_until(SystemClock.now() + pause).await;
        pause = (pause * 2).min(PAUSES.1);
        match node.release(&scripts, &request, number, "", patience).await {
            Ok(()) => return attempt.clear(index),
            Err(error) => {
                tracing::debug!(server = node.place(), %error, "a vote could not be taken back yet");
            }
        }
    }
}

#[async_trait]
impl Backend for Redlock {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn claim(&self, request: &Request) -> Result<Standing> {
        let holds = self.attempts.find(request.id).is_some_and(|attempt| attempt.token() > 0);
        if request.queues && !holds {
            let before = self.waiters.join(request);
            if before > 0 {
                // Whoever is first asks for all of them.
                return Ok(Standing::Queued(Place::new(u32::try_from(before).ok(), Place::MAX_RECHECK)));
            }
        }
        let attempt = self.attempts.begin(request.id, self.nodes.len());
        let mut tries = 0;
        let recheck = loop {
            tries += 1;
            match self.propose(request, &attempt).await? {
                Outcome::Held(grant) => {
                    self.waiters.leave(request);
                    return Ok(Standing::Held(grant));
                }
                Outcome::Outnumbered if tries < TRIES => {}
                Outcome::Taken(left) => break left.min(RECHECK),
                Outcome::Outnumbered | Outcome::Split => {
                    let pause = Duration::from_millis(fastrand::u64(SPLIT));
                    if request.queues || tries >= TRIES {
                        break pause;
                    }
                    SystemClock.sleep_until(SystemClock.now() + pause).await;
                }
            }
        };
        if !request.queues {
            self.attempts.forget(request.id);
        }
        Ok(Standing::Queued(Place::new(None, recheck)))
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        Ok(self.waiters.rung(request).await)
    }

    async fn renew(&self, request: &Request) -> Result<Renewal> {
        // Another process's request can be extended where it is, but not brought back.
        let number = self.attempts.find(request.id).map_or(0, |attempt| attempt.token());
        let patience = self.patience(request);
        let renew = |_, node: Arc<Node>| {
            let (scripts, request) = (self.scripts.clone(), request.clone());
            async move { node.renew(&scripts, &request, number, false, patience).await.vote }
        };
        let (mut yes, mut no) = (0, 0);
        let votes = poll(Operation::Renew, &self.nodes, patience, renew, |vote| {
            match vote {
                Ok(Vote::Yes(_)) => yes += 1,
                Ok(Vote::No) => no += 1,
                _ => {}
            }
            yes >= self.quorum() || self.nodes.len() - no < self.quorum()
        })
        .await;
        if yes >= self.quorum() {
            if number > 0 {
                self.bring_back(request, number, &votes);
            }
            return Ok(Renewal::Renewed { lease: request.ttl });
        }
        if self.nodes.len() - no < self.quorum() {
            return Ok(Renewal::Lost(LostReason::Gone));
        }
        Err(too_few(Operation::Renew, &self.nodes, votes))
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        let stood_in_line = self.waiters.leave(request);
        let attempt = match self.attempts.find(request.id) {
            Some(attempt) => attempt,
            // No node has heard of it.
            None if stood_in_line => return Ok(Release::Released),
            // Another process has asked.
            None => self.attempts.begin_asked(request.id, self.nodes.len()),
        };
        let waits = self.waiters.waits(&request.name);
        let channel = if waits || !attempt.may_be_noted() { "" } else { &self.channel };
        let mut released = 0;
        let answers = self
            .release_all(request, &attempt, channel, |answer| {
                released += usize::from(answer.is_ok());
                released >= self.quorum()
            })
            .await;
        if released < self.quorum() {
            return Err(too_few(Operation::Release, &self.nodes, answers));
        }
        self.attempts.forget(request.id);
        Ok(Release::Released)
    }
}
