//! The one connection to one server: made when it is needed, shared by all, replaced when it breaks.
//!
//! Commands and pushed news come over the same connection (RESP3), so it hears for as long as it answers. A fresh one
//! looks at the server and subscribes before anybody uses it: who has sent a claim on it will hear of it.
//!
//! The driver's own reconnecting manager is not used: after an outage in which nothing is sent it notices nothing, and it
//! ignores a subscription that failed.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use futures_util::future;
use polylock_core::{Clock, Error, Fault, Moment, Operation, RequestId, Result, SystemClock};
use redis::{
    AsyncConnectionConfig, Client, Cmd, FromRedisValue, PushInfo, PushKind, RedisResult, ScriptInvocation,
    Value, aio::MultiplexedConnection,
};

use crate::{
    Allowed,
    checkup::{self, Health},
    error::{Trouble, is_answer},
};

/// How long people wait for an answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// What is heard on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum News<'a> {
    /// Somebody has published this on the channel.
    Published(&'a [u8]),
    /// The connection is gone, and whatever was published meanwhile is missed.
    Lost,
}

/// A channel that no other client has; random, like a request's id.
pub(crate) fn channel() -> String {
    format!("polylock:{:032x}", u128::from_be_bytes(RequestId::random().to_bytes()))
}

/// Who hears it. It must not block.
pub(crate) type Ear = Arc<dyn Fn(News<'_>) + Send + Sync>;

/// How to reach one server.
pub(crate) struct Dial {
    pub(crate) client: Client,
    /// For errors, metrics and logs: the store's name and the server, without secrets.
    pub(crate) backend: &'static str,
    pub(crate) place: String,
    /// How long a connection may take until it can be used.
    pub(crate) connect: Duration,
    /// How long a command may take.
    pub(crate) command: Duration,
    /// How long it may be silent until the connection counts as broken, if that is longer.
    pub(crate) silence: Duration,
    pub(crate) allowed: Vec<Allowed>,
    /// Whether no harm is done if it forgets what it has acknowledged.
    pub(crate) may_forget: bool,
    /// What to subscribe to, and who hears it.
    pub(crate) channel: String,
    pub(crate) ear: Ear,
}

/// The connection to one server.
pub(crate) struct Link {
    dial: Dial,
    shared: Arc<Shared>,
    /// Held by the one who makes a connection.
    dialling: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    live: Option<Live>,
    /// How many connections were tried, how many of these tries have ended, and how the last one failed.
    dials: u64,
    ended: u64,
    trouble: Option<Trouble>,
}

/// A connection that answers, as far as is known.
#[derive(Clone)]
pub(crate) struct Live {
    connection: MultiplexedConnection,
    dial: u64,
    pub(crate) health: Health,
    /// When the server said how it is, or a little before.
    asked: Moment,
    /// Since when there was no answer, if one is due.
    silent: Arc<Mutex<Option<Moment>>>,
}

impl Live {
    /// For how long the server has run at the least; `None` if it does not tell.
    pub(crate) fn uptime(&self) -> Option<Duration> {
        // It counts whole seconds, and may have begun the first of them late.
        let told = Duration::from_secs(self.health.uptime_s?.saturating_sub(1));
        Some(told + SystemClock.now().since(self.asked))
    }

    /// A question is on its way.
    fn asks(&self) {
        self.silent().get_or_insert_with(|| SystemClock.now());
    }

    fn answers(&self) {
        *self.silent() = None;
    }

    /// For how long it owes an answer.
    fn silence(&self) -> Duration {
        self.silent().map_or(Duration::ZERO, |since| SystemClock.now().since(since))
    }

    fn silent(&self) -> MutexGuard<'_, Option<Moment>> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a server is asked.
#[derive(Clone, Copy)]
pub(crate) enum Question<'a> {
    /// To run this script; where the server does not know it (yet, or any more), it is sent as text.
    Script(&'a ScriptInvocation<'a>),
    Command(&'a Cmd),
}

impl Question<'_> {
    async fn put(self, connection: &mut MultiplexedConnection) -> RedisResult<Value> {
        match self {
            Self::Script(call) => call.invoke_async(connection).await,
            Self::Command(command) => command.query_async(connection).await,
        }
    }
}

/// What came of a question.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) outcome: Result<Value>,
    /// Whether it was sent and not answered: the server may still obey, at any time.
    pub(crate) may_come_late: bool,
    /// For how long the server that answered has run at the least, if it tells.
    pub(crate) uptime: Option<Duration>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("place", &self.dial.place).finish_non_exhaustive()
    }
}

impl Link {
    pub(crate) fn new(dial: Dial) -> Self {
        Self { dial, shared: Arc::default(), dialling: tokio::sync::Mutex::default() }
    }

    /// The server, without secrets.
    pub(crate) fn place(&self) -> &str {
        &self.dial.place
    }

    /// Whether it owes an answer for longer than a command may take, or there was no connection the last time.
    pub(crate) fn is_silent(&self) -> bool {
        let state = self.shared.lock();
        match &state.live {
            Some(live) => live.silence() > self.dial.command,
            None => state.trouble.is_some() || state.dials > 0,
        }
    }

    /// Whether somebody is trying to make a connection just now.
    pub(crate) fn is_dialling(&self) -> bool {
        self.dialling.try_lock().is_err()
    }

    /// What the server answers within `patience`, or within the time that a command may take if that is less.
    ///
    /// A connection that turns out to be broken is replaced, and the question put again: operations are idempotent. One
    /// that was made for this question is not.
    ///
    /// # Cancel safety
    /// Dropping it leaves the connection well. The command may be on its way.
    pub(crate) async fn ask(
        &self,
        operation: Operation,
        patience: Duration,
        question: Question<'_>,
    ) -> Answer {
        let patience = patience.min(self.dial.command);
        let mut may_come_late = false;
        loop {
            let (mut live, fresh) = match self.live().await {
                Ok(live) => live,
                Err(trouble) => {
                    let outcome = Err(self.failed(operation, trouble));
                    return Answer { outcome, may_come_late, uptime: None };
                }
            };
            live.connection.set_response_timeout(patience);
            live.asks();
            let error = match question.put(&mut live.connection).await {
                Ok(value) => {
                    live.answers();
                    return Answer { outcome: Ok(value), may_come_late, uptime: live.uptime() };
                }
                Err(error) => error,
            };
            let (answered, timed_out) = (is_answer(&error), error.is_timeout());
            // One that is only slow keeps its connection, and with it the order of what was sent.
            let broken = !answered && (!timed_out || live.silence() >= self.dial.silence);
            may_come_late |= !answered;
            if answered {
                live.answers();
            }
            if broken {
                self.shared.give_up(live.dial, &self.dial.ear);
            }
            if !broken || fresh {
                let trouble = if timed_out { Trouble::Silent(patience) } else { Trouble::Driver(error) };
                return Answer { outcome: Err(self.failed(operation, trouble)), may_come_late, uptime: None };
            }
        }
    }

    /// A connection, and whether it was made just now.
    ///
    /// # Errors
    /// Why it can't be made. All who waited for the same try are told the same.
    ///
    /// # Cancel safety
    /// Yes.
    pub(crate) async fn live(&self) -> Result<(Live, bool), Trouble> {
        let before = {
            let state = self.shared.lock();
            if let Some(live) = &state.live {
                return Ok((live.clone(), false));
            }
            state.ended
        };
        let _one = self.dialling.lock().await;
        let this = {
            let mut state = self.shared.lock();
            if let Some(live) = &state.live {
                return Ok((live.clone(), true));
            }
            if let (true, Some(trouble)) = (state.ended != before, &state.trouble) {
                return Err(trouble.clone());
            }
            state.dials += 1;
            state.dials
        };
        let dialled = tokio::time::timeout(self.dial.connect, self.dial(this)).await;
        let dialled = dialled.unwrap_or(Err(Trouble::Silent(self.dial.connect)));
        let mut state = self.shared.lock();
        state.ended += 1;
        state.trouble = dialled.as_ref().err().cloned();
        state.live = dialled.as_ref().ok().cloned();
        dialled.map(|live| (live, true))
    }

    async fn dial(&self, dial: u64) -> Result<Live, Trouble> {
        let (ear, shared) = (self.dial.ear.clone(), Arc::downgrade(&self.shared));
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(Some(self.dial.connect))
            .set_push_sender(move |push: PushInfo| {
                heard(&push, dial, &shared, &ear);
                Ok::<_, redis::aio::SendError>(())
            });
        let connection = self.dial.client.get_multiplexed_async_connection_with_config(&config);
        let mut connection = connection.await.map_err(Trouble::Driver)?;
        let asked = SystemClock.now();
        let mut subscriber = connection.clone();
        let subscribe = async { subscriber.subscribe(&self.dial.channel).await.map_err(Trouble::Driver) };
        let ask = checkup::ask(&mut connection, &self.dial);
        let (health, ()) = future::try_join(ask, subscribe).await?;
        Ok(Live { connection, dial, health, asked, silent: Arc::default() })
    }

    /// What the server has answered, as it should be.
    pub(crate) fn read<T: FromRedisValue>(&self, operation: Operation, answer: Value) -> Result<T> {
        redis::from_redis_value(answer).map_err(|error| self.strange(operation, error))
    }

    /// The server has answered something else than it should.
    pub(crate) fn strange(&self, operation: Operation, what: impl fmt::Display) -> Error {
        let advice = format!("the server answers with what it never should: {what}");
        self.failed(operation, Trouble::Unfit(Fault::Permanent, advice))
    }

    /// `operation` failed for this reason.
    pub(crate) fn failed(&self, operation: Operation, trouble: Trouble) -> Error {
        trouble.at(self.dial.backend, operation, &self.dial.place)
    }
}

fn heard(push: &PushInfo, dial: u64, shared: &Weak<Shared>, ear: &Ear) {
    match (&push.kind, &push.data[..]) {
        (PushKind::Message, [_, Value::BulkString(news)]) => ear(News::Published(news)),
        (PushKind::Disconnection, _) => {
            if let Some(shared) = shared.upgrade() {
                shared.give_up(dial, ear);
            }
        }
        _ => {}
    }
}

impl Shared {
    /// The connection of this number is used no more.
    fn give_up(&self, dial: u64, ear: &Ear) {
        let given_up = {
            let mut state = self.lock();
            if state.live.as_ref().is_some_and(|live| live.dial == dial) { state.live.take() } else { None }
        };
        if given_up.is_some() {
            ear(News::Lost);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
