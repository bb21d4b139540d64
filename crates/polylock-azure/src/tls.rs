//! Encrypted connections, if they are compiled in.

use std::{error::Error, path::Path};

use polylock_core::ConfigError;
use reqwest::ClientBuilder;

/// A client of https, which trusts the authority of `ca`, a PEM file, beside the system's.
#[cfg(feature = "tls")]
pub(crate) fn prepare(builder: ClientBuilder, ca: Option<&Path>) -> Result<ClientBuilder, ConfigError> {
    use reqwest::Certificate;
    use rustls::crypto::{CryptoProvider, ring};

    // The client asks for the program's one provider of cryptography, and panics if there is none to choose.
    if CryptoProvider::get_default().is_none() {
        // If another thread was quicker, its one is as good.
        ring::default_provider().install_default().ok();
    }
    let Some(ca) = ca else { return Ok(builder) };
    let problem = |problem: &dyn std::fmt::Display| {
        ConfigError::new("polylock.tls_ca", format!("can't read {}: {problem}", ca.display()))
    };
    let pem = std::fs::read(ca).map_err(|error| problem(&error))?;
    let certificates = Certificate::from_pem_bundle(&pem).map_err(|error| problem(&error))?;
    if certificates.is_empty() {
        return Err(problem(&"there is no certificate in it"));
    }
    Ok(builder.tls_certs_merge(certificates))
}

/// They are not, and nobody asks for them: see `Config::check`.
#[cfg(not(feature = "tls"))]
pub(crate) fn prepare(builder: ClientBuilder, _: Option<&Path>) -> Result<ClientBuilder, ConfigError> {
    Ok(builder)
}

/// Whether an error is about the server's certificate, which trying again does not change.
#[cfg(feature = "tls")]
pub(crate) fn is_distrust(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if matches!(error.downcast_ref(), Some(rustls::Error::InvalidCertificate(_))) {
            return true;
        }
        // Its source is that of the error in it, not the error itself.
        let within = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        cause = within.map(|error| error as &(dyn Error + 'static)).or_else(|| error.source());
    }
    false
}

/// Nobody has shown one.
#[cfg(not(feature = "tls"))]
pub(crate) fn is_distrust(_: &(dyn Error + 'static)) -> bool {
    false
}
