//! The stores of the simulation.

/// The store of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum StoreKind {
    /// The model of a server with queues
    Queue,
    /// The real MySQL store with its engine, on a model of the server's tables and routines
    Mysql,
    /// The real PostgreSQL store with its engine, on a model of the server's tables, functions and notifications
    Postgres,
    /// The real SQLite store, on a real file
    Sqlite,
    /// The real client of Redis, on a server that executes its scripts
    Redis,
    /// The real client of Redlock, on three or five servers that execute its scripts
    Redlock,
    /// The real ZooKeeper store, on one server or an ensemble of three
    Zookeeper,
    /// The real client of Azure Blob Storage, on a model of the service
    Azure,
    /// Two models of a server with queues, between which a fleet moves one process at a time by way of the transitional store `both:`
    Both,
    /// The real client of the lock service, on two real services in front of the model of a server with queues
    Service,
}

impl StoreKind {
    /// Returns true if a server keeps a lease for each hold.
    #[must_use]
    pub const fn keeps_leases(self) -> bool {
        matches!(
            self,
            Self::Queue
                | Self::Mysql
                | Self::Postgres
                | Self::Sqlite
                | Self::Redis
                | Self::Both
                | Self::Service
        )
    }

    /// Returns the factor of all times of a run: the shortest lease of Azure is one of 15 s.
    #[must_use]
    pub const fn scale(self) -> u32 {
        match self {
            Self::Azure => 10,
            _ => 1,
        }
    }
}
