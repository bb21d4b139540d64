//! The address of the database and its options.

use std::{fmt, time::Duration};

use polylock_core::{
    ConfigError,
    url::{self, Keys, StoreUrl},
};
use sqlx::postgres::{PgConnectOptions, PgSslMode};

use super::driver_keys::DRIVER_KEYS;
use crate::{
    engine::{
        config::{self, CommonConfig, common_setters},
        source::Source,
        table,
    },
    optimistic::FenceScript,
};

/// The keys of a URL that are passed to the driver.
const PASSED: &[&str] = &[
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "application_name",
    "options",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
];

/// The driver's keys of the certificate files.
const CERTIFICATES: [&[&str]; 3] = [&["sslrootcert"], &["sslcert"], &["sslkey"]];

/// The address of the database and its options. The [module](super) describes each option.
///
/// ```
/// use polylock_sql::postgres::Config;
///
/// let config = Config::new("postgres://app:secret@db.example.com/app?sslmode=verify-full")?.namespace("app_locks");
/// assert!(!format!("{config:?}").contains("secret"));
/// # Ok::<_, polylock_core::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct Config {
    pub(super) source: Source<PgConnectOptions>,
    pub(super) schema: String,
    pub(super) durability: Durability,
    pub(super) listen: Listen,
    pub(super) common: CommonConfig,
    /// A warning is logged for a transaction that keeps deleted rows and is at least this old.
    pub(super) old_snapshot: Duration,
}

/// A report or a dump may take this long; the locks of a busy program leave some ten thousand dead rows in this time.
const OLD_SNAPSHOT: Duration = Duration::from_secs(60);

/// The failures that a grant survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Durability {
    /// A grant is on the server's disk, and on that of a synchronous standby if there is one, before it is returned
    /// (`synchronous_commit=on`, whatever the server's default is).
    #[default]
    Full,
    /// A crash of the *server* may undo its most recent grants and renewals: then a lock can be granted twice and tokens may
    /// repeat (`synchronous_commit=off`). Several times faster if the disk is slow to sync.
    Relaxed,
}

/// The way in which waiters receive their grants.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Listen {
    /// By `LISTEN` on one more connection; by polling as long as no notification arrives on it.
    #[default]
    Auto,
    /// By polling: for a server behind a pooler that does not forward notifications.
    Off,
    /// By `LISTEN` on a connection with its own options, which bypasses the pooler.
    At(Box<PgConnectOptions>),
}

impl fmt::Debug for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("Auto"),
            Self::Off => f.write_str("Off"),
            Self::At(options) => write!(f, "At({})", endpoint(options)),
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, schema, durability, listen, common, old_snapshot: _ } = self;
        f.debug_struct("Config")
            .field("server", &endpoint(&source.options))
            .field("schema", schema)
            .field("durability", durability)
            .field("listen", listen)
            .field("common", common)
            .finish_non_exhaustive()
    }
}

/// Returns the server and the database, without secrets.
pub(super) fn endpoint(options: &PgConnectOptions) -> String {
    let database = options.get_database().unwrap_or_else(|| options.get_username());
    config::endpoint(database, options.get_socket(), options.get_host(), options.get_port())
}

/// Removes `extra_float_digits`: a pooler refuses start-up parameters that it does not know, and this store has no floating-point
/// numbers.
fn plain(options: PgConnectOptions) -> PgConnectOptions {
    options.extra_float_digits(None)
}

impl Config {
    /// The default of [`schema`](Self::schema).
    pub const DEFAULT_SCHEMA: &str = "public";
    /// The default of [`namespace`](Self::namespace).
    pub const DEFAULT_NAMESPACE: &str = table::DEFAULT;
    /// The default of [`operation_timeout`](Self::operation_timeout).
    pub const DEFAULT_OPERATION_TIMEOUT: Duration = CommonConfig::DEFAULT_OPERATION_TIMEOUT;
    /// The default of [`connections`](Self::connections).
    pub const DEFAULT_CONNECTIONS: u32 = CommonConfig::DEFAULT_CONNECTIONS;

    /// The database of a URL, `postgres://user:password@host:port/database?key=value`. Missing parts are taken from the
    /// environment and the files that PostgreSQL's own clients read (`PGHOST`, `PGPASSWORD`, `~/.pgpass` and so on).
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
        let options: PgConnectOptions =
            config::driver_options("postgres", url, keys, PASSED, CERTIFICATES, DRIVER_KEYS)?;
        let verified = matches!(options.get_ssl_mode(), PgSslMode::VerifyCa | PgSslMode::VerifyFull);
        config::check_authority(url, CERTIFICATES[0], verified, "sslmode=verify-full")?;
        let durabilities = [("full", Durability::Full), ("relaxed", Durability::Relaxed)];
        let config = Self {
            source: Source::new(plain(options)),
            schema: keys.text("polylock.schema").unwrap_or_else(|| Self::DEFAULT_SCHEMA.to_owned()),
            durability: keys.choice("polylock.durability", &durabilities)?.unwrap_or_default(),
            listen: keys.read("polylock.listen", listen)?.unwrap_or_default(),
            common: CommonConfig::read(keys)?,
            old_snapshot: OLD_SNAPSHOT,
        };
        config.check()?;
        Ok(config)
    }

    /// The database of these driver options, which may be those of the program's own pool (`pool.connect_options()`). Connections
    /// of that pool are not used: the store opens its own.
    ///
    /// # Errors
    /// Currently none.
    pub fn from_options(options: PgConnectOptions) -> Result<Self, ConfigError> {
        Ok(Self {
            source: Source::new(plain(options)),
            schema: Self::DEFAULT_SCHEMA.to_owned(),
            durability: Durability::default(),
            listen: Listen::default(),
            common: CommonConfig::default(),
            old_snapshot: OLD_SNAPSHOT,
        })
    }

    common_setters! {
        PgConnectOptions,
        /// ```
        /// use polylock_sql::postgres::Config;
        ///
        /// # async fn token() -> std::io::Result<String> { Ok("short-lived".to_owned()) }
        /// let config = Config::new("postgres://app@db.example.com/app?sslmode=verify-full")?
        ///     .credentials(|options| async move { Ok(options.password(&token().await?)) });
        /// # Ok::<_, polylock_core::ConfigError>(())
        /// ```
        credentials,
        /// The maximum number of connections, not counting the listening one: 8 by default.
        connections,
        /// The prefix of the names of tables and functions: a letter or `_`, then up to 40 letters, digits or `_`. `polylock` by
        /// default.
        table,
    }

    /// The schema of the tables and functions: a letter or `_`, then up to 40 letters, digits or `_`; case-sensitive. The default
    /// is `public` and not the user's first schema, because all processes that share a lock must use the same table.
    #[must_use]
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    polylock_core::setters! {
        /// The failures that a grant survives: by default, also a crash of the server.
        durability(durability: Durability) => durability;
        /// The age from which opening the store warns of a transaction that keeps deleted rows, for tests.
        #[doc(hidden)]
        old_snapshot(age: Duration) => old_snapshot;
    }

    /// The way in which waiters receive their grants.
    #[must_use]
    pub fn listen(mut self, listen: Listen) -> Self {
        self.listen = listen;
        self
    }

    /// Returns the options of the connection that receives notifications, or `None` if this process does not listen.
    pub(super) fn listening(&self) -> Option<Source<PgConnectOptions>> {
        match &self.listen {
            Listen::Auto => Some(self.source.clone()),
            Listen::Off => None,
            Listen::At(options) => Some(self.source.with_options(PgConnectOptions::clone(options))),
        }
    }

    /// Returns the driver's options for connections of your own to the same database: with the user, the password and the certificates of
    /// the URL. Changes of [`credentials`](Self::credentials) are not included.
    #[must_use]
    pub fn connect_options(&self) -> PgConnectOptions {
        self.source.options.clone()
    }

    /// Returns the statements of a fence in this database: `polylock_fence` and the table `polylock_fences` in [`schema`](Self::schema), with the prefix of
    /// [`namespace`](Self::namespace) in place of `polylock`. The locks may be in another store.
    ///
    /// # Errors
    /// [`ConfigError`] if a name in the configuration is not valid.
    pub fn fence_script(&self) -> Result<FenceScript<sqlx::Postgres>, ConfigError> {
        self.check()?;
        Ok(FenceScript::new(Some(&self.schema), &self.common.table))
    }

    /// Checks the values that the setters accept without a check.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        self.common.check()?;
        let must_encrypt = !matches!(
            self.source.options.get_ssl_mode(),
            PgSslMode::Disable | PgSslMode::Allow | PgSslMode::Prefer
        );
        config::check_encryption(must_encrypt, cfg!(feature = "tls"))?;
        if !table::is_plain(&self.schema) {
            return Err(ConfigError::new(
                "polylock.schema",
                "must be a letter or _ and then up to 40 letters, digits or _",
            ));
        }
        Ok(())
    }
}

impl Listen {
    /// Listens on a connection to the database of this URL.
    ///
    /// # Errors
    /// [`ConfigError`] if a part of the URL is not valid.
    pub fn at(url: &str) -> Result<Self, ConfigError> {
        Config::new(url).map(|config| Self::At(Box::new(config.source.options)))
    }
}

fn listen(text: &str) -> Result<Listen, String> {
    match text {
        "auto" => Ok(Listen::Auto),
        "off" => Ok(Listen::Off),
        url => Listen::at(url).map_err(|error| {
            format!(
                "must be auto, off or the URL of the server itself, without the pooler: {}",
                error.problem
            )
        }),
    }
}

#[cfg(test)]
mod tests {
    use polylock_core::url::checks;

    use super::*;
    use crate::pessimistic::Strategy;

    #[test]
    fn a_url_sets_the_same_options_as_the_setters() {
        let url = "postgresql://app:canary@db:5433/app?sslmode=disable&polylock.schema=Jobs&polylock.namespace=t_1\
                   &polylock.durability=relaxed&polylock.operation_timeout=250ms&polylock.connections=3&polylock.listen=off\
                   &polylock.strategy=pessimistic";
        let set = Config::new("postgres://app:canary@db:5433/app?sslmode=disable")
            .unwrap()
            .schema("Jobs")
            .namespace("t_1")
            .durability(Durability::Relaxed)
            .operation_timeout(Duration::from_millis(250))
            .connections(3)
            .listen(Listen::Off)
            .strategy(Strategy::Pessimistic);
        let shown = checks::gives(Config::new, url, &set);
        assert!(shown.contains(r#"database \"app\" on db:5433"#), "{shown}");
    }

    #[test]
    fn an_invalid_value_is_an_error_on_its_key() {
        let invalid = [
            ("postgres:", "store"),
            ("postgres:db", "store"),
            ("postgres://db:port/x", "store"),
            ("postgres://db/x?sslmode=maybe", "store"),
            ("postgres://db/x?polylock.namespace=a;b", "polylock.namespace"),
            ("postgres://db/x?polylock.schema=a.b", "polylock.schema"),
            ("postgres://db/x?polylock.durability=normal", "polylock.durability"),
            ("postgres://db/x?polylock.operation_timeout=1ms", "polylock.operation_timeout"),
            ("postgres://db/x?polylock.connections=0", "polylock.connections"),
            ("postgres://db/x?polylock.connections=many", "polylock.connections"),
            ("postgres://db/x?polylock.listen=maybe", "polylock.listen"),
            ("postgres://db/x?polylock.strategy=advisory", "polylock.strategy"),
            ("postgres://db/x?polylock.tabel=x", "polylock.tabel"),
            ("postgres://db/x?sslmod=require", "sslmod"),
            ("postgres://db1,db2/x", "store"),
            ("postgres://db/x?connect_timeout=2s", "connect_timeout"),
            ("postgres://db/x?channel_binding=require", "channel_binding"),
            ("postgres://db/x?target_session_attrs=standby", "target_session_attrs"),
            ("postgres://db/x?schema=app", "schema"),
            ("postgres://db/x?pool_size=3", "pool_size"),
            ("postgres://db/x?chanel_binding=prefer", "chanel_binding"),
        ];
        checks::refuses(Config::new, &invalid);
    }

    #[test]
    fn encryption_that_is_not_compiled_in_is_refused_before_the_server_is_asked() {
        for mode in ["sslmode=require", "sslmode=verify-ca", "sslmode=verify-full"] {
            let refused =
                Config::new(&format!("postgres://db/x?{mode}")).err().map(|error| error.to_string());
            let names_feature = refused.map(|text| text.contains("enable feature \"tls\""));
            assert_eq!(names_feature, if cfg!(feature = "tls") { None } else { Some(true) }, "{mode}");
        }
        Config::new("postgres://db/x").unwrap();
    }

    #[test]
    fn urls_of_other_programs_are_accepted() {
        for more in [
            "sslmode=prefer&application_name=app&options=-c%20statement_timeout%3D5s&connect_timeout=10",
            "target_session_attrs=read-write&channel_binding=prefer&gssencmode=disable&keepalives=1&keepalives_idle=30",
            "pgbouncer=true&statement-cache-capacity=0&client_encoding=UTF8&fallback_application_name=psql",
        ] {
            Config::new(&format!("postgres://app@db/x?{more}")).unwrap();
        }
        let refused = Config::new("postgres://db/x?channel_binding=require").unwrap_err();
        assert!(refused.problem.contains("sslmode=verify-full"), "{refused}");
        let wait = Config::new("postgres://db/x?connect_timeout=3").unwrap().common.connect_timeout;
        assert_eq!(wait, Some(Duration::from_secs(3)));
    }

    #[test]
    fn no_secret_is_shown() {
        let listens = "postgres://me:canary@db/x?polylock.listen=postgres%3A%2F%2Fme%3Acanary%40other%2Fx";
        checks::hides_secrets(
            Config::new,
            &[
                "postgres://canary@x:canary@db/x",
                "postgres://me:canary@db:nowhere/x",
                "postgres://me:canary@db/x?polylock.listen=postgres%3A%2F%2Fme%3Acanary%40db%3Ap",
                listens,
            ],
        );
        assert!(format!("{:?}", Config::new(listens).unwrap()).contains("other"));
    }
}
