//! Opening a store by URL.

use std::{ops::Deref, sync::Arc, time::Duration};

use polylock_core::{
    Clock, ConfigError, Error, Label, OwnerId, Progress, Result, Store, connect_within, duration,
    metrics::Metrics, url::StoreUrl,
};

use crate::{LocksConfig, schemes};

/// The locks of one store, opened by URL. It derefs to [`polylock_core::Locks`], which has all other methods.
///
/// A clone is another handle to the same open store.
#[derive(Debug, Clone)]
pub struct Locks(polylock_core::Locks);

impl Locks {
    /// Opens the store at `url`; see the [crate's page](crate#stores) for the URLs.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) on key `store` for a scheme that is unknown or not compiled in, and on an unknown or
    /// invalid key of the URL. Otherwise the error of the store, if it fails permanently, or remains unreachable for as long as
    /// `polylock.outage` (30 s by default) and `polylock.wait` allow.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::builder(url).connect().await
    }

    /// Returns a builder for the locks of the store at `url`.
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

    /// Opens the store of `config`, exactly as [`connect`](Self::connect) with the same keys in a URL.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn from_config(config: LocksConfig) -> Result<Self> {
        Self::builder_from_config(config).connect().await
    }

    /// Returns a builder for the locks of the store of `config`.
    pub fn builder_from_config(config: LocksConfig) -> LocksBuilder {
        LocksBuilder::new(config.into_url())
    }

    /// Returns the locks of a store that was opened in another way, your own store for instance.
    #[must_use]
    pub fn new(store: Store) -> Self {
        Self(polylock_core::Locks::new(store))
    }

    /// Waits until all background releases are done, `within` at most; see [`polylock_core::Locks::close`].
    ///
    /// # Cancel safety
    /// Dropping it stops the wait, not the releases.
    pub async fn close(self, within: Duration) -> bool {
        self.0.close(within).await
    }
}

/// Configures [`Locks`]: created by [`Locks::builder`], completed by [`connect`](Self::connect).
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

    /// Sets the default TTL: the time after which the lock of a dead holder is free. It replaces `polylock.ttl` of the URL. With
    /// ZooKeeper it is the timeout of the session to which the locks belong.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self.set("polylock.ttl", ttl)
    }

    /// Sets the time limit of waits for a lock, and for the store when it is opened. It replaces `polylock.wait` of the URL. With
    /// [`Duration::ZERO`], each is tried once.
    pub fn wait(self, wait: Duration) -> Self {
        self.set("polylock.wait", wait)
    }

    /// Sets the maximum time for which the store may be unreachable without interruption, also when it is opened. It replaces
    /// `polylock.outage` of the URL.
    pub fn outage(self, outage: Duration) -> Self {
        self.set("polylock.outage", outage)
    }

    /// Sets the interval of the check for deadlocks, see [`Options::deadlock_check`](crate::Options::deadlock_check). It replaces
    /// `polylock.deadlock_check` of the URL.
    pub fn deadlock_check(self, interval: Duration) -> Self {
        self.set("polylock.deadlock_check", interval)
    }

    /// Sets the receiver of the progress of [`connect`](Self::connect), an outage of the store, for a display.
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

    /// Sets the default owner: `host:pid` if this is not called.
    pub fn owner(mut self, owner: &OwnerId) -> Self {
        self.owner = Some(owner.clone());
        self
    }

    /// Sets the default label, the purpose of the locks: at most 255 bytes without control characters.
    pub fn label(mut self, label: impl AsRef<str>) -> Self {
        self.label = Some(Label::new(label));
        self
    }

    /// Sets the clock of the deadlines, for tests. The default is the machine's clock, which includes suspended time.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Sets the recipient of measurements. With the feature `metrics`, the default is the `metrics` crate's global recorder; see
    /// [`metrics`](crate::metrics) for the names.
    pub fn metrics(mut self, metrics: Arc<dyn Metrics>) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// Opens the store. An unreachable store is retried for as long as an [`outage`](Self::outage) may last, and a [`wait`](Self::wait).
    ///
    /// # Errors
    /// As [`Locks::connect`], and [`Error::Config`](crate::Error::Config) on key `label`.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn connect(self) -> Result<Locks> {
        let url = self.url?;
        let (mut options, config) = schemes::read_url(&url)?;
        let adjusts_ttl = url.keys().text("polylock.ttl").is_none() || config.has_sessions();
        let label = self.label.transpose()?;
        let limit = options.wait.unwrap_or(Duration::MAX).min(options.outage);
        let store = connect_within(schemes::name(&url), limit, &self.progress, || config.open()).await?;
        let capabilities = store.backend.capabilities();
        if let (Some(ttl), true) = (self.ttl, config.has_sessions()) {
            // The longest lease is half of the session that the servers have granted.
            let max = Duration::from_millis(to_milliseconds(*capabilities.ttl.end() * 2));
            if ttl > max {
                return Err(Error::InvalidTtl {
                    backend: capabilities.backend,
                    ttl,
                    min: *capabilities.ttl.start(),
                    max,
                });
            }
        }
        if adjusts_ttl {
            options.ttl = capabilities.nearest_ttl(options.ttl);
        }
        let metrics = self.metrics.or_else(|| default_metrics(capabilities.backend));
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

fn to_milliseconds(time: Duration) -> u64 {
    u64::try_from((time + Duration::from_micros(500)).as_millis()).unwrap_or(u64::MAX)
}
