//! Encrypted connections, with the feature `tls`.

use polylock_core::ConfigError;
use redis::{Client, ConnectionInfo};

use crate::config::Certificates;

/// Returns a client of an encrypted server, with the certificates of `files`, or with those of `server` if there are no files.
#[cfg(feature = "tls")]
pub(crate) fn client(server: ConnectionInfo, files: Option<&Certificates>) -> Result<Client, ConfigError> {
    use redis::{ClientTlsConfig, TlsCertificates};
    use rustls::crypto::{CryptoProvider, ring};

    // The driver uses the process-wide provider of cryptography, and panics if none is installed.
    if CryptoProvider::get_default().is_none() {
        // Another thread may have installed one first, which serves as well.
        ring::default_provider().install_default().ok();
    }
    let problem = |error: redis::RedisError| {
        ConfigError::new("polylock.tls_ca", format!("the certificates can't be used: {error}"))
    };
    let Some(files) = files else { return Client::open(server).map_err(problem) };
    let read = |key: &str, file: &std::path::Path| {
        std::fs::read(file)
            .map_err(|error| ConfigError::new(key, format!("can't read {}: {error}", file.display())))
    };
    let client_tls = match &files.client {
        Some((certificate, key)) => Some(ClientTlsConfig {
            client_cert: read("polylock.tls_cert", certificate)?,
            client_key: read("polylock.tls_key", key)?,
        }),
        None => None,
    };
    let root_cert = files.ca.as_ref().map(|ca| read("polylock.tls_ca", ca)).transpose()?;
    let client = Client::build_with_tls(server, TlsCertificates { client_tls, root_cert });
    client.map_err(problem)
}

/// Stub for builds without the feature `tls`: always an error.
#[cfg(not(feature = "tls"))]
pub(crate) fn client(_: ConnectionInfo, _: Option<&Certificates>) -> Result<Client, ConfigError> {
    Err(ConfigError::new("store", "encrypted connections are not compiled in: enable feature \"tls\""))
}
