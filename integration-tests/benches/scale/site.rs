//! The servers of a measurement, and what they and this process have used.

use std::{collections::HashMap, fs, time::Duration};

use polylock::Locks;
use polylock_integration_tests::{
    clock::now,
    servers::{self, Private},
};
use redis::{Client, InfoDict, aio::MultiplexedConnection};

/// The store that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Store {
    /// One server.
    Redis,
    /// Five.
    Redlock,
}

impl Store {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Redlock => "redlock",
        }
    }
}

/// Private servers that keep nothing.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) store: Store,
    servers: Vec<Private>,
}

/// What was used up to a moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Used {
    at: u64,
    /// CPU time of this process, and of all servers.
    own: Duration,
    servers: Duration,
    /// By command, at all servers.
    calls: HashMap<String, u64>,
}

impl Site {
    pub(crate) fn start(store: Store) -> Self {
        let count = if store == Store::Redis { 1 } else { 5 };
        Self { store, servers: servers::redlock::start(count, &[]).unwrap() }
    }

    /// The store with this option.
    pub(crate) async fn open(&self, option: &str) -> Locks {
        let url = match self.store {
            Store::Redis => format!("{}?{option}", self.servers[0].url()),
            Store::Redlock => {
                let url = servers::redlock::url(self.servers.iter().map(|server| server.url()));
                format!("{url}?polylock.restart=trust&{option}")
            }
        };
        Locks::connect(&url).await.unwrap()
    }

    pub(crate) async fn used(&self) -> Used {
        let mut used = Used { at: now().as_nanos(), own: own_cpu(), ..Used::default() };
        for server in &self.servers {
            let mut connection = connection(server.url()).await;
            let mut info = async |section: &str| -> InfoDict {
                redis::cmd("INFO").arg(section).query_async(&mut connection).await.unwrap()
            };
            let cpu = info("cpu").await;
            for key in ["used_cpu_user", "used_cpu_sys"] {
                used.servers += Duration::from_secs_f64(cpu.get(key).unwrap());
            }
            let stats: String =
                redis::cmd("INFO").arg("commandstats").query_async(&mut connection).await.unwrap();
            for line in stats.lines() {
                let Some((name, rest)) =
                    line.strip_prefix("cmdstat_").and_then(|line| line.split_once(":calls="))
                else {
                    continue;
                };
                let calls: u64 = rest.split(',').next().unwrap().parse().unwrap();
                *used.calls.entry(name.to_owned()).or_default() += calls;
            }
        }
        used
    }

    /// How many requests are in the queue of the lock, as the server of one Redis has it.
    pub(crate) async fn queued(&self, name: &str) -> usize {
        let mut connection = connection(self.servers[0].url()).await;
        redis::cmd("ZCARD").arg(format!("{{polylock}}:q:{name}")).query_async(&mut connection).await.unwrap()
    }
}

impl Used {
    /// What was used since `before`: seconds, percents of a core, scripts, and commands within scripts and without.
    pub(crate) fn since(&self, before: &Self) -> (f64, f64, f64, u64, u64) {
        let seconds = Duration::from_nanos(self.at - before.at).as_secs_f64();
        let percent = |now: Duration, then: Duration| 100.0 * (now - then).as_secs_f64() / seconds;
        let calls = |name: &str| {
            self.calls.get(name).copied().unwrap_or(0) - before.calls.get(name).copied().unwrap_or(0)
        };
        let all: u64 = self.calls.keys().filter(|name| *name != "info").map(|name| calls(name)).sum();
        let (own, servers) = (percent(self.own, before.own), percent(self.servers, before.servers));
        (seconds, own, servers, calls("evalsha"), all)
    }
}

async fn connection(url: &str) -> MultiplexedConnection {
    Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap()
}

/// Of all threads of this process.
fn own_cpu() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks = |at: usize| fields[at].parse::<u64>().unwrap();
    Duration::from_millis(10 * (ticks(11) + ticks(12)))
}
