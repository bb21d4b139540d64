//! One Redis server under faults, under settings that break locks, and under load; and with planted bugs.

mod access;
mod breaking;
mod clients;
mod contention;
mod crashes;
mod dead;
mod fence;
mod keeping;
mod late;
mod list;
mod reach;
mod settings;
mod switched;
mod tokens;
mod waiting;
mod watching;

use std::{collections::HashMap, time::Duration};

use polylock::{Error, Locks};
use polylock_integration_tests::{
    clock,
    proxy::Proxy,
    refusals::{describe, refusal},
    servers::{self, Server},
};
use redis::{Cmd, FromRedisValue, aio::MultiplexedConnection};
use tokio::sync::Mutex;

/// The time that a busy machine may add to a bound.
const SLACK: Duration = Duration::from_millis(1500);

/// The keys of a prefix that no other test uses.
struct Namespace {
    url: String,
    prefix: String,
    raw: Mutex<MultiplexedConnection>,
    server: String,
}

/// The number of the connection of a store's I/O thread, at a proxy that only this store uses.
const IO_THREAD: u64 = 1;
/// The number of the connection of this task's runtime at that proxy.
const CALLER: u64 = 2;

/// Uses a lock until this runtime has its own connection, [`CALLER`], which leads through `proxy` and carries the claims.
async fn warm_up(locks: &Locks, proxy: &Proxy) {
    proxy.watch_for("warm-up");
    clock::until("this runtime has a connection of its own", async || {
        locks.lock("warm-up").acquire().await.unwrap().release().await.unwrap();
        proxy.watched().contains(&CALLER)
    })
    .await;
}

impl Namespace {
    async fn on(server: &Server) -> Self {
        Self::with_prefix(server, server.name()).await
    }

    async fn with_prefix(server: &Server, prefix: String) -> Self {
        let url = format!("{}?polylock.namespace={prefix}", server.url());
        Self { url, prefix, raw: Mutex::new(connect(server.url()).await), server: server.url().to_owned() }
    }

    /// Opens the store, as another process would.
    async fn locks(&self) -> Locks {
        Locks::connect(&self.url).await.unwrap()
    }

    /// Sends a command to the server, bypassing the store.
    async fn query<T: FromRedisValue>(&self, command: &Cmd) -> T {
        let mut raw = self.raw.lock().await;
        let answer = command.query_async(&mut *raw).await;
        match answer {
            Err(error) if error.is_connection_dropped() => {
                // The server was restarted.
                *raw = connect(&self.server).await;
                command.query_async(&mut *raw).await.unwrap()
            }
            answer => answer.unwrap(),
        }
    }

    /// Returns a key of the prefix.
    fn key(&self, kind: &str) -> String {
        format!("{{{}}}:{kind}", self.prefix)
    }

    /// Returns all keys except the last token and the released requests, which expire.
    async fn remaining_keys(&self) -> Vec<String> {
        let keys: Vec<String> = self.query(command("KEYS").arg(self.key("*"))).await;
        keys.into_iter().filter(|key| *key != self.key("last") && *key != self.key("gone")).collect()
    }

    /// Waits until no entry is left, and checks that all keys but the last token expire.
    async fn assert_clean(&self) {
        clock::until("nothing is left", async || self.remaining_keys().await.is_empty()).await;
        let expires: i64 = self.query(command("PTTL").arg(self.key("gone"))).await;
        assert!(expires == -2 || expires > 0, "the requests that have left stay for ever");
    }

    /// Returns the number of calls of each command, by clients and scripts.
    async fn command_calls(&self) -> HashMap<String, u64> {
        let info: String = self.query(&command("INFO commandstats")).await;
        let call = |line: &str| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
        };
        info.lines().filter_map(call).collect()
    }

    /// Returns the number of scripts that were run.
    async fn script_count(&self) -> u64 {
        let calls = self.command_calls().await;
        ["eval", "evalsha"].iter().filter_map(|command| calls.get(*command)).sum()
    }
}

/// Creates a command from words without spaces.
fn command(words: &str) -> Cmd {
    let mut command = Cmd::new();
    for word in words.split(' ') {
        command.arg(word);
    }
    command
}

async fn connect(url: &str) -> MultiplexedConnection {
    servers::redis::connect(url).await.unwrap()
}

/// Uses all operations of the store.
async fn use_all_operations(url: &str) -> Result<(), Error> {
    let (here, there) = (Locks::connect(url).await?, Locks::connect(url).await?);
    let guard = here.lock("all").label("a test").acquire().await?;
    assert!(there.lock("all").try_acquire().await?.is_none());
    assert!(guard.is_held());
    let waiting = tokio::spawn(there.lock("all").acquire());
    clock::until("one waits", async || {
        // An error is returned below.
        waiting.is_finished() || here.inspect("all").await.map_or(true, |status| status.waiters.len() == 1)
    })
    .await;
    let listed = here.list("al").await?;
    assert_eq!((listed.len(), listed[0].holders.len()), (1, 1));
    if listed[0].waiters.is_empty() {
        drop(waiting.await.unwrap()?);
        panic!("it was granted a held lock");
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
    let short = Duration::from_millis(1500);
    let reads = [here.lock("shared").shared(), there.lock("shared").shared()];
    for reader in reads.map(|reader| reader.ttl(short).acquire()) {
        let guard = reader.await?;
        if guard.renewed().await.is_none() {
            guard.ensure_held()?;
        }
        // Held together with the other one, and left to expire.
        guard.leave_to_expire()?;
    }
    // It is due in the first call only.
    here.once("job").run(async |_| Ok::<_, Error>(())).await?;
    Ok(())
}
