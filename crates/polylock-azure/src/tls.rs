//! Encrypted connections, with the feature `tls`.

use polylock_core::{ConfigError, url::Certificates};
use reqwest::ClientBuilder;

/// Returns a client that trusts the authority of `files` in addition to the system's; of none without encryption, because to read
/// the system's takes some time.
#[cfg(feature = "tls")]
pub(crate) fn configure(
    builder: ClientBuilder,
    encrypted: bool,
    files: &Certificates,
) -> Result<ClientBuilder, ConfigError> {
    polylock_core::url::install_crypto_provider();
    if !encrypted {
        return Ok(builder.tls_certs_only([]));
    }
    let certificates = files.authorities()?;
    let certificates = certificates.iter().map(|der| reqwest::Certificate::from_der(der));
    let certificates = certificates.collect::<Result<Vec<_>, _>>();
    let problem = |error: reqwest::Error| ConfigError::new("polylock.tls_ca", error.to_string());
    Ok(builder.tls_certs_merge(certificates.map_err(problem)?))
}

/// Stub for builds without the feature `tls`. `Config::check` refuses encrypted connections.
#[cfg(not(feature = "tls"))]
pub(crate) fn configure(
    builder: ClientBuilder,
    _: bool,
    _: &Certificates,
) -> Result<ClientBuilder, ConfigError> {
    Ok(builder)
}
