//! The libraries on their stores.

use std::{path::PathBuf, sync::LazyLock};

use crate::chaos::{
    configuration::{
        AZURE, Configuration, HTTP_POSTGRES, MARIADB, POSTGRES, REDIS, REDLOCK3, SQLITE, ZOOKEEPER,
    },
    peers::{PEERS, Peer},
};

/// The lease of all locks in milliseconds, unless the store has a longer one.
const LEASE: u64 = 3000;

/// The stores, with their names as arguments and on the page.
const STORES: [(&str, &str, Configuration); 8] = [
    ("sqlite", "SQLite", SQLITE),
    ("postgres", "PostgreSQL", POSTGRES),
    ("mariadb", "MariaDB", MARIADB),
    ("redis", "Redis", REDIS),
    ("redlock", "Redlock, 3 servers", REDLOCK3),
    ("zookeeper", "ZooKeeper, 3 servers", ZOOKEEPER),
    ("azure", "Azure, emulator", AZURE),
    ("http", "PostgreSQL behind 2 lock services", HTTP_POSTGRES),
];

/// A library on a store.
#[derive(Debug)]
pub struct Subject {
    /// Its name, as an argument and in the file.
    pub name: &'static str,
    /// The store, as the page names it.
    pub store: &'static str,
    /// The servers, with one lease and the faults of all stores.
    pub configuration: Configuration,
    /// The other library; `None` for this one.
    pub peer: Option<&'static Peer>,
}

/// Returns all subjects, grouped by store.
#[must_use]
pub fn subjects() -> &'static [Subject] {
    static SUBJECTS: LazyLock<Vec<Subject>> = LazyLock::new(|| {
        let of_store = |(name, store, configuration): (&'static str, &'static str, Configuration)| {
            let lease = configuration.leases.0.max(LEASE);
            let own = Subject {
                name,
                store,
                configuration: configuration.with_lease(lease).with_common_faults(),
                peer: None,
            };
            let is_here = move |peer: &&Peer| peer.is_foreign() && peer.store.name == configuration.name;
            let configuration = own.configuration;
            let others = PEERS.iter().filter(is_here);
            let others =
                others.map(move |peer| Subject { name: peer.name, store, configuration, peer: Some(peer) });
            [own].into_iter().chain(others)
        };
        STORES.into_iter().flat_map(of_store).collect()
    });
    &SUBJECTS
}

impl Subject {
    /// Returns the name and the version of the library.
    #[must_use]
    pub fn library(&self) -> String {
        self.peer.map_or_else(|| "polylock".to_owned(), |peer| format!("{} {}", peer.library, peer.version))
    }

    /// Returns true if the library notifies a holder of a loss.
    #[must_use]
    pub fn notifies(&self) -> bool {
        self.peer.is_none_or(|peer| peer.notifies.is_some())
    }

    /// Returns true if the library keeps a hold beyond its lease.
    #[must_use]
    pub fn renews(&self) -> bool {
        self.peer.is_none_or(|peer| peer.renews)
    }

    /// Returns the program of the library: this library's is beside the current program.
    ///
    /// # Panics
    /// If the current program is unknown.
    #[must_use]
    pub fn program(&self) -> PathBuf {
        self.peer.and_then(Peer::program).unwrap_or_else(|| {
            let here = std::env::current_exe().unwrap_or_else(|error| panic!("this program: {error}"));
            here.with_file_name("worker")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_other_library_is_compared_on_its_store_with_the_faults_of_all() {
        let names: Vec<&str> = subjects().iter().map(|subject| subject.name).collect();
        let peers = PEERS.iter().filter(|peer| peer.is_foreign());
        assert!(peers.clone().all(|peer| names.contains(&peer.name)), "{names:?}");
        assert_eq!(names.len(), STORES.len() + peers.count());
        for subject in subjects() {
            assert_eq!(subject.configuration.faults, crate::chaos::plan::Kind::COMMON, "{}", subject.name);
            assert_eq!(subject.configuration.leases.0, subject.configuration.leases.1);
        }
    }
}
