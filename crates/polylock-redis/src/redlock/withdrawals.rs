//! Withdrawing votes: from the servers that reply, and again and again from those that do not.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::{StreamExt, stream};
use polylock_core::{Clock, LockName, Operation, Request, RequestId, Result, SystemClock};

use super::{
    node::{Node, Withdrawal},
    poll::poll,
    proposals::Proposals,
    scripts::Scripts,
};

/// For how long a withdrawal is repeated at least, however short the lease: a message may be carried out that late.
const LATE: Duration = Duration::from_secs(60);
/// The shortest and the longest pause before a withdrawal is repeated.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));
/// How many withdrawals are repeated at a time when a server is back.
const AT_ONCE: usize = 64;

/// The servers and the proposals of this client, shared by its operations and its background tasks.
pub(super) struct Cluster {
    pub(super) nodes: Vec<Arc<Node>>,
    pub(super) scripts: Arc<Scripts>,
    /// How long a server may take to reply.
    pub(super) timeout: Duration,
    state: Mutex<State>,
}

struct State {
    proposals: Proposals,
    /// By server: whether a task repeats withdrawals. Such a task ends in the same step in which it finds nothing to repeat.
    repeats: Vec<bool>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<&str> = self.nodes.iter().map(|node| node.address()).collect();
        f.debug_struct("Cluster").field("nodes", &nodes).finish_non_exhaustive()
    }
}

/// Exclusive access to the proposals.
pub(super) struct Locked<'a>(MutexGuard<'a, State>);

impl std::ops::Deref for Locked<'_> {
    type Target = Proposals;

    fn deref(&self) -> &Proposals {
        &self.0.proposals
    }
}

impl std::ops::DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Proposals {
        &mut self.0.proposals
    }
}

impl Cluster {
    pub(super) fn new(nodes: Vec<Arc<Node>>, scripts: Scripts, timeout: Duration) -> Self {
        let (proposals, repeats) = (Proposals::new(nodes.len()), vec![false; nodes.len()]);
        let scripts = Arc::new(scripts);
        Self { nodes, scripts, timeout, state: Mutex::new(State { proposals, repeats }) }
    }

    pub(super) fn proposals(&self) -> Locked<'_> {
        Locked(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// How long a server may take to reply about `request`.
    pub(super) fn timeout_of(&self, request: &Request) -> Duration {
        self.timeout.min(request.ttl / 5)
    }

    /// Withdraws what is to be withdrawn of `request`, until `enough`: at each server that may have a vote, or at all of them for
    /// `channel`, unless it is empty, which does not wait any more. Withdrawals without a reply are repeated in the background.
    ///
    /// # Cancel safety
    /// Once polled, it goes on to its end even if it is dropped.
    pub(super) async fn withdraw(
        self: &Arc<Self>,
        request: &Request,
        channel: &str,
        enough: impl FnMut(usize, &Result<()>) -> bool,
    ) -> Vec<Option<Result<()>>> {
        let timeout = self.timeout_of(request);
        let send = |index, _| {
            // Read when the message is sent, under the lock: it never names the number of a live proposal.
            let (number, withdrawn) = {
                let proposals = self.proposals();
                (proposals.withdrawal(request.id, index), proposals.withdrawn(request.id))
            };
            if number.is_none() && channel.is_empty() {
                return None;
            }
            let (cluster, request, channel) = (self.clone(), request.clone(), channel.to_owned());
            let number = number.unwrap_or(withdrawn);
            Some(async move {
                let (id, name) = (request.id, &request.name);
                let withdrawn = cluster.withdraw_at(index, id, name, number, &channel, timeout).await;
                if withdrawn.is_err() {
                    cluster.repeat(index);
                }
                withdrawn
            })
        };
        poll(Operation::Release, &self.nodes, timeout, send, enough).await
    }

    /// Until when the withdrawal of `request` is repeated.
    pub(super) fn until(request: &Request) -> polylock_core::Moment {
        SystemClock.now() + request.ttl.max(LATE)
    }

    async fn withdraw_at(
        &self,
        index: usize,
        request: RequestId,
        name: &LockName,
        number: i64,
        channel: &str,
        timeout: Duration,
    ) -> Result<()> {
        let node = &self.nodes[index];
        let Withdrawal { reply, was_sent } =
            node.withdraw(&self.scripts, request, name, number, channel, timeout).await;
        match &reply {
            Ok(reply) => self.proposals().acknowledged(
                request,
                index,
                number,
                reply.removed,
                reply.may_be_repeated,
                &reply.notice,
            ),
            Err(_) if was_sent => self.proposals().unanswered(request, index, number),
            Err(_) => {}
        }
        reply.map(drop)
    }

    /// Starts the task that repeats withdrawals at this server, unless it runs.
    fn repeat(self: &Arc<Self>, index: usize) {
        let mut state = self.proposals().0;
        if !std::mem::replace(&mut state.repeats[index], true) {
            tokio::spawn(self.clone().repeat_withdrawals(index));
        }
    }

    /// Repeats withdrawals at this server until it has acknowledged all of them, or nothing can be left of them.
    async fn repeat_withdrawals(self: Arc<Self>, index: usize) {
        let mut pause = PAUSES.0;
        loop {
            SystemClock.sleep_until(SystemClock.now() + pause).await;
            let owed = {
                let mut state = self.proposals().0;
                let owed = state.proposals.owed(index, SystemClock.now());
                state.repeats[index] = !owed.is_empty();
                owed
            };
            let mut owed = owed.into_iter();
            let Some(first) = owed.next() else { return };
            // The first one finds out whether the server is back.
            match self.repeat_one(index, first).await {
                Ok(()) => {
                    pause = PAUSES.0;
                    let rest = stream::iter(owed).map(|one| self.repeat_one(index, one));
                    rest.buffer_unordered(AT_ONCE).for_each(|_| std::future::ready(())).await;
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
        let Some(number) = self.proposals().withdrawal(request, index) else { return Ok(()) };
        self.withdraw_at(index, request, &name, number, "", self.timeout).await
    }
}
