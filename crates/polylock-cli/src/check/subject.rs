//! The store that is checked, and the namespaces of the check in it.

use std::time::Duration;

use polylock::{Namespaces, Options, Result, core::Locks, read_url};
use polylock_bench::Opened;

use super::configuration::Configuration;
use crate::{
    args::Global,
    exit::{CONFIG, Failure},
    output::Output,
    store,
};

/// The timeout of sessions that have the leases of all locks: the part with faults waits until some expire.
const SESSION: Duration = Duration::from_secs(3);

/// The store that is checked.
pub(super) struct Subject {
    /// The settings of its URL.
    pub(super) options: Options,
    /// The origin of the store, its URL and its name.
    pub(super) configuration: Configuration,
    /// The namespaces of the check.
    pub(super) namespaces: Namespaces,
    opened: Opened,
}

impl Subject {
    /// Determines the store.
    pub(super) fn choose(global: &Global, output: &Output) -> Result<Self, Failure> {
        let store = store::choose(global, output)?;
        let mut url = store.config.into_url()?;
        let configuration =
            Configuration { origin: store.origin, url: url.clone(), display_name: store.display_name };
        let (options, mut config) = read_url(&url)?;
        if config.has_sessions() {
            url.replace("polylock.ttl", polylock::duration::format(SESSION));
            config = read_url(&url)?.1;
        }
        let prefix = format!("polylock_check_{:08x}", fastrand::u32(..));
        let Some(namespaces) = Namespaces::new(config, prefix) else {
            let problem = format!(
                "{} can't be checked, because it has no namespaces that can be deleted",
                configuration.display_name
            );
            return Err(Failure::new(CONFIG, problem));
        };
        Ok(Self { options, configuration, namespaces, opened: Opened::default() })
    }

    /// Opens a namespace.
    pub(super) async fn open(&self, namespace: impl AsRef<str>) -> Result<Locks> {
        self.opened.open(self.namespaces.config(namespace.as_ref()), self.options.ttl).await
    }

    /// Creates what a namespace needs in the store, such as its tables.
    pub(super) async fn prepare(&self, namespace: impl AsRef<str>) -> Result<()> {
        self.opened.prepare(self.namespaces.config(namespace.as_ref())).await
    }

    /// Closes all that was opened, and deletes the namespaces. The child processes must have ended.
    pub(super) async fn clean_up(&self) -> Result<()> {
        let _closed = self.opened.close().await;
        self.namespaces.delete_all().await
    }
}
