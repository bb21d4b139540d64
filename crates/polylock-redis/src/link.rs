//! The connection to one server: made on demand, shared by all operations, and reset when it breaks.
//!
//! Commands and push messages share the connection (RESP3), so it receives pushes for as long as it returns replies. A new connection is
//! checked and subscribed before any operation uses it, so a client that has sent a claim on it receives the messages that follow from that
//! claim.
//!
//! The driver's own reconnecting manager is not used: after an outage without commands it does not notice the broken connection, and it
//! ignores a subscription that failed.

use std::{
    fmt,
    pin::pin,
    str,
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};

use futures_util::future;
use polylock_core::{
    Clock, Error, Executor, Fault, HoldAlerts, LockName, Moment, Operation, Result, SystemClock,
    gate::Permit, server_clock::ServerClock, sync::lock,
};
use redis::{Client, FromRedisValue, PushInfo, PushKind, Value};

use crate::{
    call::{Call, Routing},
    checkup,
    config::connection_config,
    connection::{self, LiveConnection, Peer, SlotChannels},
    endpoint::{Endpoint, Push, PushHandler, Route},
    error::{Cause, is_reply},
    flow::Flow,
};

/// The time limit of interactive operations.
pub(crate) const INSPECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum time that a command waits for other commands of this client before it is sent.
const MAX_QUEUE_TIME: Duration = Duration::from_secs(10);

/// A connection that ends within this time after the last call is replaced at once. Servers and proxies close idle connections, and the next
/// release should not have to wait for a new one.
const IN_USE: Duration = Duration::from_secs(60);

/// The connection to one server.
pub(crate) struct Link {
    /// For the messages and the end of a connection, which does not keep its link.
    this: Weak<Self>,
    endpoint: Endpoint,
    state: Mutex<State>,
    /// Locked while a connection is being made.
    connecting: tokio::sync::Mutex<()>,
    flow: Flow,
    /// True if a connection that has ended is reset.
    reconnects: bool,
}

#[derive(Default)]
struct State {
    live: Option<LiveConnection>,
    /// The number of connection attempts, the number of those that have ended, and the error of the last one.
    attempts: u64,
    ended: u64,
    failed: Option<Cause>,
    /// The time of the last call.
    called: Moment,
}

/// The outcome of a call.
#[derive(Debug)]
pub(crate) struct Reply<E = Error> {
    pub(crate) outcome: Result<Value, E>,
    /// True if the call was sent at least once.
    pub(crate) was_sent: bool,
    /// True if a copy of the call was sent and has no reply: the server may still execute it at any time.
    pub(crate) may_execute_late: bool,
    /// The server that has replied, and a moment before the call was sent to it.
    pub(crate) peer: Option<(Arc<Peer>, Moment)>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("address", &self.endpoint.address).finish_non_exhaustive()
    }
}

impl Link {
    pub(crate) fn new(endpoint: Endpoint) -> Arc<Self> {
        Self::build(endpoint, true)
    }

    fn build(endpoint: Endpoint, reconnects: bool) -> Arc<Self> {
        let (connecting, flow) = (tokio::sync::Mutex::default(), Flow::default());
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            endpoint,
            state: Mutex::default(),
            connecting,
            flow,
            reconnects,
        })
    }

    /// Returns the address of the server, without secrets.
    pub(crate) fn address(&self) -> &str {
        &self.endpoint.address
    }

    /// Creates another link to the server. Its connections receive no messages.
    pub(crate) fn for_caller(endpoint: Endpoint) -> Arc<Self> {
        Self::new(without_messages(endpoint))
    }

    /// Creates [another](Self::another) link, with an open connection that belongs to the present runtime. The connection is not reset
    /// when it ends, because a new one may lead to another server by then; from then on calls fail with a temporary error.
    pub(crate) async fn open_for_caller(endpoint: Endpoint) -> Result<Arc<Self>> {
        let link = Self::build(without_messages(endpoint), false);
        link.get_connection().await.map_err(|cause| link.failed(Operation::Connect, cause))?;
        Ok(link)
    }

    /// Returns the endpoint of the server.
    pub(crate) const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Returns the run id of the server at the other end of a working connection; `None` without a connection, or if the user may not read
    /// the id.
    pub(crate) fn run(&self) -> Option<Arc<str>> {
        let state = self.lock();
        let works =
            |live: &&LiveConnection| live.traffic.time_without_reply() <= self.endpoint.operation_timeout;
        state.live.as_ref().filter(works)?.peer.health.run.clone()
    }

    /// Returns true if a call would have to wait for other calls of this link.
    pub(crate) fn is_full(&self) -> bool {
        self.lock().live.as_ref().is_some_and(|live| live.traffic.is_full())
    }

    /// Gives up the connection, so that the next call makes another one.
    pub(crate) fn discard(&self) {
        let attempt = self.lock().live.as_ref().map(|live| live.attempt);
        if let Some(attempt) = attempt {
            self.discard_attempt(attempt);
        }
    }

    /// Removes the connection of this attempt, so that no call uses it any more. Returns false if that was done already.
    fn discard_attempt(&self, attempt: u64) -> bool {
        let discarded = self.lock().live.take_if(|live| live.attempt == attempt);
        if discarded.is_some() {
            (self.endpoint.on_push)(Push::Lost);
        }
        discarded.is_some()
    }

    /// Removes the connection of this attempt, which has ended. Makes another one at once if calls were sent lately; if that fails, the
    /// next call makes one.
    fn replace(&self, attempt: u64) {
        let is_in_use = SystemClock.now().since(self.lock().called) < IN_USE;
        if self.discard_attempt(attempt)
            && is_in_use
            && self.reconnects
            && let Some(link) = self.this.upgrade()
        {
            Executor::current().spawn(async move { drop(link.get_connection().await) });
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Returns the host name or the IP address of the server.
    pub(crate) fn host(&self) -> &str {
        let host = self.address().rsplit_once(':').map_or(self.address(), |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }

    /// Returns true if a reply has been due for longer than `operation_timeout`, or the last connection attempt failed.
    pub(crate) fn is_unresponsive(&self) -> bool {
        self.is_unresponsive_for(self.endpoint.operation_timeout)
    }

    /// Returns true if a reply has been due for longer than `limit`, or there is no connection after an attempt to make one.
    pub(crate) fn is_unresponsive_for(&self, limit: Duration) -> bool {
        let state = self.lock();
        match &state.live {
            Some(live) => live.traffic.time_without_reply() > limit,
            None => state.failed.is_some() || state.attempts > 0,
        }
    }

    /// Returns true while a connection is being made.
    pub(crate) fn is_connecting(&self) -> bool {
        self.connecting.try_lock().is_err()
    }

    /// Returns true if the server has replied to any call since `since`, on the present connection.
    pub(crate) fn replied_since(&self, since: Moment) -> bool {
        self.lock().live.as_ref().is_some_and(|live| live.traffic.replied_since(since))
    }

    /// Sends a command and returns the reply, or an error if the server is silent for `timeout` or `operation_timeout`, whichever is shorter.
    /// Time in which the command waits for other commands of this client does not count.
    ///
    /// A connection that turns out to be broken is reset, and the command is sent again, because operations are idempotent. If the
    /// command fails on a connection that was made for it, or this link does not replace connections, the error is returned.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the connection intact. The command may have been sent.
    pub(crate) async fn call(&self, operation: Operation, timeout: Duration, call: Call<'_>) -> Reply {
        let Reply { outcome, was_sent, may_execute_late, peer } =
            self.attempt(operation, timeout, call, Routing::default()).await;
        let outcome = outcome.map_err(|cause| self.failed(operation, cause));
        Reply { outcome, was_sent, may_execute_late, peer }
    }

    /// Sends a call as [`call`](Self::call) does, with this `routing`, and returns the cause of a failure.
    ///
    /// # Cancel safety
    /// See [`call`](Self::call).
    pub(crate) async fn attempt(
        &self,
        operation: Operation,
        timeout: Duration,
        call: Call<'_>,
        routing: Routing<'_>,
    ) -> Reply<Cause> {
        let timeout = timeout.min(self.endpoint.operation_timeout);
        let (mut was_sent, mut may_execute_late) = (false, false);
        let Some(_permit) = self.enter(operation, timeout).await else {
            return Reply { outcome: Err(Cause::TimedOut(timeout)), was_sent, may_execute_late, peer: None };
        };
        loop {
            self.lock().called = SystemClock.now();
            let (live, is_new) = match self.get_connection().await {
                Ok(live) => live,
                Err(cause) => {
                    return Reply { outcome: Err(cause), was_sent, may_execute_late, peer: None };
                }
            };
            was_sent = true;
            let call_in_flight = live.traffic.start_call();
            let sent_at = call_in_flight.sent_at();
            let (is_reply_received, cause) =
                match call_in_flight.wait(timeout, call.send(&live, routing)).await {
                    Some(_) if live.slots.is_garbled() => (false, Cause::SlotLeft),
                    Some(Ok(value)) => {
                        call_in_flight.replied();
                        let peer = Some((live.peer, sent_at));
                        return Reply { outcome: Ok(value), was_sent, may_execute_late, peer };
                    }
                    Some(Err(error)) => (is_reply(&error), Cause::Driver(error)),
                    None => (false, Cause::TimedOut(timeout)),
                };
            // A connection that is only slow is kept, because it keeps the order of commands.
            let timed_out = matches!(cause, Cause::TimedOut(_));
            let broken = !is_reply_received
                && (!timed_out || live.traffic.time_without_reply() >= self.endpoint.broken_after);
            may_execute_late |= !is_reply_received;
            if is_reply_received {
                call_in_flight.replied();
            }
            if broken {
                self.discard_attempt(live.attempt);
            }
            if !broken || is_new {
                return Reply { outcome: Err(cause), was_sent, may_execute_late, peer: None };
            }
        }
    }

    /// Waits for a permit. Returns `None` if the server is silent for `timeout` in the meantime.
    async fn enter(&self, operation: Operation, timeout: Duration) -> Option<Permit> {
        let mut entering = pin!(self.flow.enter(operation));
        let longest = SystemClock.now() + MAX_QUEUE_TIME;
        loop {
            let time_without_reply =
                self.lock().live.as_ref().map_or(Duration::ZERO, |live| live.traffic.time_without_reply());
            let check_at = SystemClock.now() + timeout.saturating_sub(time_without_reply);
            if let Some(permit) = SystemClock.before(check_at.min(longest), entering.as_mut()).await {
                return Some(permit);
            }
            if time_without_reply >= timeout || SystemClock.now() >= longest {
                return None;
            }
        }
    }

    /// Returns a connection, and true if it was made just now.
    ///
    /// # Errors
    /// If no connection can be made. All callers that waited for the same attempt receive the same error.
    ///
    /// # Cancel safety
    /// Yes.
    pub(crate) async fn get_connection(&self) -> Result<(LiveConnection, bool), Cause> {
        let before = {
            let state = self.lock();
            if let Some(live) = &state.live {
                return Ok((live.clone(), false));
            }
            state.ended
        };
        let _one = self.connecting.lock().await;
        let attempt = {
            let mut state = self.lock();
            if let Some(live) = &state.live {
                return Ok((live.clone(), true));
            }
            if let (true, Some(cause)) = (state.ended != before, &state.failed) {
                return Err(cause.clone());
            }
            if !self.reconnects && state.attempts > 0 {
                return Err(Cause::Ended);
            }
            state.attempts += 1;
            state.attempts
        };
        let limit = self.endpoint.connect_timeout;
        let connected = SystemClock.before(SystemClock.now() + limit, self.connect(attempt)).await;
        let connected = connected.unwrap_or(Err(Cause::TimedOut(limit)));
        let connected = connected.map_err(|cause| cause.of_connecting(self.endpoint.encrypted));
        let mut state = self.lock();
        state.ended += 1;
        state.failed = connected.as_ref().err().cloned();
        state.live = connected.as_ref().ok().cloned();
        connected.map(|live| (live, true))
    }

    async fn connect(&self, attempt: u64) -> Result<LiveConnection, Cause> {
        match &self.endpoint.route {
            Route::Fixed(client) => self.connect_to(client, attempt).await,
            Route::Sentinels(sentinels) => {
                let mut failed = None;
                for client in sentinels.primary().await? {
                    match self.connect_to(&client, attempt).await {
                        Ok(live) => return Ok(live),
                        Err(cause) => failed = Some(cause),
                    }
                }
                Err(failed.unwrap_or(Cause::TimedOut(self.endpoint.connect_timeout)))
            }
        }
    }

    async fn connect_to(&self, client: &Client, attempt: u64) -> Result<LiveConnection, Cause> {
        let link = self.this.clone();
        let (on_push, alerts) = (self.endpoint.on_push.clone(), self.endpoint.alerts.clone());
        let break_channel = self.endpoint.break_channel.clone();
        let slots = Arc::<SlotChannels>::default();
        let slots_of_connection = slots.clone();
        let config =
            connection_config(self.endpoint.credentials.as_ref()).set_push_sender(move |push: PushInfo| {
                handle_push(&push, attempt, &link, &slots, &on_push, &break_channel, &alerts);
                Ok::<_, redis::aio::SendError>(())
            });
        let (mut connection, driver) = connection::open(client, &config).await.map_err(Cause::Driver)?;
        let mut subscriber = connection.clone();
        let client_channel = self.endpoint.channel.as_ref();
        let channels: Vec<&String> =
            client_channel.into_iter().chain([&self.endpoint.break_channel]).collect();
        let subscribe = async {
            if self.endpoint.subscribes {
                subscriber.subscribe(&channels[..]).await.map_err(Cause::Driver)?;
            }
            Ok(())
        };
        let check = checkup::check(&mut connection, &self.endpoint);
        let sent_at = SystemClock.now();
        let (health, ()) = future::try_join(check, subscribe).await?;
        if self.endpoint.requires_run_id && health.run.is_none() {
            let advice = "INFO is not allowed, so a restart of the server can't be detected: grant +info, or set \
                polylock.restart=trust if every server keeps all acknowledged data";
            return Err(Cause::Unusable(Fault::Denied, advice.to_owned()));
        }
        if let (Some(servers), Some(run)) = (&self.endpoint.distinct, &health.run) {
            servers.check(&self.endpoint.address, run)?;
        }
        let clock = ServerClock::default();
        clock.observe(sent_at, health.clock_us);
        let peer = Arc::new(Peer { health, clock });
        Ok(LiveConnection {
            connection,
            _driver: driver,
            attempt,
            peer,
            traffic: Arc::default(),
            slots: slots_of_connection,
        })
    }

    /// Converts the server's reply into the expected type.
    pub(crate) fn read<T: FromRedisValue>(&self, operation: Operation, reply: Value) -> Result<T> {
        redis::from_redis_value(reply).map_err(|error| self.unexpected(operation, error))
    }

    /// Returns the error of `operation` for an unexpected reply.
    pub(crate) fn unexpected(&self, operation: Operation, detail: impl fmt::Display) -> Error {
        let advice = format!("unexpected reply: {detail}");
        self.failed(operation, Cause::Unusable(Fault::Permanent, advice))
    }

    /// Returns the error of `operation` with this cause.
    pub(crate) fn failed(&self, operation: Operation, cause: Cause) -> Error {
        cause.at(self.endpoint.backend, operation, &self.endpoint.address)
    }
}

fn handle_push(
    push: &PushInfo,
    attempt: u64,
    link: &Weak<Link>,
    slots: &SlotChannels,
    on_push: &PushHandler,
    break_channel: &str,
    alerts: &HoldAlerts,
) {
    match (&push.kind, &push.data[..]) {
        (PushKind::Message, [Value::BulkString(channel), Value::BulkString(name)])
            if channel == break_channel.as_bytes() =>
        {
            if let Some(name) = str::from_utf8(name).ok().and_then(|name| LockName::from_store(name).ok()) {
                alerts.check(&name);
            }
        }
        (PushKind::Message | PushKind::SMessage, [_, Value::BulkString(message)]) => {
            on_push(Push::Message(message));
        }
        (PushKind::SUnsubscribe, _) => {
            // The slot has left the server. This code runs before the driver matches the message with a command.
            slots.mark_garbled();
            if let Some(link) = link.upgrade() {
                link.discard_attempt(attempt);
            }
        }
        (PushKind::Disconnection, _) => {
            if let Some(link) = link.upgrade() {
                link.replace(attempt);
            }
        }
        _ => {}
    }
}

/// Returns the endpoint for connections that receive no messages.
fn without_messages(endpoint: Endpoint) -> Endpoint {
    Endpoint { subscribes: false, on_push: Arc::new(|_| {}), ..endpoint }
}
