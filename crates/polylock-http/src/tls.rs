//! Encrypted connections, with the feature `tls`.

use polylock_core::ConfigError;
use reqwest::ClientBuilder;

use crate::config::Config;

/// Returns a client that trusts the authority of the configuration in addition to the system's.
#[cfg(feature = "tls")]
pub(crate) fn configure(builder: ClientBuilder, config: &Config) -> Result<ClientBuilder, ConfigError> {
    polylock_core::url::install_crypto_provider();
    if !config.encrypted {
        return Ok(builder.tls_certs_only([]).http2_prior_knowledge());
    }
    let files = &config.certificates;
    let (Some(ca), Some(pem)) = (&files.ca, files.read()?.ca) else { return Ok(builder) };
    let problem = |problem: &dyn std::fmt::Display| {
        ConfigError::new("polylock.tls_ca", format!("can't read {}: {problem}", ca.display()))
    };
    let certificates = reqwest::Certificate::from_pem_bundle(&pem).map_err(|error| problem(&error))?;
    if certificates.is_empty() {
        return Err(problem(&"it contains no certificate"));
    }
    Ok(builder.tls_certs_merge(certificates))
}

/// Stub for builds without the feature `tls`. `Config::check` refuses encrypted connections.
#[cfg(not(feature = "tls"))]
pub(crate) fn configure(builder: ClientBuilder, _: &Config) -> Result<ClientBuilder, ConfigError> {
    Ok(builder.http2_prior_knowledge())
}
