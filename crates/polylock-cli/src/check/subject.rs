//! The store that is checked, and the namespaces of the check in it.

use std::time::Duration;

use polylock::{
    Namespaces, Options, Result,
    core::{Locks, connect_within},
    read_url,
};

use super::configuration::Configuration;
use crate::{
    args::Global,
    exit::{CONFIG, Failure},
    output::Output,
    store,
};

/// The timeout of sessions that have the leases of all locks: the part with faults waits until some expire.
const SESSION: Duration = Duration::from_secs(3);
/// The time for which the store may be unreachable: a check is interactive.
const OUTAGE: Duration = Duration::from_secs(5);

/// The store that is checked.
pub(super) struct Subject {
    /// The settings of its URL.
    pub(super) options: Options,
    /// The origin of the store, its URL and its name.
    pub(super) configuration: Configuration,
    /// The namespaces of the check.
    pub(super) namespaces: Namespaces,
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
        Ok(Self { options, configuration, namespaces })
    }

    /// Opens a namespace.
    pub(super) async fn open(&self, namespace: impl AsRef<str>) -> Result<Locks> {
        let config = self.namespaces.config(namespace.as_ref());
        let store = connect_within(OUTAGE, &polylock::Progress::default(), || config.open()).await?;
        let mut options = Options::default();
        options.ttl = store.backend.capabilities().nearest_ttl(self.options.ttl);
        Ok(Locks::builder(store).options(options).build())
    }
}
