//! The address of the database and its options.

use std::{fmt, ops::RangeInclusive, time::Duration};

use polylock_core::{
    ConfigError, duration,
    url::{self, Keys, StoreUrl},
};
use sqlx::mysql::{MySqlConnectOptions, MySqlSslMode};

use super::driver_keys::DRIVER_KEYS;
use crate::{
    engine::{
        config::{self, CommonConfig, common_setters},
        source::Source,
        table,
    },
    optimistic::FenceScript,
};

/// The keys of a URL that are passed to the driver. `charset` and those after it are accepted because URLs of applications
/// contain them: the store does not depend on them.
const PASSED: &[&str] = &[
    "ssl-mode",
    "sslmode",
    "ssl-ca",
    "sslca",
    "ssl-cert",
    "sslcert",
    "ssl-key",
    "sslkey",
    "socket",
    "charset",
    "collation",
    "timezone",
    "time-zone",
    "statement-cache-capacity",
];

/// The driver's keys of the certificate files, with their spellings.
const CERTIFICATES: [&[&str]; 3] = [&["ssl-ca", "sslca"], &["ssl-cert", "sslcert"], &["ssl-key", "sslkey"]];

/// The limits of `polylock.poll`: core claims again every second anyway.
const POLLS: RangeInclusive<Duration> = Duration::from_millis(2)..=Duration::from_secs(1);

/// The address of the database and its options. The [module](super) describes each option.
///
/// ```
/// use polylock_sql::mysql::Config;
///
/// let config = Config::new("mysql://app:secret@db.example.com/app?ssl-mode=verify_identity")?.namespace("app_locks");
/// assert!(!format!("{config:?}").contains("secret"));
/// # Ok::<_, polylock_core::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct Config {
    pub(super) source: Source<MySqlConnectOptions>,
    pub(super) poll: Duration,
    pub(super) common: CommonConfig,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, poll, common } = self;
        f.debug_struct("Config")
            .field("server", &endpoint(&source.options))
            .field("poll", poll)
            .field("common", common)
            .finish_non_exhaustive()
    }
}

/// Returns the server and the database, without secrets.
pub(super) fn endpoint(options: &MySqlConnectOptions) -> String {
    config::endpoint(database(options), options.get_socket(), options.get_host(), options.get_port())
}

/// Returns the database's name. [`Config::from_url`] guarantees that there is one.
pub(super) fn database(options: &MySqlConnectOptions) -> &str {
    options.get_database().unwrap_or_default()
}

/// Removes the driver's session settings, which would cost a round trip for each connection, and which a pooler that assigns a
/// session to each statement does not keep.
fn plain(options: MySqlConnectOptions) -> Result<MySqlConnectOptions, ConfigError> {
    if database(&options).is_empty() {
        let problem = "names no database for the tables: write mysql://user:password@host/database";
        return Err(ConfigError::new("store", problem));
    }
    Ok(options.pipes_as_concat(false).no_engine_substitution(false).timezone(None).set_names(false))
}

impl Config {
    /// The default of [`namespace`](Self::namespace).
    pub const DEFAULT_NAMESPACE: &str = table::DEFAULT;
    /// The default of [`operation_timeout`](Self::operation_timeout).
    pub const DEFAULT_OPERATION_TIMEOUT: Duration = CommonConfig::DEFAULT_OPERATION_TIMEOUT;
    /// The default of [`connections`](Self::connections).
    pub const DEFAULT_CONNECTIONS: u32 = CommonConfig::DEFAULT_CONNECTIONS;
    /// The default of [`poll`](Self::poll).
    pub const DEFAULT_POLL: Duration = Duration::from_millis(100);

    /// The database of a URL, `mysql://user:password@host:port/database?key=value`; `mariadb://` is the same. The database
    /// can't be left out.
    ///
    /// # Errors
    /// [`ConfigError`] if a part of the URL is not valid.
    pub fn new(url: &str) -> Result<Self, ConfigError> {
        url::read(url, Self::from_url)
    }

    /// Reads a URL as [`new`](Self::new) does, and takes the driver's and the store's keys from `keys`.
    ///
    /// # Errors
    /// [`ConfigError`] if a part of the URL is not valid.
    pub fn from_url(url: &StoreUrl, keys: &mut Keys) -> Result<Self, ConfigError> {
        let options: MySqlConnectOptions =
            config::driver_options("mysql", url, keys, PASSED, CERTIFICATES, DRIVER_KEYS)?;
        let verified =
            matches!(options.get_ssl_mode(), MySqlSslMode::VerifyCa | MySqlSslMode::VerifyIdentity);
        config::check_authority(url, CERTIFICATES[0], verified, "ssl-mode=verify_identity")?;
        let config = Self {
            source: Source::new(plain(options)?),
            poll: keys.duration("polylock.poll")?.unwrap_or(Self::DEFAULT_POLL),
            common: CommonConfig::read(keys)?,
        };
        config.check()?;
        Ok(config)
    }

    /// The database of these driver options, which may be those of the program's own pool (`pool.connect_options()`). Connections
    /// of that pool are not used: the store opens its own.
    ///
    /// # Errors
    /// [`ConfigError`] if they name no database.
    pub fn from_options(options: MySqlConnectOptions) -> Result<Self, ConfigError> {
        Ok(Self {
            source: Source::new(plain(options)?),
            poll: Self::DEFAULT_POLL,
            common: CommonConfig::default(),
        })
    }

    common_setters! {
        MySqlConnectOptions,
        /// ```
        /// use polylock_sql::mysql::Config;
        ///
        /// # async fn token() -> std::io::Result<String> { Ok("short-lived".to_owned()) }
        /// let config = Config::new("mysql://app@db.example.com/app?ssl-mode=verify_identity")?
        ///     .credentials(|options| async move { Ok(options.password(&token().await?)) });
        /// # Ok::<_, polylock_core::ConfigError>(())
        /// ```
        credentials,
        /// The maximum number of connections: 8 by default.
        connections,
        /// The prefix of the names of tables and routines: a letter or `_`, then up to 40 letters, digits or `_`; case-insensitive.
        /// `polylock` by default.
        table,
    }

    polylock_core::setters! {
        /// The longest pause between two statements that poll for grants by other processes: 100 ms by default.
        poll(poll: Duration) => poll;
    }

    /// Returns the driver's options for connections of your own to the same database: with the user, the password and the certificates of
    /// the URL. Changes of [`credentials`](Self::credentials) are not included.
    #[must_use]
    pub fn connect_options(&self) -> MySqlConnectOptions {
        self.source.options.clone()
    }

    /// Returns the statements of a fence in this database: `polylock_fence` and the table `polylock_fences`, with the prefix of
    /// [`namespace`](Self::namespace) in place of `polylock`. The locks may be in another store.
    ///
    /// # Errors
    /// [`ConfigError`] if a name in the configuration is not valid.
    pub fn fence_script(&self) -> Result<FenceScript<sqlx::MySql>, ConfigError> {
        self.check()?;
        Ok(FenceScript::new(None, &self.common.table))
    }

    /// Checks the values that the setters accept without a check.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        self.common.check()?;
        let must_encrypt =
            !matches!(self.source.options.get_ssl_mode(), MySqlSslMode::Disabled | MySqlSslMode::Preferred);
        config::check_encryption(must_encrypt, cfg!(feature = "tls"))?;
        duration::check("polylock.poll", self.poll, &POLLS)
    }
}

#[cfg(test)]
mod tests {
    use polylock_core::url::checks;

    use super::*;
    use crate::pessimistic::Strategy;

    #[test]
    fn a_url_sets_the_same_options_as_the_setters() {
        let url = "mariadb://app:canary@db:3307/app?ssl-mode=disabled&charset=latin1&polylock.namespace=t_1\
                   &polylock.operation_timeout=250ms&polylock.connections=3&polylock.poll=20ms&polylock.strategy=pessimistic";
        let set = Config::new("mysql://app:canary@db:3307/app?ssl-mode=disabled&charset=latin1")
            .unwrap()
            .namespace("t_1")
            .operation_timeout(Duration::from_millis(250))
            .connections(3)
            .poll(Duration::from_millis(20))
            .strategy(Strategy::Pessimistic);
        let shown = checks::gives(Config::new, url, &set);
        assert!(shown.contains(r#"database \"app\" on db:3307"#), "{shown}");
        let socket = Config::new("mysql://app@localhost/app?socket=/run/mysqld/mysqld.sock").unwrap();
        assert!(format!("{socket:?}").contains("/run/mysqld/mysqld.sock"), "{socket:?}");
    }

    #[test]
    fn an_invalid_value_is_an_error_on_its_key() {
        let invalid = [
            ("mysql:", "store"),
            ("mysql:db", "store"),
            ("mysql://db", "store"),
            ("mysql://db/", "store"),
            ("mysql://db:port/x", "store"),
            ("mysql://db/x?ssl-mode=maybe", "store"),
            ("mysql://db/x?polylock.namespace=a;b", "polylock.namespace"),
            ("mysql://db/x?polylock.operation_timeout=1ms", "polylock.operation_timeout"),
            ("mysql://db/x?polylock.connections=0", "polylock.connections"),
            ("mysql://db/x?polylock.connections=many", "polylock.connections"),
            ("mysql://db/x?polylock.poll=1ms", "polylock.poll"),
            ("mysql://db/x?polylock.poll=2s", "polylock.poll"),
            ("mysql://db/x?polylock.durability=full", "polylock.durability"),
            ("mysql://db/x?polylock.strategy=get_lock", "polylock.strategy"),
            ("mysql://db/x?polylock.tabel=x", "polylock.tabel"),
            ("mysql://db/x?ssl-mod=required", "ssl-mod"),
            ("mysql://db1,db2/x", "store"),
            ("mysql://db/x?useSSL=true", "useSSL"),
            ("mysql://db/x?tls=true", "tls"),
            ("mysql://db/x?connectTimeout=3000", "connectTimeout"),
            ("mysql://db/x?connect_timeout=3s", "connect_timeout"),
        ];
        checks::refuses(Config::new, &invalid);
    }

    #[test]
    fn encryption_that_is_not_compiled_in_is_refused_before_the_server_is_asked() {
        for mode in ["ssl-mode=required", "ssl-mode=verify_ca", "ssl-mode=verify_identity"] {
            let refused = Config::new(&format!("mysql://db/x?{mode}")).err().map(|error| error.to_string());
            let names_feature = refused.map(|text| text.contains("enable feature \"tls\""));
            assert_eq!(names_feature, if cfg!(feature = "tls") { None } else { Some(true) }, "{mode}");
        }
        Config::new("mysql://db/x").unwrap();
    }

    #[test]
    fn urls_of_other_programs_are_accepted() {
        for more in [
            "charset=utf8mb4&allowPublicKeyRetrieval=true&connect_timeout=10&parseTime=true&loc=UTC",
            "serverTimezone=UTC&useUnicode=true&characterEncoding=utf8&rewriteBatchedStatements=true",
        ] {
            Config::new(&format!("mysql://app@db/x?{more}")).unwrap();
        }
        let refused = Config::new("mysql://db/x?useSSL=true").unwrap_err();
        assert!(refused.problem.contains("ssl-mode=required"), "{refused}");
    }

    #[test]
    fn no_secret_is_shown() {
        checks::hides_secrets(
            Config::new,
            &["mysql://canary@x:canary@db/x", "mysql://me:canary@db:nowhere/x", "mysql://me:canary@db"],
        );
    }
}
