//! From a URL to an open store.

use std::{ops::Deref, sync::Arc, time::Duration};

use polylock_core::{
    Clock, ConfigError, Error, Label, Options, OwnerId, Progress, Result, Store, connect_within, duration,
    memory,
    metrics::Metrics,
    url::{StoreUrl, nearest},
};

use crate::LocksConfig;

/// The locks of one store, opened by URL. Everything else is [`polylock_core::Locks`], to which this derefs.
///
/// A clone is another handle to the same open store.
#[derive(Debug, Clone)]
pub struct Locks(polylock_core::Locks);

impl Locks {
    /// Opens the store that `url` names; see the [crate's page](crate#stores) for the URLs.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) on key `store` for a scheme that nobody knows or that was not compiled
    /// in, and on the key of the URL that is unknown or makes no sense. Else the error of the store, if it can't be opened for
    /// good, or remains unreachable for as long as `polylock.outage` (30 s by default) and `polylock.wait` allow.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::builder(url).connect().await
    }

    /// The locks of the store that `url` names, with something to be set first.
    ///
    /// ```
    /// use polylock::{Locks, OwnerId};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> polylock::Result<()> {
    /// let me = OwnerId::new("billing-worker-7")?;
    /// let locks = Locks::builder("memory:").owner(&me).connect().await?;
    /// let guard = locks.lock("orders/42").acquire().await?;
    /// assert_eq!(guard.owner(), &me);
    /// # Ok(()) }
    /// ```
    pub fn builder(url: &str) -> LocksBuilder {
        LocksBuilder::new(StoreUrl::parse(url))
    }

    /// Opens the store that `config` names: exactly what [`connect`](Self::connect) does with the same keys in a URL.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn from_config(config: LocksConfig) -> Result<Self> {
        Self::builder_of(config).connect().await
    }

    /// The locks of the store that `config` names, with something to be set first.
    pub fn builder_of(config: LocksConfig) -> LocksBuilder {
        LocksBuilder::new(config.into_url())
    }

    /// The locks of a store that was opened in another way, one of your own for instance.
    #[must_use]
    pub fn new(store: Store) -> Self {
        Self(polylock_core::Locks::new(store))
    }

    /// Waits until all background releases are done, at most this long; see [`polylock_core::Locks::close`].
    ///
    /// # Cancel safety
    /// Dropping it stops the waiting, not the releases.
    pub async fn close(self, within: Duration) -> bool {
        self.0.close(within).await
    }
}

/// Sets up [`Locks`]: made by [`Locks::builder`], ended by [`connect`](Self::connect).
#[derive(Debug)]
#[must_use = "nothing is opened until `connect`"]
pub struct LocksBuilder {
    url: Result<StoreUrl, ConfigError>,
    owner: Option<OwnerId>,
    label: Option<Result<Label, ConfigError>>,
    clock: Option<Arc<dyn Clock>>,
    metrics: Option<Arc<dyn Metrics>>,
    progress: Progress,
    ttl: Option<Duration>,
}

impl LocksBuilder {
    fn new(url: Result<StoreUrl, ConfigError>) -> Self {
        Self {
            url,
            owner: None,
            label: None,
            clock: None,
            metrics: None,
            progress: Progress::default(),
            ttl: None,
        }
    }

    /// How long a lock outlives a holder that dies, unless a lock says otherwise: `polylock.ttl` of the URL, in place of the one that
    /// it has. With ZooKeeper it is the time-out of the session that carries the locks.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self.set("polylock.ttl", ttl)
    }

    /// How long to wait for a lock, and for the store when it is opened: `polylock.wait` of the URL, in place of the one that it has.
    /// With [`Duration::ZERO`], each is tried once.
    pub fn wait(self, wait: Duration) -> Self {
        self.set("polylock.wait", wait)
    }

    /// How long the store may be unreachable, without a break, also when it is opened: `polylock.outage` of the URL, in place of the
    /// one that it has.
    pub fn outage(self, outage: Duration) -> Self {
        self.set("polylock.outage", outage)
    }

    /// Where to note the progress of [`connect`](Self::connect), for a display: an outage of the store.
    pub fn progress(mut self, progress: &Progress) -> Self {
        self.progress = progress.clone();
        self
    }

    fn set(mut self, key: &str, value: Duration) -> Self {
        if let Ok(url) = &mut self.url {
            url.replace(key, duration::format(value));
        }
        self
    }

    /// Who acquires, unless a lock says otherwise: `host:pid` by default.
    pub fn owner(mut self, owner: &OwnerId) -> Self {
        self.owner = Some(owner.clone());
        self
    }

    /// What locks are for, unless a lock says otherwise: at most 255 bytes without control characters.
    pub fn label(mut self, label: impl AsRef<str>) -> Self {
        self.label = Some(Label::new(label));
        self
    }

    /// The clock of the deadlines. For tests; the default is the machine's, which counts suspend.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Where to send measurements. With the feature `metrics`, the default is the `metrics` crate's global recorder; see
    /// [`metrics`](crate::metrics) for the names.
    pub fn metrics(mut self, metrics: Arc<dyn Metrics>) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// Opens the store. One that is unreachable for the moment is tried again for as long as an [`outage`](Self::outage) may
    /// last, and a [`wait`](Self::wait).
    ///
    /// # Errors
    /// As [`Locks::connect`], and [`Error::Config`](crate::Error::Config) on key `label`.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn connect(self) -> Result<Locks> {
        let url = self.url?;
        let (mut options, named) = Named::read(&url)?;
        let takes_nearest = url.keys().text("polylock.ttl").is_none() || named.has_sessions();
        let label = self.label.transpose()?;
        let limit = options.wait.unwrap_or(Duration::MAX).min(options.outage);
        // On the heap, because the future of a store's connection takes tens of KiB.
        let store = connect_within(limit, &self.progress, || Box::pin(named.clone().open())).await?;
        let can = store.backend.capabilities();
        if let (Some(ttl), true) = (self.ttl, named.has_sessions()) {
            // Two thirds of the session that the servers have given are the longest lease.
            let longest = Duration::from_millis(to_milliseconds(*can.ttl.end() * 3 / 2));
            if ttl > longest {
                return Err(Error::InvalidTtl {
                    backend: can.backend,
                    ttl,
                    min: *can.ttl.start(),
                    max: longest,
                });
            }
        }
        if takes_nearest {
            options.ttl = can.nearest_ttl(options.ttl);
        }
        let metrics = self.metrics.or_else(|| default_metrics(can.backend));
        let mut locks = polylock_core::Locks::builder(store).options(options);
        if let Some(owner) = &self.owner {
            locks = locks.owner(owner);
        }
        if let Some(label) = label {
            locks = locks.label(label);
        }
        if let Some(clock) = self.clock {
            locks = locks.clock(clock);
        }
        if let Some(metrics) = metrics {
            locks = locks.metrics(metrics);
        }
        Ok(Locks(locks.build()))
    }
}

#[cfg(feature = "metrics")]
fn default_metrics(backend: &'static str) -> Option<Arc<dyn Metrics>> {
    Some(Arc::new(crate::metrics::Recorder::new(backend)))
}

#[cfg(not(feature = "metrics"))]
fn default_metrics(_: &'static str) -> Option<Arc<dyn Metrics>> {
    None
}

impl Deref for Locks {
    type Target = polylock_core::Locks;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl From<polylock_core::Locks> for Locks {
    fn from(locks: polylock_core::Locks) -> Self {
        Self(locks)
    }
}

/// The statements that make what the store of `url` needs in its database, for an administrator to run where the
/// program's user may not; `None` for a store that needs nothing made. Opens nothing.
///
/// Opening the store runs the same statements by itself if it finds nothing and its user may.
///
/// # Errors
/// As [`Locks::connect`], for what is wrong with the URL itself.
///
/// ```
/// assert_eq!(polylock::schema("memory:")?, None);
/// # #[cfg(feature = "postgres")] {
/// let statements = polylock::schema("postgres://app@db.example.com/app?polylock.table=app_locks")?;
/// assert!(statements.is_some_and(|text| text.contains("app_locks_holds")));
/// # }
/// # Ok::<_, polylock::ConfigError>(())
/// ```
pub fn schema(url: &str) -> Result<Option<String>, ConfigError> {
    schema_at(&StoreUrl::parse(url)?)
}

pub(crate) fn schema_at(url: &StoreUrl) -> Result<Option<String>, ConfigError> {
    Named::read(url)?.1.schema()
}

fn to_milliseconds(time: Duration) -> u64 {
    u64::try_from((time + Duration::from_micros(500)).as_millis()).unwrap_or(u64::MAX)
}

/// Ends the start-up delay of the servers of a Redlock that were never used for locks before, and returns those whose delay was ended:
/// `polylock_redis::redlock::admit` of the URL's configuration.
///
/// Only for servers that are known to be new. Of servers that have lost their data, locks may be held that they have forgotten.
///
/// # Errors
/// [`Error::Config`] on key `store` if the URL names another store, and else as [`Locks::connect`]; [`Error::Unavailable`] if a
/// lock is held.
///
/// # Cancel safety
/// Once polled, it is carried out even if it is dropped.
pub async fn admit(url: &str) -> Result<Vec<String>> {
    admit_at(&StoreUrl::parse(url)?).await
}

pub(crate) async fn admit_at(url: &StoreUrl) -> Result<Vec<String>> {
    let (_, _named) = Named::read(url)?;
    #[cfg(feature = "redis")]
    if let Named::Redlock(config) = _named {
        return polylock_redis::redlock::admit(*config).await;
    }
    let problem =
        format!("the servers of a {} store have no start-up delay: only those of redlock do", url.scheme());
    Err(ConfigError::new("store", problem).into())
}

/// A store that is named and not yet opened.
#[derive(Clone)]
enum Named {
    Memory(String),
    #[cfg(feature = "sqlite")]
    Sqlite(polylock_sql::sqlite::Config),
    #[cfg(feature = "postgres")]
    Postgres(Box<polylock_sql::postgres::Config>),
    #[cfg(feature = "mysql")]
    MySql(Box<polylock_sql::mysql::Config>),
    #[cfg(feature = "redis")]
    Redis(Box<polylock_redis::single::Config>),
    #[cfg(feature = "redis")]
    RedisCluster(Box<polylock_redis::cluster::Config>),
    #[cfg(feature = "redis")]
    RedisSentinel(Box<polylock_redis::sentinel::Config>),
    #[cfg(feature = "redis")]
    Redlock(Box<polylock_redis::redlock::Config>),
    #[cfg(feature = "zookeeper")]
    ZooKeeper(Box<polylock_zookeeper::Config>),
    #[cfg(feature = "azure")]
    Azure(Box<polylock_azure::Config>),
}

impl Named {
    /// With the settings that are the same for every store.
    fn read(url: &StoreUrl) -> Result<(Options, Self), ConfigError> {
        let mut keys = url.keys();
        let options = Options::from_keys(&mut keys)?;
        let named = match url.scheme() {
            "memory" => Self::Memory(url.rest().to_owned()),
            #[cfg(feature = "sqlite")]
            "sqlite" => Self::Sqlite(polylock_sql::sqlite::Config::from_url(url, &mut keys)?),
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => {
                Self::Postgres(Box::new(polylock_sql::postgres::Config::from_url(url, &mut keys)?))
            }
            #[cfg(feature = "mysql")]
            "mysql" | "mariadb" => {
                Self::MySql(Box::new(polylock_sql::mysql::Config::from_url(url, &mut keys)?))
            }
            #[cfg(feature = "redis")]
            "redis" | "rediss" | "valkey" | "valkeys" | "unix" | "redis+unix" | "valkey+unix" => {
                Self::Redis(Box::new(polylock_redis::single::Config::from_url(url, &mut keys)?))
            }
            #[cfg(feature = "redis")]
            "redis-cluster" | "rediss-cluster" | "valkey-cluster" | "valkeys-cluster" => {
                Self::RedisCluster(Box::new(polylock_redis::cluster::Config::from_url(url, &mut keys)?))
            }
            #[cfg(feature = "redis")]
            "redis+sentinel" | "rediss+sentinel" | "redis-sentinel" | "rediss-sentinel"
            | "valkey+sentinel" | "valkeys+sentinel" => {
                Self::RedisSentinel(Box::new(polylock_redis::sentinel::Config::from_url(url, &mut keys)?))
            }
            #[cfg(feature = "redis")]
            "redlock" => Self::Redlock(Box::new(polylock_redis::redlock::Config::from_url(url, &mut keys)?)),
            #[cfg(feature = "zookeeper")]
            "zookeeper" | "zk" | "zookeeper+tls" | "zk+tls" => {
                Self::ZooKeeper(Box::new(polylock_zookeeper::Config::from_url(url, &mut keys)?))
            }
            #[cfg(feature = "azure")]
            "az" | "azblob" => Self::Azure(Box::new(polylock_azure::Config::from_url(url, &mut keys)?)),
            other => return Err(not_here(other)),
        };
        keys.finish()?;
        Ok((options, named))
    }

    /// Whether `polylock.ttl` is how long the servers keep a session, which is longer than the leases in it. It is no wish that
    /// the store refuses if it can't be met.
    const fn has_sessions(&self) -> bool {
        #[cfg(feature = "zookeeper")]
        return matches!(self, Self::ZooKeeper(_));
        #[cfg(not(feature = "zookeeper"))]
        false
    }

    async fn open(self) -> Result<Store> {
        match self {
            Self::Memory(name) if name.is_empty() => Ok(memory::connect()),
            Self::Memory(name) => Ok(memory::named(&name)),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(config) => polylock_sql::sqlite::connect(config).await,
            #[cfg(feature = "postgres")]
            Self::Postgres(config) => polylock_sql::postgres::connect(*config).await,
            #[cfg(feature = "mysql")]
            Self::MySql(config) => polylock_sql::mysql::connect(*config).await,
            #[cfg(feature = "redis")]
            Self::Redis(config) => polylock_redis::single::connect(*config).await,
            #[cfg(feature = "redis")]
            Self::RedisCluster(config) => polylock_redis::cluster::connect(*config).await,
            #[cfg(feature = "redis")]
            Self::RedisSentinel(config) => polylock_redis::sentinel::connect(*config).await,
            #[cfg(feature = "redis")]
            Self::Redlock(config) => polylock_redis::redlock::connect(*config).await,
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(config) => polylock_zookeeper::connect(*config).await,
            #[cfg(feature = "azure")]
            Self::Azure(config) => polylock_azure::connect(*config).await,
        }
    }

    fn schema(&self) -> Result<Option<String>, ConfigError> {
        match self {
            Self::Memory(_) => Ok(None),
            // Who may open the file may make the tables.
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => Ok(None),
            #[cfg(feature = "postgres")]
            Self::Postgres(config) => polylock_sql::postgres::schema(config).map(Some),
            #[cfg(feature = "mysql")]
            Self::MySql(config) => polylock_sql::mysql::schema(config).map(Some),
            #[cfg(feature = "redis")]
            Self::Redis(_) | Self::RedisCluster(_) | Self::RedisSentinel(_) | Self::Redlock(_) => Ok(None),
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(_) => Ok(None),
            #[cfg(feature = "azure")]
            Self::Azure(_) => Ok(None),
        }
    }
}

/// Every scheme there is, with the feature that brings it and whether it was compiled in.
const SCHEMES: [(&str, &str, bool); 30] = [
    ("memory", "", true),
    ("sqlite", "sqlite", cfg!(feature = "sqlite")),
    ("postgres", "postgres", cfg!(feature = "postgres")),
    ("postgresql", "postgres", cfg!(feature = "postgres")),
    ("mysql", "mysql", cfg!(feature = "mysql")),
    ("mariadb", "mysql", cfg!(feature = "mysql")),
    ("redis", "redis", cfg!(feature = "redis")),
    ("rediss", "redis", cfg!(feature = "redis")),
    ("valkey", "redis", cfg!(feature = "redis")),
    ("valkeys", "redis", cfg!(feature = "redis")),
    ("unix", "redis", cfg!(feature = "redis")),
    ("redis+unix", "redis", cfg!(feature = "redis")),
    ("valkey+unix", "redis", cfg!(feature = "redis")),
    ("redis-cluster", "redis", cfg!(feature = "redis")),
    ("rediss-cluster", "redis", cfg!(feature = "redis")),
    ("valkey-cluster", "redis", cfg!(feature = "redis")),
    ("valkeys-cluster", "redis", cfg!(feature = "redis")),
    ("redis+sentinel", "redis", cfg!(feature = "redis")),
    ("rediss+sentinel", "redis", cfg!(feature = "redis")),
    ("redis-sentinel", "redis", cfg!(feature = "redis")),
    ("rediss-sentinel", "redis", cfg!(feature = "redis")),
    ("valkey+sentinel", "redis", cfg!(feature = "redis")),
    ("valkeys+sentinel", "redis", cfg!(feature = "redis")),
    ("redlock", "redis", cfg!(feature = "redis")),
    ("zookeeper", "zookeeper", cfg!(feature = "zookeeper")),
    ("zk", "zookeeper", cfg!(feature = "zookeeper")),
    ("zookeeper+tls", "zookeeper", cfg!(feature = "zookeeper")),
    ("zk+tls", "zookeeper", cfg!(feature = "zookeeper")),
    ("az", "azure", cfg!(feature = "azure")),
    ("azblob", "azure", cfg!(feature = "azure")),
];

/// The URL schemes that were compiled in.
pub fn schemes() -> impl Iterator<Item = &'static str> {
    SCHEMES.into_iter().filter(|(_, _, here)| *here).map(|(scheme, _, _)| scheme)
}

fn not_here(scheme: &str) -> ConfigError {
    let available = schemes().collect::<Vec<_>>().join(", ");
    let problem = match SCHEMES.iter().find(|(known, _, _)| *known == scheme) {
        Some((_, feature, _)) => {
            format!("{scheme:?} is not compiled in (enable feature {feature:?}); available: {available}")
        }
        None => match nearest(scheme, SCHEMES.map(|(known, _, _)| known)) {
            Some(near) => {
                format!("no store is called {scheme:?}; did you mean {near:?}? available: {available}")
            }
            None => format!("no store is called {scheme:?}; available: {available}"),
        },
    };
    ConfigError::new("store", problem)
}
