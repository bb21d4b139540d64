#![doc = include_str!("docs.md")]

mod config;
mod keep_alive;
mod nodes;
mod topology;

use polylock_core::{Result, Store};

pub use config::Config;
pub(crate) use nodes::Nodes;

use crate::queue::Opening;

/// The store's name in errors, metrics and URLs.
const NAME: &str = "redis-cluster";

/// Opens the store.
///
/// # Errors
/// [`polylock_core::Error::Config`] if the configuration makes no sense, [`polylock_core::Error::Unavailable`] if no node can be
/// reached, or one of the primaries refuses the user or has a setting that breaks locks.
///
/// # Cancel safety
/// Yes: nothing is left behind.
pub async fn connect(config: Config) -> Result<Store> {
    let settings = config.into_settings();
    polylock_core::io::run(NAME, async move { Opening::new(NAME, settings)?.in_cluster().await }).await?
}
