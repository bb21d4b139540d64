//! The list of all configurations.

use std::time::Duration;

use super::settings::Configuration;
use crate::{
    chaos::plan::{Kind, Large},
    servers::{azurite, redis},
};

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
    outlasts: false,
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

/// A store whose primary changes again and again. Clients wait for longer than that takes.
const SWITCHED: Configuration = Configuration {
    keys: "polylock.operation_timeout=1s&polylock.outage=60s",
    faults: &[Kind::SwitchOver],
    every: Some(Duration::from_secs(14)),
    leases: (2000, 8000),
    outlasts: true,
    ..PROMISED
};

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
        name: "postgres_standby",
        target: "postgres_standby",
        settings: POSTGRES.settings,
        restores: true,
        claims_expire: Some(TIMEOUT),
        ..SWITCHED
    },
    Configuration {
        name: "mariadb_replica",
        target: "mariadb_replica",
        claims_expire: Some(TIMEOUT),
        ..SWITCHED
    },
    Configuration {
        name: "redis_replica",
        target: "redis_replica",
        settings: redis::DURABLE,
        claims_expire: Some(TIMEOUT),
        ..SWITCHED
    },
    Configuration {
        // Without `claims_expire`: until the former primary has ended its connections, a look shows its entries, which are not the newest.
        name: "redis_sentinel",
        target: "redis_sentinel",
        settings: redis::DURABLE,
        ..SWITCHED
    },
    Configuration {
        name: "zookeeper_leader",
        target: ZOOKEEPER.target,
        keys: "polylock.outage=60s",
        leases: ZOOKEEPER.leases,
        election: ZOOKEEPER.election,
        ..SWITCHED
    },
    Configuration {
        name: "azure_interrupted",
        target: AZURE.target,
        settings: AZURE.settings,
        leases: AZURE.leases,
        polls: true,
        loses_grants: true,
        ..SWITCHED
    },
    Configuration {
        name: "http_postgres_standby",
        target: "http_postgres_standby",
        restores: true,
        ..SWITCHED
    },
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
