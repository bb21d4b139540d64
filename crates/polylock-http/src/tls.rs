//! Encrypted connections, with the feature `tls`.

use polylock_core::ConfigError;
use reqwest::ClientBuilder;

use crate::config::Config;

/// Returns a client that speaks HTTP/2, trusts the authority of the configuration in addition to the system's, and has its certificate.
#[cfg(feature = "tls")]
pub(crate) fn configure(builder: ClientBuilder, config: &Config) -> Result<ClientBuilder, ConfigError> {
    polylock_core::url::install_crypto_provider();
    if !config.encrypted {
        // Reading the system's authorities takes some time.
        return Ok(builder.tls_certs_only([]).http2_prior_knowledge());
    }
    let mut certificates = Vec::new();
    for der in config.certificates.authorities()? {
        let certificate = reqwest::Certificate::from_der(&der);
        certificates
            .push(certificate.map_err(|error| ConfigError::new("polylock.tls_ca", error.to_string()))?);
    }
    let builder = builder.tls_certs_merge(certificates);
    let Some((certificate, key)) = config.certificates.read()?.client else { return Ok(builder) };
    let identity = reqwest::Identity::from_pem(&[certificate, key].join(&b'\n'));
    let identity = identity.map_err(|error| ConfigError::new("polylock.tls_cert", error.to_string()))?;
    Ok(builder.identity(identity))
}

/// Stub for builds without the feature `tls`. `Config::check` refuses encrypted connections.
#[cfg(not(feature = "tls"))]
pub(crate) fn configure(builder: ClientBuilder, _: &Config) -> Result<ClientBuilder, ConfigError> {
    Ok(builder.http2_prior_knowledge())
}
