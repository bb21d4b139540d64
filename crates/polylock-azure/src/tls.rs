//! Encrypted connections, with the feature `tls`.

use std::{error::Error, path::Path};

use polylock_core::ConfigError;
use reqwest::ClientBuilder;

/// Returns a client of https, which trusts the authority of `ca`, a PEM file, in addition to the system's.
#[cfg(feature = "tls")]
pub(crate) fn configure(builder: ClientBuilder, ca: Option<&Path>) -> Result<ClientBuilder, ConfigError> {
    use reqwest::Certificate;
    use rustls::crypto::{CryptoProvider, ring};

    // The client uses the process-wide provider of cryptography, and panics if none is installed.
    if CryptoProvider::get_default().is_none() {
        // Another thread may have installed one first, which serves as well.
        ring::default_provider().install_default().ok();
    }
    let Some(ca) = ca else { return Ok(builder) };
    let problem = |problem: &dyn std::fmt::Display| {
        ConfigError::new("polylock.tls_ca", format!("can't read {}: {problem}", ca.display()))
    };
    let pem = std::fs::read(ca).map_err(|error| problem(&error))?;
    let certificates = Certificate::from_pem_bundle(&pem).map_err(|error| problem(&error))?;
    if certificates.is_empty() {
        return Err(problem(&"it contains no certificate"));
    }
    Ok(builder.tls_certs_merge(certificates))
}

/// Stub for builds without the feature `tls`. `Config::check` refuses encrypted connections.
#[cfg(not(feature = "tls"))]
pub(crate) fn configure(builder: ClientBuilder, _: Option<&Path>) -> Result<ClientBuilder, ConfigError> {
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
