//! A Redis primary with a replica, and three Sentinels that watch it under the name [`NAME`].

use std::ops::Deref;

use polylock_testkit::Missing;
use redis::{Client, FromRedisValue, RedisResult};

use super::{Failure, Private, Server, blocking, redis as server};
use crate::clock;

/// The name of the primary.
pub const NAME: &str = "orders";

/// Starts them with `settings` of the `redis.conf` of the servers and `watching` of the `sentinel.conf` of the Sentinels. A primary that
/// does not reply for half a second is replaced.
///
/// # Errors
/// [`Missing`] if Redis is not installed.
///
/// # Panics
/// If one does not start, with its log.
pub fn start(settings: &[&str], watching: &[&str]) -> Result<Watched, Missing> {
    begin(settings, watching).map_err(super::missing)
}

/// Those that the tests of a process share: durable.
pub(super) fn shared() -> Result<Watched, Failure> {
    begin(server::DURABLE, &[])
}

/// They are killed when this is dropped.
#[derive(Debug)]
pub struct Watched {
    /// The primary and its replica, until a failover.
    pub servers: [Private; 2],
    /// Three of them, of which two must agree.
    pub sentinels: Vec<Private>,
    server: Server,
}

impl Deref for Watched {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl Watched {
    /// The port of the primary that the Sentinels that run agree on; `None` if they don't.
    pub async fn primary(&self) -> Option<u16> {
        let mut ports = Vec::new();
        for sentinel in self.sentinels.iter().filter(|sentinel| sentinel.id().is_some()) {
            let found: RedisResult<(String, u16)> =
                ask(sentinel.port(), &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]).await;
            ports.push(found.ok()?.1);
        }
        let first = *ports.first()?;
        ports.iter().all(|port| *port == first).then_some(first)
    }
}

fn begin(settings: &[&str], watching: &[&str]) -> Result<Watched, Failure> {
    let of = |settings: &[&str]| super::begin(server::Redis::of(&server::REDIS, settings));
    let primary = of(&[&["repl-diskless-sync-delay 0"], settings].concat())?;
    let follow = format!("replicaof 127.0.0.1 {}", primary.port());
    let replica = of(&[&[follow.as_str()], settings].concat())?;
    let watch = [
        format!("sentinel monitor {NAME} 127.0.0.1 {} 2", primary.port()),
        format!("sentinel down-after-milliseconds {NAME} 500"),
        format!("sentinel failover-timeout {NAME} 2000"),
    ];
    let watch: Vec<&str> = watch.iter().map(String::as_str).chain(watching.iter().copied()).collect();
    let sentinels: Vec<Private> =
        (0..3).map(|_| super::begin(server::Redis::sentinel(&watch))).collect::<Result<_, _>>()?;
    let hosts: Vec<String> = sentinels.iter().map(|it| format!("127.0.0.1:{}", it.port())).collect();
    let url = format!("redis+sentinel://{}/{NAME}", hosts.join(","));
    let watched = Watched { servers: [primary, replica], sentinels, server: Server { url, log: None } };
    let ready = clock::until("the Sentinels know each other and the replica", || async {
        for sentinel in &watched.sentinels {
            let info: String = ask(sentinel.port(), &["INFO", "sentinel"]).await.unwrap_or_default();
            if !info.contains("status=ok") || !info.contains("slaves=1,sentinels=3") {
                return false;
            }
        }
        let replication: String =
            ask(watched.servers[1].port(), &["INFO", "replication"]).await.unwrap_or_default();
        replication.contains("master_link_status:up")
    });
    blocking(ready).map_err(|why| Failure::Broken(format!("{why}\n{}", watched.sentinels[0].log())))?;
    Ok(watched)
}

async fn ask<T: FromRedisValue>(port: u16, command: &[&str]) -> RedisResult<T> {
    let client = Client::open(format!("redis://127.0.0.1:{port}"))?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    redis::cmd(command[0]).arg(&command[1..]).query_async(&mut connection).await
}
