//! Encrypted connections in a build without the feature `tls`: an error.

use std::{convert::Infallible, path::Path};

use polylock_core::{ConfigError, url::tls_is_not_compiled_in};
use tokio::net::TcpStream;

use crate::access::Peer;

/// The certificate of a server, which does not exist in this build.
#[derive(Debug, Clone)]
pub struct Tls(Infallible);

impl Tls {
    /// Reports the missing feature.
    ///
    /// # Errors
    /// [`ConfigError`] always.
    pub fn read(_: &Path, _: &Path, _: Option<&Path>) -> Result<Self, ConfigError> {
        Err(tls_is_not_compiled_in())
    }

    pub(crate) async fn accept(&self, _: TcpStream) -> std::io::Result<(TcpStream, Peer)> {
        match self.0 {}
    }
}
