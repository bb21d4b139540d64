//! The one connection to one server: made when it is needed, shared by all operations, replaced when it breaks.
//!
//! Commands and push messages share the connection (RESP3), so it receives pushes for as long as it returns replies. A new one is
//! checked and subscribed before any operation uses it: whoever has sent a claim on it receives what follows from the claim.
//!
//! The driver's own reconnecting manager is not used: after an outage without commands it notices nothing, and it ignores a
//! subscription that failed.

use std::{
    fmt,
    pin::pin,
    str,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use futures_util::future;
use polylock_core::{
    Clock, Error, Fault, HoldAlerts, LockName, Moment, Operation, RequestId, Result, SystemClock,
    server_clock::ServerClock,
};
use redis::{
    AsyncConnectionConfig, Client, FromRedisValue, PushInfo, PushKind, Value, aio::MultiplexedConnection,
};

use crate::{
    Allowed,
    call::{Call, SlotChannels, Via},
    checkup::{self, Health},
    config::Credentials,
    error::{Cause, is_answer},
    flow::{Flow, Permit, Traffic},
    sentinel::Sentinels,
};

/// The time limit of operations that people wait for.
pub(crate) const INSPECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest that a command waits for others of this client before it is sent.
const LONGEST_QUEUE: Duration = Duration::from_secs(10);

/// A push message of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Push<'a> {
    /// This was published on the client's own channel.
    Message(&'a [u8]),
    /// The connection is gone, and whatever was published meanwhile is missed.
    Lost,
}

/// Called for every push message. Must not block.
pub(crate) type PushHandler = Arc<dyn Fn(Push<'_>) + Send + Sync>;

/// A text that no other client has; random, like a request's id.
pub(crate) fn client_id() -> String {
    format!("{:032x}", u128::from_be_bytes(RequestId::random().to_bytes()))
}

/// The channel of a client on one server. It begins with the prefix, so that the users of one prefix can be kept from sending grants to
/// those of another.
pub(crate) fn own_channel(prefix: &str, client: &str) -> String {
    format!("polylock:{prefix}:{client}")
}

/// The channel on which the names of broken locks are published to all clients that use this prefix.
pub(crate) fn break_channel(prefix: &str) -> String {
    format!("polylock:broken:{prefix}")
}

/// Which kind of server is expected at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    /// A primary that stays one.
    Primary,
    /// A node of a cluster.
    ClusterNode,
    /// The primary that a Sentinel has named, which may be another one soon.
    NamedPrimary,
}

/// How a server is found.
#[derive(Clone)]
pub(crate) enum Route {
    To(Box<Client>),
    Watched(Arc<Sentinels>),
}

/// How to reach one server.
#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(crate) route: Route,
    pub(crate) expected: Expected,
    /// The store's name, for errors, metrics and logs.
    pub(crate) backend: &'static str,
    /// The server, without secrets.
    pub(crate) address: String,
    pub(crate) encrypted: bool,
    pub(crate) credentials: Option<Credentials>,
    pub(crate) client_name: Option<String>,
    /// How long it may take until a connection can be used.
    pub(crate) connect_timeout: Duration,
    pub(crate) command_timeout: Duration,
    /// How long a connection may be without a reply until it counts as broken, if that is longer than a command may take.
    pub(crate) silence: Duration,
    pub(crate) allowed: Vec<Allowed>,
    /// Whether no harm is done if the server forgets what it has acknowledged.
    pub(crate) may_forget: bool,
    /// Whether the run id of the server must be known.
    pub(crate) needs_run: bool,
    /// Whether connections receive messages.
    pub(crate) subscribes: bool,
    /// The client's own channel, unless it has one in each slot, and the handler of its messages.
    pub(crate) channel: Option<String>,
    pub(crate) on_push: PushHandler,
    /// See [`break_channel`].
    pub(crate) break_channel: String,
    /// Notified when a lock was broken.
    pub(crate) alerts: Arc<HoldAlerts>,
}

/// The connection to one server.
pub(crate) struct Link {
    endpoint: Endpoint,
    shared: Arc<Shared>,
    /// Held while a connection is being made.
    connecting: tokio::sync::Mutex<()>,
    flow: Flow,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    live: Option<Live>,
    /// How many connections were tried, how many of these attempts have ended, and the error of the last one.
    attempts: u64,
    ended: u64,
    failed: Option<Cause>,
}

/// The server process at the other end of a connection, which does not outlive it.
#[derive(Debug)]
pub(crate) struct Peer {
    /// The state of the server when the connection was made.
    pub(crate) health: Health,
    pub(crate) clock: ServerClock,
}

/// A connection that works, as far as is known.
#[derive(Clone)]
pub(crate) struct Live {
    pub(crate) connection: MultiplexedConnection,
    attempt: u64,
    pub(crate) peer: Arc<Peer>,
    traffic: Arc<Traffic>,
    pub(crate) slots: Arc<SlotChannels>,
}

/// The outcome of a call.
#[derive(Debug)]
pub(crate) struct Reply<E = Error> {
    pub(crate) outcome: Result<Value, E>,
    /// Whether it was sent at least once.
    pub(crate) was_sent: bool,
    /// Whether a copy of it was sent and not answered: the server may still carry that out, at any time.
    pub(crate) may_come_late: bool,
    /// The server that has answered, and a moment before the call was sent to it.
    pub(crate) peer: Option<(Arc<Peer>, Moment)>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("address", &self.endpoint.address).finish_non_exhaustive()
    }
}

impl Link {
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        let (connecting, flow) = (tokio::sync::Mutex::default(), Flow::default());
        Self { endpoint, shared: Arc::default(), connecting, flow }
    }

    /// The server, without secrets.
    pub(crate) fn address(&self) -> &str {
        &self.endpoint.address
    }

    /// Another link to the same server, whose connections receive no messages, with an open connection that belongs to the present
    /// runtime.
    pub(crate) async fn open_another(endpoint: Endpoint) -> Result<Self> {
        let on_push: PushHandler = Arc::new(|_| {});
        let link = Self::new(Endpoint { subscribes: false, on_push, ..endpoint });
        link.live().await.map_err(|cause| link.failed(Operation::Connect, cause))?;
        Ok(link)
    }

    /// How it reaches the server.
    pub(crate) const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The run id of the server at the other end of a connection that works; `None` without one, and if the user may not ask for it.
    pub(crate) fn run(&self) -> Option<String> {
        let state = self.shared.lock();
        let works = |live: &&Live| live.traffic.silence() <= self.endpoint.command_timeout;
        state.live.as_ref().filter(works)?.peer.health.run.clone()
    }

    /// The name or the number of the server's machine.
    pub(crate) fn host(&self) -> &str {
        let host = self.address().rsplit_once(':').map_or(self.address(), |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }

    /// Whether a reply has been due for longer than a command may take, or the last connection attempt failed.
    pub(crate) fn is_silent(&self) -> bool {
        self.is_silent_for(self.endpoint.command_timeout)
    }

    /// Whether a reply has been due for longer than this, or there is no connection and one was tried.
    pub(crate) fn is_silent_for(&self, limit: Duration) -> bool {
        let state = self.shared.lock();
        match &state.live {
            Some(live) => live.traffic.silence() > limit,
            None => state.failed.is_some() || state.attempts > 0,
        }
    }

    /// Whether a connection is being made.
    pub(crate) fn is_connecting(&self) -> bool {
        self.connecting.try_lock().is_err()
    }

    /// Whether it has replied to anything since then, on the present connection.
    pub(crate) fn replied_since(&self, since: Moment) -> bool {
        self.shared.lock().live.as_ref().is_some_and(|live| live.traffic.replied_since(since))
    }

    /// Sends a command and returns the reply, or an error if the server is silent for `timeout` or the time that a command may take, if
    /// that is less. The time in which the command waits for others of this client does not count.
    ///
    /// A connection that turns out to be broken is replaced, and the command sent again, because operations are idempotent. If it
    /// fails on a connection that was made for it, the error is returned.
    ///
    /// # Cancel safety
    /// Dropping it leaves the connection intact. The command may have been sent.
    pub(crate) async fn call(&self, operation: Operation, timeout: Duration, call: Call<'_>) -> Reply {
        let Reply { outcome, was_sent, may_come_late, peer } =
            self.attempt(operation, timeout, call, Via::default()).await;
        let outcome = outcome.map_err(|cause| self.failed(operation, cause));
        Reply { outcome, was_sent, may_come_late, peer }
    }

    /// Does what [`call`](Self::call) does, by another way, and returns the cause of a failure.
    ///
    /// # Cancel safety
    /// As [`call`](Self::call).
    pub(crate) async fn attempt(
        &self,
        operation: Operation,
        timeout: Duration,
        call: Call<'_>,
        via: Via<'_>,
    ) -> Reply<Cause> {
        let timeout = timeout.min(self.endpoint.command_timeout);
        let (mut was_sent, mut may_come_late) = (false, false);
        let Some(_permit) = self.enter(operation, timeout).await else {
            return Reply { outcome: Err(Cause::TimedOut(timeout)), was_sent, may_come_late, peer: None };
        };
        loop {
            let (live, is_new) = match self.live().await {
                Ok(live) => live,
                Err(cause) => {
                    return Reply { outcome: Err(cause), was_sent, may_come_late, peer: None };
                }
            };
            was_sent = true;
            let due = live.traffic.sends();
            let sent_at = due.sent_at();
            let (answered, cause) = match due.wait(timeout, call.send(&live, via)).await {
                Some(_) if live.slots.is_garbled() => (false, Cause::SlotLeft),
                Some(Ok(value)) => {
                    due.replied();
                    let peer = Some((live.peer, sent_at));
                    return Reply { outcome: Ok(value), was_sent, may_come_late, peer };
                }
                Some(Err(error)) => (is_answer(&error), Cause::Driver(error)),
                None => (false, Cause::TimedOut(timeout)),
            };
            // A connection that is only slow is kept, and with it the order of what was sent.
            let timed_out = matches!(cause, Cause::TimedOut(_));
            let broken = !answered && (!timed_out || live.traffic.silence() >= self.endpoint.silence);
            may_come_late |= !answered;
            if answered {
                due.replied();
            }
            if broken {
                self.shared.give_up(live.attempt, &self.endpoint.on_push);
            }
            if !broken || is_new {
                return Reply { outcome: Err(cause), was_sent, may_come_late, peer: None };
            }
        }
    }

    /// A place in flight; `None` if the server is silent for `timeout` meanwhile.
    async fn enter(&self, operation: Operation, timeout: Duration) -> Option<Permit> {
        let mut entering = pin!(self.flow.enter(operation));
        let longest = SystemClock.now() + LONGEST_QUEUE;
        loop {
            let silence =
                self.shared.lock().live.as_ref().map_or(Duration::ZERO, |live| live.traffic.silence());
            let look_at = SystemClock.now() + timeout.saturating_sub(silence);
            if let Some(permit) = SystemClock.before(look_at.min(longest), entering.as_mut()).await {
                return Some(permit);
            }
            if silence >= timeout || SystemClock.now() >= longest {
                return None;
            }
        }
    }

    /// A connection, and whether it was made just now.
    ///
    /// # Errors
    /// If none can be made. All who waited for the same attempt receive the same error.
    ///
    /// # Cancel safety
    /// Yes.
    pub(crate) async fn live(&self) -> Result<(Live, bool), Cause> {
        let before = {
            let state = self.shared.lock();
            if let Some(live) = &state.live {
                return Ok((live.clone(), false));
            }
            state.ended
        };
        let _one = self.connecting.lock().await;
        let this = {
            let mut state = self.shared.lock();
            if let Some(live) = &state.live {
                return Ok((live.clone(), true));
            }
            if let (true, Some(cause)) = (state.ended != before, &state.failed) {
                return Err(cause.clone());
            }
            state.attempts += 1;
            state.attempts
        };
        let limit = self.endpoint.connect_timeout;
        let connected = tokio::time::timeout(limit, self.connect(this)).await;
        let connected = connected.unwrap_or(Err(Cause::TimedOut(limit)));
        let connected = connected.map_err(|cause| cause.of_connecting(self.endpoint.encrypted));
        let mut state = self.shared.lock();
        state.ended += 1;
        state.failed = connected.as_ref().err().cloned();
        state.live = connected.as_ref().ok().cloned();
        connected.map(|live| (live, true))
    }

    async fn connect(&self, attempt: u64) -> Result<Live, Cause> {
        match &self.endpoint.route {
            Route::To(client) => self.connect_to(client, attempt).await,
            Route::Watched(sentinels) => {
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

    async fn connect_to(&self, client: &Client, attempt: u64) -> Result<Live, Cause> {
        let shared = Arc::downgrade(&self.shared);
        let (on_push, alerts) = (self.endpoint.on_push.clone(), self.endpoint.alerts.clone());
        let break_channel = self.endpoint.break_channel.clone();
        let slots = Arc::<SlotChannels>::default();
        let own_slots = slots.clone();
        let config = connection(self.endpoint.credentials.as_ref()).set_push_sender(move |push: PushInfo| {
            receive(&push, attempt, &shared, &slots, &on_push, &break_channel, &alerts);
            Ok::<_, redis::aio::SendError>(())
        });
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        let mut connection = connection.await.map_err(Cause::Driver)?;
        let mut subscriber = connection.clone();
        let own = self.endpoint.channel.as_ref();
        let channels: Vec<&String> = own.into_iter().chain([&self.endpoint.break_channel]).collect();
        let subscribe = async {
            if self.endpoint.subscribes {
                subscriber.subscribe(&channels[..]).await.map_err(Cause::Driver)?;
            }
            Ok(())
        };
        let check = checkup::check(&mut connection, &self.endpoint);
        let sent_at = SystemClock.now();
        let (health, ()) = future::try_join(check, subscribe).await?;
        if self.endpoint.needs_run && health.run.is_none() {
            let advice = "this user may not use INFO, so a restart of the server can't be detected: grant +info, or set \
                polylock.restart=trust if every server keeps what it acknowledges";
            return Err(Cause::Unusable(Fault::Denied, advice.to_owned()));
        }
        let clock = ServerClock::default();
        clock.observe(sent_at, health.clock_us);
        let peer = Arc::new(Peer { health, clock });
        Ok(Live { connection, attempt, peer, traffic: Arc::default(), slots: own_slots })
    }

    /// Converts the server's reply into the type that it should have.
    pub(crate) fn read<T: FromRedisValue>(&self, operation: Operation, reply: Value) -> Result<T> {
        redis::from_redis_value(reply).map_err(|error| self.unexpected(operation, error))
    }

    /// The server has sent a reply that it never should.
    pub(crate) fn unexpected(&self, operation: Operation, what: impl fmt::Display) -> Error {
        let advice = format!("unexpected reply: {what}");
        self.failed(operation, Cause::Unusable(Fault::Permanent, advice))
    }

    /// `operation` failed for this reason.
    pub(crate) fn failed(&self, operation: Operation, cause: Cause) -> Error {
        cause.at(self.endpoint.backend, operation, &self.endpoint.address)
    }
}

/// The driver's settings for a connection. Each call has a time limit of its own, and so has a connection attempt as a whole.
pub(crate) fn connection(credentials: Option<&Credentials>) -> AsyncConnectionConfig {
    let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    match credentials {
        Some(credentials) => config.set_credentials_provider(credentials.clone()),
        None => config,
    }
}

fn receive(
    push: &PushInfo,
    attempt: u64,
    shared: &Weak<Shared>,
    slots: &SlotChannels,
    on_push: &PushHandler,
    break_channel: &str,
    alerts: &HoldAlerts,
) {
    match (&push.kind, &push.data[..]) {
        (PushKind::Message, [Value::BulkString(channel), Value::BulkString(name)])
            if channel == break_channel.as_bytes() =>
        {
            if let Some(name) = str::from_utf8(name).ok().and_then(|name| LockName::new(name).ok()) {
                alerts.check(&name);
            }
        }
        (PushKind::Message | PushKind::SMessage, [_, Value::BulkString(message)]) => {
            on_push(Push::Message(message));
        }
        (PushKind::SUnsubscribe, _) => {
            // The slot has left the server. This comes before the driver matches the message with a command.
            slots.ended_by_server();
            if let Some(shared) = shared.upgrade() {
                shared.give_up(attempt, on_push);
            }
        }
        (PushKind::Disconnection, _) => {
            if let Some(shared) = shared.upgrade() {
                shared.give_up(attempt, on_push);
            }
        }
        _ => {}
    }
}

impl Shared {
    /// The connection of this attempt is used no more.
    fn give_up(&self, attempt: u64, on_push: &PushHandler) {
        let given_up = {
            let mut state = self.lock();
            if state.live.as_ref().is_some_and(|live| live.attempt == attempt) {
                state.live.take()
            } else {
                None
            }
        };
        if given_up.is_some() {
            on_push(Push::Lost);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
