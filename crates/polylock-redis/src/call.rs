//! Calls, and their transmission on a connection.

use futures_util::future;
use redis::{
    Cmd, ErrorKind, Pipeline, RedisError, RedisResult, ScriptInvocation, ServerErrorKind, Value,
    aio::MultiplexedConnection,
};

use crate::connection::{LiveConnection, Peer};

/// A command for the server.
#[derive(Clone, Copy)]
pub(crate) enum Call<'a> {
    /// The script call that this function builds for the server of the connection. If the server does not have the script, its text is
    /// sent.
    Script(&'a (dyn Fn(&Peer) -> ScriptInvocation<'a> + Sync)),
    Command(&'a Cmd),
    /// Commands with one reply each, sent in one message. The reply is the array of these replies, errors included.
    Batch(&'a Pipeline),
}

impl Call<'_> {
    pub(crate) async fn send(self, live: &LiveConnection, routing: Routing<'_>) -> RedisResult<Value> {
        if routing.asking || routing.channel.is_some() {
            // Boxed, so that calls to single servers do not carry the state of this future.
            return Box::pin(self.send_routed(live, routing)).await;
        }
        self.execute(live).await
    }

    async fn send_routed(self, live: &LiveConnection, routing: Routing<'_>) -> RedisResult<Value> {
        if let (true, Self::Script(script)) = (routing.asking, self) {
            return send_asking(&script(&live.peer), &mut live.connection.clone()).await;
        }
        let is_new = |channel: &&str| live.slots.lock().insert((*channel).to_owned());
        let Some(channel) = routing.channel.filter(is_new) else { return self.execute(live).await };
        let (mut subscriber, mut subscribe) = (live.connection.clone(), redis::cmd("SSUBSCRIBE"));
        subscribe.arg(channel);
        // Sent before the call, so the server executes it first.
        let (subscribed, reply) =
            future::join(subscribe.exec_async(&mut subscriber), self.execute(live)).await;
        if let Err(error) = subscribed {
            live.slots.lock().remove(channel);
            return Err(error);
        }
        reply
    }

    async fn execute(self, live: &LiveConnection) -> RedisResult<Value> {
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

/// Calls a script in a slot that the server is importing. `ASKING` applies to the next command of the connection only, so both are sent in
/// one message.
async fn send_asking(
    script: &ScriptInvocation<'_>,
    connection: &mut MultiplexedConnection,
) -> RedisResult<Value> {
    let mut pipeline = redis::pipe();
    pipeline.cmd("ASKING").invoke_script(script);
    let mut is_loaded = false;
    loop {
        let reply = connection.send_packed_commands(&pipeline, 1, 1).await?.pop().unwrap_or(Value::Nil);
        let Value::ServerError(error) = reply else { return Ok(reply) };
        let error = RedisError::from(error);
        if is_loaded || error.kind() != ErrorKind::Server(ServerErrorKind::NoScript) {
            return Err(error);
        }
        script.load_async(connection).await?;
        is_loaded = true;
    }
}

/// The routing of a call in a cluster.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Routing<'a> {
    /// True if the server is importing the slot, and serves it only after `ASKING`.
    pub(crate) asking: bool,
    /// The channel in the slot that the client must be subscribed to when the call is executed.
    pub(crate) channel: Option<&'a str>,
}
