//! Where the database is and how it is used.

use std::{fmt, sync::Arc, time::Duration};

use polylock_core::{
    ConfigError,
    url::{self, Keys, StoreUrl},
};
use sqlx::postgres::{PgConnectOptions, PgSslMode};

use super::foreign_keys::FOREIGN;
use crate::{
    engine::{
        config::{self, Common},
        source::Source,
        table,
        version::Next,
    },
    pessimistic::Strategy,
};

/// The keys of a URL that the driver reads.
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

/// Where the database is and how it is used. See the [module](super) for what each option means.
///
/// ```
/// use polylock_sql::postgres::Config;
///
/// let config = Config::new("postgres://app:secret@db.example.com/app?sslmode=verify-full")?.table("app_locks");
/// assert!(!format!("{config:?}").contains("secret"));
/// # Ok::<_, polylock_core::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct Config {
    pub(super) source: Source<PgConnectOptions>,
    pub(super) schema: String,
    pub(super) durability: Durability,
    pub(super) listen: Listen,
    pub(super) common: Common,
    /// The age from which a transaction that keeps deleted rows is warned of.
    pub(super) old_snapshot: Duration,
}

/// A report or a dump may last this long; the locks of a busy program leave some ten thousand rows meanwhile.
const OLD_SNAPSHOT: Duration = Duration::from_secs(60);

/// What a grant survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Durability {
    /// A grant is on the server's disk, and on that of a synchronous standby if there is one, before it is reported
    /// (`synchronous_commit=on`, whatever the server's default is).
    #[default]
    Full,
    /// A crash of the *server* may undo the grants and renewals of its last moments: then a lock can be given twice and
    /// tokens may repeat (`synchronous_commit=off`). Several times faster where the disk is slow to sync.
    Relaxed,
}

/// How waiters learn that it is their turn.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Listen {
    /// By `LISTEN` on a connection like the others; by asking as long as nothing is heard that way.
    #[default]
    Auto,
    /// By asking: for a server behind a pooler that does not pass notifications on.
    Off,
    /// By `LISTEN` on a connection of its own address: past the pooler.
    At(Box<PgConnectOptions>),
}

impl fmt::Debug for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("Auto"),
            Self::Off => f.write_str("Off"),
            Self::At(options) => write!(f, "At({})", place(options)),
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, schema, durability, listen, common, old_snapshot: _ } = self;
        f.debug_struct("Config")
            .field("server", &place(&source.options))
            .field("schema", schema)
            .field("durability", durability)
            .field("listen", listen)
            .field("common", common)
            .finish_non_exhaustive()
    }
}

/// The server and the database, without secrets: the driver's own `Debug` shows the password.
pub(super) fn place(options: &PgConnectOptions) -> String {
    let database = options.get_database().unwrap_or_else(|| options.get_username());
    match options.get_socket() {
        Some(socket) => format!("database {database:?} on socket {socket:?}"),
        None => format!("database {database:?} on {}:{}", options.get_host(), options.get_port()),
    }
}

/// A pooler refuses what it does not know, and nothing here is a fraction.
fn plain(options: PgConnectOptions) -> PgConnectOptions {
    options.extra_float_digits(None)
}

impl Config {
    /// The default of [`schema`](Self::schema).
    pub const DEFAULT_SCHEMA: &str = "public";
    /// The default of [`table`](Self::table).
    pub const DEFAULT_TABLE: &str = table::DEFAULT;
    /// The default of [`timeout`](Self::timeout).
    pub const DEFAULT_TIMEOUT: Duration = Common::DEFAULT_TIMEOUT;
    /// The default of [`connections`](Self::connections).
    pub const DEFAULT_CONNECTIONS: u32 = Common::DEFAULT_CONNECTIONS;

    /// The database of a URL, `postgres://user:password@host:port/database?key=value`. What it leaves out comes from the
    /// environment and the files that PostgreSQL's own clients read (`PGHOST`, `PGPASSWORD`, `~/.pgpass` and so on).
    ///
    /// # Errors
    /// [`ConfigError`] on what makes no sense.
    pub fn new(url: &str) -> Result<Self, ConfigError> {
        url::read(url, Self::from_url)
    }

    /// Reads a URL as [`new`](Self::new) does, and takes the driver's and the store's keys from `keys`.
    ///
    /// # Errors
    /// [`ConfigError`] on what makes no sense.
    pub fn from_url(url: &StoreUrl, keys: &mut Keys) -> Result<Self, ConfigError> {
        let options: PgConnectOptions = config::driver_options("postgres", url, keys, PASSED, FOREIGN)?;
        let verified = matches!(options.get_ssl_mode(), PgSslMode::VerifyCa | PgSslMode::VerifyFull);
        config::check_authority(url, &["sslrootcert"], verified, "sslmode=verify-full")?;
        let durabilities = [("full", Durability::Full), ("relaxed", Durability::Relaxed)];
        let config = Self {
            source: Source::new(plain(options)),
            schema: keys.text("polylock.schema").unwrap_or_else(|| Self::DEFAULT_SCHEMA.to_owned()),
            durability: keys.choice("polylock.durability", &durabilities)?.unwrap_or_default(),
            listen: keys.read("polylock.listen", listen)?.unwrap_or_default(),
            common: Common::read(keys)?,
            old_snapshot: OLD_SNAPSHOT,
        };
        config.check()?;
        Ok(config)
    }

    /// The database that a program reaches with these options of the driver, which may be those of its own pool
    /// (`pool.connect_options()`). Connections of that pool are not used: the store keeps some of its own.
    ///
    /// # Errors
    /// Never, so far.
    pub fn from_options(options: PgConnectOptions) -> Result<Self, ConfigError> {
        Ok(Self {
            source: Source::new(plain(options)),
            schema: Self::DEFAULT_SCHEMA.to_owned(),
            durability: Durability::default(),
            listen: Listen::default(),
            common: Common::default(),
            old_snapshot: OLD_SNAPSHOT,
        })
    }

    /// Calls `credentials` before each connection is made, with the options that were configured, and uses the options that it
    /// returns: for passwords and tokens that expire. An error counts as an outage of the server, and the next operation calls it
    /// again. It runs on the library's own thread, must not block it, and counts as part of the operation's time.
    ///
    /// ```
    /// use polylock_sql::postgres::Config;
    ///
    /// # async fn token() -> std::io::Result<String> { Ok("short-lived".to_owned()) }
    /// let config = Config::new("postgres://app@db.example.com/app?sslmode=verify-full")?
    ///     .credentials(|options| async move { Ok(options.password(&token().await?)) });
    /// # Ok::<_, polylock_core::ConfigError>(())
    /// ```
    #[must_use]
    pub fn credentials<F>(
        mut self,
        credentials: impl Fn(PgConnectOptions) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<PgConnectOptions, Box<dyn std::error::Error + Send + Sync>>>
            + Send
            + 'static,
    {
        self.source.completed_by(credentials);
        self
    }

    /// The schema that the tables and functions are in: a letter or `_`, then up to 40 letters, digits or `_`; capitals
    /// count. `public` by default, not the user's first: all who share a lock must mean the same table.
    #[must_use]
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// What the names of the tables and functions begin with: a letter or `_`, then up to 40 letters, digits or `_`.
    /// `polylock` by default.
    #[must_use]
    pub fn table(mut self, prefix: impl Into<String>) -> Self {
        self.common.table = prefix.into();
        self
    }

    /// What a grant survives: a crash of the server too, by default.
    #[must_use]
    pub const fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// How long an operation may take in all, waiting for a connection included: 5 s by default.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.common.timeout = timeout;
        self
    }

    /// How many connections the store may have at once, beside the one that listens: 8 by default.
    #[must_use]
    pub const fn connections(mut self, connections: u32) -> Self {
        self.common.connections = connections;
        self
    }

    /// How waiters learn that it is their turn.
    #[must_use]
    pub fn listen(mut self, listen: Listen) -> Self {
        self.listen = listen;
        self
    }

    /// How locks are kept: as rows with a lease, by default. All who share a lock must use the same.
    #[must_use]
    pub const fn strategy(mut self, strategy: Strategy) -> Self {
        self.common.strategy = strategy;
        self
    }

    /// One version of the tables more.
    #[doc(hidden)]
    #[must_use]
    pub fn next_version(mut self, next: Next) -> Self {
        self.common.next = Some(Arc::new(next));
        self
    }

    /// The age from which opening the store warns of a transaction that keeps deleted rows, for tests.
    #[doc(hidden)]
    #[must_use]
    pub const fn old_snapshot(mut self, age: Duration) -> Self {
        self.old_snapshot = age;
        self
    }

    /// What the setters did not look at.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        self.common.check()?;
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
    /// On a connection to the database of this URL.
    ///
    /// # Errors
    /// [`ConfigError`] on what makes no sense.
    pub fn at(url: &str) -> Result<Self, ConfigError> {
        Config::new(url).map(|config| Self::At(Box::new(config.source.options)))
    }
}

fn listen(text: &str) -> Result<Listen, String> {
    match text {
        "auto" => Ok(Listen::Auto),
        "off" => Ok(Listen::Off),
        url => Listen::at(url).map_err(|error| {
            format!("must be auto, off or the URL of the server past the pooler: {}", error.problem)
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(url: &str) -> String {
        format!("{:?}", Config::new(url).unwrap())
    }

    #[test]
    fn a_url_gives_what_the_setters_give() {
        let url = "postgresql://app:canary@db:5433/app?sslmode=disable&polylock.schema=Jobs&polylock.table=t_1\
                   &polylock.durability=relaxed&polylock.timeout=250ms&polylock.connections=3&polylock.listen=off\
                   &polylock.strategy=pessimistic";
        let set = Config::new("postgres://app:canary@db:5433/app?sslmode=disable")
            .unwrap()
            .schema("Jobs")
            .table("t_1")
            .durability(Durability::Relaxed)
            .timeout(Duration::from_millis(250))
            .connections(3)
            .listen(Listen::Off)
            .strategy(Strategy::Pessimistic);
        assert_eq!(shown(url), format!("{set:?}"));
        assert!(shown(url).contains(r#"database \"app\" on db:5433"#), "{}", shown(url));
    }

    #[test]
    fn what_makes_no_sense_names_its_key() {
        for (url, key) in [
            ("postgres:", "store"),
            ("postgres:db", "store"),
            ("postgres://db:port/x", "store"),
            ("postgres://db/x?sslmode=maybe", "store"),
            ("postgres://db/x?polylock.table=a;b", "polylock.table"),
            ("postgres://db/x?polylock.schema=a.b", "polylock.schema"),
            ("postgres://db/x?polylock.durability=normal", "polylock.durability"),
            ("postgres://db/x?polylock.timeout=1ms", "polylock.timeout"),
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
        ] {
            assert_eq!(Config::new(url).unwrap_err().key, key, "{url}");
        }
    }

    #[test]
    fn urls_of_other_programs_are_understood() {
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
        for url in [
            "postgres://canary@x:canary@db/x",
            "postgres://me:canary@db:nowhere/x",
            "postgres://me:canary@db/x?polylock.listen=postgres%3A%2F%2Fme%3Acanary%40db%3Ap",
        ] {
            let shown = match Config::new(url) {
                Ok(config) => format!("{config:?}"),
                Err(error) => format!("{error:?} {error}"),
            };
            assert!(!shown.contains("canary"), "{shown}");
        }
        let listens = "postgres://me:canary@db/x?polylock.listen=postgres%3A%2F%2Fme%3Acanary%40other%2Fx";
        assert!(shown(listens).contains("other") && !shown(listens).contains("canary"));
    }
}
