//! A server, and the start of a private one.

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    iter,
    net::TcpListener,
    ops::Deref,
    path::{Path, PathBuf},
    sync::{
        Arc, LazyLock, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use async_trait::async_trait;
use polylock_core::{sync::lock, url::StoreUrl};
use polylock_testkit::Missing;

use super::{
    keeper::{self, Keeper},
    wall_clock::WallClock,
};
use crate::clock;

/// The timeout from the start of a server to its first reply, crash recovery included.
pub(super) const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A running server.
#[derive(Clone)]
pub struct Server {
    url: String,
    /// Its log file; `None` if the server was not started here.
    log: Option<PathBuf>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL from the environment may contain a password.
        f.debug_tuple("Server").field(&StoreUrl::parse(&self.url)).finish()
    }
}

impl Server {
    /// Returns the server at `url`, without a log.
    pub(super) const fn at(url: String) -> Self {
        Self { url, log: None }
    }

    /// Returns the URL of its database, with a user that has all rights.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns its log file; `None` if the server was not started here.
    #[must_use]
    pub fn log_file(&self) -> Option<&Path> {
        self.log.as_deref()
    }

    /// Returns a short name that is unique in this server, for tables, users or databases.
    #[must_use]
    pub fn name(&self) -> String {
        static PROCESS: LazyLock<u64> = LazyLock::new(|| random() & 0xff_ffff);
        static NEXT: AtomicU64 = AtomicU64::new(0);
        format!("t{:06x}_{}", *PROCESS, NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A server that belongs to one test. It is killed and its directory removed when this is dropped.
#[derive(Debug)]
pub struct PrivateServer {
    server: Server,
    kind: Arc<dyn ServerKind>,
    port: u16,
    keeper: Mutex<Keeper>,
    pub(super) command: Vec<String>,
    /// Its own wall clock, if it has one.
    wall_clock: OnceLock<Box<WallClock>>,
}

impl Deref for PrivateServer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl PrivateServer {
    /// Returns its port of 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns its directory, with its data, its configuration and its `log`.
    #[must_use]
    pub fn directory(&self) -> PathBuf {
        self.keeper().directory().to_owned()
    }

    /// Returns the contents of its log.
    #[must_use]
    pub fn log(&self) -> String {
        self.keeper().log()
    }

    /// Returns its process id; `None` if it was killed.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.keeper().server()
    }

    /// Sends SIGKILL to all its processes. They have ended when this returns.
    pub fn kill(&self) {
        self.keeper().kill();
    }

    /// Kills it if it runs, starts it with the same port and data, and waits until it replies.
    ///
    /// # Panics
    /// If it does not reply, with its log.
    pub fn restart(&self) {
        let mut keeper = self.keeper();
        keeper.kill();
        let words = self.wall_clock.get().map_or(&[][..], |clock| &clock.words);
        keeper.start(words.iter().chain(&self.command));
        self.wait_for_restart(&keeper);
    }

    /// Waits until it replies after a restart.
    pub(super) fn wait_for_restart(&self, keeper: &Keeper) {
        let started = wait_until_ready(keeper, &*self.kind, &self.server.url);
        started.unwrap_or_else(|why| panic!("can't restart {:?}: {why}\n{}", self.kind, keeper.log()));
    }

    /// Sends SIGSTOP to all its processes. They have stopped when this returns.
    pub fn freeze(&self) {
        self.keeper().freeze();
    }

    /// Sends SIGCONT to all its processes.
    pub fn thaw(&self) {
        self.keeper().thaw();
    }

    /// Restarts it with a wall clock of its own, which shows the machine's time.
    ///
    /// # Panics
    /// If it has one already, or does not start with it.
    pub fn detach_wall_clock(&self) {
        let clock = WallClock::prepare(&mut self.keeper());
        assert!(self.wall_clock.set(Box::new(clock)).is_ok(), "{self:?} has a wall clock of its own already");
        self.restart();
    }

    /// Sets its wall clock to this time before or after the machine's.
    ///
    /// # Panics
    /// If it has none [of its own](Self::detach_wall_clock).
    pub fn set_wall_clock(&self, is_ahead: bool, by: Duration) {
        let Some(clock) = self.wall_clock.get() else { panic!("{self:?} has the machine's clock") };
        clock.set(is_ahead, by);
    }

    /// Sets its wall clock to the machine's time.
    ///
    /// # Panics
    /// If it has none [of its own](Self::detach_wall_clock).
    pub fn reset_wall_clock(&self) {
        self.set_wall_clock(true, Duration::ZERO);
    }

    pub(super) fn keeper(&self) -> MutexGuard<'_, Keeper> {
        lock(&self.keeper)
    }
}

/// A kind of server.
#[async_trait]
pub(super) trait ServerKind: fmt::Debug + Send + Sync {
    /// Returns its name, one word.
    fn name(&self) -> &'static str;

    /// Returns the users to run it as if this process is root: the first that exists is used.
    fn users(&self) -> &'static [&'static str];

    /// Creates the files of a server in the directory of `keeper`, and returns its command.
    fn prepare(&self, keeper: &mut Keeper, port: u16) -> Result<Vec<String>, Missing>;

    /// Returns the URL of the server at `port`.
    fn url(&self, port: u16) -> String;

    /// Queries the data directory of the server at `url`. It shows that the server replies, and that it is the one that was started
    /// in `home`.
    async fn data_directory(&self, url: &str, home: &Path) -> Result<String, String>;

    /// Returns true if `directory` belongs to a server in `home`.
    fn is_own_directory(&self, directory: &str, home: &Path) -> bool {
        Path::new(directory).starts_with(home)
    }
}

/// The reason why a server is not available.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    Missing(Missing),
    /// It is installed, but does not start.
    Broken(String),
}

/// Starts a private server of this `kind`.
pub(super) fn start(kind: impl ServerKind + 'static) -> Result<PrivateServer, Missing> {
    start_or_fail(kind).map_err(missing)
}

/// # Panics
/// If it is installed, but does not start.
pub(super) fn missing(failure: Failure) -> Missing {
    match failure {
        Failure::Missing(missing) => missing,
        Failure::Broken(why) => panic!("{why}"),
    }
}

pub(super) fn start_or_fail(kind: impl ServerKind + 'static) -> Result<PrivateServer, Failure> {
    let kind: Arc<dyn ServerKind> = Arc::new(kind);
    start_at(&kind, ports())
}

/// Starts a server at the first of `ports` that is still free when the server binds it.
pub(super) fn start_at(
    kind: &Arc<dyn ServerKind>,
    mut ports: impl Iterator<Item = u16>,
) -> Result<PrivateServer, Failure> {
    loop {
        let port = ports.next().ok_or_else(no_free_port)?;
        let private = launch(Arc::clone(kind), port)?;
        match private.wait_for_start() {
            Ok(()) => return Ok(private),
            Err(_) if private.is_port_taken() => (),
            Err(broken) => return Err(broken),
        }
    }
}

/// Starts a server without waiting for it.
pub(super) fn launch(kind: Arc<dyn ServerKind>, port: u16) -> Result<PrivateServer, Failure> {
    let mut keeper = Keeper::new(kind.name(), kind.users());
    let command = kind.prepare(&mut keeper, port).map_err(Failure::Missing)?;
    keeper.start(&command);
    let server = Server { url: kind.url(port), log: Some(keeper.directory().join("log")) };
    Ok(PrivateServer { server, kind, port, keeper: Mutex::new(keeper), command, wall_clock: OnceLock::new() })
}

impl PrivateServer {
    /// Waits for its first reply.
    pub(super) fn wait_for_start(&self) -> Result<(), Failure> {
        let keeper = self.keeper();
        wait_until_ready(&keeper, &*self.kind, &self.server.url)
            .map_err(|why| Failure::Broken(format!("can't start {:?}: {why}\n{}", self.kind, keeper.log())))
    }

    /// Returns true if another process had taken its port.
    pub(super) fn is_port_taken(&self) -> bool {
        // Node writes the message without the capital letter.
        self.log().contains("ddress already in use")
    }
}

pub(super) fn no_free_port() -> Failure {
    Failure::Broken("no free port".to_owned())
}

/// Waits until the server of the keeper replies.
fn wait_until_ready(keeper: &Keeper, kind: &dyn ServerKind, url: &str) -> Result<(), String> {
    let (home, server) = (keeper.directory().to_owned(), keeper.server());
    let ready = async move {
        loop {
            // Another server may have the port: the end of this one shows it, with a message in the log.
            let directory = kind.data_directory(url, &home).await;
            if directory.is_ok_and(|directory| kind.is_own_directory(&directory, &home)) {
                return Ok(());
            }
            clock::pause(Duration::from_millis(5)).await;
        }
    };
    let ready = async move {
        // Another process that has taken its port may never reply.
        let ended = async {
            while keeper::is_running(server) {
                clock::pause(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            outcome = ready => outcome,
            () = ended => Err("it has ended".to_owned()),
            () = clock::pause(START_TIMEOUT) => Err(format!("no reply within {START_TIMEOUT:?}")),
        }
    };
    blocking(ready).unwrap_or_else(Err)
}

/// Runs `future` to its end.
pub(super) fn blocking<T: Send>(future: impl Future<Output = T> + Send) -> Result<T, String> {
    // The caller may be on a runtime, which can't wait for another one on the same thread.
    thread::scope(|scope| {
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
        let thread =
            scope.spawn(move || runtime().map(|it| it.block_on(future)).map_err(|error| error.to_string()));
        thread.join().unwrap_or_else(|_| Err("the request to the server panicked".to_owned()))
    })
}

/// Returns free ports in random order, because other test processes search at the same time. Each port is returned once until all were
/// returned: a server that is still starting has not bound its port yet.
///
/// They are below the ephemeral ports. In that range, a client of a killed server can get the port of the server as its local
/// port, connect to itself, and prevent a restart.
pub(super) fn ports() -> impl Iterator<Item = u16> {
    const COUNT: u64 = 12_000;
    // Prime, so that every port is reached.
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
    fn a_password_is_not_shown() {
        let server = Server::at("postgres://me:secret@127.0.0.1/postgres".to_owned());
        let shown = format!("{server:?}");
        assert!(shown.contains("127.0.0.1") && !shown.contains("secret"), "{shown}");
    }
}
