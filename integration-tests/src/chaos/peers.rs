//! Other lock libraries, in runs with the same servers, faults and checks: `integration-tests/peers`.

use std::{path::PathBuf, time::Duration};

use super::{
    configuration::{Configuration, REDIS, REDLOCK3, ZOOKEEPER},
    observed::Observed,
    plan::Kind,
};
use crate::{cargo::workspace, simulation::network::nanos};

/// The lease of all locks in Redis, in milliseconds.
const LEASE: u64 = 3000;

/// A library on a store.
#[derive(Debug)]
pub struct Peer {
    /// Its name, as an argument and in the record.
    pub name: &'static str,
    /// The name of the library.
    pub library: &'static str,
    /// The version; empty for this library.
    pub version: &'static str,
    /// The file in `integration-tests/peers` that pins it, and the line or lines that do.
    pub pin: [&'static str; 2],
    /// The licence.
    pub license: &'static str,
    /// The store, with a single lease.
    pub store: Configuration,
    /// The configuration, for the page.
    pub setup: &'static str,
    /// The way in which it notifies a holder of a loss, if it does.
    pub notifies: Option<&'static str>,
    /// True if it keeps a hold beyond its lease without a call of the holder.
    pub renews: bool,
}

const SELF: Peer = Peer {
    name: "",
    library: "polylock",
    version: "",
    pin: [""; 2],
    license: "MIT OR Apache-2.0",
    store: REDIS,
    setup: "",
    notifies: Some("`Guard::lost`"),
    renews: true,
};

const REDIS_LEASE: Configuration = REDIS.with_lease(LEASE);
const REDLOCK_LEASE: Configuration = REDLOCK3.with_lease(LEASE);

/// All peers, and this library on the same stores.
pub static PEERS: [Peer; 9] = [
    Peer { name: "polylock-redis", store: REDIS_LEASE, ..SELF },
    Peer {
        name: "distributed-lock",
        library: "crate distributed-lock",
        version: "0.2.0",
        pin: ["rust/Cargo.lock", "name = \"distributed-lock-redis\"\nversion = \"0.2.0\""],
        license: "MIT",
        store: REDIS_LEASE,
        setup: "`RedisLockProvider` with `expiry` = lease, renewed at a third of it and with 90 % of it as the least validity, which are the proportions of its defaults; `acquire` on one server returns at once if the lock is held; its client for a URL has no reconnect policy",
        notifies: Some("`lost_token`"),
        renews: true,
    },
    Peer {
        name: "redis-py",
        library: "redis-py `Lock`",
        version: "8.1.0",
        pin: ["python/requirements.txt", "redis==8.1.0"],
        license: "MIT",
        store: REDIS_LEASE,
        setup: "`timeout` = lease (by default a lock has none); `Redis` with its defaults; no `extend`",
        notifies: None,
        renews: false,
    },
    Peer { name: "polylock-redlock", store: REDLOCK_LEASE, ..SELF },
    Peer {
        name: "rslock",
        library: "crate rslock",
        version: "0.10.0",
        pin: ["rust/Cargo.lock", "name = \"rslock\"\nversion = \"0.10.0\""],
        license: "BSD-3-Clause",
        store: REDLOCK_LEASE,
        setup: "`LockManager::new`, `acquire` and `release` as in its README; no `extend`",
        notifies: None,
        renews: false,
    },
    Peer {
        name: "node-redlock",
        library: "node redlock",
        version: "4.2.0",
        pin: ["node/package-lock.json", "\"redlock\": \"4.2.0\""],
        license: "MIT",
        store: REDLOCK_LEASE,
        setup: "`lock` and `unlock` with its defaults, on ioredis 6.0.0 with its defaults; no `extend`",
        notifies: None,
        renews: false,
    },
    Peer { name: "polylock-zookeeper", store: ZOOKEEPER, ..SELF },
    Peer {
        name: "kazoo",
        library: "kazoo `Lock`",
        version: "2.11.0",
        pin: ["python/requirements.txt", "kazoo==2.11.0"],
        license: "Apache-2.0",
        store: ZOOKEEPER,
        setup: "`KazooClient` with `timeout` = lease; a listener ends all holds in the states `SUSPENDED` and `LOST`, as its documentation recommends",
        notifies: Some("connection state"),
        renews: true,
    },
    Peer {
        name: "curator",
        library: "Curator `InterProcessMutex`",
        version: "5.4.0",
        pin: ["java/packages", "libcurator-recipes-java=5.4.0-"],
        license: "Apache-2.0",
        store: ZOOKEEPER,
        setup: "`sessionTimeoutMs` = lease, `ExponentialBackoffRetry(1000, 3)`; a listener ends all holds in the states `SUSPENDED` and `LOST`, as its documentation recommends",
        notifies: Some("connection state"),
        renews: true,
    },
];

/// Returns the peer with this name.
#[must_use]
pub fn named(name: &str) -> Option<&'static Peer> {
    PEERS.iter().find(|peer| peer.name == name)
}

impl Peer {
    /// Returns true if it is another library.
    #[must_use]
    pub const fn is_foreign(&self) -> bool {
        !self.version.is_empty()
    }

    /// Returns the program that `integration-tests/peers/run.sh` creates; `None` for this library.
    #[must_use]
    pub fn program(&self) -> Option<PathBuf> {
        self.is_foreign().then(|| workspace().join("target/peers/bin").join(self.name))
    }
}

/// A request within this time after a kill is before the end of the lease: holds of other libraries are shorter than half of it.
const WANTED: Duration = Duration::from_secs(1);

/// Returns the times in seconds from the kill of a holder to the next grant of its lock, if another client had requested the lock by a
/// second after the kill, and no fault but kills happened in that time.
#[must_use]
pub fn times_to_free(observed: &Observed) -> Vec<f64> {
    let dead = observed.sections.iter().filter(|section| observed.ended_at_kill(section));
    let times = dead.filter_map(|dead| {
        let kill = dead.released?;
        let after = || observed.sections.iter().filter(|it| it.lock == dead.lock && it.acquired > kill);
        let granted = after().map(|section| section.acquired).min()?;
        let is_undisturbed = observed.applied.iter().all(|fault| {
            let has_no_effect = matches!(fault.action.kind(), Kind::ClientKill | Kind::Crowd);
            has_no_effect || fault.to < kill || fault.from > granted
        });
        let is_wanted = after().any(|section| section.invoked < kill + nanos(WANTED));
        (is_wanted && is_undisturbed && dead.mode.conflicts_with(dead.mode)).then_some(granted - kill)
    });
    times.map(|nanos| nanos as f64 / 1e9).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use polylock_core::Mode;
    use polylock_testkit::history::Section;

    use super::{
        super::{plan::Action, site::Applied},
        *,
    };

    const S: u64 = 1_000_000_000;

    #[test]
    fn the_versions_are_those_that_are_installed() {
        for peer in PEERS.iter().filter(|peer| peer.is_foreign()) {
            let [file, lines] = peer.pin;
            let path = workspace().join("integration-tests/peers").join(file);
            let pins =
                fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let is_pinned = lines.contains(peer.version) && pins.contains(lines);
            assert!(is_pinned, "{} {} is not in {}", peer.name, peer.version, path.display());
        }
    }

    #[test]
    fn the_time_to_free_is_measured_for_locks_that_are_wanted_unless_a_fault_explains_it() {
        let mut dead = Section::new("n", "p1.0.0", Mode::Exclusive, 0..S);
        (dead.released, dead.open) = (Some(4 * S), true);
        let waiter = |invoked| Section::new("n", "p0.0.0", Mode::Exclusive, invoked..6 * S);
        let fault = |action, from| Applied { action, from, to: from + S };
        let killed = fault(Action::KillClient(1), 4 * S);
        let observed = |invoked, applied: Vec<Applied>| Observed {
            sections: vec![dead.clone(), waiter(invoked)],
            applied,
            ..Observed::default()
        };
        assert_eq!(times_to_free(&observed(S, vec![killed])), [2.0]);
        assert_eq!(times_to_free(&observed(5 * S, vec![killed])), [0.0; 0], "it was requested late");
        assert_eq!(times_to_free(&observed(S, vec![])), [0.0; 0], "it was not killed");
        let stopped = fault(Action::StopServers { first: 0, count: 1 }, 5 * S);
        assert_eq!(times_to_free(&observed(S, vec![killed, stopped])), [0.0; 0], "the server was stopped");
    }
}
