//! A Redis primary with a replica, and three Sentinels that watch it under the name [`NAME`].

use std::{ops::Deref, time::Duration};

use polylock_testkit::Missing;
use redis::{FromRedisValue, InfoDict, RedisResult};

use super::{
    private::{self, Failure, PrivateServer, Server, blocking},
    redis::{self as server, Tls},
};
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
/// If a server does not start, with its log.
pub fn start(settings: &[&str], watching: &[&str]) -> Result<Watched, Missing> {
    start_or_fail(settings, watching, Tls::No).map_err(private::missing)
}

/// Starts them so that they accept only TLS, between the servers too; see [`redis::start_tls`](server::start_tls).
///
/// # Errors
/// [`Missing`] if Redis is not installed.
///
/// # Panics
/// If a server does not start, with its log.
pub fn start_tls(settings: &[&str], watching: &[&str]) -> Result<Watched, Missing> {
    start_or_fail(settings, watching, Tls::Own).map_err(private::missing)
}

/// Starts the durable servers that the tests of a process share.
pub(super) fn shared() -> Result<Watched, Failure> {
    start_or_fail(server::DURABLE, &[], Tls::No)
}

/// They are killed when this is dropped.
#[derive(Debug)]
pub struct Watched {
    /// The primary and its replica, until a failover.
    pub servers: [PrivateServer; 2],
    /// Three Sentinels, of which two must agree.
    pub sentinels: Vec<PrivateServer>,
    server: Server,
}

impl Deref for Watched {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl Watched {
    /// Returns the port of the primary on which the running Sentinels agree; `None` if they do not.
    pub async fn primary(&self) -> Option<u16> {
        let mut ports = Vec::new();
        for sentinel in self.sentinels.iter().filter(|sentinel| sentinel.id().is_some()) {
            let found: RedisResult<(String, u16)> =
                ask(sentinel, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]).await;
            ports.push(found.ok()?.1);
        }
        let first = *ports.first()?;
        ports.iter().all(|port| *port == first).then_some(first)
    }

    /// Lets the Sentinels make the replica the primary, without the loss of a write: the former primary refuses all writes before. Calls `wait`
    /// while it does, and returns when the next primary accepts writes.
    ///
    /// # Panics
    /// If a server refuses, or the Sentinels do not replace the primary.
    pub fn switch_over(&self, wait: &dyn Fn()) {
        let primary = self.blocking(async { Ok(self.primary().await) });
        let [first, second] = &self.servers;
        let (former, next) = if primary == Some(second.port()) { (second, first) } else { (first, second) };
        self.blocking(async {
            // It has one replica. To delay the writes instead would delay the Sentinels, too, which write to a channel.
            ask::<()>(former, &["CONFIG", "SET", "min-replicas-to-write", "2"]).await?;
            let written = replication::<u64>(former, "master_repl_offset").await;
            clock::until("the replica has everything", async || {
                written.is_some() && replication(next, "slave_repl_offset").await >= written
            })
            .await;
            Ok(())
        });
        wait();
        self.blocking(async {
            let (limit, mut asked) = (clock::now() + clock::TIMEOUT, None);
            while self.primary().await != Some(next.port()) {
                assert!(clock::now() < limit, "no failover within {:?}", clock::TIMEOUT);
                // One that takes too long is given up by the Sentinels.
                if asked.is_none_or(|at| clock::now().since(at) > FAILOVER) {
                    let accepted = ask::<()>(&self.sentinels[0], &["SENTINEL", "FAILOVER", NAME]).await;
                    asked = accepted.is_ok().then(clock::now);
                }
                clock::pause(Duration::from_millis(5)).await;
            }
            // The Sentinels would do that after some seconds: its clients notice that they have to look for another primary.
            ask::<()>(former, &["REPLICAOF", "127.0.0.1", &next.port().to_string()]).await?;
            for kind in ["normal", "pubsub"] {
                ask::<()>(former, &["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]).await?;
            }
            clock::until("the former primary is a replica", async || {
                replication::<String>(former, "master_link_status").await.as_deref() == Some("up")
            })
            .await;
            ask::<()>(former, &["CONFIG", "SET", "min-replicas-to-write", "0"]).await
        });
    }

    fn blocking<T: Send>(&self, future: impl Future<Output = RedisResult<T>> + Send) -> T {
        let done = blocking(future).and_then(|done| done.map_err(|error| error.to_string()));
        done.unwrap_or_else(|why| panic!("a switch-over of {self:?}: {why}\n{}", self.sentinels[0].log()))
    }
}

/// The time in which the Sentinels replace a primary on request.
const FAILOVER: Duration = Duration::from_secs(10);

/// Returns a value that the server knows of its replication.
async fn replication<T: FromRedisValue>(server: &PrivateServer, key: &str) -> Option<T> {
    let info: RedisResult<InfoDict> = ask(server, &["INFO", "replication"]).await;
    info.ok()?.get(key)
}

fn start_or_fail(settings: &[&str], watching: &[&str], tls: Tls) -> Result<Watched, Failure> {
    let of = |settings: &[&str], tls| {
        private::start_or_fail(server::Redis::of(&server::REDIS, settings).with(tls))
    };
    let primary = of(&[&["repl-diskless-sync-delay 0"], settings].concat(), tls)?;
    let tls = || Tls::beside(&primary);
    let follow = format!("replicaof 127.0.0.1 {}", primary.port());
    let replica = of(&[&[follow.as_str()], settings].concat(), tls())?;
    let watch = [
        format!("sentinel monitor {NAME} 127.0.0.1 {} 2", primary.port()),
        format!("sentinel down-after-milliseconds {NAME} 500"),
        format!("sentinel failover-timeout {NAME} 2000"),
    ];
    let watch: Vec<&str> = watch.iter().map(String::as_str).chain(watching.iter().copied()).collect();
    let sentinel = |_| private::start_or_fail(server::Redis::sentinel(&watch).with(tls()));
    let sentinels: Vec<PrivateServer> = (0..3).map(sentinel).collect::<Result<_, _>>()?;
    let hosts: Vec<String> = sentinels.iter().map(|it| format!("127.0.0.1:{}", it.port())).collect();
    let scheme = primary.url().split(':').next().unwrap_or_default();
    let url = format!("{scheme}+sentinel://{}/{NAME}", hosts.join(","));
    let watched = Watched { servers: [primary, replica], sentinels, server: Server::at(url) };
    let ready = clock::until("the Sentinels know each other and the replica", || async {
        for sentinel in &watched.sentinels {
            let info: String = ask(sentinel, &["INFO", "sentinel"]).await.unwrap_or_default();
            if !info.contains("status=ok") || !info.contains("slaves=1,sentinels=3") {
                return false;
            }
        }
        let replication: String =
            ask(&watched.servers[1], &["INFO", "replication"]).await.unwrap_or_default();
        replication.contains("master_link_status:up")
    });
    blocking(ready).map_err(|why| Failure::Broken(format!("{why}\n{}", watched.sentinels[0].log())))?;
    Ok(watched)
}

async fn ask<T: FromRedisValue>(server: &PrivateServer, command: &[&str]) -> RedisResult<T> {
    let mut connection = server::client(server)?.get_multiplexed_async_connection().await?;
    redis::cmd(command[0]).arg(&command[1..]).query_async(&mut connection).await
}
