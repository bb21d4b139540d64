//! Configuration of the store.

use std::{fmt, ops::RangeInclusive, path::PathBuf, sync::Arc, time::Duration};

use azure_core::{credentials::TokenCredential, http::Url};
use polylock_core::{
    ConfigError, duration,
    url::{self, Certificates, Keys, StoreUrl, tls_is_not_compiled_in},
};

use crate::{
    account::{self, Credential, Location, SAS},
    signing::SharedKey,
    wake_signal::WakeSignal,
};

const REQUEST_TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(60);
const CONNECT_TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(5)..=Duration::from_secs(600);

/// The container, the account, and the settings of the store. See the [crate](crate) for the options.
///
/// ```
/// use std::time::Duration;
/// use polylock_azure::Config;
///
/// let config = Config::new("az://locks@myaccount/app?polylock.account_key=Y2FuYXJ5")?
///     .operation_timeout(Duration::from_secs(2));
/// assert!(!format!("{config:?}").contains("Y2FuYXJ5"));
///
/// let config = Config::new("az://locks/app?emulator=true")?;
/// # Ok::<_, polylock_core::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct Config {
    pub(crate) container: String,
    /// The beginning of the blobs' names, without the slash.
    pub(crate) prefix: String,
    /// The account's own URL, to which the container is appended.
    pub(crate) endpoint: Url,
    pub(crate) credential: Option<Credential>,
    pub(crate) operation_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) create_container: bool,
    pub(crate) certificates: Certificates,
    pub(crate) wake_signal: WakeSignal,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("container", &self.container)
            .field("prefix", &self.prefix)
            .field("endpoint", &self.endpoint.as_str())
            .field("credential", &self.credential)
            .field("operation_timeout", &self.operation_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("create_container", &self.create_container)
            .field("certificates", &self.certificates)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// The default of the path in the container, below which the blobs of locks are.
    pub const DEFAULT_NAMESPACE: &str = "polylock";
    /// The default of [`operation_timeout`](Self::operation_timeout).
    pub const DEFAULT_OPERATION_TIMEOUT: Duration = Duration::from_secs(3);
    /// The default of [`connect_timeout`](Self::connect_timeout).
    pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

    /// Reads the container of a URL, `az://container@account/prefix?key=value`, also `azblob://`. The account may be missing if another key
    /// names it: a connection string, an endpoint, the emulator.
    ///
    /// # Errors
    /// [`ConfigError`] on an invalid URL or key.
    pub fn new(url: &str) -> Result<Self, ConfigError> {
        url::read(url, Self::from_url)
    }

    /// Reads a URL as [`new`](Self::new) does, and takes the store's keys from `keys`.
    ///
    /// # Errors
    /// [`ConfigError`] on an invalid URL or key.
    pub fn from_url(url: &StoreUrl, keys: &mut Keys) -> Result<Self, ConfigError> {
        let Location { container, account, endpoint, prefix } = account::location(url)?;
        let account = account::Account::from_keys(account, endpoint, keys)?;
        let yes_or_no = [("true", true), ("false", false)];
        let config = Self {
            container,
            prefix: prefix.unwrap_or_else(|| Self::DEFAULT_NAMESPACE.to_owned()),
            endpoint: account.endpoint,
            credential: account.credential,
            operation_timeout: keys
                .duration("polylock.operation_timeout")?
                .unwrap_or(Self::DEFAULT_OPERATION_TIMEOUT),
            connect_timeout: keys
                .duration("polylock.connect_timeout")?
                .unwrap_or(Self::DEFAULT_CONNECT_TIMEOUT),
            create_container: keys.choice("polylock.create_container", &yes_or_no)?.unwrap_or(true),
            certificates: Certificates::ca_from_keys(keys),
            wake_signal: WakeSignal::default(),
        };
        config.check_times()?;
        Ok(config)
    }

    /// The path in the container below which the locks are: up to 200 letters, digits, `-`, `_` and `.` in parts between slashes.
    ///
    /// # Errors
    /// [`ConfigError`] on an invalid path.
    pub fn namespace(mut self, namespace: &str) -> Result<Self, ConfigError> {
        self.prefix = account::prefix(namespace)?;
        Ok(self)
    }

    /// Signs requests with one of the account's keys, in base64.
    ///
    /// # Errors
    /// [`ConfigError`] if `key` is not valid base64.
    pub fn account_key(mut self, account: &str, key: &str) -> Result<Self, ConfigError> {
        let key = SharedKey::new(account, key).ok_or_else(account::invalid_key)?;
        self.credential = Some(Credential::Key(key));
        Ok(self)
    }

    /// Authorizes requests with a shared access signature: the part of its URL after the question mark.
    #[must_use]
    pub fn sas(mut self, token: &str) -> Self {
        self.credential = Some(Credential::Sas(token.trim_start_matches('?').to_owned()));
        self
    }

    /// Authorizes requests with the tokens of Microsoft Entra ID that `credential` returns, for instance one of the crate `azure_identity`:
    /// a managed identity, a workload identity. The SDK requests a new token before the old one expires. The account must be reached by
    /// https.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use polylock_azure::{Config, azure_core::credentials::TokenCredential};
    ///
    /// # async fn open(credential: Arc<dyn TokenCredential>) -> polylock_core::Result<()> {
    /// // let credential = azure_identity::ManagedIdentityCredential::new(None)?;
    /// let config = Config::new("az://locks@myaccount/app")?.credential(credential);
    /// let locks = polylock_core::Locks::new(polylock_azure::connect(config).await?);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn credential(mut self, credential: Arc<dyn TokenCredential>) -> Self {
        self.credential = Some(Credential::Token(credential));
        self
    }

    polylock_core::setters! {
        /// The time limit for one request: 3 s by default, and never more than a sixth of the lease.
        operation_timeout(timeout: Duration) => operation_timeout;
        /// The time limit for opening the store: 10 s by default.
        connect_timeout(timeout: Duration) => connect_timeout;
        /// Creates a missing container if true, which is the default.
        create_container(create: bool) => create_container;
    }

    /// The PEM file with the certificates of authorities that are trusted in addition to the system's.
    #[must_use]
    pub fn tls_ca(mut self, file: impl Into<PathBuf>) -> Self {
        self.certificates.ca = Some(file.into());
        self
    }

    /// The signal by which the program wakes waiters early.
    #[must_use]
    pub fn wake_signal(mut self, signal: &WakeSignal) -> Self {
        self.wake_signal = signal.clone();
        self
    }

    /// Returns the URL of the container and the path, for messages and errors.
    pub(crate) fn endpoint(&self) -> String {
        format!("{}/{}/{}", self.endpoint.as_str().trim_end_matches('/'), self.container, self.prefix)
    }

    /// Returns the URL of the container, with the shared access signature if there is one.
    pub(crate) fn container_url(&self) -> Result<Url, ConfigError> {
        let mut url = self.endpoint.clone();
        url.path_segments_mut()
            .map_err(|()| ConfigError::new("store", "the endpoint is not the URL of a server"))?
            .pop_if_empty()
            .push(&self.container);
        if let Some(Credential::Sas(query)) = &self.credential {
            url.set_query(Some(query));
        }
        Ok(url)
    }

    fn check_times(&self) -> Result<(), ConfigError> {
        duration::check("polylock.operation_timeout", self.operation_timeout, &REQUEST_TIMEOUTS)?;
        duration::check("polylock.connect_timeout", self.connect_timeout, &CONNECT_TIMEOUTS)
    }

    /// Checks the settings that depend on each other.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        self.check_times()?;
        let encrypted = self.endpoint.scheme() == "https";
        if encrypted && !cfg!(feature = "tls") {
            return Err(tls_is_not_compiled_in());
        }
        self.certificates.check(encrypted, "use an account with https")?;
        match &self.credential {
            None => {
                let problem = "has no credentials: add polylock.account_key, polylock.connection_string, the parameters of \
                               a shared access signature, or emulator=true; a program may pass a token credential";
                Err(ConfigError::new("store", problem))
            }
            Some(Credential::Token(_)) if !encrypted => {
                Err(ConfigError::new("store", "access tokens require https"))
            }
            Some(Credential::Sas(token)) if !token.contains("sig=") => Err(ConfigError::new(
                "sig",
                format!("is missing in the shared access signature, which has {}", SAS.join(", ")),
            )),
            Some(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use polylock_core::url::checks;

    use super::*;

    fn shown(url: &str) -> String {
        format!("{:?}", Config::new(url).unwrap())
    }

    const KEY: &str = "Y2FuYXJ5";

    #[test]
    fn a_url_and_the_setters_give_the_same_configuration() {
        let url = format!(
            "azblob://locks@acc1/a/b/?polylock.account_key={KEY}&polylock.operation_timeout=2s\
             &polylock.connect_timeout=9s&polylock.create_container=false&polylock.tls_ca=/ca.pem"
        );
        let set = Config::new("az://locks@acc1").unwrap().namespace("a/b").unwrap();
        let set = set
            .account_key("acc1", KEY)
            .unwrap()
            .operation_timeout(Duration::from_secs(2))
            .connect_timeout(Duration::from_secs(9))
            .create_container(false)
            .tls_ca("/ca.pem");
        checks::gives(Config::new, &url, &set);
        assert_eq!(set.endpoint(), "https://acc1.blob.core.windows.net/locks/a/b");
        assert_eq!(Config::new("az://locks@acc1").unwrap().prefix, "polylock");
    }

    #[test]
    fn emulator_urls() {
        for (url, endpoint) in [
            ("az://locks?emulator=true", "http://127.0.0.1:10000/devstoreaccount1"),
            ("az://locks@devstoreaccount1/p?emulator=http://h:99", "http://h:99/devstoreaccount1"),
            ("az://locks@other?emulator=https://h:99/", "https://h:99/other"),
        ] {
            assert_eq!(Config::new(url).unwrap().endpoint.as_str(), endpoint, "{url}");
        }
        assert!(Config::new("az://locks?emulator=true").unwrap().check().is_ok());
        assert!(Config::new("az://locks@acc1?emulator=false").unwrap().check().is_err());
    }

    #[test]
    fn keys_of_other_drivers_are_applied_or_refused() {
        let key = format!("polylock.account_key={KEY}");
        for (url, same) in [
            (format!("az://locks?account_name=acc1&account_key={KEY}"), format!("az://locks@acc1?{key}")),
            (format!("az://locks@acc1?azure_storage_account_key={KEY}"), format!("az://locks@acc1?{key}")),
            ("az://locks@acc1?sas_token=?sv=1%26sig=x".to_owned(), "az://locks@acc1?sv=1&sig=x".to_owned()),
            ("az://locks?use_emulator=true".to_owned(), "az://locks?emulator=true".to_owned()),
            (
                format!("az://locks@acc1.blob.core.windows.net/p?{key}"),
                format!("az://locks@acc1/p?polylock.endpoint=https://acc1.blob.core.windows.net/&{key}"),
            ),
        ] {
            let credential = |url: &str| match Config::new(url).unwrap().credential {
                Some(Credential::Sas(sas)) => sas,
                other => format!("{other:?}"),
            };
            assert_eq!((shown(&url), credential(&url)), (shown(&same), credential(&same)), "{url}");
        }
        for (url, wanted, word) in [
            ("az://locks@acc1?client_id=x&tenant_id=y", "client_id", "Config::credential"),
            ("az://locks@acc1?skip_signature=true", "skip_signature", "credentials"),
            ("az://locks@acc1?container_name=x", "container_name", "az://container@account"),
            ("az://locks@acc1.dfs.core.windows.net", "store", ".blob."),
            ("az://locks@acc1?account_name=acc2", "account_name", "another account"),
            ("az://locks@acc1?account_key=eA&polylock.account_key=eA", "account_key", "keep one"),
            ("az://locks@acc1?sig=x&sas_token=sig=y", "sig", "keep one"),
        ] {
            let error = Config::new(url).unwrap_err();
            assert!(error.key == wanted && error.problem.contains(word), "{url}: {error}");
        }
    }

    #[test]
    fn debug_output_contains_no_credential() {
        for query in [
            format!("account_key={KEY}"),
            "sas_token=sv%3D2021-06-08%26sig%3DY2FuYXJ5".to_owned(),
            format!("polylock.account_key={KEY}"),
            "sv=2021-06-08&sp=rw&sig=Y2FuYXJ5".to_owned(),
            format!("polylock.connection_string=AccountName%3Dacc1%3BAccountKey%3D{KEY}"),
            "polylock.connection_string=BlobEndpoint%3Dhttps%3A%2F%2Fa.b%2F%3BSharedAccessSignature%3Dsig%3DY2FuYXJ5"
                .to_owned(),
        ] {
            let config = Config::new(&format!("az://locks@acc1?{query}")).unwrap();
            assert!(config.credential.is_some(), "{query}");
            let shown = format!("{config:?} {config:#?} {}", config.endpoint());
            assert!(!shown.contains("Y2FuYXJ5") && !shown.contains("canary"), "{shown}");
        }
    }

    #[test]
    fn invalid_settings_name_their_key() {
        let key = format!("polylock.account_key={KEY}");
        let long = format!("az://locks@acc1/{}", "a".repeat(201));
        let two = format!("az://locks@acc1?{key}&sig=x");
        let three = format!("az://locks@acc1?{key}&polylock.connection_string=x");
        let invalid = [
            ("az:", "store"),
            ("az://", "store"),
            ("az://locks", "store"),
            ("az://@acc1", "store"),
            ("az://Locks@acc1", "store"),
            ("az://lo@acc1", "store"),
            ("az://a--b@acc1", "store"),
            ("az://-ab@acc1", "store"),
            ("az://$root@acc1", "store"),
            ("az://locks@Acc1", "store"),
            ("az://locks@a.b", "store"),
            ("az://locks@acc1/a//b", "store"),
            ("az://locks@acc1/..", "store"),
            ("az://locks@acc1/a b", "store"),
            ("az://locks@acc1/a.", "store"),
            (&long, "store"),
            ("az://locks@acc1?emulator=maybe", "emulator"),
            ("az://locks@acc1?emulator=http://h/path", "emulator"),
            ("az://locks@acc1?emulator=ftp://h", "emulator"),
            ("az://locks@acc1?polylock.account_key=%21", "polylock.account_key"),
            (&two, "sig"),
            (&three, "polylock.connection_string"),
            ("az://locks?polylock.connection_string=x", "polylock.connection_string"),
            ("az://locks@acc1?polylock.endpoint=h", "polylock.endpoint"),
            ("az://locks@acc1?polylock.endpoint=https://h/?a=b", "polylock.endpoint"),
            ("az://locks@acc1?polylock.operation_timeout=1ms", "polylock.operation_timeout"),
            ("az://locks@acc1?polylock.connect_timeout=1ms", "polylock.connect_timeout"),
            ("az://locks@acc1?polylock.create_container=yes", "polylock.create_container"),
            ("az://locks@acc1?polylock.acount_key=x", "polylock.acount_key"),
        ];
        checks::refuses(Config::new, &invalid);
        for (config, wanted) in [
            (Config::new("az://locks@acc1").unwrap(), "store"),
            (Config::new("az://locks@acc1").unwrap().sas("sv=1"), "sig"),
            (Config::new("az://locks?emulator=true&polylock.tls_ca=x").unwrap(), "polylock.tls_ca"),
        ] {
            assert_eq!(config.check().unwrap_err().key, wanted, "{config:?}");
        }
    }
}
