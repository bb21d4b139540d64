//! Encrypted connections, with the feature `tls`.

use polylock_core::{ConfigError, url::Certificates};
use redis::{Client, ConnectionInfo};

/// Returns a client of an encrypted server, with the certificates of `files`, or with those of `server` if there are no files.
#[cfg(feature = "tls")]
pub(crate) fn client(server: ConnectionInfo, files: Option<&Certificates>) -> Result<Client, ConfigError> {
    use redis::{ClientTlsConfig, TlsCertificates};

    polylock_core::url::install_crypto_provider();
    let client = match files {
        None => Client::open(server),
        Some(files) => {
            let files = files.read()?;
            let client_tls =
                files.client.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
            Client::build_with_tls(server, TlsCertificates { client_tls, root_cert: files.ca })
        }
    };
    client.map_err(|error| {
        ConfigError::new("polylock.tls_ca", format!("the certificates can't be used: {error}"))
    })
}

/// Stub for builds without the feature `tls`: always an error.
#[cfg(not(feature = "tls"))]
pub(crate) fn client(_: ConnectionInfo, _: Option<&Certificates>) -> Result<Client, ConfigError> {
    Err(polylock_core::url::tls_is_not_compiled_in())
}
