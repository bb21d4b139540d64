//! Encrypted connections, with the feature `tls`.

use polylock_core::{ConfigError, url::Certificates};
use zookeeper_client::Connector;

/// Returns the connector with TLS enabled.
#[cfg(feature = "tls")]
pub(crate) fn encrypt(connector: Connector, files: &Certificates) -> Result<Connector, ConfigError> {
    use zookeeper_client::TlsOptions;

    polylock_core::url::install_crypto_provider();
    let files = files.read()?;
    let text = String::from_utf8_lossy;
    let invalid = |key: &'static str| move |error| ConfigError::new(key, format!("can't be used: {error}"));
    let mut options = TlsOptions::new();
    if let Some(ca) = &files.ca {
        options = options.with_pem_ca(&text(ca)).map_err(invalid("polylock.tls_ca"))?;
    }
    if let Some((certificate, key)) = &files.client {
        options = options
            .with_pem_identity(&text(certificate), &text(key))
            .map_err(invalid("polylock.tls_cert"))?;
    }
    Ok(connector.with_tls(options))
}

/// Stub for builds without the feature `tls`: always an error.
#[cfg(not(feature = "tls"))]
pub(crate) fn encrypt(_: Connector, _: &Certificates) -> Result<Connector, ConfigError> {
    Err(polylock_core::url::tls_is_not_compiled_in())
}

/// Performs a TLS handshake with `server` over an open connection, to find the reason why the driver, which does not report it, fails to
/// connect. Blocks for up to the timeouts of `stream`.
#[cfg(feature = "tls")]
pub(crate) fn handshake(
    files: &Certificates,
    server: &str,
    mut stream: std::net::TcpStream,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    use std::io::ErrorKind;

    use rustls::{
        ClientConfig, ClientConnection, RootCertStore,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    };

    let mut roots = RootCertStore::empty();
    if let Some(ca) = &files.ca {
        for certificate in CertificateDer::pem_file_iter(ca)? {
            roots.add(certificate?)?;
        }
    }
    let config = ClientConfig::builder().with_root_certificates(roots);
    let config = match &files.client {
        Some((certificate, key)) => {
            let chain = CertificateDer::pem_file_iter(certificate)?.collect::<Result<_, _>>()?;
            config.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(key)?)?
        }
        None => config.with_no_client_auth(),
    };
    let host = server.rsplit_once(':').map_or(server, |(host, _)| host).trim_matches(['[', ']']);
    let host = ServerName::try_from(host)?.to_owned();
    let mut connection = ClientConnection::new(config.into(), host)?;
    while connection.is_handshaking() {
        if connection.complete_io(&mut stream)? == (0, 0) {
            return Err("the server closed the connection".into());
        }
    }
    // The server rejects a wrong client certificate only after the handshake. In other cases it sends nothing here.
    match connection.read_tls(&mut stream) {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
        Err(error) => return Err(error.into()),
        Ok(_) => {
            connection.process_new_packets()?;
        }
    }
    Ok(())
}

/// Stub for builds without the feature `tls`: there are no encrypted connections.
#[cfg(not(feature = "tls"))]
pub(crate) fn handshake(
    _: &Certificates,
    _: &str,
    _: std::net::TcpStream,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    Ok(())
}
