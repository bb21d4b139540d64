//! Encrypted connections, if they are compiled in.

use polylock_core::ConfigError;
use zookeeper_client::Connector;

use crate::config::Certificates;

/// The same connector for encrypted connections.
#[cfg(feature = "tls")]
pub(crate) fn encrypt(connector: Connector, files: &Certificates) -> Result<Connector, ConfigError> {
    use rustls::crypto::{CryptoProvider, ring};
    use zookeeper_client::TlsOptions;

    // The driver asks for the program's one provider of cryptography, and panics if there is none to choose.
    if CryptoProvider::get_default().is_none() {
        // If another thread was quicker, its one is as good.
        ring::default_provider().install_default().ok();
    }
    let read = |key: &str, file: &std::path::Path| {
        std::fs::read_to_string(file)
            .map_err(|error| ConfigError::new(key, format!("can't read {}: {error}", file.display())))
    };
    let unfit = |key: &'static str| move |error| ConfigError::new(key, format!("can't be used: {error}"));
    let mut options = TlsOptions::new();
    if let Some(ca) = &files.ca {
        options = options.with_pem_ca(&read("polylock.tls_ca", ca)?).map_err(unfit("polylock.tls_ca"))?;
    }
    if let Some((certificate, key)) = &files.client {
        let (certificate, key) = (read("polylock.tls_cert", certificate)?, read("polylock.tls_key", key)?);
        options = options.with_pem_identity(&certificate, &key).map_err(unfit("polylock.tls_cert"))?;
    }
    Ok(connector.with_tls(options))
}

/// They are not.
#[cfg(not(feature = "tls"))]
pub(crate) fn encrypt(_: Connector, _: &Certificates) -> Result<Connector, ConfigError> {
    Err(ConfigError::new("store", "encrypted connections are not compiled in: enable feature \"tls\""))
}
