//! The store: queues with hand-over, on one server or in a cluster.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
#[cfg(feature = "simulation")]
use polylock_core::simulation;
use polylock_core::{
    Backend, BreakNotice, Capabilities, ClaimOutcome, Clock, FencingToken, Grant, HoldTerms, KeepAlive,
    LockName, LostReason, Mode, Operation, Park, PerRuntime, QueuePosition, RaiseToken, Release, Request,
    Result, SystemClock, Wake, requests::RequestTable, sync::lock, time_limit, wakeups::Wakeups,
};
use redis::{ScriptInvocation, Value};

use super::{
    scripts::{Scripts, in_micros},
    servers::Servers,
};
use crate::{
    call::Call,
    cluster::Nodes,
    connection::Peer,
    error::{exact, no_room_above},
    link::{Link, Reply},
};

/// The interval at which a waiter claims again although it is notified. Together with the time to notice a dead connection, no wait lasts
/// longer than a second past its turn.
const RECHECK: Duration = Duration::from_millis(500);

/// The time for which a claim stays valid at the server after the client has stopped waiting for the reply. It exceeds the duration of a
/// reply, by which the estimate of the server's clock may be late.
const VALIDITY: Duration = Duration::from_secs(1);

/// The number of attempts of a claim that the server takes for expired because its clock was set forward.
const MAX_ATTEMPTS: u32 = 3;

/// The pause before the next attempt of a call whose last message, without a reply, may still arrive.
const PAUSE: Duration = Duration::from_millis(50);

/// The locks of one server or of a cluster, on the connections of one runtime.
pub(super) struct RedisBackend {
    pub(super) context: Arc<Context>,
    pub(super) servers: Servers,
    /// The same locks on connections of the callers' runtimes.
    pub(super) callers: PerRuntime<Self>,
}

/// The parts of a store that do not depend on the connection.
pub(super) struct Context {
    pub(super) capabilities: Capabilities,
    pub(super) wakeups: Arc<Wakeups>,
    pub(super) scripts: Arc<Scripts>,
    pub(super) break_channel: String,
    pub(super) operation_timeout: Duration,
    /// The requests with a claim of which a copy may still be delivered, each kept until that claim has expired in any case. The number is
    /// the expiry of the claim, by the server's clock.
    pub(super) late_claims: Mutex<RequestTable<i64>>,
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBackend").field("servers", &self.servers).finish_non_exhaustive()
    }
}

impl RedisBackend {
    pub(super) async fn call<'s>(
        &self,
        name: &LockName,
        operation: Operation,
        timeout: Duration,
        call: &'s (dyn Fn(&Peer) -> ScriptInvocation<'s> + Sync),
    ) -> Reply {
        self.servers.call(name, operation, timeout, Call::Script(call), false).await
    }

    /// Returns the time limit for a reply about `request` on a connection that may be broken. It leaves time for another attempt.
    pub(super) fn timeout(&self, request: &Request) -> Duration {
        (request.ttl / 3).max(Duration::from_millis(50)).min(self.context.operation_timeout)
    }

    /// Sends a call that has no effect once this function has returned an error: the script compares its expiry, which `call` puts in, with
    /// the server's clock. While a message without a reply may still arrive, because its connection has ended, the call is repeated.
    pub(super) async fn call_in_time<'s>(
        &self,
        name: &LockName,
        operation: Operation,
        timeout: Duration,
        call: &'s (dyn Fn(i64) -> ScriptInvocation<'s> + Sync),
    ) -> Reply {
        let timeout = timeout.min(self.context.operation_timeout);
        // Of two attempts, if the first one finds a broken connection.
        let deadline = SystemClock.now() + time_limit::within(2 * timeout);
        let left = || deadline.since(SystemClock.now());
        let invoke = |peer: &Peer| call(peer.clock.expiry_us(left()).unwrap_or(0));
        let (mut may_execute_late, mut refusals) = (false, 0);
        loop {
            let reply = self.call(name, operation, timeout.min(left()), &invoke).await;
            may_execute_late |= reply.may_execute_late;
            let error = match reply.outcome {
                Ok(value) => {
                    let Some(clock_us) = expired_at(&value) else {
                        return Reply { outcome: Ok(value), may_execute_late, ..reply };
                    };
                    // Refused although this function still waits: the server's clock was set forward, or its estimate is late.
                    if let Some((peer, sent_at)) = &reply.peer {
                        peer.clock.observe(*sent_at, clock_us);
                    }
                    refusals += 1;
                    if refusals < MAX_ATTEMPTS && !left().is_zero() {
                        continue;
                    }
                    self.servers.failed(operation, crate::error::Cause::TimedOut(timeout))
                }
                Err(error) => error,
            };
            let is_repeated =
                may_execute_late && error.is_temporary() && refusals < MAX_ATTEMPTS && left() > PAUSE;
            if may_execute_late {
                SystemClock.sleep_until(SystemClock.now() + if is_repeated { PAUSE } else { left() }).await;
            }
            if !is_repeated {
                return Reply { outcome: Err(error), may_execute_late, ..reply };
            }
        }
    }

    /// Returns the time after its sending for which a claim of another process may be carried out. The processes that pass holds to each other
    /// have the same time limit.
    fn claim_validity(&self) -> Duration {
        (self.context.operation_timeout + VALIDITY).max(time_limit::LONGEST)
    }

    fn late_claims(&self) -> MutexGuard<'_, RequestTable<i64>> {
        lock(&self.context.late_claims)
    }

    /// Records that a copy of a claim of `request` may be delivered after its release, until that claim expires.
    fn record_late_claim(&self, request: &Request, expires_us: i64) {
        let now = SystemClock.now();
        let until = now + 2 * (self.timeout(request) + VALIDITY);
        let mut claims = self.late_claims();
        let latest_us = claims.update(request.id, now, until, || 0);
        // The clock of the server may have been set back between two claims.
        *latest_us = (*latest_us).max(expires_us);
    }

    /// Sends a claim, which expires by the server's clock. The reply contains a word, three numbers, and that clock.
    async fn send_claim(&self, request: &Request, ticket: u64) -> Result<[i64; 5]> {
        let queue_lease = if request.queues { in_micros(request.queue_lease()) } else { 0 };
        let timeout = self.timeout(request);
        let deadline = SystemClock.now() + time_limit::within(timeout + VALIDITY);
        let expires_us = AtomicI64::new(0);
        let id = request.id.to_bytes();
        let label = request.label.as_ref().map_or("", |label| label.as_str());
        let channel = self.servers.channel(&request.name);
        let invoke = |peer: &Peer| {
            // Computed right before sending, from the clock of the server at the other end of the connection. The wait for that connection counts.
            let left = deadline.since(SystemClock.now());
            let expires = peer.clock.expiry_us(left).unwrap_or(i64::MAX);
            expires_us.fetch_max(expires, Ordering::Relaxed);
            let mut call = self.context.scripts.call(&self.context.scripts.claim, &request.name);
            call.arg(&id).arg(request.mode.bit()).arg(request.mode.conflicts());
            call.arg(in_micros(request.ttl)).arg(queue_lease).arg(&*channel).arg(ticket);
            call.arg(request.owner.as_str()).arg(label).arg(expires);
            call
        };
        let mut pending = PendingClaim { backend: self, request, expires_us: &expires_us, is_settled: false };
        let Reply { outcome, may_execute_late, peer, .. } = self
            .servers
            .call(&request.name, Operation::Claim, timeout, Call::Script(&invoke), request.queues)
            .await;
        pending.is_settled = !may_execute_late;
        drop(pending);
        let reply: [i64; 5] = self.servers.read(Operation::Claim, outcome?)?;
        if let Some((peer, sent_at)) = peer {
            peer.clock.observe(sent_at, reply[4]);
        }
        Ok(reply)
    }

    /// Returns the outcome of a keep-alive of `request`, from the script's reply about it.
    fn keep_alive_outcome(&self, reply: &Value) -> Result<KeepAlive> {
        let unexpected = || self.servers.unexpected(Operation::Renew, "an unknown outcome of a renewal");
        read_keep_alive(reply).ok_or_else(unexpected)
    }

    /// Extends the holds and queue entries of `requests` in a cluster. The outcome for a request is unknown if its node does not reply; if
    /// that is so for all of them, it is an error.
    async fn keep_alive_in(
        &self,
        nodes: &Arc<Nodes>,
        requests: &[Arc<Request>],
        longest: Duration,
    ) -> Result<Vec<KeepAlive>> {
        let shortest = requests.iter().map(|request| self.timeout(request)).min().unwrap_or(longest);
        let replies = nodes.keep_alive(&self.context.scripts, requests, [shortest, longest]).await;
        let (mut failed, mut known) = (None, 0);
        let outcomes = replies.into_iter().map(|reply| {
            Ok(match reply {
                Ok(reply) => {
                    known += 1;
                    self.keep_alive_outcome(&reply)?
                }
                Err(error) => {
                    failed.get_or_insert(error);
                    KeepAlive::Unknown
                }
            })
        });
        let outcomes = outcomes.collect::<Result<Vec<_>>>()?;
        match failed {
            Some(error) if known == 0 => Err(error),
            Some(error) => {
                let unknown = outcomes.len() - known;
                tracing::warn!(unknown, %error, "some renewals of a batch are unknown, retrying these");
                Ok(outcomes)
            }
            None => Ok(outcomes),
        }
    }
}

/// A claim without a reply yet. Dropping it records that the claim may be delivered late.
struct PendingClaim<'a> {
    backend: &'a RedisBackend,
    request: &'a Request,
    /// Zero until the claim is sent.
    expires_us: &'a AtomicI64,
    is_settled: bool,
}

impl Drop for PendingClaim<'_> {
    fn drop(&mut self) {
        let expires_us = self.expires_us.load(Ordering::Relaxed);
        if !self.is_settled && expires_us != 0 {
            self.backend.record_late_claim(self.request, expires_us);
        }
    }
}

/// Returns the duration that a script has replied.
pub(super) fn from_micros(number: i64) -> Duration {
    Duration::from_micros(u64::try_from(number).unwrap_or(0))
}

/// Returns the clock of the server from the reply of a script whose call had expired.
fn expired_at(reply: &Value) -> Option<i64> {
    match reply {
        Value::Array(parts) => match parts[..] {
            [Value::Int(-1), Value::Int(clock_us)] => Some(clock_us),
            _ => None,
        },
        _ => None,
    }
}

/// Returns the outcome of a keep-alive of a request, from the script's reply about it.
pub(super) fn read_keep_alive(reply: &Value) -> Option<KeepAlive> {
    match reply {
        Value::Array(parts) => match parts[..] {
            [Value::Int(left), Value::Int(token), Value::Int(mode)] => {
                let mode = u8::try_from(mode).ok().and_then(Mode::from_bits)?;
                let terms = HoldTerms::new(FencingToken::new(token)?, mode);
                let lease = Duration::from_micros(u64::try_from(left).ok()?);
                Some(KeepAlive::Held { lease, terms: Some(terms) })
            }
            _ => None,
        },
        Value::Int(2) => Some(KeepAlive::Queued),
        Value::Int(0) => Some(KeepAlive::Lost(LostReason::Gone)),
        reply => break_reason(reply).map(KeepAlive::Lost),
    }
}

/// Returns the reason for the end of a hold if the reply of a script is a break notice.
pub(super) fn break_reason(reply: &Value) -> Option<LostReason> {
    let Value::BulkString(notice) = reply else { return None };
    if notice.is_empty() {
        // It is parked.
        return Some(LostReason::Gone);
    }
    Some(LostReason::Broken(BreakNotice::from_text(&String::from_utf8_lossy(notice))))
}

#[async_trait]
impl Backend for RedisBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.context.capabilities
    }

    fn here(&self) -> Option<Arc<dyn Backend>> {
        // In a cluster the lock determines the node, so a runtime would need a connection to each node.
        let Servers::Single { link, channel } = &self.servers else { return None };
        // The store's connection receives the grants of waiters and keeps holds alive. After a failover, or behind an address that leads to
        // another server by now, a caller's connection that follows later would grant locks at another server.
        let run = link.run()?;
        let is_usable = |caller: &Self| matches!(&caller.servers, Servers::Single { link, .. } if link.run().as_ref() == Some(&run));
        let open = || {
            let (context, endpoint, channel) =
                (self.context.clone(), link.endpoint().clone(), channel.clone());
            async {
                let link = Link::open_for_caller(endpoint).await?;
                Ok(Self {
                    context,
                    servers: Servers::Single { link, channel },
                    callers: PerRuntime::default(),
                })
            }
        };
        self.callers.get(is_usable, open).map(|caller| caller as _)
    }

    async fn claim(&self, request: &Request) -> Result<ClaimOutcome> {
        let waiter = self.context.wakeups.register(request);
        for _ in 0..MAX_ATTEMPTS {
            match self.send_claim(request, waiter.ticket()).await? {
                [1, token, lease, ..] => {
                    let negative = || self.servers.unexpected(Operation::Claim, "a negative token");
                    let token = FencingToken::new(token).ok_or_else(negative)?;
                    waiter.granted();
                    return Ok(ClaimOutcome::Granted(Grant::new(token, from_micros(lease))));
                }
                [0, left, ahead, position, _] => {
                    let number = position.unsigned_abs();
                    waiter.queued_at(number);
                    // At most a third of the lifetime of the queue entry, so that the entry is refreshed before it expires.
                    let recheck = from_micros(left).min(RECHECK).min(request.queue_lease() / 3);
                    let position = QueuePosition::new(u32::try_from(ahead).ok(), recheck);
                    let is_late = self.late_claims().get(&request.id).is_some();
                    return Ok(ClaimOutcome::Queued(
                        position.number(Some(number)).may_be_granted_late(is_late),
                    ));
                }
                // The claim has expired by a clock that was set forward. The reply has corrected the estimate of that clock.
                [-1, ..] => {}
                _ => {
                    return Err(self
                        .servers
                        .unexpected(Operation::Claim, "neither a grant nor a queue position"));
                }
            }
        }
        Err(self.servers.failed(Operation::Claim, crate::error::Cause::TimedOut(self.timeout(request))))
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        Ok(self.context.wakeups.notified(request.id).await)
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        let Some(timeout) = requests.iter().map(|request| self.timeout(request)).max() else {
            return Ok(Vec::new());
        };
        let link = match &self.servers {
            Servers::Single { link, .. } => link,
            Servers::Cluster(nodes) => return self.keep_alive_in(nodes, requests, timeout).await,
        };
        let invoke = |_: &Peer| self.context.scripts.keep_alive(requests);
        let reply = link.call(Operation::Renew, timeout, Call::Script(&invoke)).await.outcome?;
        let replies: Vec<Value> = link.read(Operation::Renew, reply)?;
        replies.iter().map(|reply| self.keep_alive_outcome(reply)).collect()
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        self.context.wakeups.remove(request.id);
        let late_us = self.late_claims().get(&request.id).copied();
        #[cfg(feature = "simulation")]
        if simulation::has_bug(simulation::Bug::ForgottenClaim) {
            self.late_claims().remove(&request.id);
        }
        let (id, timeout) = (request.id.to_bytes(), self.timeout(request));
        let invoke = |late_for: u64, expiry: i64| {
            let mut call = self.context.scripts.call(&self.context.scripts.release, &request.name);
            call.arg(&id).arg(late_us.unwrap_or(0)).arg(late_for).arg(expiry);
            call
        };
        let reply = if request.outlives_process {
            let late_for = in_micros(self.claim_validity());
            let in_time = |expiry| invoke(late_for, expiry);
            self.call_in_time(&request.name, Operation::Release, timeout, &in_time).await
        } else {
            let always = |_: &Peer| invoke(0, 0);
            self.call(&request.name, Operation::Release, timeout, &always).await
        };
        let value = reply.outcome?;
        if late_us.is_some() {
            self.late_claims().remove(&request.id);
        }
        if let Some(reason) = break_reason(&value) {
            return Ok(Release::Lost(reason));
        }
        Ok(match self.servers.read(Operation::Release, value)? {
            1 => Release::Released,
            // An earlier copy, sent on a connection that broke, may have removed the entry.
            _ if reply.may_execute_late => Release::Released,
            _ => Release::Lost(LostReason::Gone),
        })
    }

    fn drop_waiter(&self, request: &Request) {
        self.context.wakeups.remove(request.id);
    }

    fn request_records(&self) -> Option<usize> {
        Some(self.late_claims().len())
    }
}

#[async_trait]
impl Park for RedisBackend {
    async fn park(&self, request: &Request, token: FencingToken, left: Duration) -> Result<Release> {
        let id = request.id.to_bytes();
        let late_us = self.late_claims().get(&request.id).copied().unwrap_or(0);
        let late_for = if request.outlives_process { in_micros(self.claim_validity()) } else { 0 };
        let invoke = |expiry| {
            let mut call = self.context.scripts.call(&self.context.scripts.park, &request.name);
            call.arg(expiry).arg(&id).arg(token.get()).arg(in_micros(left)).arg(late_us).arg(late_for);
            call
        };
        let sent = SystemClock.now();
        let reply = self.call_in_time(&request.name, Operation::Renew, self.timeout(request), &invoke).await;
        let value = reply.outcome?;
        if let Some(reason) = break_reason(&value) {
            return Ok(Release::Lost(reason));
        }
        Ok(match self.servers.read(Operation::Renew, value)? {
            1 => Release::Released,
            // An earlier copy has parked the hold, which has ended since.
            _ if reply.may_execute_late && SystemClock.now() >= sent + left => Release::Released,
            _ => Release::Lost(LostReason::Gone),
        })
    }
}

#[async_trait]
impl RaiseToken for RedisBackend {
    async fn raise(&self, request: &Request, to: FencingToken) -> Result<FencingToken> {
        let Some(number) = exact(to) else {
            return Err(self.servers.failed(Operation::Claim, no_room_above(to)));
        };
        let invoke = |_: &Peer| {
            let mut call = self.context.scripts.call(&self.context.scripts.raise, &request.name);
            call.arg(number);
            call
        };
        let reply = self.call(&request.name, Operation::Claim, self.timeout(request), &invoke).await;
        let last: String = self.servers.read(Operation::Claim, reply.outcome?)?;
        let last = last.parse::<i64>().ok().and_then(FencingToken::new);
        last.ok_or_else(|| self.servers.unexpected(Operation::Claim, "not a number"))
    }
}
