//! A holder is stopped just before its write to Redis, and another one gets the lock and writes. The first one continues, and the script of
//! the fence refuses its write.
//!
//! ```text
//! cargo run -p polylock --features redis --example fenced_redis -- redis://127.0.0.1:6379
//! ```
//!
//! With `--unfenced` before the URL the late write is a plain SET, and destroys the other holder's write.

#[path = "shared/paused.rs"]
mod paused;

use std::time::Duration;

use paused::{Arguments, Order, Result};
use polylock::{FencingToken, Guard, Locks};
use redis::{Script, aio::MultiplexedConnection};

/// The key of the order, and that of its fence: with the same hash tag, so that they are in one slot of a cluster.
const ORDER: &str = "{polylock-example/orders/42}";
const FENCE: &str = "{polylock-example/orders/42}:fence";

struct RedisOrder(MultiplexedConnection);

impl Order for RedisOrder {
    async fn state(&self) -> Result<String> {
        Ok(redis::cmd("GET").arg(ORDER).query_async(&mut self.0.clone()).await?)
    }

    async fn set_state(&self, state: &str, token: Option<FencingToken>) -> Result<Result<(), String>> {
        let mut connection = self.0.clone();
        let Some(token) = token else {
            redis::cmd("SET").arg(ORDER).arg(state).exec_async(&mut connection).await?;
            return Ok(Ok(()));
        };
        // What `polylock schema --fence -S redis://host` prints.
        let script = polylock::fence_schema("redis://localhost", &polylock::FenceSchema::default())?;
        let script = Script::new(&script);
        let mut call = script.key(FENCE);
        // Any command follows the token.
        call.key(ORDER).arg(token.get()).arg("SET").arg(ORDER).arg(state);
        match call.invoke_async::<()>(&mut connection).await {
            Err(error) if error.code() == Some("POLYLOCKSTALE") => Ok(Err(error.to_string())),
            result => Ok(Ok(result?)),
        }
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::read();
    let url = arguments.rest.last().map_or("redis://127.0.0.1:6379", String::as_str);
    let order = RedisOrder(redis::Client::open(url)?.get_multiplexed_async_connection().await?);
    let acquire = async || -> Result<Guard> {
        let lock = Locks::connect(url).await?.lock("orders/42").ttl(Duration::from_secs(1));
        Ok(lock.wait(Duration::from_secs(60)).acquire().await?)
    };
    if arguments.is_first {
        return paused::first(acquire().await?, &order, &arguments).await;
    }
    let mut connection = order.0.clone();
    redis::cmd("SET").arg(ORDER).arg("new").exec_async(&mut connection).await?;
    let result = paused::demonstrate(acquire, &order, &arguments, &[url]).await;
    redis::cmd("DEL").arg(ORDER).arg(FENCE).exec_async(&mut connection).await?;
    result
}
