#![doc = include_str!("docs.md")]

mod config;
mod watchers;

use std::sync::Arc;

use polylock_core::{Fencing, Result, Store};

pub use config::Config;
pub(crate) use watchers::Sentinels;

use crate::{
    link::{Expected, Route},
    queue::Opening,
};

/// The store's name in errors, metrics and URLs.
const NAME: &str = "redis+sentinel";

/// Opens the store.
///
/// # Errors
/// [`polylock_core::Error::Config`] if the configuration makes no sense, [`polylock_core::Error::Unavailable`] if no Sentinel knows the
/// primary, or if that can't be reached, refuses the user, or has a setting that breaks locks.
///
/// # Cancel safety
/// Yes: nothing is left behind.
pub async fn connect(config: Config) -> Result<Store> {
    polylock_core::io::run(NAME, async move {
        let sentinels = Arc::new(Sentinels::new(&config)?);
        let opening = Opening::new(NAME, config.into_settings())?;
        let mut endpoint = opening.endpoint()?;
        endpoint.address = sentinels.place();
        endpoint.expected = Expected::NamedPrimary;
        endpoint.route = Route::Watched(sentinels);
        // A replica whose clock is behind may become the primary.
        opening.on_one(endpoint, Fencing::WhileRunning).await
    })
    .await?
}
