//! The connections to one file: one writer at a time, in order of arrival, and every reply in bounded time.
//!
//! SQLite allows one writer and makes the others sleep and retry, which starves some of them. So the writers of this process queue at a
//! [`gate`](crate::engine::gate), in its order of precedence, before they compete with those of other processes.

use std::{path::PathBuf, sync::Arc, time::Duration};

use backon::{BackoffBuilder, ExponentialBuilder};
use polylock_core::{
    Clock, Error, Executor, Fault, Moment, Operation, Result, SystemClock, gate::Permit, sync::lock,
    time_limit,
};
use sqlx::{
    ConnectOptions, Connection, SqlStr, SqliteConnection,
    sqlite::{SqliteArguments, SqliteConnectOptions, SqliteRow, SqliteSynchronous},
};
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::{
    NAME,
    config::{Config, Durability},
    error,
    file::Identity,
};
use crate::engine::gate::Gate;

/// The time for which SQLite itself sleeps while another connection has the file locked. Its sleeps grow, up to 100 ms; with this limit
/// they stay below 5 ms, and no process starves beside one that sleeps less.
const INNER_TIMEOUT: Duration = Duration::from_millis(10);

/// The address of the disk of a simulated process.
#[cfg(all(feature = "simulation", target_os = "linux"))]
pub(super) const DISK: &str = "disk";

/// The connection that a statement runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// For grants: they are on the disk before they are reported.
    Durable,
    /// For every other write. A power cut ends every process that could use the file, so it may undo these writes: queue entries and
    /// renewals are of no use to a process that has ended, and a released hold that reappears expires.
    Relaxed,
    /// For reads, and for the poller, which must not count the writes of its own connection.
    Reading,
}

/// The connections to one file.
#[derive(Debug)]
pub(super) struct Connections {
    pub(super) path: PathBuf,
    timeout: Duration,
    gate: Gate,
    writers: Arc<Mutex<Writers>>,
    reader: Arc<Mutex<Slot>>,
    /// The file that the connections are open on.
    file: std::sync::Mutex<Option<Identity>>,
}

#[derive(Debug)]
struct Writers {
    durable: Slot,
    /// `None` if nothing needs to be durable: then one connection is enough, and keeps its cache.
    relaxed: Option<Slot>,
}

/// A connection that is opened on demand, and again when its state is unknown.
#[derive(Debug)]
pub(super) struct Slot {
    options: SqliteConnectOptions,
    pub(super) open: Option<SqliteConnection>,
    /// The number of times that it was opened.
    openings: u64,
}

/// Exclusive use of a lane for one operation.
enum LaneGuard {
    Writer(Lane, OwnedMutexGuard<Writers>, #[expect(dead_code, reason = "its drop")] Permit),
    Reader(OwnedMutexGuard<Slot>),
}

/// A statement, by the kind of its reply.
#[derive(Debug, Clone, Copy)]
pub(super) enum Sql<'a> {
    /// The reply is rows.
    Query(&'a SqlStr),
    /// The reply is the changes. The driver sends one message for them and at least two for rows, and every message wakes a thread.
    Execute(&'a SqlStr),
}

/// The reply to a statement, which is read before another writer of this process is admitted.
pub(super) struct Reply {
    pub(super) rows: Vec<SqliteRow>,
    /// The number of the inserted row, if there is one; any number if a row was changed; `None` if no row was.
    pub(super) changed: Option<i64>,
    /// The number of times that the connection was opened: the counts of a connection start again when it is reopened.
    pub(super) openings: u64,
}

impl Connections {
    pub(super) fn new(config: &Config, path: PathBuf) -> Self {
        let slot = |synchronous| {
            let options = SqliteConnectOptions::new()
                .filename(&path)
                .create_if_missing(true)
                .synchronous(synchronous)
                .busy_timeout(INNER_TIMEOUT)
                .thread_name(|id| format!("polylock-sql-{id}"))
                .disable_statement_logging();
            Slot { options, open: None, openings: 0 }
        };
        let relaxed = slot(SqliteSynchronous::Normal);
        let writers = match config.durability {
            Durability::Full => Writers { durable: slot(SqliteSynchronous::Full), relaxed: Some(relaxed) },
            Durability::Normal => Writers { durable: relaxed, relaxed: None },
        };
        Self {
            timeout: config.operation_timeout,
            gate: Gate::new(1),
            writers: Arc::new(Mutex::new(writers)),
            reader: Arc::new(Mutex::new(slot(SqliteSynchronous::Normal))),
            file: std::sync::Mutex::default(),
            path,
        }
    }

    /// Runs `sql` on `lane` and calls `read` with the reply, before another writer of this process is admitted. It is not begun any more when
    /// the [time limit](time_limit) of its caller has passed.
    ///
    /// # Errors
    /// A temporary error after the busy timeout at the latest; the error of `read`.
    ///
    /// # Cancel safety
    /// The connection is closed while it works: an open transaction is rolled back; a single statement may take effect or not.
    pub(super) async fn run<T>(
        &self,
        lane: Lane,
        operation: Operation,
        sql: Sql<'_>,
        arguments: SqliteArguments,
        read: impl FnOnce(Reply) -> Result<T, sqlx::Error> + Send,
    ) -> Result<T> {
        let permit = match lane {
            Lane::Reading => None,
            _ => Some(
                self.gate.enter(operation, self.timeout).await.ok_or_else(|| self.timed_out(operation))?,
            ),
        };
        let deadline = SystemClock.now() + time_limit::within(self.timeout);
        let Some(guard) = SystemClock.before(deadline, self.lock_lane(lane, permit)).await else {
            return Err(self.timed_out(operation));
        };
        time_limit::check(NAME, operation)?;
        let (sql, is_query) = match sql {
            Sql::Query(sql) => (sql.clone(), true),
            Sql::Execute(sql) => (sql.clone(), false),
        };
        let mut work = Box::pin(run_with_retries(guard, sql, is_query, arguments, deadline));
        // The database's clock decides about expiry, so this timeout may be late after a suspend, without harm.
        let Some((guard, result)) = SystemClock.before(deadline + INNER_TIMEOUT, &mut work).await else {
            // The disk hangs. The statement can't be cancelled, so the gate stays closed until it has ended: a release must not overtake
            // its own claim.
            Executor::current().spawn(work);
            return Err(self.timed_out(operation));
        };
        let failed = |failure| error::from_driver(operation, &self.path, failure);
        let reply = result.map_err(failed)?;
        if lane != Lane::Reading {
            self.gate.answered();
        }
        let outcome = read(reply).map_err(failed);
        drop(guard);
        outcome
    }

    /// Records the file at the path as the one that the connections are open on.
    pub(super) fn record_identity(&self) {
        *lock(&self.file) = Identity::of(&self.path);
    }

    /// Returns true if the path leads to another file or to none: the file was deleted or replaced. Locks in the old file would be
    /// invisible to other processes.
    pub(super) fn has_moved(&self) -> bool {
        *lock(&self.file) != Identity::of(&self.path)
    }

    /// Closes the connections to the file; the next operation opens the file that is at the path then.
    ///
    /// # Errors
    /// A temporary error after the busy timeout at the latest.
    pub(super) async fn close_all(&self, operation: Operation) -> Result<()> {
        let deadline = SystemClock.now() + self.timeout;
        let all = async { (self.writers.lock().await, self.reader.lock().await) };
        let (mut writers, mut reader) =
            SystemClock.before(deadline, all).await.ok_or_else(|| self.timed_out(operation))?;
        let Writers { durable, relaxed } = &mut *writers;
        // SQLite does not touch the files beside a database that has moved when it closes it.
        for slot in [durable, &mut *reader].into_iter().chain(relaxed) {
            slot.open = None;
        }
        Ok(())
    }

    async fn lock_lane(&self, lane: Lane, permit: Option<Permit>) -> LaneGuard {
        match permit {
            None => LaneGuard::Reader(self.reader.clone().lock_owned().await),
            Some(permit) => LaneGuard::Writer(lane, self.writers.clone().lock_owned().await, permit),
        }
    }

    fn timed_out(&self, operation: Operation) -> Error {
        let advice =
            format!("no reply within {:?}: another process keeps it locked, or its disk hangs", self.timeout);
        error::advise(operation, &self.path, Fault::Temporary, advice)
    }
}

/// Runs `sql`, with retries while other connections keep the file locked.
async fn run_with_retries(
    mut guard: LaneGuard,
    sql: SqlStr,
    is_query: bool,
    arguments: SqliteArguments,
    deadline: Moment,
) -> (LaneGuard, Result<Reply, sqlx::Error>) {
    let mut pauses = ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(1))
        .with_max_delay(Duration::from_millis(5))
        .without_max_times()
        .with_jitter()
        .build();
    loop {
        let slot = match &mut guard {
            LaneGuard::Reader(slot) => slot,
            LaneGuard::Writer(lane, writers, _) => match &mut writers.relaxed {
                Some(relaxed) if *lane == Lane::Relaxed => relaxed,
                _ => &mut writers.durable,
            },
        };
        let result = slot.run(sql.clone(), is_query, arguments.clone()).await;
        match (&result, pauses.next()) {
            (Err(failure), Some(pause))
                if error::is_busy(failure) && SystemClock.now() + pause < deadline =>
            {
                SystemClock.sleep_until(SystemClock.now() + pause).await;
            }
            _ => return (guard, result),
        }
    }
}

impl Slot {
    async fn run(
        &mut self,
        sql: SqlStr,
        is_query: bool,
        arguments: SqliteArguments,
    ) -> Result<Reply, sqlx::Error> {
        #[cfg(all(feature = "simulation", target_os = "linux"))]
        if let Some(disk) = polylock_core::simulation::connect(DISK) {
            return self.run_on(disk, sql, is_query, arguments).await;
        }
        self.execute(sql, is_query, arguments).await
    }

    /// Takes the connection out of the slot, and opens it if there is none.
    pub(super) async fn take(&mut self) -> Result<SqliteConnection, sqlx::Error> {
        match self.open.take() {
            Some(connection) => Ok(connection),
            None => {
                self.openings += 1;
                self.options.connect().await
            }
        }
    }

    pub(super) async fn execute(
        &mut self,
        sql: SqlStr,
        is_query: bool,
        arguments: SqliteArguments,
    ) -> Result<Reply, sqlx::Error> {
        // Out of the slot: after any failure, or if this future is dropped, a transaction may be open.
        let mut connection = self.take().await?;
        let openings = self.openings;
        let query = sqlx::query_with(sql, arguments);
        let reply = if is_query {
            // All rows, even where one is enough: the commit follows the last one, and may fail.
            query.fetch_all(&mut connection).await.map(|rows| Reply { rows, changed: None, openings })
        } else {
            query.execute(&mut connection).await.map(|done| Reply {
                rows: Vec::new(),
                changed: (done.rows_affected() > 0).then(|| done.last_insert_rowid()),
                openings,
            })
        };
        match &reply {
            Ok(_) => self.open = Some(connection),
            Err(failure) if error::is_busy(failure) => self.open = roll_back(connection).await,
            Err(_) => drop(connection.close().await),
        }
        reply
    }
}

/// Returns the connection with no transaction open; `None` if that is not certain.
async fn roll_back(mut connection: SqliteConnection) -> Option<SqliteConnection> {
    match sqlx::query("ROLLBACK").execute(&mut connection).await {
        Ok(_) => Some(connection),
        // No transaction was open.
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("1") => Some(connection),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use sqlx::Row;

    /// Writes one row, after some tenths of a second of computing.
    const SLOW: &str = "INSERT INTO t WITH RECURSIVE c(x) AS \
                        (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 3000000) SELECT max(x) FROM c";

    struct TestFile {
        connections: Connections,
        _directory: tempfile::TempDir,
    }

    impl TestFile {
        async fn new(timeout: Duration) -> Self {
            let directory = tempfile::TempDir::new().unwrap();
            let config = Config::new(directory.path().join("x.db"));
            let connections = Connections::new(&config, config.path.clone());
            let mut setting = Self { connections, _directory: directory };
            // On a busy machine this may take longer than the test's timeout.
            setting.run(Lane::Durable, "PRAGMA journal_mode = WAL; CREATE TABLE t (x)").await.unwrap();
            setting.connections.timeout = timeout;
            setting
        }

        async fn run(&self, lane: Lane, sql: &'static str) -> Result<Vec<SqliteRow>> {
            let sql = SqlStr::from_static(sql);
            let read = |reply: Reply| Ok(reply.rows);
            self.connections
                .run(lane, Operation::Claim, Sql::Query(&sql), SqliteArguments::default(), read)
                .await
        }
    }

    #[tokio::test]
    async fn a_hung_statement_times_out_and_is_not_overtaken() {
        let setting = TestFile::new(Duration::from_millis(50)).await;
        let start = SystemClock.now();
        let error = setting.run(Lane::Durable, SLOW).await.unwrap_err();
        assert!(error.is_temporary(), "{error:?}");
        let mut refused = 0;
        let rows = loop {
            match setting.run(Lane::Relaxed, "SELECT count(*) FROM t").await {
                Ok(rows) => break rows[0].get::<i64, _>(0),
                Err(error) => assert!(error.is_temporary(), "{error:?}"),
            }
            refused += 1;
            assert!(SystemClock.now().since(start) < Duration::from_secs(60), "the statement never ends");
        };
        assert_eq!(rows, 1, "overtaken, after {refused} refusals");
    }

    #[tokio::test]
    async fn a_statement_that_was_given_up_is_not_begun() {
        let setting = TestFile::new(Duration::from_secs(5)).await;
        let (_, first) = tokio::join!(
            setting.run(Lane::Durable, SLOW),
            time_limit::until(
                SystemClock.now() + Duration::from_millis(20),
                setting.run(Lane::Relaxed, "INSERT INTO t VALUES (1)")
            )
        );
        let second =
            time_limit::until(SystemClock.now(), setting.run(Lane::Durable, "INSERT INTO t VALUES (1)"));
        for refused in [first, second.await] {
            assert!(refused.unwrap_err().is_temporary());
        }
        let rows = setting.run(Lane::Reading, "SELECT x FROM t WHERE x = 1").await.unwrap();
        assert!(rows.is_empty());
    }

    #[tokio::test]
    async fn a_dropped_statement_leaves_no_transaction_open() {
        let setting = TestFile::new(Duration::from_secs(5)).await;
        for polls in 1..20 {
            let mut work =
                Box::pin(setting.run(Lane::Relaxed, "BEGIN IMMEDIATE; INSERT INTO t VALUES (1); COMMIT"));
            for _ in 0..polls {
                if work.as_mut().now_or_never().is_some() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            drop(work);
            setting.run(Lane::Durable, "INSERT INTO t VALUES (2)").await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_failed_statement_leaves_no_transaction_open() {
        let setting = TestFile::new(Duration::from_secs(5)).await;
        let script = "BEGIN IMMEDIATE; INSERT INTO t VALUES (1); INSERT INTO nowhere VALUES (1); COMMIT";
        assert!(setting.run(Lane::Relaxed, script).await.is_err());
        setting.run(Lane::Durable, "BEGIN IMMEDIATE; INSERT INTO t VALUES (2); COMMIT").await.unwrap();
        let rows = setting.run(Lane::Reading, "SELECT x FROM t").await.unwrap();
        assert_eq!(rows.iter().map(|row| row.get::<i64, _>(0)).collect::<Vec<_>>(), [2]);
    }
}
