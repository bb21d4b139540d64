//! The real SQLite store on a real file, which its processes share.
//!
//! A statement is one step, in virtual time, and reads the clock of the run. A disk that hangs delays it, one that fails gives an error before
//! or after it, and another program that has the file locked makes SQLite refuse to write. No power cut is simulated, and no process ends
//! within a statement. Processes find that another one has ended by its lock of the file of holders. They have no sockets, so they poll.

pub mod disk;
pub mod planted;

use std::{
    collections::BTreeMap,
    io,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use polylock_core::{Clock, FencingToken, LockName, SystemClock, simulation::Connecting, sync::lock};
use polylock_sql::sqlite::{
    Config,
    simulation::{DISK, End, connect},
};
use sqlx::{
    ConnectOptions, Connection, Error, Row, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteRow},
};
use tempfile::TempDir;

use self::disk::Disk;
use super::{
    clock::{LocalClock, WallClock},
    live_entry::LiveEntry,
    network::Network,
    plan::{Plan, Planted, stream},
    servers::{Events, Life, Opening, Servers},
    sql::tables::conflicts,
    time::Time,
    timeline::Timeline,
    violation::Violation,
};

/// The time limit of an operation.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(1);

/// The pause between attempts to open the store.
const REOPEN: Duration = Duration::from_millis(50);

/// The file of a run, and its machine.
#[derive(Debug)]
pub struct SqliteServers {
    planted: Option<Planted>,
    disk: Arc<Disk>,
    path: PathBuf,
    /// The connection of the simulation, which looks at the tables; `None` before their creation.
    looking: Mutex<Option<SqliteConnection>>,
    /// The connection of another program that has the file locked.
    locking: Mutex<Option<SqliteConnection>>,
    ends: Mutex<BTreeMap<usize, EndOfLife>>,
    _directory: TempDir,
}

/// The end of a process in its present life.
struct EndOfLife(End);

impl std::fmt::Debug for EndOfLife {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EndOfLife")
    }
}

impl SqliteServers {
    /// Creates the directory of the file, on the machine with this clock.
    ///
    /// # Errors
    /// If there can be no directory for temporary files.
    pub fn new(
        plan: &Plan,
        machine: LocalClock,
        (time, network, timeline): (Arc<Time>, Arc<Network>, Arc<Timeline>),
    ) -> io::Result<Arc<Self>> {
        let clock = WallClock::of_machine(machine);
        let directory = TempDir::new()?;
        timeline.hide(directory.path());
        Ok(Arc::new(Self {
            planted: plan.planted,
            disk: Disk::new(clock, (time, network, timeline), stream(plan.seed, &[8])),
            path: directory.path().join("locks.db"),
            looking: Mutex::default(),
            locking: Mutex::default(),
            ends: Mutex::default(),
            _directory: directory,
        }))
    }

    async fn open_file(&self) -> Result<SqliteConnection, Error> {
        SqliteConnectOptions::new().filename(&self.path).create_if_missing(true).connect().await
    }

    /// Returns the rows of `sql` at the present time, which is its first argument; none before the tables exist.
    fn look(&self, sql: &'static str) -> Vec<SqliteRow> {
        let mut looking = lock(&self.looking);
        let rows = pollster::block_on(async {
            let connection = match &mut *looking {
                Some(connection) => connection,
                none => {
                    let mut connection = self.open_file().await?;
                    let tables = sqlx::query("SELECT 1 FROM sqlite_master WHERE name = 'polylock_broken'");
                    if tables.fetch_all(&mut connection).await?.is_empty() {
                        connection.close().await?;
                        return Ok(Vec::new());
                    }
                    none.insert(connection)
                }
            };
            sqlx::query(sql).bind(self.disk.clock.now_us()).fetch_all(connection).await
        });
        rows.unwrap_or_else(|error: Error| unreachable!("{error}"))
    }
}

/// A row of a hold or a waiter.
struct Found {
    name: String,
    number: i64,
    mode: i64,
    owner: String,
    expires_us: i64,
}

impl From<SqliteRow> for Found {
    fn from(row: SqliteRow) -> Self {
        let name = String::from_utf8_lossy(row.get(0)).into_owned();
        Self { name, number: row.get(1), mode: row.get(2), owner: row.get(3), expires_us: row.get(4) }
    }
}

impl Found {
    fn entry(&self, token: Option<i64>, is_free_to_go: bool) -> LiveEntry {
        let name = LockName::from_store(&self.name).unwrap_or_else(|error| unreachable!("{error}"));
        let owner = Some(self.owner.clone());
        LiveEntry { name, token: token.map(i64::cast_unsigned), is_free_to_go, owner }
    }
}

impl SqliteServers {
    fn holds(&self) -> Vec<Found> {
        let sql = "SELECT name, token, mode, owner, expires_at FROM polylock_holds WHERE expires_at > ?1";
        self.look(sql).into_iter().map(Found::from).collect()
    }

    fn waiters(&self) -> Vec<Found> {
        let sql = "SELECT name, seq, mode, owner, expires_at FROM polylock_waiters WHERE expires_at > ?1 ORDER BY seq";
        self.look(sql).into_iter().map(Found::from).collect()
    }
}

impl Servers for SqliteServers {
    fn open(self: Arc<Self>, (process, _): Life) -> Opening {
        Box::pin(async move {
            loop {
                let config = Config::new(&self.path).operation_timeout(OPERATION_TIMEOUT);
                let config = config.next_version(planted::version(self.planted));
                match connect(config).await {
                    Ok((store, end)) => {
                        lock(&self.ends).insert(process, EndOfLife(end));
                        return store;
                    }
                    Err(error) => assert!(error.is_temporary(), "{}", error.chain()),
                }
                SystemClock.sleep_until(SystemClock.now() + REOPEN).await;
            }
        })
    }

    fn connect(&self, process: Life, address: &str) -> Connecting {
        debug_assert_eq!(address, DISK);
        let statement = self.disk.statement(process);
        Box::pin(async { Ok(Box::new(statement) as _) })
    }

    fn end_process(&self, process: usize) {
        if let Some(EndOfLife(end)) = lock(&self.ends).remove(&process) {
            end().unwrap_or_else(|error| unreachable!("{error}"));
        }
    }

    fn pause(&self, _: usize) {
        self.disk.set_hangs(true);
    }

    fn resume(&self, _: usize) {
        self.disk.set_hangs(false);
    }

    /// Another program locks the file.
    fn crash(&self, _: usize) {
        let mut locking = lock(&self.locking);
        if locking.is_none() {
            let locked = pollster::block_on(async {
                let mut connection = self.open_file().await?;
                sqlx::query("BEGIN IMMEDIATE").execute(&mut connection).await?;
                Ok(connection)
            });
            *locking = Some(locked.unwrap_or_else(|error: Error| unreachable!("{error}")));
        }
    }

    /// The other program ends.
    fn restart(&self, _: usize) {
        if let Some(connection) = lock(&self.locking).take() {
            pollster::block_on(connection.close()).unwrap_or_else(|error| unreachable!("{error}"));
        }
    }

    fn expires(&self, name: &LockName, token: FencingToken) -> Option<u64> {
        let holds = self.holds();
        let hold = holds.iter().find(|hold| hold.number == token.as_i64() && hold.name == name.as_str())?;
        Some(self.disk.clock.to_run(hold.expires_us))
    }

    fn live(&self) -> Vec<LiveEntry> {
        let (holds, waiters) = (self.holds(), self.waiters());
        let waits = waiters.iter().enumerate().map(|(at, waiter)| {
            let others = holds.iter().chain(&waiters[..at]).filter(|other| other.name == waiter.name);
            let conflicting = others.fold(0, |all, other| all | conflicts(other.mode));
            waiter.entry(None, conflicting & waiter.mode == 0)
        });
        holds.iter().map(|hold| hold.entry(Some(hold.number), false)).chain(waits).collect()
    }

    fn violations(&self, _: &Events<'_>) -> Vec<Violation> {
        Vec::new()
    }
}
