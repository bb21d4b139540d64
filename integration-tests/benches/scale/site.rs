//! The servers of a measurement, and what they and this process have used.

use std::{collections::HashMap, time::Duration};

use polylock::Locks;
use polylock_bench::held::own_cpu;
use polylock_integration_tests::{
    clock::now,
    servers::{self, PrivateServer},
};
use polylock_testkit::Missing;
use redis::{Client, InfoDict, aio::MultiplexedConnection};
use tempfile::TempDir;

use crate::databases::{self, Done};

/// The store that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Store {
    /// One server.
    Redis,
    /// Five.
    Redlock,
    Postgres,
    MariaDb,
    Sqlite,
    ZooKeeper,
}

impl Store {
    pub(crate) const ALL: [Self; 6] =
        [Self::Redis, Self::Redlock, Self::Postgres, Self::MariaDb, Self::Sqlite, Self::ZooKeeper];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Redlock => "redlock",
            Self::Postgres => "postgres",
            Self::MariaDb => "mariadb",
            Self::Sqlite => "sqlite",
            Self::ZooKeeper => "zookeeper",
        }
    }

    /// The lease of locks that are held: the default one where it is a session's.
    pub(crate) const fn ttl(self) -> Duration {
        Duration::from_secs(if matches!(self, Self::ZooKeeper) { 30 } else { 6 })
    }
}

/// Private servers, which keep nothing where they need not, and a directory.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) store: Store,
    servers: Vec<PrivateServer>,
    directory: TempDir,
    /// Whether the SQL stores leave the disk to the system.
    relaxed: bool,
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

/// What was used in a span of time.
#[derive(Debug)]
pub(crate) struct Usage {
    pub(crate) seconds: f64,
    /// Percents of a core.
    pub(crate) own: f64,
    pub(crate) servers: f64,
    /// Scripts, or calls of routines.
    pub(crate) scripts: u64,
    /// All commands; within scripts, too, where the server counts those.
    pub(crate) commands: u64,
}

impl Site {
    /// The servers of `store`, unless they are not installed.
    pub(crate) fn start(store: Store, relaxed: bool) -> Result<Self, Missing> {
        let servers = match store {
            Store::Redis => servers::redlock::start(1, &[])?,
            Store::Redlock => servers::redlock::start(5, &[])?,
            Store::Postgres => vec![servers::postgres::start(&[])?],
            Store::MariaDb => vec![servers::mariadb::start(if relaxed {
                &["innodb_flush_log_at_trx_commit=0"]
            } else {
                &[]
            })?],
            Store::Sqlite => Vec::new(),
            Store::ZooKeeper => vec![servers::zookeeper::start(&[])?],
        };
        Ok(Self { store, servers, directory: TempDir::new().unwrap(), relaxed })
    }

    /// How often a claim and a release of an uncontended lock call a script or a routine.
    pub(crate) const fn scripts_of_a_pair(&self) -> usize {
        match self.store {
            Store::Redis | Store::Postgres | Store::MariaDb => 2,
            Store::Redlock => 10,
            Store::ZooKeeper => 3,
            Store::Sqlite => 0,
        }
    }

    /// The URL of the first server, or of the file.
    pub(crate) fn url(&self) -> String {
        self.servers.first().map_or_else(
            || format!("sqlite://{}", self.directory.path().join("locks.db").display()),
            |server| server.url().to_owned(),
        )
    }

    /// The store with this option.
    pub(crate) async fn open(&self, option: &str) -> Locks {
        let url = match self.store {
            Store::Postgres if self.relaxed => {
                format!("{}?polylock.durability=relaxed&{option}", self.url())
            }
            Store::Sqlite if self.relaxed => format!("{}?polylock.durability=normal&{option}", self.url()),
            Store::Redis | Store::Postgres | Store::MariaDb | Store::Sqlite | Store::ZooKeeper => {
                format!("{}?{option}", self.url())
            }
            Store::Redlock => {
                let url = servers::redlock::url(self.servers.iter().map(|server| server.url()));
                format!("{url}?polylock.restart=trust&{option}")
            }
        };
        Locks::connect(&url).await.unwrap()
    }

    pub(crate) async fn used(&self) -> Used {
        let mut used = Used { at: now().as_nanos(), own: own_cpu().unwrap_or_default(), ..Used::default() };
        let done = match self.store {
            Store::Redis | Store::Redlock => None,
            Store::Postgres => Some(databases::postgres(&self.servers[0]).await),
            Store::MariaDb => Some(databases::mariadb(&self.servers[0]).await),
            Store::Sqlite => Some(Done::default()),
            Store::ZooKeeper => Some(databases::zookeeper(&self.servers[0]).await),
        };
        if let Some(Done { cpu, calls, statements }) = done {
            used.servers = cpu;
            let others = statements.saturating_sub(calls);
            used.calls.extend([("evalsha".to_owned(), calls), ("others".to_owned(), others)]);
            return used;
        }
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
}

impl Used {
    /// What was used since `before`.
    pub(crate) fn since(&self, before: &Self) -> Usage {
        let seconds = Duration::from_nanos(self.at - before.at).as_secs_f64();
        let percent = |now: Duration, then: Duration| 100.0 * (now - then).as_secs_f64() / seconds;
        let calls = |name: &str| {
            self.calls.get(name).copied().unwrap_or(0) - before.calls.get(name).copied().unwrap_or(0)
        };
        let all: u64 = self.calls.keys().filter(|name| *name != "info").map(|name| calls(name)).sum();
        let (own, servers) = (percent(self.own, before.own), percent(self.servers, before.servers));
        Usage { seconds, own, servers, scripts: calls("evalsha"), commands: all }
    }
}

async fn connection(url: &str) -> MultiplexedConnection {
    Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap()
}
