//! A store with its servers, its settings, and what is promised of it.

use std::time::Duration;

use polylock_testkit::Missing;
use tokio::task::block_in_place;

use crate::{
    chaos::plan::{Kind, Large},
    servers::PrivateServer,
    targets::{self, Own},
};

/// A store with its servers and settings.
#[derive(Debug, Clone, Copy)]
pub struct Configuration {
    /// Its name, as an argument and in the record.
    pub name: &'static str,
    /// The [target](mod@crate::targets) with the same kind of servers.
    pub(super) target: &'static str,
    /// The settings of its servers.
    pub(super) settings: &'static [&'static str],
    /// The keys in its URL.
    pub(super) keys: &'static str,
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
    /// True if the clients wait for the store for longer than any fault lasts: no request ends because of the store.
    pub outlasts: bool,
    /// The time limit of a claim: later, it has no effect. `None` if the store has another way to undo such a claim.
    pub claims_expire: Option<Duration>,
    /// The promises that it does not make, each with the reason. A run is expected to break one of them.
    pub unpromised: &'static [Promise],
    /// The reason, for the page.
    pub why: &'static str,
}

/// A promise, as the kind of a violation.
pub type Promise = &'static str;

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
            "mariadb" | "mariadb_replica" => "mysql",
            "postgres_standby" => "postgres",
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
        Self { faults: Kind::COMMON, large: Large { crowd: 0, rush: 0 }, ..self }
    }

    /// Returns the longest lease.
    #[must_use]
    pub const fn longest_lease(&self) -> Duration {
        Duration::from_millis(self.leases.1)
    }
}
