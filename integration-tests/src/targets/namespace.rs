//! An isolated namespace in a store, for one test.

use std::time::Duration;

use polylock_core::url::StoreUrl;
use polylock_sql::sqlite;
use polylock_testkit::Missing;
use tempfile::TempDir;

use super::log::Log;
use crate::{
    servers::{Server, redlock as nodes},
    service::Service,
};

/// Each lock needs its own connection, and one case holds eighty locks.
pub(super) const PESSIMISTIC: &str = "&polylock.strategy=pessimistic&polylock.connections=100";

/// An isolated namespace in a store, for one test.
#[derive(Debug)]
pub struct Namespace {
    pub(super) url: String,
    /// For the files of the store, if it has any, and of the test.
    directory: TempDir,
    pub(super) entries: Entries,
    pub(super) log: Option<Log>,
    /// The query that describes the entries in a text.
    pub(super) entries_text_sql: Option<String>,
    /// The statements that delete all rows of its tables.
    pub(super) delete_sql: Option<String>,
    /// The lock service in front of it.
    pub(super) _service: Option<Service>,
}

/// The query that counts the entries of a namespace.
#[derive(Debug)]
pub(super) enum Entries {
    /// The entries can't be counted.
    Uncounted,
    /// An SQL query.
    Rows(String),
    /// The prefix of its keys, and the server.
    Keys(String, String),
    /// The prefix of its keys, and the running nodes of a Redlock.
    RedlockKeys(String, Vec<String>),
    /// The prefix of its keys, and the primaries of a cluster.
    ClusterKeys(String, Vec<String>),
    /// The parent of its lock nodes, and the servers.
    Znodes(String, String),
    /// The path of its blobs, and the server. Inspection counts the entries.
    Blobs(String, String),
}

/// A namespace of blobs in a container.
///
/// # Errors
/// [`Missing`] if the directory can't be created.
pub fn blobs_of(server: &Server) -> Result<Namespace, Missing> {
    let (container, query) = server.url().split_once('?').unwrap_or((server.url(), ""));
    let name = server.name();
    let url = format!("{}/{name}?{query}", container.trim_end_matches('/'));
    // Remaining blobs without a lease exclude no request; the store lists the others itself.
    namespace(url, Entries::Blobs(name, server.url().to_owned()))
}

/// A namespace of nodes in a ZooKeeper.
///
/// # Errors
/// [`Missing`] if the directory can't be created.
pub fn path_of(server: &Server) -> Result<Namespace, Missing> {
    let name = server.name();
    let url = format!("{}/{name}", server.url().trim_end_matches('/'));
    namespace(url, Entries::Znodes(format!("/{name}"), server.url().to_owned()))
}

/// Azure refuses shorter leases.
const SHORTEST_AZURE_LEASE: Duration = Duration::from_secs(15);

/// A namespace of keys in a server, with the URL scheme `scheme`.
///
/// # Errors
/// [`Missing`] if the directory can't be created.
pub fn keys_of(server: &Server, scheme: &str) -> Result<Namespace, Missing> {
    let (prefix, (_, rest)) = (server.name(), server.url().split_once(':').unwrap_or_default());
    let url = with_key(&format!("{scheme}:{rest}"), "polylock.namespace", &prefix);
    namespace(url, Entries::Keys(prefix, server.url().to_owned()))
}

/// The store behind lock services with these URLs.
///
/// # Errors
/// [`Missing`] if the directory can't be created.
pub(super) fn services_of<'a>(urls: impl IntoIterator<Item = &'a str>) -> Result<Namespace, Missing> {
    let addresses = urls.into_iter().filter_map(|url| url.split_once("://")).map(|(_, address)| address);
    let addresses: Vec<&str> = addresses.collect();
    namespace(
        format!("polylock+http://{}?polylock.connect_timeout=10s", addresses.join(",")),
        Entries::Uncounted,
    )
}

/// A namespace of keys in the primary that these Sentinels name.
///
/// # Errors
/// [`Missing`] if the directory can't be created.
pub fn watched_by(sentinels: &Server) -> Result<Namespace, Missing> {
    let url = with_key(sentinels.url(), "polylock.namespace", &sentinels.name());
    namespace(url, Entries::Uncounted)
}

/// A namespace of keys in all nodes that are `alive`, with dead nodes between them. The nodes lose no data.
///
/// # Errors
/// [`Missing`] if there is no node, or the directory can't be created.
pub fn nodes_of<const N: usize>(alive: &[String], dead: [String; N]) -> Result<Namespace, Missing> {
    // The nodes were started recently. Some tests use leases that are too long to wait for.
    nodes_with(alive, dead, "polylock.restart=trust&polylock.max_ttl=10m")
}

/// A namespace of keys in all nodes that are `alive`, with dead nodes between them, and with these keys in its URL.
///
/// # Errors
/// [`Missing`] if there is no node, or the directory can't be created.
pub fn nodes_with<const N: usize>(
    alive: &[String],
    dead: [String; N],
    keys: &str,
) -> Result<Namespace, Missing> {
    let mut all = alive.to_vec();
    for (index, dead) in dead.into_iter().enumerate() {
        all.insert(2 * index + 1, dead);
    }
    let url = nodes::url(all.iter().map(String::as_str));
    let prefix = nodes::nodes(&url).first().map(Server::name).ok_or_else(|| Missing("no node".to_owned()))?;
    let url = with_key(&url, "polylock.namespace", &prefix);
    namespace(format!("{url}&{keys}"), Entries::RedlockKeys(prefix, alive.to_vec()))
}

/// A namespace of tables in the database of a server, with the URL scheme `scheme`.
///
/// # Errors
/// [`Missing`] if the directory can't be created.
pub fn tables_of(server: &Server, scheme: &str) -> Result<Namespace, Missing> {
    let (url, table) = url_of(server, scheme);
    let log = Log::of(server, &table);
    let delete_sql = Some(delete_statements(&table, if scheme == "mysql" { MYSQL_TABLES } else { TABLES }));
    Ok(Namespace { log, delete_sql, ..namespace(url, Entries::Rows(count_of(&table)))? })
}

/// A namespace of tables in the database of a server, for locks that belong to open transactions, with the URL scheme `scheme`.
///
/// # Errors
/// [`Missing`] if the directory can't be created.
pub fn sessions_of(server: &Server, scheme: &str) -> Result<Namespace, Missing> {
    let (url, table) = url_of(server, scheme);
    let rows = |part: u8| format!("(SELECT count(*) FROM {table}_rows WHERE part = {part})");
    let sessions = format!("(SELECT count(*) FROM {table}_sessions)");
    let (mut counts, mut log) = (vec![rows(1), sessions], None);
    if scheme == "postgres" {
        // The transactions that have locked rows.
        counts.push(format!(
            "(SELECT count(DISTINCT pid) FROM pg_locks WHERE relation = '{table}_rows'::regclass AND mode = 'RowShareLock')"
        ));
        log = Log::of(server, &table);
    }
    let entries = Entries::Rows(format!("SELECT greatest({})", counts.join(", ")));
    let kinds = ["', rows of part 1: '", "', records: '", "', transactions: '"];
    let texts: Vec<String> =
        kinds.iter().zip(&counts).map(|(kind, count)| format!("{kind}, {count}")).collect();
    let text = format!("SELECT concat('rows of part 0: ', {}, {})", rows(0), texts.join(", "));
    let namespace = namespace(format!("{url}{PESSIMISTIC}"), entries)?;
    Ok(Namespace { log, entries_text_sql: Some(text), ..namespace })
}

/// Returns the URL with a unique prefix for the tables, and the prefix.
pub(super) fn url_of(server: &Server, scheme: &str) -> (String, String) {
    let (table, (_, rest)) = (server.name(), server.url().split_once(':').unwrap_or_default());
    (with_key(&format!("{scheme}:{rest}"), "polylock.namespace", &table), table)
}

pub(super) fn with_key(url: &str, key: &str, value: &str) -> String {
    let joint = if url.contains('?') { '&' } else { '?' };
    format!("{url}{joint}{key}={value}")
}

const TABLES: &[&str] = &["holds", "waiters", "broken", "meta"];
const MYSQL_TABLES: &[&str] = &["holds", "waiters", "broken", "gates", "meta"];

fn delete_statements(prefix: &str, tables: &[&str]) -> String {
    tables.iter().map(|table| format!("DELETE FROM {prefix}_{table};")).collect()
}

/// Returns the query that counts the rows of holds and waiters.
fn count_of(table: &str) -> String {
    format!("SELECT (SELECT count(*) FROM {table}_holds) + (SELECT count(*) FROM {table}_waiters)")
}

pub(super) fn namespace(url: String, entries: Entries) -> Result<Namespace, Missing> {
    let directory = TempDir::new().map_err(|error| Missing(format!("no directory for a file: {error}")))?;
    Ok(Namespace {
        url,
        directory,
        entries,
        log: None,
        entries_text_sql: None,
        delete_sql: None,
        _service: None,
    })
}

/// A namespace that is reached through a lock service in this process. Inspection counts the entries.
pub(super) fn behind_service(store: Namespace) -> Namespace {
    let service = Service::start(&store.url);
    let url = service.url().to_owned();
    Namespace { url, entries: Entries::Uncounted, delete_sql: None, _service: Some(service), ..store }
}

/// A namespace in which every lock is acquired in both of these. Inspection counts the entries.
pub(super) fn both(old: Namespace, new: &Namespace) -> Namespace {
    Namespace {
        url: format!("both:{};{}", old.url, new.url),
        entries: Entries::Uncounted,
        delete_sql: None,
        ..old
    }
}

pub(super) fn file(durability: &str) -> Result<Namespace, Missing> {
    let directory = match std::env::var("POLYLOCK_TEST_SQLITE_URL") {
        Ok(url) => {
            let path = StoreUrl::parse(&url).and_then(|url| url.file());
            TempDir::new_in(path.map_err(|error| Missing(format!("POLYLOCK_TEST_SQLITE_URL: {error}")))?)
        }
        Err(_) => TempDir::new(),
    };
    let directory = directory.map_err(|error| Missing(format!("no directory for a file: {error}")))?;
    let path = directory.path().join("locks.db");
    let url = format!("sqlite://{}?polylock.durability={durability}", path.display());
    let entries = Entries::Rows(count_of(sqlite::Config::DEFAULT_NAMESPACE));
    let delete_sql = Some(delete_statements(sqlite::Config::DEFAULT_NAMESPACE, TABLES));
    Ok(Namespace { url, directory, entries, log: None, entries_text_sql: None, delete_sql, _service: None })
}

impl Namespace {
    /// Returns the same namespace with the log of its server.
    pub(super) fn with_log(self, log: Option<Log>) -> Self {
        Self { log, ..self }
    }

    /// Returns its URL, for [`polylock::Locks::connect`] here and in other processes.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns its URL with one more key.
    #[must_use]
    pub fn url_with(&self, key: &str, value: &str) -> String {
        with_key(&self.url, key, value)
    }

    /// Returns its URL for locks with this lease. A lease in ZooKeeper can't be longer than the session.
    #[must_use]
    pub fn url_with_lease(&self, lease: Duration) -> String {
        let key =
            if self.url.starts_with("zookeeper:") { "polylock.session_timeout" } else { "polylock.ttl" };
        self.url_with(key, &format!("{}ms", lease.as_millis()))
    }

    /// Returns a lease for tests that wait until it expires: `wanted`, or the shortest of the store.
    #[must_use]
    pub fn lease(&self, wanted: Duration) -> Duration {
        if self.is_slow() { wanted.max(SHORTEST_AZURE_LEASE) } else { wanted }
    }

    /// Returns the number of repetitions of a test: `wanted`, or a tenth of it on a slow store.
    #[must_use]
    pub fn times(&self, wanted: usize) -> usize {
        if self.is_slow() { wanted.div_ceil(10) } else { wanted }
    }

    fn is_slow(&self) -> bool {
        self.url.starts_with("az:")
    }

    /// Returns the path of a new file in the directory of the store's own files, if it has any.
    #[must_use]
    pub fn file(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }
}
