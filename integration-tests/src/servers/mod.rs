//! Real servers for tests.
//!
//! - One that all tests of a process share: [`postgres()`], [`pgbouncer()`], [`mariadb()`], [`redis()`], [`valkey()`], [`zookeeper()`],
//!   the three of [`zookeeper_ensemble()`], the five of [`redlock()`], the six of [`redis_cluster()`], those of
//!   [`redis_sentinel()`], and [`azurite()`]. Each test takes a [`name`](Server::name) of its own for its tables, keys, nodes or
//!   blobs. `POLYLOCK_TEST_POSTGRES_URL`, `_MYSQL_URL`, `_REDIS_URL`, `_VALKEY_URL`, `_ZOOKEEPER_URL`,
//!   `_ZOOKEEPER_ENSEMBLE_URL`, `_REDLOCK_URL`, `_REDIS_CLUSTER_URL`, `_REDIS_SENTINEL_URL` and `_AZURE_URL` name one to attach to
//!   instead.
//! - One that a test may hurt: [`postgres::start`], [`mariadb::start`], [`pgbouncer::start`], [`redis::start`],
//!   [`valkey::start`], [`zookeeper::start`], [`zookeeper::ensemble`], [`redlock::start`], [`redis_cluster::start`],
//!   [`redis_sentinel::start`], [`azurite::start`] give a [`Private`] one, or several, to be killed, restarted, frozen and thawed.
//!
//! They are started from what is installed, on a free port of 127.0.0.1, and have answered in their own protocol when
//! they are handed out. What is not installed is [`Missing`]; what is, and does not start, is a panic with its log.
//!
//! No server outlives the test process, and no directory: a shell keeps both, and ends them when the pipe from the
//! test process closes, be it by a panic, by Ctrl-C or by SIGKILL.
//!
//! All this blocks, so that tests on any runtime and none can call it. In a task that shares its thread with others,
//! use `spawn_blocking`.
//!
//! An empty data directory of each version is made once and kept in `target/test-servers`, or in `POLYLOCK_TEST_CACHE`.
//! `cargo run -p polylock-integration-tests --bin server postgres` starts one to try things with.
//!
//! A further kind of server is one more module like these: a `Kind`, a `start`, and a line here.

pub mod azurite;
mod installed;
mod keeper;
pub mod mariadb;
pub mod pgbouncer;
pub mod postgres;
pub mod redis;
pub mod redis_cluster;
pub mod redis_sentinel;
pub mod redlock;
mod tls;
pub mod valkey;
pub mod zookeeper;

use std::{
    env, fmt,
    hash::{BuildHasher, RandomState},
    iter,
    net::TcpListener,
    ops::Deref,
    path::{Path, PathBuf},
    sync::{
        Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use async_trait::async_trait;
use polylock_core::url::StoreUrl;
use polylock_testkit::Missing;

use crate::clock;
use keeper::Keeper;

/// The PostgreSQL server that the tests of this process share.
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If it does not start, with its log.
pub fn postgres() -> Result<&'static Server, Missing> {
    static SHARED: Shared = Shared::new();
    shared(&SHARED, "POLYLOCK_TEST_POSTGRES_URL", || begin(postgres::Postgres::default()))
}

/// A PgBouncer in transaction mode that the tests of this process share, in front of a PostgreSQL server of its own.
///
/// # Errors
/// [`Missing`] if one of them is not installed.
///
/// # Panics
/// If one does not start, with its log.
pub fn pgbouncer() -> Result<&'static pgbouncer::Pooled, Missing> {
    static SHARED: OnceLock<Result<pgbouncer::Pooled, Missing>> = OnceLock::new();
    SHARED.get_or_init(pgbouncer::Pooled::start).as_ref().map_err(Clone::clone)
}

/// The MariaDB server that the tests of this process share.
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If it does not start, with its log.
pub fn mariadb() -> Result<&'static Server, Missing> {
    static SHARED: Shared = Shared::new();
    shared(&SHARED, "POLYLOCK_TEST_MYSQL_URL", || begin(mariadb::MariaDb::default()))
}

/// The Redis server that the tests of this process share. It is [durable](redis::DURABLE).
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If it does not start, with its log.
pub fn redis() -> Result<&'static Server, Missing> {
    static SHARED: Shared = Shared::new();
    shared(&SHARED, "POLYLOCK_TEST_REDIS_URL", || begin_durable(&redis::REDIS))
}

/// The Valkey server that the tests of this process share. It is [durable](redis::DURABLE).
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If it does not start, with its log.
pub fn valkey() -> Result<&'static Server, Missing> {
    static SHARED: Shared = Shared::new();
    shared(&SHARED, "POLYLOCK_TEST_VALKEY_URL", || begin_durable(&valkey::VALKEY))
}

/// The ZooKeeper server that the tests of this process share.
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If it does not start, with its log.
pub fn zookeeper() -> Result<&'static Server, Missing> {
    static SHARED: Shared = Shared::new();
    shared(&SHARED, "POLYLOCK_TEST_ZOOKEEPER_URL", || begin(zookeeper::ZooKeeper::default()))
}

/// The ZooKeeper ensemble that the tests of this process share: three members.
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If it does not start, with its log.
pub fn zookeeper_ensemble() -> Result<&'static Server, Missing> {
    static SHARED: Shared<zookeeper::Ensemble> = Shared::new();
    shared(&SHARED, "POLYLOCK_TEST_ZOOKEEPER_ENSEMBLE_URL", || zookeeper::assemble(3, &[]))
}

/// The nodes of a Redlock that the tests of this process share: five Redis servers, [durable](redis::DURABLE) all.
///
/// # Errors
/// [`Missing`] if Redis is not installed.
///
/// # Panics
/// If one does not start, with its log, or if `POLYLOCK_TEST_REDLOCK_URL` names fewer.
pub fn redlock() -> Result<&'static [Server], Missing> {
    static SHARED: OnceLock<Result<redlock::Five, Failure>> = OnceLock::new();
    let nodes = SHARED.get_or_init(|| redlock::five(env::var("POLYLOCK_TEST_REDLOCK_URL").ok().as_deref()));
    nodes.as_ref().map(|(servers, _)| &servers[..]).map_err(|failure| missing(failure.clone()))
}

/// The Redis Cluster that the tests of this process share. Its nodes are [durable](redis::DURABLE).
///
/// # Errors
/// [`Missing`] if Redis is not installed.
///
/// # Panics
/// If it does not start, with a log.
pub fn redis_cluster() -> Result<&'static Server, Missing> {
    static SHARED: Shared<redis_cluster::Cluster> = Shared::new();
    shared(&SHARED, "POLYLOCK_TEST_REDIS_CLUSTER_URL", redis_cluster::shared)
}

/// The Sentinels that the tests of this process share, with a primary and a replica that are [durable](redis::DURABLE).
///
/// # Errors
/// [`Missing`] if Redis is not installed.
///
/// # Panics
/// If one does not start, with its log.
pub fn redis_sentinel() -> Result<&'static Server, Missing> {
    static SHARED: Shared<redis_sentinel::Watched> = Shared::new();
    shared(&SHARED, "POLYLOCK_TEST_REDIS_SENTINEL_URL", redis_sentinel::shared)
}

/// The Azurite that the tests of this process share. It keeps nothing when it ends.
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If it does not start, with its log.
pub fn azurite() -> Result<&'static Server, Missing> {
    static SHARED: Shared = Shared::new();
    shared(&SHARED, "POLYLOCK_TEST_AZURE_URL", || begin(azurite::Azurite::default()))
}

/// How long a server may take from its start to its first answer, recovery from a crash included.
const START: Duration = Duration::from_secs(60);

/// A server that answers.
#[derive(Clone)]
pub struct Server {
    url: String,
    /// The file that it logs to, unless it was attached to.
    log: Option<PathBuf>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL of one that was attached to may hold a password.
        f.debug_tuple("Server").field(&StoreUrl::parse(&self.url)).finish()
    }
}

impl Server {
    /// The URL of its database, with a user who may do everything in it.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The file that it logs to; `None` for a server that was attached to.
    #[must_use]
    pub fn log_file(&self) -> Option<&Path> {
        self.log.as_deref()
    }

    /// A short name that nobody else uses in this server, for tables, users or databases.
    #[must_use]
    pub fn name(&self) -> String {
        static PROCESS: LazyLock<u64> = LazyLock::new(|| random() & 0xff_ffff);
        static NEXT: AtomicU64 = AtomicU64::new(0);
        format!("t{:06x}_{}", *PROCESS, NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A server that belongs to one test. It is killed and its directory removed when this is dropped.
#[derive(Debug)]
pub struct Private {
    server: Server,
    kind: Arc<dyn Kind>,
    port: u16,
    keeper: Mutex<Keeper>,
    command: Vec<String>,
}

impl Deref for Private {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl Private {
    /// The port of 127.0.0.1 that it listens at.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its directory, with its data, its configuration and its `log`.
    #[must_use]
    pub fn directory(&self) -> PathBuf {
        self.keeper().directory().to_owned()
    }

    /// What it has written to its log.
    #[must_use]
    pub fn log(&self) -> String {
        self.keeper().log()
    }

    /// Its process id, unless it has been killed.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.keeper().server()
    }

    /// SIGKILL to all its processes. None is left when this returns.
    pub fn kill(&self) {
        self.keeper().kill();
    }

    /// Starts it again with the same port and the same data, and waits until it answers; kills it before if it still runs.
    ///
    /// # Panics
    /// If it does not answer, with its log.
    pub fn restart(&self) {
        let mut keeper = self.keeper();
        keeper.kill();
        keeper.start(&self.command);
        self.is_back(&keeper);
    }

    /// Waits until it answers after a restart.
    fn is_back(&self, keeper: &Keeper) {
        let started = answers(keeper, &*self.kind, &self.server.url);
        started.unwrap_or_else(|why| panic!("can't restart {:?}: {why}\n{}", self.kind, keeper.log()));
    }

    /// SIGSTOP to all its processes. All stand still when this returns.
    pub fn freeze(&self) {
        self.keeper().freeze();
    }

    /// SIGCONT to all its processes.
    pub fn thaw(&self) {
        self.keeper().thaw();
    }

    fn keeper(&self) -> MutexGuard<'_, Keeper> {
        self.keeper.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is particular to one kind of server.
#[async_trait]
trait Kind: fmt::Debug + Send + Sync {
    /// Its name, in one word.
    fn name(&self) -> &'static str;

    /// The users it may run as where this process is root: the first that the machine has.
    fn users(&self) -> &'static [&'static str];

    /// Makes all that a server in `keeper`'s directory needs, and returns the command that starts it.
    fn prepare(&self, keeper: &mut Keeper, port: u16) -> Result<Vec<String>, Missing>;

    /// The URL of the server at `port`.
    fn url(&self, port: u16) -> String;

    /// Asks the server at `url` where its files are: whether it answers, and whether it is the one that was started in
    /// `home`.
    async fn whereabouts(&self, url: &str, home: &Path) -> Result<String, String>;

    /// Whether files in `directory` are those of a server in `home`.
    fn is_at_home(&self, directory: &str, home: &Path) -> bool {
        Path::new(directory).starts_with(home)
    }
}

/// Why there is no server.
#[derive(Debug, Clone)]
enum Failure {
    Missing(Missing),
    /// It is installed and does not start.
    Broken(String),
}

/// What to attach to, and what keeps it if it is an own one.
type Shared<T = Private> = OnceLock<Result<(Server, Option<T>), Failure>>;

fn shared<T: Deref<Target = Server>>(
    shared: &'static Shared<T>,
    variable: &str,
    start: impl FnOnce() -> Result<T, Failure>,
) -> Result<&'static Server, Missing> {
    let server = shared.get_or_init(|| match env::var(variable) {
        Ok(url) => Ok((Server { url, log: None }, None)),
        Err(_) => start().map(|own| (Server::clone(&own), Some(own))),
    });
    server.as_ref().map(|(server, _)| server).map_err(|failure| missing(failure.clone()))
}

/// Starts a server of this `kind` that belongs to one test.
fn start(kind: impl Kind + 'static) -> Result<Private, Missing> {
    begin(kind).map_err(missing)
}

/// # Panics
/// If it is broken.
fn missing(failure: Failure) -> Missing {
    match failure {
        Failure::Missing(missing) => missing,
        Failure::Broken(why) => panic!("{why}"),
    }
}

fn begin_durable(make: &'static redis::Make) -> Result<Private, Failure> {
    begin(redis::Redis::of(make, redis::DURABLE))
}

fn begin(kind: impl Kind + 'static) -> Result<Private, Failure> {
    let kind: Arc<dyn Kind> = Arc::new(kind);
    begin_at(&kind, ports())
}

/// At the first of `ports` that is still free when the server gets to it.
fn begin_at(kind: &Arc<dyn Kind>, mut ports: impl Iterator<Item = u16>) -> Result<Private, Failure> {
    loop {
        let port = ports.next().ok_or_else(no_port)?;
        let private = launch(Arc::clone(kind), port)?;
        match private.begun() {
            Ok(()) => return Ok(private),
            Err(_) if private.has_no_port() => (),
            Err(broken) => return Err(broken),
        }
    }
}

/// Starts one, and does not wait for it.
fn launch(kind: Arc<dyn Kind>, port: u16) -> Result<Private, Failure> {
    let mut keeper = Keeper::new(kind.name(), kind.users());
    let command = kind.prepare(&mut keeper, port).map_err(Failure::Missing)?;
    keeper.start(&command);
    let server = Server { url: kind.url(port), log: Some(keeper.directory().join("log")) };
    Ok(Private { server, kind, port, keeper: Mutex::new(keeper), command })
}

impl Private {
    /// Waits until it answers for the first time.
    fn begun(&self) -> Result<(), Failure> {
        let keeper = self.keeper();
        answers(&keeper, &*self.kind, &self.server.url)
            .map_err(|why| Failure::Broken(format!("can't start {:?}: {why}\n{}", self.kind, keeper.log())))
    }

    /// Whether somebody else had its port when it got to it.
    fn has_no_port(&self) -> bool {
        // Node does not begin it with a capital letter.
        self.log().contains("ddress already in use")
    }
}

fn no_port() -> Failure {
    Failure::Broken("no free port".to_owned())
}

/// Waits until the keeper's server answers.
fn answers(keeper: &Keeper, kind: &dyn Kind, url: &str) -> Result<(), String> {
    let (home, server) = (keeper.directory().to_owned(), keeper.server());
    let asking = async move {
        loop {
            match kind.whereabouts(url, &home).await {
                Ok(directory) if kind.is_at_home(&directory, &home) => return Ok(()),
                Ok(other) => return Err(format!("another server answers, from {other}")),
                Err(_) => clock::pause(Duration::from_millis(5)).await,
            }
        }
    };
    let asking = async move {
        // Whoever has taken its port may well never answer.
        let ended = async {
            while keeper::runs(server) {
                clock::pause(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            answer = asking => answer,
            () = ended => Err("it has ended".to_owned()),
            () = clock::pause(START) => Err(format!("no answer within {START:?}")),
        }
    };
    blocking(asking).unwrap_or_else(Err)
}

/// Runs `asking` to its end.
fn blocking<T: Send>(asking: impl Future<Output = T> + Send) -> Result<T, String> {
    // The caller may be on a runtime, which can't wait for another one on the same thread.
    thread::scope(|scope| {
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
        let asked =
            scope.spawn(move || runtime().map(|it| it.block_on(asking)).map_err(|error| error.to_string()));
        asked.join().unwrap_or_else(|_| Err("asking it panicked".to_owned()))
    })
}

/// Free ports, in random order: other test processes look for some at the same time. This one gets each of them once, and
/// begins again when it has had all: a server that has not come to it yet does not hold its port.
///
/// They lie below those that the system gives to outgoing connections. In that range, a client that tries to reach a
/// killed server can be given the server's own port, connects to itself, and keeps it from starting again.
fn ports() -> impl Iterator<Item = u16> {
    const COUNT: u64 = 12_000;
    // Prime, so it comes to all.
    const STEP: u64 = 7_919;
    static FIRST: LazyLock<u64> = LazyLock::new(|| random() % COUNT);
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let next = || *FIRST + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT * STEP;
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    iter::repeat_with(move || 20_000 + u16::try_from(next() % COUNT).unwrap_or(0)).filter(free).take(20)
}

fn random() -> u64 {
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_taken_meanwhile_is_passed_over() {
        let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
        let taken = taken.local_addr().expect("its number").port();
        let kinds: [Arc<dyn Kind>; 6] = [
            Arc::new(postgres::Postgres::default()),
            Arc::new(mariadb::MariaDb::default()),
            Arc::new(redis::Redis::of(&redis::REDIS, &[])),
            Arc::new(redis::Redis::of(&valkey::VALKEY, &[])),
            Arc::new(zookeeper::ZooKeeper::default()),
            Arc::new(azurite::Azurite::default()),
        ];
        for kind in kinds {
            let private = begin_at(&kind, iter::once(taken).chain(ports())).expect("it starts at another");
            assert_ne!(private.port(), taken);
        }
    }

    #[test]
    fn a_password_is_not_shown() {
        let server = Server { url: "postgres://me:secret@127.0.0.1/postgres".to_owned(), log: None };
        let shown = format!("{server:?}");
        assert!(shown.contains("127.0.0.1") && !shown.contains("secret"), "{shown}");
    }
}
