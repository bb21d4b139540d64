//! Encrypted connections, with the feature `tls`.

use std::error::Error;

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
pub(crate) fn configure(
    builder: ClientBuilder,
    _: bool,
    _: &Certificates,
) -> Result<ClientBuilder, ConfigError> {
    Ok(builder)
}

/// Returns true if an error is about the server's certificate. A retry does not help then.
#[cfg(feature = "tls")]
pub(crate) fn is_untrusted(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if matches!(error.downcast_ref(), Some(rustls::Error::InvalidCertificate(_))) {
            return true;
        }
        // The `source` of an I/O error is that of the error in it, not the error itself.
        let within = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        cause = within.map(|error| error as &(dyn Error + 'static)).or_else(|| error.source());
    }
    false
}

/// Stub for builds without the feature `tls`: no server has presented a certificate.
#[cfg(not(feature = "tls"))]
pub(crate) fn is_untrusted(_: &(dyn Error + 'static)) -> bool {
    false
}
