//! Withdraws votes: from the servers that reply, and repeatedly from those that do not.
//!
//! A caller may drive an operation on the links of its own runtime, which may end at any point. The remaining work never depends on that
//! runtime. A claim that is dropped:
//! 1. The caller proposes a number. Each server is recorded as open in the step that makes the message for it, before it is sent.
//! 2. The future is dropped: by the caller, by the end of its runtime, or because the I/O thread takes the operation over. Some
//!    messages are never sent; others are sent, and their replies are not received. Each of these servers stays open.
//! 3. The I/O thread claims again, or releases. A new claim finds the votes for the first number, or proposes a greater one. A release
//!    withdraws the greatest number from every server that is open.
//! 4. A message of step 1 arrives after that withdrawal. The server has accepted the number after it, and refuses.
//!
//! A server that has lost its data between the withdrawal and step 4 votes for the withdrawn number. This vote is not counted, because the
//! future that would count it is gone; with `restart=delay` votes of this server do not count yet in any case. The vote keeps others from
//! this server until it expires. A server that was restarted receives nothing that was sent to the process before.
//!
//! A withdrawal that is dropped:
//! 1. The caller withdraws a number from the servers that are open. Each message has a [`PendingWithdrawal`] from the step that makes it.
//! 2. A majority has replied, and the caller goes on. The rest is a task of the caller's runtime.
//! 3. The runtime ends and drops that task, or the future of step 1 is dropped. Each `PendingWithdrawal` makes the I/O thread repeat the
//!    withdrawal on its own link, and records that a vote which is missing then may have been removed by the first message.
//! 4. Or the runtime does not end and is not driven: a `block_on` has returned, and the next one comes later or never. So a task of
//!    the I/O thread visits each of these servers in any case, after a short pause, and repeats unacknowledged withdrawals.
//!    There is one such task for each server at a time, so this costs nothing for each release.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use futures_util::{StreamExt, future, stream};
use polylock_core::{
    Clock, LockName, Moment, Operation, Request, RequestId, Result, SystemClock, sync::lock,
};

use super::{
    list::List,
    node::{Node, Withdrawal},
    poll::poll,
    proposals::Proposals,
    scripts::Scripts,
};
use crate::flow::MAX_TIMEOUT_FACTOR;

/// The minimum time for which a withdrawal is repeated, however short the lease: a message may be executed that late.
const MIN_REPEAT_TIME: Duration = Duration::from_secs(60);
/// The shortest and the longest pause before a withdrawal is repeated.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));
/// The number of withdrawals that are repeated at a time when a server is back.
const CONCURRENT_REPEATS: usize = 64;

/// The servers on the links of one runtime, and the proposals of this client, shared by its operations and its background tasks.
pub(super) struct ServerSet {
    pub(super) nodes: Vec<Arc<Node>>,
    pub(super) scripts: Arc<Scripts>,
    pub(super) list: Arc<List>,
    /// The time limit for a server's reply.
    pub(super) timeout: Duration,
    /// Shared by the clusters of all runtimes.
    state: Arc<Mutex<State>>,
    /// The cluster of the I/O thread; `None` if this is it.
    io_set: Option<Arc<Self>>,
}

struct State {
    proposals: Proposals,
    /// By server, true while a task repeats withdrawals. Such a task ends in the same step in which it finds nothing to repeat.
    repeats: Vec<bool>,
}

impl fmt::Debug for ServerSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<&str> = self.nodes.iter().map(|node| node.address()).collect();
        f.debug_struct("Cluster").field("nodes", &nodes).finish_non_exhaustive()
    }
}

/// Exclusive access to the proposals.
pub(super) struct LockedProposals<'a>(MutexGuard<'a, State>);

impl std::ops::Deref for LockedProposals<'_> {
    type Target = Proposals;

    fn deref(&self) -> &Proposals {
        &self.0.proposals
    }
}

impl std::ops::DerefMut for LockedProposals<'_> {
    fn deref_mut(&mut self) -> &mut Proposals {
        &mut self.0.proposals
    }
}

impl ServerSet {
    pub(super) fn new(nodes: Vec<Arc<Node>>, scripts: Scripts, list: List, timeout: Duration) -> Self {
        let (proposals, repeats) = (Proposals::new(nodes.len()), vec![false; nodes.len()]);
        let (scripts, list) = (Arc::new(scripts), Arc::new(list));
        let state = Arc::new(Mutex::new(State { proposals, repeats }));
        Self { nodes, scripts, list, timeout, state, io_set: None }
    }

    /// Creates the cluster on links that belong to the present runtime. `io` is the cluster of the I/O thread.
    pub(super) async fn for_caller(io: Arc<Self>) -> Self {
        let nodes = future::join_all(io.nodes.iter().cloned().map(Node::for_caller)).await;
        let nodes = nodes.into_iter().map(Arc::new).collect();
        let (scripts, list, timeout, state) =
            (io.scripts.clone(), io.list.clone(), io.timeout, io.state.clone());
        Self { nodes, scripts, list, timeout, state, io_set: Some(io) }
    }

    /// Returns the cluster of the I/O thread, for work that must not end with a caller's runtime.
    pub(super) fn io_set(self: &Arc<Self>) -> &Arc<Self> {
        self.io_set.as_ref().unwrap_or(self)
    }

    pub(super) fn proposals(&self) -> LockedProposals<'_> {
        LockedProposals(lock(&self.state))
    }

    /// Returns the time limit for a server's reply about `request`.
    pub(super) fn timeout_of(&self, request: &Request) -> Duration {
        self.timeout.min(request.ttl / 5)
    }

    /// Withdraws the votes for the withdrawn numbers of `request`, until `is_enough`: at each server that may have a vote; or at all servers
    /// if `channel` is not empty, which does not wait any more. Withdrawals without a reply are repeated in the background, except that of a request
    /// that other clients may know. None of the messages has an effect after `by`.
    ///
    /// # Cancel safety
    /// Once polled, the withdrawals that have begun are completed on the I/O thread, even if the future is dropped.
    pub(super) async fn withdraw(
        self: &Arc<Self>,
        request: &Arc<Request>,
        channel: &str,
        by: Moment,
        is_enough: impl FnMut(usize, &Result<()>) -> bool,
    ) -> Vec<Option<Result<()>>> {
        let timeout = self.timeout_of(request);
        let channel: Arc<str> = channel.into();
        let send = |index, node: Arc<Node>| {
            // Read under the lock when the message is sent, so it never names the number of a live proposal.
            let (number, withdrawn) = {
                let mut proposals = self.proposals();
                let number = proposals.withdrawal(request.id, index);
                if number.is_none() && channel.is_empty() {
                    return None;
                }
                proposals.on_withdrawal_sent(request.id, index, SystemClock.now());
                (number, proposals.withdrawn(request.id))
            };
            let (servers, request, channel) = (self.clone(), request.clone(), channel.clone());
            let number = number.unwrap_or(withdrawn);
            let mut pending = PendingWithdrawal::new(self.io_set().clone(), index, request.id, number);
            Some(async move {
                pending.mark_sent();
                let (id, name) = (request.id, &request.name);
                let withdrawn =
                    servers.withdraw_at((index, &node), id, name, number, &channel, (by, timeout)).await;
                pending.complete(withdrawn.is_ok());
                withdrawn
            })
        };
        let replies = poll(Operation::Release, &self.nodes, timeout, send, is_enough).await;
        if let Some(io) = &self.io_set {
            io.take_over(request.id);
        }
        replies
    }

    /// Makes the tasks that repeat withdrawals continue with those of `request`. This is the cluster of the I/O thread.
    fn take_over(self: &Arc<Self>, request: RequestId) {
        let unacknowledged: Vec<usize> = {
            let proposals = self.proposals();
            (0..self.nodes.len()).filter(|index| proposals.withdrawal(request, *index).is_some()).collect()
        };
        unacknowledged.into_iter().for_each(|index| self.repeat(index));
    }

    /// Returns the time until which the withdrawal of `request` is repeated.
    pub(super) fn repeat_until(request: &Request) -> Moment {
        SystemClock.now() + request.ttl.max(MIN_REPEAT_TIME)
    }

    async fn withdraw_at(
        &self,
        (index, node): (usize, &Node),
        request: RequestId,
        name: &LockName,
        number: i64,
        channel: &str,
        limits: (Moment, Duration),
    ) -> Result<()> {
        let Withdrawal { reply, was_sent } =
            node.withdraw(&self.scripts, request, name, number, channel, limits).await;
        match &reply {
            Ok(reply) => self.proposals().on_acknowledgement(
                request,
                index,
                number,
                reply.removed,
                reply.may_be_repeated,
                &reply.notice,
            ),
            Err(_) if was_sent => self.proposals().on_no_reply(request, index, number),
            Err(_) => self.proposals().on_unsent(request, index),
        }
        reply.map(drop)
    }

    /// Starts the task that repeats withdrawals at this server, unless it is running. This is the cluster of the I/O thread.
    fn repeat(self: &Arc<Self>, index: usize) {
        let mut state = self.proposals().0;
        if !std::mem::replace(&mut state.repeats[index], true) {
            self.nodes[index].executor().spawn(self.clone().repeat_withdrawals(index));
        }
    }

    /// Repeats withdrawals at this server until it has acknowledged all of them, or no vote can be left.
    async fn repeat_withdrawals(self: Arc<Self>, index: usize) {
        let mut pause = PAUSES.0;
        loop {
            SystemClock.sleep_until(SystemClock.now() + pause).await;
            let unacknowledged = {
                let mut state = self.proposals().0;
                let now = SystemClock.now();
                let mut unacknowledged = state.proposals.unacknowledged(index, now);
                state.repeats[index] = !unacknowledged.is_empty();
                if unacknowledged.is_empty() {
                    return;
                }
                // A withdrawal that waits for its reply ends by itself, unless the runtime of its caller is not driven.
                let timeout = MAX_TIMEOUT_FACTOR * self.timeout;
                unacknowledged
                    .retain(|(request, _)| !state.proposals.is_under_way(*request, index, now - timeout));
                unacknowledged
            };
            let mut unacknowledged = unacknowledged.into_iter();
            let Some(first) = unacknowledged.next() else {
                pause = (pause * 2).min(PAUSES.1);
                continue;
            };
            // The first one shows if the server is back.
            match self.repeat_one(index, first).await {
                Ok(()) => {
                    pause = PAUSES.0;
                    let rest =
                        stream::iter(unacknowledged).map(|withdrawal| self.repeat_one(index, withdrawal));
                    rest.buffer_unordered(CONCURRENT_REPEATS).for_each(|_| std::future::ready(())).await;
                }
                Err(error) => {
                    pause = (pause * 2).min(PAUSES.1);
                    let server = self.nodes[index].address();
                    tracing::debug!(server, %error, "a vote could not be withdrawn yet");
                }
            }
        }
    }

    async fn repeat_one(&self, index: usize, (request, name): (RequestId, LockName)) -> Result<()> {
        let number = {
            let mut proposals = self.proposals();
            let Some(number) = proposals.withdrawal(request, index) else { return Ok(()) };
            proposals.on_withdrawal_sent(request, index, SystemClock.now());
            number
        };
        let at = (index, &*self.nodes[index]);
        self.withdraw_at(at, request, &name, number, "", (Moment::NEVER, self.timeout)).await
    }
}

/// A withdrawal that a server has to acknowledge. If it is dropped before that, the I/O thread repeats the withdrawal.
struct PendingWithdrawal {
    /// The cluster of the I/O thread.
    servers: Arc<ServerSet>,
    server: usize,
    request: RequestId,
    number: i64,
    /// True if the server may execute it without a reply that is waited for.
    was_sent: bool,
    is_acknowledged: bool,
}

impl PendingWithdrawal {
    fn new(servers: Arc<ServerSet>, server: usize, request: RequestId, number: i64) -> Self {
        Self { servers, server, request, number, was_sent: false, is_acknowledged: false }
    }

    /// Records that the server may execute it from now on.
    fn mark_sent(&mut self) {
        self.was_sent = true;
    }

    /// Ends the tracking: the state has recorded the outcome.
    fn complete(mut self, is_acknowledged: bool) {
        (self.was_sent, self.is_acknowledged) = (false, is_acknowledged);
    }
}

impl Drop for PendingWithdrawal {
    fn drop(&mut self) {
        if self.is_acknowledged {
            return;
        }
        if self.was_sent {
            self.servers.proposals().on_no_reply(self.request, self.server, self.number);
        } else {
            self.servers.proposals().on_unsent(self.request, self.server);
        }
        self.servers.repeat(self.server);
    }
}
