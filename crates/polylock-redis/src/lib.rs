//! Locks in Redis and Valkey.
//!
//! | URL | store | module |
//! |---|---|---|
//! | `redis://`, `rediss://`, `valkey://`, `valkeys://`, `unix://` | one server: queues, hand-over, six modes | [`single`] |
//! | `redis+sentinel://`, `rediss+sentinel://`, `redis-sentinel://`, `valkey+sentinel://` | the primary that Sentinels name, also after a failover | [`sentinel`] |
//! | `redis-cluster://`, `rediss-cluster://`, `valkey-cluster://` | a cluster: the locks are spread over its nodes | [`cluster`] |
//! | `redlock://` | N independent servers, of which a majority decides | [`redlock`] |
//!
//! Encrypted connections, as with `rediss`, require the feature `tls`.

mod call;
mod checkup;
pub mod cluster;
mod config;
mod connection;
mod distinct;
mod driver_keys;
mod endpoint;
mod error;
mod flow;
#[cfg(test)]
mod fuzz;
mod hosts;
mod keys;
mod link;
mod queue;
pub mod redlock;
pub mod sentinel;
pub mod single;
mod tls;

/// A Lua script that runs a command on your keys, unless a greater fencing token was recorded for the resource: the fence for data in
/// Redis, for programs in any language. `polylock schema --fence -S redis://host` prints it.
///
/// The first key is the fence, a key of yours that stores the greatest token. The further keys are those of the command, and the arguments
/// are the token and the command:
///
/// ```text
/// EVALSHA sha 2 {orders/42}:fence {orders/42} 7 SET {orders/42} paid
/// ```
///
/// A smaller token gets the error `POLYLOCKSTALE`, and nothing is written; an equal one is accepted. The fence must not expire or be
/// evicted while a holder of an old token may be alive. A failover of Redis may lose it together with the last writes.
///
/// ```
/// # async fn pay(guard: polylock_core::Guard, mut connection: redis::aio::MultiplexedConnection) -> redis::RedisResult<()> {
/// let fence = redis::Script::new(polylock_redis::FENCE);
/// let mut call = fence.key("{orders/42}:fence");
/// call.key("{orders/42}").arg(guard.fencing_token().get()).arg("SET").arg("{orders/42}").arg("paid");
/// call.invoke_async::<()>(&mut connection).await?;
/// # Ok(()) }
/// ```
pub const FENCE: &str = include_str!("fence.lua");

pub use config::Allowed;
pub use redis;
