//! The stores, their servers, and their promises under faults.

use std::time::Duration;

use polylock_testkit::Missing;
use tokio::task::block_in_place;

use super::plan::{Kind, Large};
use crate::{
    servers::{PrivateServer, azurite, redis},
    targets::{self, Own},
};

/// A store with its servers and settings.
#[derive(Debug, Clone, Copy)]
pub struct Configuration {
    /// Its name, as an argument and in the record.
    pub name: &'static str,
    /// The [target](mod@crate::targets) with the same kind of servers.
    target: &'static str,
    /// The settings of its servers.
    settings: &'static [&'static str],
    /// The keys in its URL.
    keys: &'static str,
    /// The faults that happen.
    pub faults: &'static [Kind],
    /// A short lease and a long one, in milliseconds: each acquisition draws one. With equal ones, the store has a single lease.
    pub leases: (u64, u64),
    /// The time from one fault to the next of a run that has one after the other; otherwise their times are drawn.
    pub every: Option<Duration>,
    /// The numbers of clients of a large crowd, and of a rush; zero if it has none.
    pub large: Large,
    /// True if a server that is killed may restore holds that were released. They exist until their leases expire.
    pub restores: bool,
    /// The time after a fault of a server in which the servers may elect a leader: requests wait for it.
    pub election: Duration,
    /// True if a client polls for the releases of other processes, which it does less often on a service that charges for requests.
    pub polls: bool,
    /// True if a client may end, or give up, between a grant and its receipt. The store then shows a hold that no client has, for a lease.
    pub loses_grants: bool,
    /// The time after which a client gives up a server that does not reply. Those of the lock service, in several languages, are started by
    /// `languages.sh`.
    pub silence: Option<Duration>,
    /// The time limit of a claim: later, it has no effect. `None` if the store has another way to undo such a claim.
    pub claims_expire: Option<Duration>,
    /// The promises that it does not make, each with the reason. A run is expected to break one of them.
    pub unpromised: &'static [Promise],
    /// The reason, for the page.
    pub why: &'static str,
}

/// A promise, as the kind of a violation.
pub type Promise = &'static str;

/// Steps of the servers' clocks, and processes that are stopped.
const CLOCKS: &[Kind] = &[Kind::ClockStep, Kind::ClientStop];

/// All faults, except those that break or delay connections: a lock that belongs to a connection ends with it.
const CONNECTED: &[Kind] = &[Kind::ClientStop, Kind::ClientKill, Kind::ServerStop, Kind::Crowd];

/// Full disks of servers.
const DISKS: &[Kind] = &[Kind::FullDisk, Kind::ServerStop, Kind::ClientStop];

/// Servers that return to old data.
const SNAPSHOTS: &[Kind] = &[Kind::OldSnapshot, Kind::ClientStop];

/// Servers that are started again, and are others than before.
const STARTS: &[Kind] = &[Kind::ChangedStart, Kind::ClientStop, Kind::LateDelivery, Kind::Cut];

/// Faults by which connections end.
const BREAKS: &[Kind] = &[Kind::Cut, Kind::ServerKill];

/// Deaths of servers, and delays.
const DEATHS: &[Kind] = &[Kind::ServerKill, Kind::ServerStop, Kind::Delay];

/// The timeouts for stores with longer ones by default.
const TIMEOUTS: &str = "polylock.operation_timeout=1s&polylock.outage=2s";

/// The timeout of operations in these.
const TIMEOUT: Duration = Duration::from_secs(1);

const OUTAGE: &str = "polylock.outage=2s";

const PROMISED: Configuration = Configuration {
    name: "",
    target: "",
    settings: &[],
    keys: "",
    faults: Kind::COMMON,
    every: None,
    leases: (1500, 10_000),
    large: Large { crowd: 0, rush: 0 },
    restores: false,
    election: Duration::ZERO,
    polls: false,
    loses_grants: false,
    silence: None,
    claims_expire: None,
    unpromised: &[],
    why: "",
};

/// The silence after which the clients of the lock service give a server up.
const SILENCE: Duration = Duration::from_secs(15);

/// For a server to which each claim is a message.
const LARGE: Large = Large { crowd: 2500, rush: 2500 };

/// For a store that carries out thousands of claims in a second.
const LARGER: Large = Large { rush: 10_000, ..LARGE };

/// A Redis server that survives a kill.
pub const REDIS: Configuration = Configuration {
    name: "redis",
    target: "redis",
    settings: redis::DURABLE,
    keys: OUTAGE,
    claims_expire: Some(polylock_redis::single::Config::DEFAULT_OPERATION_TIMEOUT),
    ..PROMISED
};

/// Three independent Redis servers that survive a kill.
pub const REDLOCK3: Configuration = Configuration {
    name: "redlock3",
    target: "redlock3",
    settings: redis::DURABLE,
    keys: "polylock.restart=trust&polylock.max_ttl=10s&polylock.outage=2s",
    ..PROMISED
};

/// Redlock servers whose clocks, durability and data are others after a start. No lock is granted until a majority of votes counts.
const REDLOCK_STARTS: Configuration = Configuration {
    keys: "polylock.max_ttl=3s&polylock.outage=2s",
    leases: (1500, 3000),
    faults: STARTS,
    election: Duration::from_secs(5),
    ..REDLOCK3
};

/// A ZooKeeper ensemble of three servers.
pub const ZOOKEEPER: Configuration = Configuration {
    name: "zookeeper_ensemble",
    target: "zookeeper_ensemble",
    keys: OUTAGE,
    leases: (4000, 4000),
    election: Duration::from_secs(2),
    ..PROMISED
};

/// A container in Azure's emulator.
pub const AZURE: Configuration = Configuration {
    name: "azure",
    target: "azure",
    settings: azurite::DURABLE,
    keys: TIMEOUTS,
    leases: (15_000, 15_000),
    polls: true,
    loses_grants: true,
    ..PROMISED
};

/// A database whose clock is stepped.
const SQL_CLOCK: Configuration = Configuration {
    keys: TIMEOUTS,
    faults: CLOCKS,
    unpromised: &["overlap"],
    why: "As for redis_clock",
    ..PROMISED
};

/// A SQLite file.
pub const SQLITE: Configuration = Configuration {
    name: "sqlite",
    target: "sqlite_full",
    keys: TIMEOUTS,
    faults: Kind::RUSHED,
    large: LARGER,
    ..PROMISED
};

/// A PostgreSQL database that survives a kill.
pub const POSTGRES: Configuration = Configuration {
    name: "postgres",
    target: "postgres",
    settings: &["wal_writer_delay=10s"],
    restores: true,
    keys: TIMEOUTS,
    claims_expire: Some(TIMEOUT),
    faults: Kind::RUSHED,
    large: LARGE,
    ..PROMISED
};

/// A MariaDB database.
pub const MARIADB: Configuration = Configuration {
    name: "mariadb",
    target: "mariadb",
    keys: TIMEOUTS,
    claims_expire: Some(TIMEOUT),
    faults: Kind::RUSHED,
    large: LARGE,
    ..PROMISED
};

/// Two lock services in front of a PostgreSQL database. Faults happen to the services.
pub const HTTP_POSTGRES: Configuration =
    Configuration { name: "http_postgres", target: "http_postgres", keys: TIMEOUTS, ..PROMISED };

/// The same, with clients in several languages.
const HTTP_LANGUAGES: Configuration =
    Configuration { name: "http_languages", loses_grants: true, silence: Some(SILENCE), ..HTTP_POSTGRES };

/// All configurations: first those with all promises.
pub const CONFIGURATIONS: &[Configuration] = &[
    SQLITE,
    POSTGRES,
    MARIADB,
    Configuration {
        name: "postgres_pessimistic",
        target: "postgres_pessimistic",
        keys: TIMEOUTS,
        faults: CONNECTED,
        leases: (2000, 10_000),
        ..PROMISED
    },
    Configuration {
        name: "mariadb_pessimistic",
        target: "mariadb_pessimistic",
        keys: TIMEOUTS,
        faults: CONNECTED,
        leases: (2000, 10_000),
        ..PROMISED
    },
    Configuration { faults: Kind::RUSHED, large: LARGER, ..REDIS },
    REDLOCK3,
    Configuration {
        name: "redlock5",
        target: "redlock5",
        keys: "polylock.max_ttl=3s&polylock.outage=2s",
        leases: (1500, 3000),
        ..PROMISED
    },
    Configuration { name: "redlock3_starts", ..REDLOCK_STARTS },
    Configuration { name: "redlock5_starts", target: "redlock5", ..REDLOCK_STARTS },
    ZOOKEEPER,
    AZURE,
    HTTP_POSTGRES,
    HTTP_LANGUAGES,
    Configuration {
        name: "http_restarts",
        faults: &[Kind::ServerKill, Kind::ServerStop],
        every: Some(Duration::from_secs(1)),
        ..HTTP_LANGUAGES
    },
    Configuration {
        name: "postgres_listen_off",
        keys: "polylock.listen=off&polylock.operation_timeout=1s&polylock.outage=2s",
        faults: Kind::COMMON,
        large: PROMISED.large,
        ..POSTGRES
    },
    Configuration {
        name: "zookeeper_clock",
        target: "zookeeper_ensemble",
        faults: &[Kind::ClockStep, Kind::ClientStop, Kind::ClientKill, Kind::ServerStop],
        ..ZOOKEEPER
    },
    Configuration { name: "postgres_disk", faults: DISKS, ..POSTGRES },
    Configuration { name: "mariadb_disk", faults: DISKS, ..MARIADB },
    Configuration { name: "redis_disk", faults: DISKS, ..REDIS },
    Configuration { name: "redlock3_disk", faults: DISKS, ..REDLOCK3 },
    Configuration { name: "zookeeper_disk", faults: DISKS, ..ZOOKEEPER },
    Configuration {
        name: "redis_clock",
        faults: CLOCKS,
        unpromised: &["overlap"],
        why: "A step of the server's clock ends leases early. Tokens continue to grow",
        ..REDIS
    },
    Configuration {
        name: "redlock3_clock",
        faults: CLOCKS,
        unpromised: &["overlap", "token"],
        why: "A step of a server's clock ends its votes early",
        ..REDLOCK3
    },
    Configuration { name: "postgres_clock", target: "postgres", ..SQL_CLOCK },
    Configuration { name: "mariadb_clock", target: "mariadb", ..SQL_CLOCK },
    Configuration {
        name: "azure_clock",
        faults: CLOCKS,
        unpromised: &["overlap"],
        why: "As for redis_clock",
        ..AZURE
    },
    Configuration {
        name: "redis_snapshot",
        faults: SNAPSHOTS,
        restores: true,
        unpromised: &["overlap", "token"],
        why: "A server that is restored from a snapshot forgets the locks and tokens since then",
        ..REDIS
    },
    Configuration {
        name: "redlock3_snapshot",
        faults: SNAPSHOTS,
        restores: true,
        unpromised: &["overlap", "token"],
        why: "A server that is restored from a snapshot forgets the votes since then",
        ..REDLOCK3
    },
    Configuration {
        name: "postgres_snapshot",
        faults: SNAPSHOTS,
        unpromised: &["overlap", "token"],
        why: "As for redis_snapshot",
        ..POSTGRES
    },
    Configuration {
        name: "mariadb_snapshot",
        faults: SNAPSHOTS,
        restores: true,
        unpromised: &["overlap", "token"],
        why: "As for redis_snapshot",
        ..MARIADB
    },
    Configuration {
        name: "redis_volatile",
        target: "redis",
        keys: OUTAGE,
        faults: DEATHS,
        unpromised: &["overlap"],
        why: "A server without persistence forgets its locks when it is killed",
        ..PROMISED
    },
    Configuration {
        name: "redlock3_volatile_trust",
        target: "redlock3",
        keys: "polylock.restart=trust&polylock.max_ttl=10s&polylock.outage=2s",
        faults: DEATHS,
        unpromised: &["overlap"],
        why: "Servers without persistence forget their votes, and `polylock.restart=trust` counts their votes at once",
        ..PROMISED
    },
    Configuration {
        name: "postgres_relaxed",
        target: "postgres",
        settings: &["wal_writer_delay=10s"],
        restores: true,
        keys: "polylock.durability=relaxed&polylock.operation_timeout=1s&polylock.outage=2s",
        faults: DEATHS,
        unpromised: &["overlap", "token"],
        why: "With `polylock.durability=relaxed`, the server forgets its last commits when it is killed",
        ..PROMISED
    },
    Configuration {
        name: "mariadb_relaxed",
        target: "mariadb",
        settings: &["innodb_flush_log_at_trx_commit=0"],
        restores: true,
        keys: TIMEOUTS,
        faults: DEATHS,
        unpromised: &["overlap", "token"],
        why: "With `innodb_flush_log_at_trx_commit=0`, the server forgets the commits of the last second when it is killed",
        ..PROMISED
    },
    Configuration {
        name: "postgres_pessimistic_cut",
        target: "postgres_pessimistic",
        keys: TIMEOUTS,
        faults: BREAKS,
        leases: (2000, 10_000),
        unpromised: &["overlap"],
        why: "A lock of the pessimistic strategy ends with its connection, before its holder is notified",
        ..PROMISED
    },
    Configuration {
        name: "mariadb_pessimistic_cut",
        target: "mariadb_pessimistic",
        keys: TIMEOUTS,
        faults: BREAKS,
        leases: (2000, 10_000),
        unpromised: &["overlap"],
        why: "As for postgres_pessimistic_cut",
        ..PROMISED
    },
];

/// Returns the configuration with this name.
#[must_use]
pub fn named(name: &str) -> Option<&'static Configuration> {
    CONFIGURATIONS.iter().find(|configuration| configuration.name == name)
}

impl Configuration {
    /// Starts its servers.
    ///
    /// # Errors
    /// [`Missing`] if they are not installed.
    ///
    /// # Panics
    /// If a server does not start, with its log.
    pub fn start(&self) -> Result<Own, Missing> {
        let own = targets::own_with(self.target, self.settings, self.keys)?;
        if self.faults.iter().any(|kind| matches!(kind, Kind::ClockStep | Kind::ChangedStart)) {
            block_in_place(|| own.servers.all().iter().for_each(PrivateServer::detach_wall_clock));
        }
        if self.faults.contains(&Kind::FullDisk) {
            block_in_place(|| own.servers.all().iter().try_for_each(PrivateServer::limit_disk))?;
        }
        Ok(own)
    }

    /// Returns the URL with the lease of locks for which an acquisition sets none.
    #[must_use]
    pub fn url(&self, own: &Own) -> String {
        own.namespace.url_with_lease(Duration::from_millis(self.leases.0))
    }

    /// Returns the scheme of its URLs, which the pessimistic strategy shares with others.
    #[must_use]
    pub fn scheme(&self) -> &'static str {
        match self.target {
            "mariadb" => "mysql",
            target => target,
        }
    }

    /// Returns true if all processes write to one file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.target.starts_with("sqlite")
    }

    /// Returns true if it makes all promises.
    #[must_use]
    pub const fn is_promised(&self) -> bool {
        self.unpromised.is_empty()
    }

    /// Returns it with this single lease, in milliseconds.
    #[must_use]
    pub const fn with_lease(self, lease: u64) -> Self {
        Self { leases: (lease, lease), ..self }
    }

    /// Returns it with the faults and the crowds of every store.
    #[must_use]
    pub const fn with_common_faults(self) -> Self {
        Self { faults: Kind::COMMON, large: PROMISED.large, ..self }
    }

    /// Returns the longest lease.
    #[must_use]
    pub const fn longest_lease(&self) -> Duration {
        Duration::from_millis(self.leases.1)
    }
}
