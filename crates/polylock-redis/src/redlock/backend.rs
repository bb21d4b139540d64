//! The store: proposals, renewals and releases, each decided by a majority.
//!
//! Based on Redlock (<https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>), with numbers: a proposal carries a
//! number, a server accepts only a greater one than before, and the number that a majority has accepted is the token. Two majorities share
//! a server, which has accepted one number before the other, so no token is granted twice. If one request had the lock before another
//! proposed, the server that they share makes the later token the greater one.

use std::{str, sync::Arc, time::Duration};

use async_trait::async_trait;
use polylock_core::{
    Backend, BreakNotice, Capabilities, ClaimOutcome, Clock, Error, Fault, FencingToken, Grant, KeepAlive,
    LockName, LostReason, Moment, Operation, PerRuntime, QueuePosition, Release, Request, Result,
    SystemClock, Wake, waiter_queues::WaiterQueues,
};

use super::{
    in_time::{expiry, settled},
    node::{Attempt, Node, ProposalReply, Vote},
    numbers::{Numbers, is_far},
    poll::{no_majority, poll, unconfirmed},
    proposals::{DefiniteReply, Outcome as ReleaseOutcome, Sent},
    tally::{self, quorum},
    withdrawals::ServerSet,
};
use crate::{
    endpoint::Push,
    error::{Cause, no_greater_number},
};

/// The interval at which a waiter claims again although it is notified.
const RECHECK: Duration = Duration::from_millis(500);
/// The range of the random pause after split votes, in ms.
const SPLIT_PAUSE_MS: std::ops::Range<u64> = 1..20;
/// The number of proposals after which a claim fails.
const MAX_PROPOSALS: u32 = 5;

/// The time after its release for which a request that other processes may know gets no votes: far longer than a message takes.
const REFUSED: Duration = Duration::from_secs(30);

/// The locks of all servers, on the links of one runtime.
#[derive(Debug)]
pub(super) struct RedlockBackend {
    pub(super) context: Arc<Context>,
    pub(super) servers: Arc<ServerSet>,
    /// The same locks on the links of the callers' runtimes.
    pub(super) callers: PerRuntime<Self>,
}

/// The parts of the store that do not depend on the links.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) capabilities: Capabilities,
    pub(super) numbers: Numbers,
    pub(super) waiters: Arc<WaiterQueues>,
    /// This client's own channel, and the channel for break notices.
    pub(super) channel: String,
    pub(super) break_channel: String,
}

/// Handles a server's push message for the waiters of this process.
pub(super) fn on_push(waiters: &WaiterQueues, push: Push<'_>) {
    let name = match push {
        Push::Message(name) => str::from_utf8(name).ok().and_then(|name| LockName::from_store(name).ok()),
        Push::Lost => None,
    };
    match name {
        Some(name) => waiters.wake(&name),
        None => waiters.wake_all(),
    }
}

/// The outcome of a proposal.
enum ProposalOutcome {
    Granted(Grant),
    /// Another request has a majority, for at least this long unless it is released.
    HeldByOther(Duration),
    /// No request has a majority.
    SplitVote,
    /// The number was too small.
    StaleNumber,
}

/// The replies of servers to a proposal that has failed.
#[derive(Default)]
struct Refusals {
    /// The number of servers with a vote for another request, by its number, and the time until the first of these votes expires.
    held_by_others: Vec<(i64, usize)>,
    left: Option<Duration>,
    /// The numbers that servers have accepted.
    stale: Vec<i64>,
    /// The number of servers that can't be reached or have votes that do not count.
    unavailable: usize,
    /// The number of servers for whose clocks the number is too far ahead.
    too_far: usize,
}

impl Refusals {
    fn of(replies: &[Option<Result<ProposalReply>>]) -> Self {
        let mut refusals = Self::default();
        for reply in replies.iter().flatten() {
            let Ok(ProposalReply { vote, counts }) = reply else {
                refusals.unavailable += 1;
                continue;
            };
            refusals.unavailable += usize::from(!counts);
            match vote {
                Vote::Held(number, left) => {
                    match refusals.held_by_others.iter_mut().find(|(other, _)| other == number) {
                        Some((_, servers)) => *servers += 1,
                        None => refusals.held_by_others.push((*number, 1)),
                    }
                    refusals.left = Some(refusals.left.map_or(*left, |before| before.min(*left)));
                }
                Vote::Stale(last) => refusals.stale.push(*last),
                Vote::TooFar => refusals.too_far += 1,
                Vote::Yes(..) => {}
            }
        }
        refusals
    }
}

impl RedlockBackend {
    fn server_count(&self) -> usize {
        self.servers.nodes.len()
    }

    /// Returns the clocks of the servers that have replied before.
    fn clocks(&self) -> Vec<i64> {
        self.servers.nodes.iter().filter_map(|node| node.clock_us()).collect()
    }

    /// Records the outcome of a message that may leave a vote.
    fn record_reply(servers: &ServerSet, sent: Sent, attempt: &Attempt) {
        let definite = match &attempt.reply {
            Ok(ProposalReply { vote: Vote::Yes(number, _), .. }) => DefiniteReply::Voted(*number),
            Ok(_) if !attempt.may_execute_late => DefiniteReply::Refused,
            Err(_) if !attempt.was_sent => DefiniteReply::Refused,
            // The message may still be executed.
            _ => return,
        };
        servers.proposals().on_reply(sent, definite);
    }

    /// Proposes a number for `request`. Withdraws it if too few servers have voted for it; or if it `follows`, and another server has
    /// accepted a greater number that can be followed.
    async fn propose(&self, request: &Arc<Request>, follows: bool) -> Result<ProposalOutcome> {
        let began = SystemClock.now();
        let Some(number) = self.context.numbers.next(&request.name, self.clocks()) else {
            return Err(no_greater_number(super::NAME, Operation::Claim, "a majority"));
        };
        let until = ServerSet::repeat_until(request);
        let withdrawn = self.servers.proposals().propose(request.id, &request.name, number, began, until);
        let spare = self.server_count() - quorum(self.server_count());
        if number <= withdrawn {
            if is_far(withdrawn, self.clocks()) {
                return Err(clocks_differ());
            }
            // Another process has proposed it for this request, or the clocks have come near it.
            self.context.numbers.follow(&request.name, &[withdrawn], spare, self.clocks());
            return Ok(ProposalOutcome::StaleNumber);
        }
        let timeout = self.servers.timeout_of(request);
        let context = self.context.clone();
        let send = |index, node: Arc<Node>| {
            let sent = self.servers.proposals().on_send(request.id, index, number)?;
            let (servers, request, context) = (self.servers.clone(), request.clone(), context.clone());
            Some(async move {
                let channel = if request.queues { &*context.channel } else { "" };
                let attempt =
                    node.propose(&servers.scripts, &request, number, withdrawn, channel, timeout).await;
                Self::record_reply(&servers, sent, &attempt);
                if request.queues && matches!(attempt.reply, Ok(ProposalReply { vote: Vote::Held(..), .. })) {
                    // Also if a majority has voted for it: its release then ends the wait.
                    servers.proposals().mark_queued(request.id);
                }
                attempt.reply
            })
        };
        let (mut ballot, mut lease, mut far) = (tally::Ballot::new(self.server_count()), request.ttl, 0);
        let votes = poll(Operation::Claim, &self.servers.nodes, timeout, send, |index, vote| {
            match vote {
                Ok(ProposalReply { vote: Vote::Yes(number, left), counts: true }) => {
                    ballot.vote(index, *number);
                    lease = lease.min(*left);
                }
                Ok(ProposalReply { vote: Vote::Stale(last), .. }) => {
                    ballot.no_vote(index);
                    far += usize::from(is_far(*last, self.clocks()));
                }
                _ => ballot.no_vote(index),
            }
            // A number far ahead is followed only if more servers have accepted such numbers than may be left out. So their replies are
            // needed although the proposal has failed: while servers are down, the first refusal would end each proposal, and no
            // client could ever follow.
            ballot.is_decided() && (ballot.elected().is_some() || !(1..=spare).contains(&far))
        })
        .await;

        let refusals = Refusals::of(&votes);
        // A server that was not restarted may have accepted greater tokens than the restarted ones.
        let greatest = self.context.numbers.follow(&request.name, &refusals.stale, spare, self.clocks());
        let elected = ballot.elected().filter(|token| greatest <= *token || !follows);
        let left = lease.saturating_sub(SystemClock.now().since(began));
        if let (Some(token), false) = (elected.and_then(FencingToken::new), left.is_zero())
            && self.servers.proposals().grant(
                request.id,
                token.as_i64(),
                began + lease,
                request.obsolete_at(SystemClock.now()),
            )
        {
            return Ok(ProposalOutcome::Granted(Grant::new(token, lease)));
        }
        self.withdraw(request, &votes).await;
        if refusals.too_far >= quorum(self.server_count()) {
            self.context.numbers.restart(&request.name, self.clocks());
            return Err(clocks_differ());
        }
        if self.server_count() - refusals.unavailable < quorum(self.server_count()) {
            return Err(no_majority(Operation::Claim, &self.servers.nodes, &votes));
        }
        let is_taken =
            refusals.held_by_others.iter().any(|(_, servers)| *servers >= quorum(self.server_count()));
        Ok(match refusals.left {
            Some(left) if is_taken => ProposalOutcome::HeldByOther(left),
            None if !refusals.stale.is_empty() => ProposalOutcome::StaleNumber,
            _ => ProposalOutcome::SplitVote,
        })
    }

    /// Makes a majority refuse further proposals of `request`, which other processes may have sent.
    async fn refuse(&self, request: &Request) -> Result<()> {
        let (nodes, timeout) = (&self.servers.nodes, self.servers.timeout_of(request));
        let by = expiry(timeout);
        let request = Arc::new(request.clone());
        let send = |_, node: Arc<Node>| {
            let (servers, request) = (self.servers.clone(), request.clone());
            Some(async move { node.refuse(&servers.scripts, &request, REFUSED, (by, timeout)).await })
        };
        let mut refused = 0;
        let replies = poll(Operation::Release, nodes, timeout, send, |_, reply| {
            refused += usize::from(reply.is_ok());
            refused >= quorum(nodes.len())
        })
        .await;
        if refused >= quorum(nodes.len()) {
            return Ok(());
        }
        settled(by, Err(no_majority(Operation::Release, nodes, &replies))).await
    }

    /// Withdraws the votes for a proposal that has failed, and waits for the servers that have replied to it.
    async fn withdraw(&self, request: &Arc<Request>, votes: &[Option<Result<ProposalReply>>]) {
        let (mut awaited, is_clear) = {
            let mut proposals = self.servers.proposals();
            proposals.withdraw(request.id, ServerSet::repeat_until(request));
            let open = proposals.open_servers(request.id);
            (open.iter().filter(|index| matches!(votes[**index], Some(Ok(_)))).count(), open.is_empty())
        };
        if is_clear {
            return;
        }
        if awaited == 0 {
            // On the I/O thread: a caller's runtime may end before the withdrawal begins.
            let (servers, request) = (self.servers.io_set().clone(), request.clone());
            let executor = servers.nodes[0].executor().clone();
            executor.spawn(async move { servers.withdraw(&request, "", Moment::NEVER, |_, _| false).await });
            return;
        }
        self.servers
            .withdraw(request, "", Moment::NEVER, |_, reply| {
                awaited -= usize::from(reply.is_ok() && awaited > 0);
                awaited == 0
            })
            .await;
    }
}

/// Returns the error of a claim with a number that is too far ahead of most clocks.
fn clocks_differ() -> Error {
    let advice = "the clocks of the servers differ by more than a minute, and this request has followed the wrong ones: correct the clocks, \
                  or try again with a new request, which follows the majority of them";
    Cause::Unusable(Fault::Temporary, advice.to_owned()).at(super::NAME, Operation::Claim, "a majority")
}

/// Returns the reason for the end of a hold, from the break notice that a server has returned; the notice is empty if there is none.
pub(super) fn lost_reason(notice: &str) -> LostReason {
    if notice.is_empty() { LostReason::Gone } else { LostReason::Broken(BreakNotice::from_text(notice)) }
}

#[async_trait]
impl Backend for RedlockBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.context.capabilities
    }

    fn here(&self) -> Option<Arc<dyn Backend>> {
        let quorum = quorum(self.server_count());
        if self.servers.nodes.iter().filter(|node| node.link.run().is_some()).count() < quorum {
            return None;
        }
        let open = || {
            let (context, servers) = (self.context.clone(), self.servers.clone());
            async move {
                let servers = Arc::new(ServerSet::for_caller(servers).await);
                Ok(Self { context, servers, callers: PerRuntime::default() })
            }
        };
        let caller = self.callers.get(|_| true, open)?;
        let mut free = 0;
        for node in &caller.servers.nodes {
            if !node.is_usable() {
                node.reconnect();
            } else if !node.link.is_full() {
                free += 1;
            }
        }
        // An operation that would have to wait for other messages gains nothing, and would be taken over half-way.
        (free >= quorum).then_some(caller as _)
    }

    async fn claim(&self, request: &Request) -> Result<ClaimOutcome> {
        self.servers.enlist_before_claim().await;
        self.servers.check_list(Operation::Claim)?;
        let request = &Arc::new(request.clone());
        let holds = self.servers.proposals().token(request.id).is_some();
        if request.queues && !holds {
            self.context.waiters.join(request);
        }
        let mut proposed = 0;
        let recheck = loop {
            proposed += 1;
            match self.propose(request, proposed < MAX_PROPOSALS).await? {
                ProposalOutcome::Granted(grant) => {
                    self.context.waiters.leave(request);
                    return Ok(ClaimOutcome::Granted(grant));
                }
                ProposalOutcome::StaleNumber if proposed < MAX_PROPOSALS => {}
                ProposalOutcome::HeldByOther(left) => break left.min(RECHECK),
                ProposalOutcome::StaleNumber | ProposalOutcome::SplitVote => {
                    let pause = Duration::from_millis(fastrand::u64(SPLIT_PAUSE_MS));
                    if request.queues || proposed >= MAX_PROPOSALS {
                        break pause;
                    }
                    SystemClock.sleep_until(SystemClock.now() + pause).await;
                }
            }
        };
        if !request.queues {
            self.servers.proposals().drop_request(request.id);
        }
        Ok(ClaimOutcome::Queued(QueuePosition::new(None, recheck)))
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        Ok(self.context.waiters.notified(request).await)
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        drop(self.servers.enlist_again(true));
        self.extend(requests).await
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        self.context.waiters.leave(request);
        if request.outlives_process {
            self.refuse(request).await?;
        }
        let (now, until) = (SystemClock.now(), ServerSet::repeat_until(request));
        // A release that has failed must not be repeated later if another process may extend the hold: it names no number.
        let by = request.outlives_process.then(|| expiry(self.servers.timeout_of(request)));
        let is_noted = {
            let mut proposals = self.servers.proposals();
            let is_noted = proposals.may_be_queued(request.id);
            if proposals.is_known(request.id) && by.is_none() {
                proposals.release(request.id, until);
            } else {
                proposals.release_unknown(request.id, &request.name, now, until);
            }
            is_noted
        };
        // A server records one waiter of this client. Another waiter of this process may need that record.
        let is_last = is_noted && !self.context.waiters.waits(&request.name);
        let channel = if is_last { self.context.channel.as_str() } else { "" };
        let mut unconfirmed_count = if channel.is_empty() { 0 } else { quorum(self.server_count()) };
        let replies = self
            .servers
            .withdraw(&Arc::new(request.clone()), channel, by.unwrap_or(Moment::NEVER), |_, reply| {
                unconfirmed_count -= usize::from(reply.is_ok() && unconfirmed_count > 0);
                unconfirmed_count == 0 && self.servers.proposals().outcome(request.id).is_some()
            })
            .await;
        if is_last {
            // 1. No waiter of this process is left, so the withdrawals above state that its channel waits no more.
            // 2. A claim of this process that arrives in the meantime on another link is recorded as waiting.
            // 3. A withdrawal arrives after it and deletes that record, so no server notifies the channel.
            self.context.waiters.wake(&request.name);
        }
        let (outcome, open, reports) = {
            let mut proposals = self.servers.proposals();
            let (open, outcome) = (proposals.open_servers(request.id), proposals.finish(request.id));
            let reports = outcome.is_none() && proposals.report_unconfirmed(request.id);
            (outcome, open, reports)
        };
        match outcome {
            Some(ReleaseOutcome::Released) => Ok(Release::Released),
            Some(ReleaseOutcome::Lost(notice)) => Ok(Release::Lost(lost_reason(&notice))),
            None => {
                if reports {
                    let servers: Vec<&str> =
                        open.iter().map(|index| self.servers.nodes[*index].address()).collect();
                    tracing::warn!(
                        lock.name = %request.name,
                        server = servers.join(", "),
                        "the release of lock {} is not confirmed, and is retried: until it is confirmed, or the lease has \
                         expired, the lock may not be free",
                        request.name
                    );
                }
                let error = unconfirmed(&self.servers.nodes, &open, replies);
                settled(by.unwrap_or(now), Err(error)).await
            }
        }
    }

    fn drop_waiter(&self, request: &Request) {
        self.context.waiters.leave(request);
    }

    fn request_records(&self) -> Option<usize> {
        Some(self.servers.proposals().len())
    }
}
