#![doc = include_str!("docs.md")]

mod config;

use polylock_core::{Fencing, Result, Store};

pub use config::Config;

use crate::queue::Opening;

/// The store's name in errors, metrics and URLs.
const NAME: &str = "redis";

/// Opens the store.
///
/// # Errors
/// [`polylock_core::Error::Config`] if the configuration makes no sense, [`polylock_core::Error::Unavailable`] if the server
/// can't be reached, refuses the user, or has a setting that breaks locks.
///
/// # Cancel safety
/// Yes: nothing is left behind.
pub async fn connect(config: Config) -> Result<Store> {
    let settings = config.into_settings();
    polylock_core::io::run(NAME, async move {
        let opening = Opening::new(NAME, settings)?;
        let endpoint = opening.endpoint()?;
        opening.on_one(endpoint, Fencing::Durable).await
    })
    .await?
}
