//! Encrypted connections, with the feature `tls`.

use std::{fmt, path::Path, sync::Arc};

use polylock_core::{ConfigError, url::install_crypto_provider};
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use crate::access::{Peer, hash};

/// The certificate of a server, and the authority of its clients. Copies share it.
#[derive(Clone)]
pub struct Tls(TlsAcceptor);

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It contains the key.
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads the PEM files of the server's certificate with its chain, of its key, and of the authorities of its clients' certificates. A client need
    /// not have one, unless it has no token.
    ///
    /// # Errors
    /// [`ConfigError`] on a file that can't be read or used, with the option of the command line.
    pub fn read(certificate: &Path, key: &Path, clients: Option<&Path>) -> Result<Self, ConfigError> {
        install_crypto_provider();
        let chain = certificates("--tls-cert", certificate)?;
        let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| problem("--tls-key", key, error))?;
        let builder = ServerConfig::builder();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(file) => builder.with_client_cert_verifier(verifier(file)?),
        };
        let mut config = builder
            .with_single_cert(chain, secret)
            .map_err(|error| problem("--tls-cert", certificate, error))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }

    /// Encrypts a connection. Returns the certificate of the client, too.
    pub(crate) async fn accept(&self, stream: TcpStream) -> std::io::Result<(TlsStream<TcpStream>, Peer)> {
        let stream = self.0.accept(stream).await?;
        let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let peer = Peer(certificate.map(|certificate| hash(certificate)));
        Ok((stream, peer))
    }
}

fn verifier(file: &Path) -> Result<Arc<dyn ClientCertVerifier>, ConfigError> {
    let mut roots = RootCertStore::empty();
    for authority in certificates("--tls-client-ca", file)? {
        roots.add(authority).map_err(|error| problem("--tls-client-ca", file, error))?;
    }
    let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).allow_unauthenticated().build();
    verifier.map_err(|error| problem("--tls-client-ca", file, error))
}

fn certificates(option: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let found = CertificateDer::pem_file_iter(file).map_err(|error| problem(option, file, error))?;
    let found: Vec<_> = found.collect::<Result<_, _>>().map_err(|error| problem(option, file, error))?;
    if found.is_empty() {
        return Err(problem(option, file, "it contains no certificate"));
    }
    Ok(found)
}

fn problem(option: &str, file: &Path, problem: impl fmt::Display) -> ConfigError {
    ConfigError::new(option, format!("can't use {}: {problem}", file.display()))
}
