//! One Redis server under faults, under settings that break locks, and under load; and with planted bugs.
#![allow(clippy::unwrap_used, reason = "tests")]

mod access;
mod breaking;
mod clients;
mod contention;
mod crashes;
mod dead;
mod keeping;
mod late;
mod list;
mod reach;
mod settings;
mod tokens;
mod waiting;

use std::{collections::HashMap, time::Duration};

use polylock::{Error, Locks};
use polylock_integration_tests::{
    clock, load,
    refusals::{refusal, told},
    servers::Server,
};
use redis::{Client, Cmd, FromRedisValue, RedisResult, aio::MultiplexedConnection};
use tokio::sync::Mutex;

/// What a busy machine may add to a bound.
const SLACK: Duration = Duration::from_millis(400);

/// Keys of a server that nobody else uses.
struct Spot {
    url: String,
    prefix: String,
    raw: Mutex<MultiplexedConnection>,
    server: String,
}

impl Spot {
    async fn of(server: &Server) -> Self {
        let prefix = server.name();
        let url = format!("{}?polylock.prefix={prefix}", server.url());
        Self { url, prefix, raw: Mutex::new(raw(server.url()).await), server: server.url().to_owned() }
    }

    /// The store, as if in another process.
    async fn locks(&self) -> Locks {
        Locks::connect(&self.url).await.unwrap()
    }

    /// Asks the server past the store.
    async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> T {
        let mut raw = self.raw.lock().await;
        let answer = command.query_async(&mut *raw).await;
        match answer {
            Err(error) if error.is_connection_dropped() => {
                // The server was restarted.
                *raw = crate::raw(&self.server).await;
                command.query_async(&mut *raw).await.unwrap()
            }
            answer => answer.unwrap(),
        }
    }

    /// The key `kind` of the lock `name`, or one that all locks share.
    fn key(&self, kind: &str) -> String {
        format!("{{{}}}:{kind}", self.prefix)
    }

    /// All keys but the number that the tokens come from, and the requests that have left, which expires.
    async fn leftovers(&self) -> Vec<String> {
        let keys: Vec<String> = self.ask(command("KEYS").arg(self.key("*"))).await;
        keys.into_iter().filter(|key| *key != self.key("last") && *key != self.key("gone")).collect()
    }

    /// Nothing that blocks anybody is there, and nothing that stays, but the last number.
    async fn is_clean(&self) {
        clock::until("nothing is left", async || self.leftovers().await.is_empty()).await;
        let expires: i64 = self.ask(command("PTTL").arg(self.key("gone"))).await;
        assert!(expires == -2 || expires > 0, "the requests that have left stay for ever");
    }

    /// How often clients and scripts have called each command.
    async fn calls(&self) -> HashMap<String, u64> {
        let info: String = self.ask(&command("INFO commandstats")).await;
        let call = |line: &str| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
        };
        info.lines().filter_map(call).collect()
    }

    /// How many scripts were run.
    async fn scripts_run(&self) -> u64 {
        let calls = self.calls().await;
        ["eval", "evalsha"].iter().filter_map(|command| calls.get(*command)).sum()
    }
}

/// A command and its arguments, which have no spaces in them.
fn command(words: &str) -> Cmd {
    let mut command = Cmd::new();
    for word in words.split(' ') {
        command.arg(word);
    }
    command
}

async fn raw(url: &str) -> MultiplexedConnection {
    try_raw(url).await.unwrap()
}

async fn try_raw(url: &str) -> RedisResult<MultiplexedConnection> {
    Client::open(url)?.get_multiplexed_async_connection().await
}

/// Waits until so many stand in the queue.
async fn waiters(locks: &Locks, name: &str, count: usize) {
    clock::until("they wait", async || locks.inspect(name).await.unwrap().waiters.len() == count).await;
}

/// Does everything that the store can do.
async fn everything_works(url: &str) -> Result<(), Error> {
    let (here, there) = (Locks::connect(url).await?, Locks::connect(url).await?);
    let guard = here.lock("all").label("a test").acquire().await?;
    assert!(there.lock("all").try_acquire().await?.is_none());
    assert!(guard.is_held());
    let waiting = tokio::spawn(there.lock("all").acquire());
    clock::until("one waits", async || {
        // An error comes again below.
        waiting.is_finished() || here.inspect("all").await.map_or(true, |status| status.waiters.len() == 1)
    })
    .await;
    let listed = here.list("al").await?;
    assert_eq!((listed.len(), listed[0].holders.len()), (1, 1));
    if listed[0].waiters.is_empty() {
        drop(waiting.await.unwrap()?);
        panic!("it has the lock of another");
    }
    let token = guard.fencing_token();
    guard.release().await?;
    let guard = waiting.await.unwrap()?;
    assert!(guard.fencing_token() > token);
    for force in [false, true] {
        let order = there.break_lock("all");
        assert_eq!(if force { order.force() } else { order }.await?.len(), 1);
    }
    assert!(guard.release().await.is_err_and(|error| error.lost().is_some()), "it was broken");
    let short = Duration::from_millis(300);
    let reads = [here.lock("shared").shared(), there.lock("shared").shared()];
    for reader in reads.map(|reader| reader.ttl(short).acquire()) {
        let guard = reader.await?;
        if guard.renewed().await.is_none() {
            guard.ensure_held()?;
        }
        // Held beside the other, and left behind for its lease.
        guard.leave_to_expire()?;
    }
    Ok(())
}
