//! The certificate files of encrypted connections.

use std::path::{Path, PathBuf};

use super::keys::Keys;
use crate::ConfigError;

const CA: &str = "polylock.tls_ca";
const CERTIFICATE: &str = "polylock.tls_cert";
const KEY: &str = "polylock.tls_key";

/// The certificate files of an encrypted connection, in PEM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Certificates {
    /// The certificate of the authority that signed the server's certificate; `None` for the system's authorities.
    pub ca: Option<PathBuf>,
    /// The client's own certificate and its key.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// The contents of [`Certificates`].
#[derive(Clone, Default)]
pub struct Pem {
    /// The contents of [`Certificates::ca`].
    pub ca: Option<Vec<u8>>,
    /// The contents of [`Certificates::client`].
    pub client: Option<(Vec<u8>, Vec<u8>)>,
}

impl std::fmt::Debug for Pem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // It contains the client's key.
        f.debug_struct("Pem").finish_non_exhaustive()
    }
}

impl Certificates {
    /// Takes `polylock.tls_ca`, `polylock.tls_cert` and `polylock.tls_key`.
    ///
    /// # Errors
    /// [`ConfigError`] if only one of the last two is given.
    pub fn from_keys(keys: &mut Keys) -> Result<Self, ConfigError> {
        let client = keys.pair(CERTIFICATE, KEY)?;
        let client = client.map(|(certificate, key)| (certificate.into(), key.into()));
        Ok(Self { client, ..Self::ca_from_keys(keys) })
    }

    /// Takes `polylock.tls_ca`, for a store whose client has no certificate.
    pub fn ca_from_keys(keys: &mut Keys) -> Self {
        Self { ca: keys.text(CA).map(PathBuf::from), client: None }
    }

    /// Returns the URL keys and the files that they name: the certificate authority, the client's certificate, its key.
    #[must_use]
    pub fn files(&self) -> [(&'static str, Option<&Path>); 3] {
        let (certificate, key) = self.client.as_ref().map(|(one, other)| (&**one, &**other)).unzip();
        [(CA, self.ca.as_deref()), (CERTIFICATE, certificate), (KEY, key)]
    }

    /// Returns true if a file is named.
    #[must_use]
    pub const fn are_named(&self) -> bool {
        self.ca.is_some() || self.client.is_some()
    }

    /// Checks that no file is named unless connections are `encrypted`. The error ends with `remedy`.
    ///
    /// # Errors
    /// [`ConfigError`] on `polylock.tls_ca`.
    pub fn check(&self, encrypted: bool, remedy: &str) -> Result<(), ConfigError> {
        if self.are_named() && !encrypted {
            return Err(ConfigError::new(
                CA,
                format!("certificates are for encrypted connections: {remedy}"),
            ));
        }
        Ok(())
    }

    /// Reads the files.
    ///
    /// # Errors
    /// [`ConfigError`] on the key of a file that can't be read.
    pub fn read(&self) -> Result<Pem, ConfigError> {
        let client = match &self.client {
            Some((certificate, key)) => Some((read(CERTIFICATE, certificate)?, read(KEY, key)?)),
            None => None,
        };
        Ok(Pem { ca: self.ca.as_deref().map(|ca| read(CA, ca)).transpose()?, client })
    }
}

#[cfg(feature = "tls")]
impl Certificates {
    /// Returns the certificates in the file of the authority, each as DER; none without a file.
    ///
    /// # Errors
    /// [`ConfigError`] on `polylock.tls_ca` if the file can't be read, or contains no certificate.
    pub fn authorities(&self) -> Result<Vec<Vec<u8>>, ConfigError> {
        use rustls::pki_types::{CertificateDer, pem::PemObject};

        let Some(file) = &self.ca else { return Ok(Vec::new()) };
        let problem =
            |problem: String| ConfigError::new(CA, format!("can't read {}: {problem}", file.display()));
        let pem = read(CA, file)?;
        let certificates =
            CertificateDer::pem_slice_iter(&pem).map(|found| found.map(|found| found.to_vec()));
        let certificates: Vec<_> =
            certificates.collect::<Result<_, _>>().map_err(|error| problem(error.to_string()))?;
        if certificates.is_empty() {
            return Err(problem("it contains no certificate".to_owned()));
        }
        Ok(certificates)
    }
}

fn read(key: &str, file: &Path) -> Result<Vec<u8>, ConfigError> {
    std::fs::read(file)
        .map_err(|error| ConfigError::new(key, format!("can't read {}: {error}", file.display())))
}

/// Returns the error for an encrypted connection in a build of a store without its feature `tls`.
#[must_use]
pub fn tls_is_not_compiled_in() -> ConfigError {
    ConfigError::new("store", "encrypted connections are not compiled in: enable feature \"tls\"")
}

/// Returns true if an error is about the certificate of a server. A retry does not help then.
#[cfg(feature = "tls")]
#[must_use]
pub fn is_untrusted(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if matches!(error.downcast_ref(), Some(rustls::Error::InvalidCertificate(_))) {
            return true;
        }
        // The `source` of an I/O error is that of the error in it, not the error itself.
        let within = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        cause = within.map(|error| error as &(dyn std::error::Error + 'static)).or_else(|| error.source());
    }
    false
}

/// Without the feature `tls`, no server presents a certificate.
#[cfg(not(feature = "tls"))]
#[must_use]
pub fn is_untrusted(_: &(dyn std::error::Error + 'static)) -> bool {
    false
}

/// Installs a process-wide provider of cryptography, unless there is one. Drivers that use `rustls` panic without it.
#[cfg(feature = "tls")]
pub fn install_crypto_provider() {
    use rustls::crypto::{CryptoProvider, ring};

    if CryptoProvider::get_default().is_none() {
        // An error means that another thread has installed one meanwhile, which serves as well.
        ring::default_provider().install_default().ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::url::StoreUrl;

    #[test]
    fn files_are_named_by_keys_and_only_for_encrypted_connections() {
        let url = StoreUrl::parse("x:?polylock.tls_ca=/ca&polylock.tls_cert=/c&polylock.tls_key=/k").unwrap();
        let files = Certificates::from_keys(&mut url.keys()).unwrap();
        let expected = Certificates { ca: Some("/ca".into()), client: Some(("/c".into(), "/k".into())) };
        assert_eq!(files, expected);
        assert_eq!(files.check(true, ""), Ok(()));
        let error = files.check(false, "write y:").unwrap_err().to_string();
        assert_eq!(error, "polylock.tls_ca: certificates are for encrypted connections: write y:");
        assert_eq!(Certificates::default().check(false, ""), Ok(()));
    }

    #[test]
    fn a_file_that_cannot_be_read_is_an_error_on_its_key() {
        let ca = Certificates { ca: Some("/missing/ca".into()), client: None };
        let error = ca.read().unwrap_err();
        assert!(error.key == "polylock.tls_ca" && error.problem.contains("/missing/ca"), "{error}");
        let client = Certificates { ca: None, client: Some((file!().into(), "/missing/key".into())) };
        assert!(["polylock.tls_cert", "polylock.tls_key"].contains(&&*client.read().unwrap_err().key));
    }
}
