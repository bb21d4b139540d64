//! One of the servers and its votes, on the link of one runtime.
//!
//! The I/O thread has a link to each server, and so has the runtime of a caller that drives operations itself. These links share the known
//! state of a server: its clock and its membership. A caller's link is used only while it leads to the same server process as the I/O
//! thread's link, by the run id. Otherwise the process could propose to one server, and renew and withdraw at another:
//! 1. the I/O thread is connected to a server;
//! 2. the address now leads to another server, and a caller's new connection reaches that one;
//! 3. the other server votes for the caller, and its vote counts as that of the first one;
//! 4. another process has the vote of the first one: two majorities without a common server.
//!
//! The run id is compared before a message is sent and when its reply has arrived, because the link may have reconnected in between. A
//! reply of another server process does not change the known state: the vote may have been given, and the I/O thread withdraws it.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use polylock_core::{
    Clock, Executor, Fault, LockName, Moment, Operation, Request, RequestId, Result, SystemClock, sync::lock,
};
use redis::{FromRedisValue, ScriptInvocation};

use super::{
    membership::{Membership, Observed},
    scripts::{MembershipArgs, Renewal, Reply, Scripts, code},
    tally::Extension,
};
use crate::{
    call::Call,
    connection::Peer,
    error::Cause,
    link::{Link, Reply as CallReply},
};

/// The pause after an attempt to reach a server that can't be used at present.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);

/// A script call for the server at the other end of a connection.
type ScriptCall<'a> = &'a (dyn Fn(&Peer) -> ScriptInvocation<'a> + Sync);

/// One of the servers, on the link of one runtime.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) link: Arc<Link>,
    /// Starts tasks on the runtime that the link belongs to.
    executor: Executor,
    /// The same server on the link of the I/O thread; `None` if this is that link.
    io_node: Option<Arc<Self>>,
    server: Arc<Server>,
    /// Locked during an attempt to reach the server.
    reconnecting: Arc<tokio::sync::Mutex<()>>,
}

/// The known state of a server, which all links share.
#[derive(Debug)]
struct Server {
    /// The time for which the votes of a server that may have lost some do not count; `None` if restarts are trusted.
    delay: Option<Duration>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The arrival time of the last reply, and the server's clock in it, in us since 1970.
    clock: Option<(Moment, i64)>,
    membership: Membership,
}

/// A server's reply to a proposal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProposalReply {
    pub(super) vote: Vote,
    /// True if the server's votes count.
    pub(super) counts: bool,
}

/// A server's vote, or its refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Vote {
    /// The server has a vote for this number of the request, for this long.
    Yes(i64, Duration),
    /// Another request has the server's vote, for this number and this long.
    Held(i64, Duration),
    /// The server has accepted this number, and refuses those that are not greater.
    Stale(i64),
    /// The number is far ahead of the server's clock.
    TooFar,
}

/// A server's reply to a renewal of several requests.
#[derive(Debug)]
pub(super) struct Extensions {
    /// The outcome for each request, with the number of a vote that was extended, otherwise a break notice or an empty text.
    pub(super) outcomes: Vec<(Extension, String)>,
    /// True if the server's votes count.
    pub(super) counts: bool,
}

/// The outcome of a message that may leave votes.
#[derive(Debug)]
pub(super) struct Attempt<T = ProposalReply> {
    pub(super) reply: Result<T>,
    pub(super) was_sent: bool,
    /// True if a copy of the message may still be executed, at any time.
    pub(super) may_execute_late: bool,
}

/// A server's reply to a withdrawal.
#[derive(Debug)]
pub(super) struct Withdrawn {
    /// True if there was a vote.
    pub(super) removed: bool,
    /// True if an earlier copy of the message may have removed it.
    pub(super) may_be_repeated: bool,
    /// The notice of a break by force, or empty.
    pub(super) notice: String,
}

/// A server's reply to the order to park a vote.
#[derive(Debug)]
pub(super) enum Parked {
    Yes,
    /// There is no vote, or it is marked as broken; with the notice of the break, or an empty text.
    No(String),
}

/// The outcome of a withdrawal.
#[derive(Debug)]
pub(super) struct Withdrawal {
    pub(super) reply: Result<Withdrawn>,
    pub(super) was_sent: bool,
}

impl Node {
    /// Creates the node of a server, on a link that belongs to the present runtime, that of the I/O thread.
    pub(super) fn new(link: Arc<Link>, delay: Option<Duration>) -> Self {
        let server = Arc::new(Server { delay, state: Mutex::default() });
        Self { link, executor: Executor::current(), io_node: None, server, reconnecting: Arc::default() }
    }

    /// Creates another node of the server of `io`, the I/O thread's node, on a link that belongs to the present runtime. The link is
    /// connected if that of the I/O thread is and the server accepts the connection.
    pub(super) async fn for_caller(io: Arc<Self>) -> Self {
        let link = Link::for_caller(io.link.endpoint().clone());
        if io.link.run().is_some() {
            // A server that can't be reached is tried again later.
            link.get_connection().await.ok();
        }
        let server = io.server.clone();
        Self { link, executor: Executor::current(), io_node: Some(io), server, reconnecting: Arc::default() }
    }

    /// Returns the executor of the runtime that the link belongs to.
    pub(super) const fn executor(&self) -> &Executor {
        &self.executor
    }

    /// Returns true if the link belongs to a caller's runtime.
    pub(super) const fn is_for_caller(&self) -> bool {
        self.io_node.is_some()
    }

    /// Returns true if messages can be sent on this link. A caller's link must lead to the same server process as the I/O thread's.
    pub(super) fn is_usable(&self) -> bool {
        !self.is_for_caller() || self.matches_io_run(self.link.run().as_deref())
    }

    /// Returns the node to send messages on: this one, or that of the I/O thread if this link is not usable.
    pub(super) fn serving(self: &Arc<Self>) -> &Arc<Self> {
        match &self.io_node {
            Some(io) if !self.is_usable() => io,
            _ => self,
        }
    }

    /// Returns true if the I/O thread's link leads to the server process `run`, as far as is known. Always true for that link itself.
    fn matches_io_run(&self, run: Option<&str>) -> bool {
        self.io_node.as_ref().is_none_or(|io| run.is_some() && io.link.run().as_deref() == run)
    }

    /// Tries to reach the server again, in a task: on this link, or on that of the I/O thread if that has no server process either. Does
    /// nothing during an attempt of the same link, and for a short time after it.
    pub(super) fn reconnect(self: &Arc<Self>) {
        let node = self.io_node.as_ref().filter(|io| io.link.run().is_none()).unwrap_or(self);
        let Ok(under_way) = node.reconnecting.clone().try_lock_owned() else { return };
        let node = node.clone();
        node.executor.clone().spawn(async move {
            let ping = redis::cmd("PING");
            let timeout = node.link.endpoint().operation_timeout;
            if node.link.run().is_some_and(|run| !node.matches_io_run(Some(&run))) {
                // The link leads to another server, and would for as long as it lasts.
                node.link.discard();
            }
            // This call connects if there is no connection, and gives up a connection that was silent for too long.
            node.link.call(Operation::Connect, timeout, Call::Command(&ping)).await.outcome.ok();
            SystemClock.sleep_until(SystemClock.now() + RECONNECT_PAUSE).await;
            drop(under_way);
        });
    }

    /// Returns the address of the server, without secrets.
    pub(super) fn address(&self) -> &str {
        self.link.address()
    }

    /// Returns the server's clock, in us since 1970, if it is known.
    pub(super) fn clock_us(&self) -> Option<i64> {
        let (received, clock) = self.state().clock?;
        let since = SystemClock.now().since(received).as_micros();
        Some(clock.saturating_add(i64::try_from(since).unwrap_or(i64::MAX)))
    }

    /// Returns the time until the server's votes count; `None` if they count, as far as is known.
    pub(super) fn remaining_delay(&self) -> Option<Duration> {
        self.state().membership.remaining(self.server.delay?, SystemClock.now())
    }

    /// Proposes `number` for `request`. The numbers of `request` up to `withdrawn` are withdrawn.
    pub(super) async fn propose(
        &self,
        scripts: &Scripts,
        request: &Request,
        number: i64,
        withdrawn: i64,
        channel: &str,
        timeout: Duration,
    ) -> Attempt {
        let call =
            |peer: &Peer| scripts.propose(&self.membership_args(peer), request, number, withdrawn, channel);
        self.vote(Operation::Claim, timeout, &call).await
    }

    /// Extends the votes for these numbers of requests. `restores` is true for a server that has lost the votes.
    pub(super) async fn keep_alive(
        &self,
        scripts: &Scripts,
        batch: &[Renewal],
        restores: bool,
        timeout: Duration,
    ) -> Attempt<Extensions> {
        let call = |peer: &Peer| scripts.keep_alive(&self.membership_args(peer), batch, restores);
        let MembershipReply { outcome, was_sent, may_execute_late } =
            self.run::<Vec<(i64, Vec<u8>)>>(Operation::Renew, timeout, &call).await;
        let reply = outcome.and_then(|((.., outcomes), observed)| {
            let counts = self.counts(observed);
            let outcomes = outcomes.iter().map(|(code, bytes)| extension(*code, text(bytes)));
            match outcomes.collect::<Option<Vec<_>>>() {
                Some(outcomes) if outcomes.len() == batch.len() => Ok(Extensions { outcomes, counts }),
                _ => Err(self.link.unexpected(Operation::Renew, "invalid outcomes of a renewal")),
            }
        });
        Attempt { reply, was_sent, may_execute_late }
    }

    /// Refuses numbers up to `to` from now on. Returns true if the holder has the server's vote, and the vote counts.
    ///
    /// # Errors
    /// If the server can't be reached.
    pub(super) async fn raise(
        &self,
        scripts: &Scripts,
        holder: &Renewal,
        to: i64,
        timeout: Duration,
    ) -> Result<bool> {
        let call = |peer: &Peer| scripts.raise(&self.membership_args(peer), holder, to);
        let ((code, ..), observed) = self.run::<Vec<u8>>(Operation::Claim, timeout, &call).await.outcome?;
        Ok(self.counts(observed) && code == code::YES)
    }

    /// Withdraws the votes for numbers of `request` up to `number`, if the message arrives before `by`. `channel`, unless empty, does not wait any
    /// more.
    pub(super) async fn withdraw(
        &self,
        scripts: &Scripts,
        request: RequestId,
        name: &LockName,
        number: i64,
        channel: &str,
        (by, timeout): (Moment, Duration),
    ) -> Withdrawal {
        let id = request.to_bytes();
        let call = |_: &Peer, expiry| scripts.release(&id, name, number, channel, expiry);
        let reply = self.call_in_time(Operation::Release, by, timeout, &call).await;
        let (was_sent, may_be_repeated) = (reply.was_sent, reply.may_execute_late);
        let outcome = reply.outcome.and_then(|value| self.link.read::<Reply>(Operation::Release, value));
        let reply = outcome.map(|(code, _, _, clock, _, notice)| {
            self.observe_clock(clock);
            Withdrawn { removed: code == code::YES, may_be_repeated, notice: text(&notice) }
        });
        Withdrawal { reply, was_sent }
    }

    /// Breaks the vote. Returns the notice that counts; `None` if the server had no vote to break.
    ///
    /// # Errors
    /// If the server can't be reached.
    pub(super) async fn break_lock<'s>(
        &self,
        (by, timeout): (Moment, Duration),
        call: &'s (dyn Fn(&Peer, i64) -> ScriptInvocation<'s> + Sync),
    ) -> Result<Option<String>> {
        let value = self.call_in_time(Operation::Break, by, timeout, call).await.outcome?;
        let (code, _, _, _, _, notice): Reply = self.link.read(Operation::Break, value)?;
        Ok((code == code::YES).then(|| text(&notice)))
    }

    /// Refuses proposals of `request` for this time.
    ///
    /// # Errors
    /// If the server can't be reached.
    pub(super) async fn refuse(
        &self,
        scripts: &Scripts,
        request: &Request,
        time: Duration,
        (by, timeout): (Moment, Duration),
    ) -> Result<()> {
        let call = |_: &Peer, expiry| scripts.refuse(request, time, expiry);
        let value = self.call_in_time(Operation::Release, by, timeout, &call).await.outcome?;
        self.link.read::<Reply>(Operation::Release, value).map(drop)
    }

    /// Makes the vote for this number of `request` end in `left`.
    ///
    /// # Errors
    /// If the server can't be reached.
    pub(super) async fn park(
        &self,
        scripts: &Scripts,
        request: &Request,
        number: i64,
        left: Duration,
        (by, timeout): (Moment, Duration),
    ) -> Result<Parked> {
        let call = |_: &Peer, expiry| scripts.park(request, number, left, expiry);
        let value = self.call_in_time(Operation::Renew, by, timeout, &call).await.outcome?;
        let (code, _, _, _, _, notice): Reply = self.link.read(Operation::Renew, value)?;
        Ok(if code == code::YES { Parked::Yes } else { Parked::No(text(&notice)) })
    }

    async fn vote(&self, operation: Operation, timeout: Duration, call: ScriptCall<'_>) -> Attempt {
        let MembershipReply { outcome, was_sent, may_execute_late } =
            self.run::<Vec<u8>>(operation, timeout, call).await;
        let reply = outcome.and_then(|((code, number, ms, ..), observed)| {
            let counts = self.counts(observed);
            let left = Duration::from_millis(u64::try_from(ms).unwrap_or(0));
            let vote = match code {
                code::YES => Vote::Yes(number, left),
                code::HELD => Vote::Held(number, left),
                code::STALE => Vote::Stale(number),
                code::TOO_FAR => Vote::TooFar,
                code => return Err(self.link.unexpected(operation, format_args!("vote {code}"))),
            };
            Ok(ProposalReply { vote, counts })
        });
        Attempt { reply, was_sent, may_execute_late }
    }

    /// Returns true if the server's votes count. Logs a warning when a delay begins.
    fn counts(&self, observed: Observed) -> bool {
        if observed == (Observed::Delayed { is_first: true }) {
            tracing::warn!(
                server = self.address(),
                "the server was restarted or has lost its data, and may have forgotten votes: its votes count in {:.0?}, \
                 when every earlier lease has expired",
                self.remaining_delay().unwrap_or_default()
            );
        }
        observed == Observed::Counts
    }

    /// Runs a script. It is an error if the reply is from another server process than that of the I/O thread's link.
    pub(super) async fn call(
        &self,
        operation: Operation,
        timeout: Duration,
        call: ScriptCall<'_>,
    ) -> CallReply {
        let mut reply = self.link.call(operation, timeout, Call::Script(call)).await;
        let run = reply.peer.as_ref().and_then(|(peer, _)| peer.health.run.as_deref());
        if reply.outcome.is_ok() && !self.matches_io_run(run) {
            let advice =
                "the connection of this runtime leads to another server process than that of the I/O thread"
                    .to_owned();
            reply.outcome = Err(self.link.failed(operation, Cause::Unusable(Fault::Temporary, advice)));
            reply.may_execute_late = true;
        }
        reply
    }

    /// Runs a script that returns the membership, and records it.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        operation: Operation,
        timeout: Duration,
        call: ScriptCall<'_>,
    ) -> MembershipReply<T> {
        let reply = self.call(operation, timeout, call).await;
        self.read_membership(operation, reply)
    }

    /// Reads the reply to a script that returns the membership, and records it.
    pub(super) fn read_membership<T: FromRedisValue>(
        &self,
        operation: Operation,
        reply: CallReply,
    ) -> MembershipReply<T> {
        // The delay of a server counts from here, after the arrival of the reply, and not from the sending.
        let now = SystemClock.now();
        let (was_sent, may_execute_late) = (reply.was_sent, reply.may_execute_late);
        let outcome = reply.outcome.and_then(|value| self.link.read::<Reply<T>>(operation, value));
        let outcome = outcome.map(|observed_reply| {
            self.observe_clock(observed_reply.3);
            let run = reply.peer.as_ref().and_then(|(peer, _)| peer.health.run.as_deref());
            let membership = String::from_utf8_lossy(&observed_reply.4);
            let observed = self.state().membership.observe(run.unwrap_or_default(), &membership, now);
            (observed_reply, observed)
        });
        MembershipReply { outcome, was_sent, may_execute_late }
    }

    pub(super) fn membership_args(&self, peer: &Peer) -> MembershipArgs {
        let (Some(delay), Some(run)) = (self.server.delay, peer.health.run.clone()) else {
            return MembershipArgs { run: Arc::default(), witness: String::new(), observed: String::new() };
        };
        let membership = &self.state().membership;
        let observed = membership.argument(&run, &nonce(), delay, SystemClock.now());
        MembershipArgs { witness: membership.witness(&run, SystemClock::shared_id()), run, observed }
    }

    /// Returns the arguments that end the server's delay.
    pub(super) fn admission_args(&self, peer: &Peer) -> MembershipArgs {
        let mut args = self.membership_args(peer);
        let observed = self
            .server
            .delay
            .and_then(|delay| self.state().membership.admission_argument(&args.run, &nonce(), delay));
        args.observed = observed.unwrap_or(args.observed);
        args
    }

    pub(super) fn observe_clock(&self, clock_us: i64) {
        self.state().clock = Some((SystemClock.now(), clock_us));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.server.state)
    }
}

/// The outcome of a script that returns the membership.
pub(super) struct MembershipReply<T> {
    pub(super) outcome: Result<(Reply<T>, Observed)>,
    was_sent: bool,
    may_execute_late: bool,
}

/// Converts the script's word and text for the renewal of one request into its outcome.
fn extension(code: i64, text: String) -> Option<(Extension, String)> {
    let outcome = match code {
        code::YES => Extension::Extended(text.split(' ').next()?.parse().ok()?),
        code::MARKED => Extension::Marked,
        code::NO => Extension::Absent,
        _ => return None,
    };
    Some((outcome, text))
}

/// Returns a nonce for a server that has no membership yet.
pub(super) fn nonce() -> String {
    format!("{:016x}", fastrand::u64(..))
}

/// Decodes a text that other clients may have written.
pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
