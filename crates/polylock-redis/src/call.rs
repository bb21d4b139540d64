//! Calls, and the ways in which they are sent on a connection.

use std::{
    collections::HashSet,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use futures_util::future;
use redis::{
    Cmd, ErrorKind, Pipeline, RedisError, RedisResult, ScriptInvocation, ServerErrorKind, Value,
    aio::MultiplexedConnection,
};

use crate::link::{Live, Peer};

/// A command for the server.
#[derive(Clone, Copy)]
pub(crate) enum Call<'a> {
    /// The script that this function returns for the server at the other end. A server that does not have the script receives its
    /// text.
    Script(&'a (dyn Fn(&Peer) -> ScriptInvocation<'a> + Sync)),
    Command(&'a Cmd),
    /// Commands of which each has a reply of its own, in one message. The reply is an array of theirs, errors included.
    Batch(&'a Pipeline),
}

impl Call<'_> {
    pub(crate) async fn send(self, live: &Live, via: Via<'_>) -> RedisResult<Value> {
        if via.asking || via.channel.is_some() {
            // On the heap, so that the calls to single servers do not carry its state.
            return Box::pin(self.send_by(live, via)).await;
        }
        self.carry_out(live).await
    }

    async fn send_by(self, live: &Live, via: Via<'_>) -> RedisResult<Value> {
        if let (true, Self::Script(script)) = (via.asking, self) {
            return ask(&script(&live.peer), &mut live.connection.clone()).await;
        }
        let is_new = |channel: &&str| live.slots.lock().insert((*channel).to_owned());
        let Some(channel) = via.channel.filter(is_new) else { return self.carry_out(live).await };
        let (mut subscriber, mut subscribe) = (live.connection.clone(), redis::cmd("SSUBSCRIBE"));
        subscribe.arg(channel);
        // Sent first, so the server carries it out first.
        let (subscribed, reply) =
            future::join(subscribe.exec_async(&mut subscriber), self.carry_out(live)).await;
        if let Err(error) = subscribed {
            live.slots.lock().remove(channel);
            return Err(error);
        }
        reply
    }

    async fn carry_out(self, live: &Live) -> RedisResult<Value> {
        let mut connection = live.connection.clone();
        match self {
            Self::Script(script) => script(&live.peer).invoke_async(&mut connection).await,
            Self::Command(command) => command.query_async(&mut connection).await,
            Self::Batch(commands) => {
                let sent = connection.send_packed_commands(commands, 0, commands.len());
                Box::pin(sent).await.map(Value::Array)
            }
        }
    }
}

/// Calls a script whose slot the server is about to receive. `ASKING` is for the next command of the connection, so both are in one
/// message.
async fn ask(script: &ScriptInvocation<'_>, connection: &mut MultiplexedConnection) -> RedisResult<Value> {
    let mut both = redis::pipe();
    both.cmd("ASKING").invoke_script(script);
    let mut is_loaded = false;
    loop {
        let reply = connection.send_packed_commands(&both, 1, 1).await?.pop().unwrap_or(Value::Nil);
        let Value::ServerError(error) = reply else { return Ok(reply) };
        let error = RedisError::from(error);
        if is_loaded || error.kind() != ErrorKind::Server(ServerErrorKind::NoScript) {
            return Err(error);
        }
        script.load_async(connection).await?;
        is_loaded = true;
    }
}

/// How a call reaches its server in a cluster.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Via<'a> {
    /// Whether the server is about to receive the slot, and serves it only to those who ask for that.
    pub(crate) asking: bool,
    /// The channel in the slot that the client must be subscribed to when the call is carried out.
    pub(crate) channel: Option<&'a str>,
}

/// The channels of a cluster's slots that a connection is subscribed to.
#[derive(Debug, Default)]
pub(crate) struct SlotChannels {
    subscribed: Mutex<HashSet<String>>,
    /// Whether the server has ended a subscription by itself. The driver takes that message for the reply to the oldest command in
    /// flight, so no reply that it returns from then on belongs to its command.
    garbled: AtomicBool,
}

impl SlotChannels {
    fn lock(&self) -> MutexGuard<'_, HashSet<String>> {
        self.subscribed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server has ended a subscription by itself.
    pub(crate) fn ended_by_server(&self) {
        self.garbled.store(true, Ordering::Release);
    }

    /// Whether replies on this connection can't be trusted any more.
    pub(crate) fn is_garbled(&self) -> bool {
        self.garbled.load(Ordering::Acquire)
    }
}
