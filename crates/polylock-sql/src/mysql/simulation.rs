//! The store on the connections of a simulated process, for tests in virtual time. This module is unstable: it is no part of the interface
//! that versions promise.

use polylock_core::{Result, Store};
use sqlx::MySql;

use super::{config::Config, dialect::MySqlDialect};
use crate::{
    engine::{LeaseBackend, server::pool::Server, source::Source},
    simulation::Simulated,
};

/// Opens the store on the simulated server at `address`, which has the tables and the routines.
///
/// # Errors
/// [`polylock_core::Error::Unavailable`] if the server can't be reached.
///
/// # Cancel safety
/// Yes.
pub async fn connect(config: Config, address: String) -> Result<Store> {
    polylock_core::io::run(super::NAME, async move {
        let (server, _) =
            Server::<Simulated<MySql>>::pools(&Source::new(address.clone()), &address, &config.common);
        server.acquire_to_open().await?.return_to_pool();
        Ok(LeaseBackend::open(MySqlDialect::new(&config, server, true)).await)
    })
    .await?
}
