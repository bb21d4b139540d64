//! The store that is checked, and the namespaces of the check in it.

use std::{sync::Arc, time::Duration};

use polylock::{Namespaces, Options, Result, StoreConfig, core::Locks, read_url};
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

/// That of the sessions of the cases, which have leases of up to a minute. A server may keep them for less.
const SESSION_OF_CASES: Duration = Duration::from_secs(120);

/// The store that is checked.
pub(super) struct Subject {
    /// The settings of its URL.
    pub(super) options: Options,
    /// The origin of the store, its URL and its name.
    pub(super) configuration: Configuration,
    /// The namespaces of the check.
    pub(super) namespaces: Namespaces,
    /// The store with long sessions, if it has sessions.
    of_cases: Option<Arc<dyn StoreConfig>>,
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
        let mut of_cases = None;
        if config.has_sessions() {
            let mut long = url.clone();
            long.replace("polylock.session_timeout", polylock::duration::format(SESSION_OF_CASES));
            of_cases = Some(read_url(&long)?.1);
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
        Ok(Self { options, configuration, namespaces, of_cases, opened: Opened::default() })
    }

    /// Returns the configuration of a namespace for a case of the suite.
    pub(super) fn config_of_case(&self, namespace: &str) -> Arc<dyn StoreConfig> {
        let long = self.of_cases.as_ref().and_then(|config| config.in_namespace(namespace));
        long.unwrap_or_else(|| self.namespaces.config(namespace))
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
