//! The store: proposals, renewals and releases, each decided by a majority.
//!
//! After Redlock (<https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>), with numbers: a proposal
//! carries a number, a server accepts only a greater one than before, and the number that a majority has accepted is the token.
//! Two majorities share a server, which has accepted the one before the other, so no token is given twice; and if one request
//! had the lock before another proposed, the server that they share makes the later token the greater one.

use std::{str, sync::Arc, time::Duration};

use async_trait::async_trait;
use polylock_core::{
    Backend, BreakNotice, Capabilities, Clock, FencingToken, Grant, KeepAlive, LockName, LostReason,
    Operation, Place, Release, Request, Result, Standing, SystemClock, Wake,
};

use super::{
    node::{Answer, Ballot, Node, Vote},
    numbers::Numbers,
    poll::{poll, too_few, unconfirmed},
    proposals::{Definite, Outcome as Released, Sent},
    tally::{self, quorum},
    waiters::Waiters,
    withdrawals::Cluster,
};
use crate::{error::no_greater_number, link::Push};

/// How often a waiter claims again, though it is notified.
const RECHECK: Duration = Duration::from_millis(500);
/// For how many ms it waits, at random, after votes were split.
const SPLIT: std::ops::Range<u64> = 1..20;
/// How often a number is proposed until a claim has failed.
const TRIES: u32 = 5;

/// The locks of all servers.
#[derive(Debug)]
pub(super) struct Redlock {
    pub(super) capabilities: Capabilities,
    pub(super) cluster: Arc<Cluster>,
    pub(super) numbers: Numbers,
    pub(super) waiters: Arc<Waiters>,
    /// This client's own channel, and the one for break notices.
    pub(super) channel: String,
    pub(super) break_channel: String,
}

/// Handles a server's push message for the waiters of this process.
pub(super) fn on_push(waiters: &Waiters, push: Push<'_>) {
    let name = match push {
        Push::Message(name) => str::from_utf8(name).ok().and_then(|name| LockName::new(name).ok()),
        Push::Lost => None,
    };
    match name {
        Some(name) => waiters.notify(&name),
        None => waiters.notify_all(),
    }
}

/// The outcome of a proposal.
enum Outcome {
    Held(Grant),
    /// Another request has a majority, for at least so long unless it is released.
    Taken(Duration),
    /// No request has a majority.
    Split,
    /// The number was too small.
    Outnumbered,
}

/// The replies of servers to a proposal that has failed.
#[derive(Default)]
struct Refusals {
    /// How many servers have given their vote to another request, by its number; and for how long the first of them.
    held: Vec<(i64, usize)>,
    left: Option<Duration>,
    /// The numbers that servers have accepted.
    stale: Vec<i64>,
    /// How many servers cannot be reached, or their votes do not count.
    unavailable: usize,
}

impl Refusals {
    fn of(answers: &[Option<Result<Answer>>]) -> Self {
        let mut refusals = Self::default();
        for answer in answers.iter().flatten() {
            let Ok(Answer { vote, counts }) = answer else {
                refusals.unavailable += 1;
                continue;
            };
            refusals.unavailable += usize::from(!counts);
            match vote {
                Vote::Held(number, left) => {
                    match refusals.held.iter_mut().find(|(other, _)| other == number) {
                        Some((_, servers)) => *servers += 1,
                        None => refusals.held.push((*number, 1)),
                    }
                    refusals.left = Some(refusals.left.map_or(*left, |before| before.min(*left)));
                }
                Vote::Stale(last) => refusals.stale.push(*last),
                _ => {}
            }
        }
        refusals
    }
}

impl Redlock {
    fn servers(&self) -> usize {
        self.cluster.nodes.len()
    }

    /// The clocks of the servers that have replied before.
    fn clocks(&self) -> Vec<i64> {
        self.cluster.nodes.iter().filter_map(|node| node.clock_us()).collect()
    }

    /// Notes the outcome of a message that may leave a vote.
    fn resolve(cluster: &Cluster, sent: Sent, ballot: &Ballot) {
        let definite = match &ballot.answer {
            Ok(Answer { vote: Vote::Yes(number, _), .. }) => Definite::Voted(*number),
            Ok(_) if !ballot.may_come_late => Definite::Refused,
            Err(_) if !ballot.was_sent => Definite::Refused,
            // Anything may still happen.
            _ => return,
        };
        cluster.proposals().replied(sent, definite);
    }

    /// Proposes a number for `request`, and withdraws it if too few servers have voted for it; or if it `follows` and another server
    /// has accepted a greater number that can be followed.
    async fn propose(&self, request: &Request, follows: bool) -> Result<Outcome> {
        let began = SystemClock.now();
        let Some(number) = self.numbers.next(&request.name, self.clocks()) else {
            return Err(no_greater_number(super::NAME, Operation::Claim, "a majority"));
        };
        let until = Cluster::until(request);
        let withdrawn = self.cluster.proposals().propose(request.id, &request.name, number, began, until);
        let timeout = self.cluster.timeout_of(request);
        let channel = if request.queues { self.channel.as_str() } else { "" };
        let send = |index, node: Arc<Node>| {
            let sent = self.cluster.proposals().sends(request.id, index, number)?;
            let (cluster, request, channel) = (self.cluster.clone(), request.clone(), channel.to_owned());
            Some(async move {
                let ballot =
                    node.propose(&cluster.scripts, &request, number, withdrawn, &channel, timeout).await;
                Self::resolve(&cluster, sent, &ballot);
                ballot.answer
            })
        };
        let (mut ballot, mut lease) = (tally::Ballot::new(self.servers()), request.ttl);
        let votes = poll(Operation::Claim, &self.cluster.nodes, timeout, send, |index, vote| {
            match vote {
                Ok(Answer { vote: Vote::Yes(number, left), counts: true }) => {
                    ballot.vote(index, *number);
                    lease = lease.min(*left);
                }
                _ => ballot.other(index),
            }
            ballot.is_decided()
        })
        .await;

        let refusals = Refusals::of(&votes);
        // A server that was not restarted may know of greater tokens than those that were.
        let spare = self.servers() - quorum(self.servers());
        let greatest = self.numbers.follow(&request.name, &refusals.stale, spare, self.clocks());
        let elected = ballot.elected().filter(|token| greatest <= *token || !follows);
        let left = lease.saturating_sub(SystemClock.now().since(began));
        if let (Some(token), false) = (elected.and_then(FencingToken::new), left.is_zero())
            && self.cluster.proposals().grant(request.id, token.as_i64(), forgotten_at(request))
        {
            return Ok(Outcome::Held(Grant::new(token, lease)));
        }
        if !refusals.held.is_empty() && request.queues {
            self.cluster.proposals().note(request.id);
        }
        self.withdraw(request, &votes).await;
        if self.servers() - refusals.unavailable < quorum(self.servers()) {
            return Err(too_few(Operation::Claim, &self.cluster.nodes, &votes));
        }
        let is_taken = refusals.held.iter().any(|(_, servers)| *servers >= quorum(self.servers()));
        Ok(match refusals.left {
            Some(left) if is_taken => Outcome::Taken(left),
            None if !refusals.stale.is_empty() => Outcome::Outnumbered,
            _ => Outcome::Split,
        })
    }

    /// Withdraws the votes for a proposal that has failed, and waits for the servers that have replied to it.
    async fn withdraw(&self, request: &Request, votes: &[Option<Result<Answer>>]) {
        let (mut awaited, is_clear) = {
            let mut proposals = self.cluster.proposals();
            proposals.withdraw(request.id, Cluster::until(request));
            let open = proposals.open_servers(request.id);
            (open.iter().filter(|index| matches!(votes[**index], Some(Ok(_)))).count(), open.is_empty())
        };
        let (cluster, request) = (self.cluster.clone(), request.clone());
        if is_clear {
            return;
        }
        if awaited == 0 {
            tokio::spawn(async move { cluster.withdraw(&request, "", |_, _| false).await });
            return;
        }
        cluster
            .withdraw(&request, "", |_, reply| {
                awaited -= usize::from(reply.is_ok() && awaited > 0);
                awaited == 0
            })
            .await;
    }
}

/// When nobody needs to know any more what `request` held: after its lease, and after core has stopped trying to release it.
pub(super) fn forgotten_at(request: &Request) -> polylock_core::Moment {
    SystemClock.now() + 2 * request.ttl + Duration::from_secs(1)
}

/// Why a hold ended, by the break notice that a server has returned; empty if none has.
pub(super) fn lost(notice: &str) -> LostReason {
    if notice.is_empty() { LostReason::Gone } else { LostReason::Broken(BreakNotice::from_text(notice)) }
}

#[async_trait]
impl Backend for Redlock {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn claim(&self, request: &Request) -> Result<Standing> {
        let holds = self.cluster.proposals().token(request.id).is_some();
        if request.queues && !holds {
            self.waiters.enter(request);
        }
        let mut tries = 0;
        let recheck = loop {
            tries += 1;
            match self.propose(request, tries < TRIES).await? {
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
            self.cluster.proposals().forget(request.id);
        }
        Ok(Standing::Queued(Place::new(None, recheck)))
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        self.waiters.notified(request).await;
        Ok(Wake::Stale)
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        self.extend(requests).await
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        self.waiters.leave(request);
        let (now, until) = (SystemClock.now(), Cluster::until(request));
        let is_noted = {
            let mut proposals = self.cluster.proposals();
            if proposals.knows(request.id) {
                proposals.release(request.id, until);
            } else {
                proposals.release_unknown(request.id, &request.name, now, until);
            }
            proposals.is_noted(request.id)
        };
        // A server notes one waiter of this client: another one of this process may need it.
        let channel = if is_noted && !self.waiters.waits(&request.name) { self.channel.as_str() } else { "" };
        let mut missing = if channel.is_empty() { 0 } else { quorum(self.servers()) };
        let replies = self
            .cluster
            .withdraw(request, channel, |_, reply| {
                missing -= usize::from(reply.is_ok() && missing > 0);
                missing == 0 && self.cluster.proposals().outcome(request.id).is_some()
            })
            .await;
        let (outcome, open, reports) = {
            let mut proposals = self.cluster.proposals();
            let (open, outcome) = (proposals.open_servers(request.id), proposals.finish(request.id));
            let reports = outcome.is_none() && proposals.reports(request.id);
            (outcome, open, reports)
        };
        match outcome {
            Some(Released::Released) => Ok(Release::Released),
            Some(Released::Lost(notice)) => Ok(Release::Lost(lost(&notice))),
            None => {
                if reports {
                    let servers: Vec<&str> =
                        open.iter().map(|index| self.cluster.nodes[*index].address()).collect();
                    tracing::warn!(
                        lock.name = %request.name,
                        server = servers.join(", "),
                        "the release of lock {} is not confirmed, and is tried again: until then, or until the lease has \
                         expired, the lock may not be free",
                        request.name
                    );
                }
                Err(unconfirmed(&self.cluster.nodes, &open, replies))
            }
        }
    }
}
