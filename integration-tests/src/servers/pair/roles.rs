//! What the servers of each product do in a switch-over.

use std::fmt;

use crate::servers::private::{PrivateServer, blocking};

/// The roles of two servers of a product.
pub(super) trait Roles: fmt::Debug + Send + Sync {
    /// Returns the URL of the primary for clients.
    fn url(&self, primary: &PrivateServer) -> String {
        primary.url().to_owned()
    }

    /// Ends the role of the primary: it accepts no writes any more, and the standby has all that it has acknowledged. Returns the server that
    /// clients may read from until the standby is promoted.
    fn resign<'p>(
        &self,
        primary: &'p PrivateServer,
        standby: &'p PrivateServer,
        kills: bool,
    ) -> &'p PrivateServer;

    /// Makes the standby accept writes.
    fn promote(&self, standby: &PrivateServer);

    /// Makes the former primary a standby, and returns when it has all writes of the primary.
    fn follow(&self, former: &PrivateServer, primary: &PrivateServer);
}

/// Runs `future` to its end.
///
/// # Panics
/// If it fails.
pub(super) fn done<T: Send, E: fmt::Display>(
    what: &str,
    future: impl Future<Output = Result<T, E>> + Send,
) -> T {
    let future = async { future.await.map_err(|error| error.to_string()) };
    blocking(future).and_then(|done| done).unwrap_or_else(|why| panic!("{what}: {why}"))
}
