//! The connections to one file: one writer at a time, first come first served, and every answer in bounded time.
//!
//! SQLite allows one writer and makes the others sleep and try again, which starves some of them. So the writers of
//! this process queue at a turnstile before they meet those of other processes, in the order of the [`gate`](crate::engine::gate).

use std::{
    path::PathBuf,
    sync::{Arc, PoisonError},
    time::Duration,
};

use backon::{BackoffBuilder, ExponentialBuilder};
use polylock_core::{Clock, Error, Fault, Moment, Operation, Result, SystemClock};
use sqlx::{
    ConnectOptions, Connection, SqlStr, SqliteConnection,
    sqlite::{SqliteArguments, SqliteConnectOptions, SqliteRow, SqliteSynchronous},
};
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::{
    config::{Config, Durability},
    error,
    place::Identity,
};
use crate::engine::gate::{Gate, Permit};

/// How long SQLite itself sleeps in the face of a foreign lock. Its sleeps grow, to 100 ms in the end; cut off here
/// they stay below 5 ms, and no process starves beside one that sleeps less.
const INNER_TIMEOUT: Duration = Duration::from_millis(10);

/// Which connection a statement runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// For grants: on the disk before they are reported.
    Durable,
    /// For everything else that writes. A power cut ends every process that could use the file, so what it may undo
    /// harms nobody: of a place in the queue or a renewal only the dead would have had a use, and a hold that comes
    /// back after its release runs out by itself.
    Relaxed,
    /// For what only reads, and for the poller, which must not see its own connection's writes.
    Reading,
}

/// The connections to one file.
#[derive(Debug)]
pub(super) struct Connections {
    pub(super) path: PathBuf,
    patience: Duration,
    gate: Arc<Gate>,
    writers: Arc<Mutex<Writers>>,
    reader: Arc<Mutex<Slot>>,
    /// Which file the connections lead to.
    file: std::sync::Mutex<Option<Identity>>,
}

#[derive(Debug)]
struct Writers {
    durable: Slot,
    /// None if nothing needs to be durable: then one connection does, and keeps its cache.
    relaxed: Option<Slot>,
}

/// A connection that is opened when it is needed, and anew when its state is in doubt.
#[derive(Debug)]
struct Slot {
    options: SqliteConnectOptions,
    open: Option<SqliteConnection>,
    /// How often it was opened.
    openings: u64,
}

/// A lane for the time of one operation.
enum Turn {
    Writing(Lane, OwnedMutexGuard<Writers>, Permit),
    Reading(OwnedMutexGuard<Slot>),
}

/// A statement, by what it answers with.
#[derive(Debug, Clone, Copy)]
pub(super) enum Sql<'a> {
    /// With rows.
    Asks(&'a SqlStr),
    /// With what it has changed. It sends one message where rows would be two at least, and every message wakes a
    /// thread.
    Changes(&'a SqlStr),
}

/// What a statement answered, with the turnstile still closed behind it.
pub(super) struct Answer {
    pub(super) rows: Vec<SqliteRow>,
    /// The number of the row that was inserted, if one was; whatever, if a row was changed; `None` if none was.
    pub(super) changed: Option<i64>,
    /// How often the connection was opened: what it counts starts anew with it.
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
            patience: config.busy_timeout,
            gate: Gate::new(1),
            writers: Arc::new(Mutex::new(writers)),
            reader: Arc::new(Mutex::new(slot(SqliteSynchronous::Normal))),
            file: std::sync::Mutex::default(),
            path,
        }
    }

    /// Runs `sql` on `lane` and gives the answer to `read`, before anyone else of this process can write.
    ///
    /// # Errors
    /// Temporary after the busy timeout at the latest.
    ///
    /// # Cancel safety
    /// The connection is dropped in the middle of what it does: what began in a transaction is rolled back, what is
    /// one statement ends as it will.
    pub(super) async fn run<T>(
        &self,
        lane: Lane,
        operation: Operation,
        sql: Sql<'_>,
        arguments: SqliteArguments,
        read: impl FnOnce(Answer) -> Result<T> + Send,
    ) -> Result<T> {
        let permit = match lane {
            Lane::Reading => None,
            _ => Some(
                self.gate.enter(operation, self.patience).await.ok_or_else(|| self.out_of_time(operation))?,
            ),
        };
        let deadline = SystemClock.now() + self.patience;
        let Some(turn) = before(deadline, self.turn(lane, permit)).await else {
            return Err(self.out_of_time(operation));
        };
        let (sql, asks) = match sql {
            Sql::Asks(sql) => (sql.clone(), true),
            Sql::Changes(sql) => (sql.clone(), false),
        };
        let mut work = Box::pin(work(turn, sql, asks, arguments, deadline));
        // The store's clock decides expiry, so a suspend may end this late without harm.
        let Some((turn, result)) = before(deadline + INNER_TIMEOUT, &mut work).await else {
            // The disk hangs. What is on its way can't be called back, so the turnstile stays closed until it has
            // ended: a release must not overtake its own claim.
            tokio::spawn(work);
            return Err(self.out_of_time(operation));
        };
        let answer = result.map_err(|failure| error::driver(operation, &self.path, failure))?;
        turn.answered();
        let outcome = read(answer);
        drop(turn);
        outcome
    }

    /// What is at the path now is what the connections lead to.
    pub(super) fn found(&self) {
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = Identity::of(&self.path);
    }

    /// Whether the path leads elsewhere by now: the file was deleted or replaced. Whoever goes on with the old one
    /// would hold locks that nobody else can see.
    pub(super) fn moved(&self) -> bool {
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) != Identity::of(&self.path)
    }

    /// Leaves the file; the next operation opens what is at the path then.
    ///
    /// # Errors
    /// Temporary after the busy timeout at the latest.
    pub(super) async fn leave(&self, operation: Operation) -> Result<()> {
        let deadline = SystemClock.now() + self.patience;
        let all = async { (self.writers.lock().await, self.reader.lock().await) };
        let (mut writers, mut reader) =
            before(deadline, all).await.ok_or_else(|| self.out_of_time(operation))?;
        let Writers { durable, relaxed } = &mut *writers;
        // SQLite leaves the files beside it alone when it closes one that has moved.
        for slot in [durable, &mut *reader].into_iter().chain(relaxed) {
            slot.open = None;
        }
        Ok(())
    }

    async fn turn(&self, lane: Lane, permit: Option<Permit>) -> Turn {
        match permit {
            None => Turn::Reading(self.reader.clone().lock_owned().await),
            Some(permit) => Turn::Writing(lane, self.writers.clone().lock_owned().await, permit),
        }
    }

    fn out_of_time(&self, operation: Operation) -> Error {
        let advice =
            format!("no answer within {:?}: it is locked by others, or its disk hangs", self.patience);
        error::ours(operation, &self.path, Fault::Temporary, advice)
    }
}

/// Runs `sql`, again and again while others keep the file locked.
async fn work(
    mut turn: Turn,
    sql: SqlStr,
    asks: bool,
    arguments: SqliteArguments,
    deadline: Moment,
) -> (Turn, Result<Answer, sqlx::Error>) {
    let mut pauses = ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(1))
        .with_max_delay(Duration::from_millis(5))
        .without_max_times()
        .with_jitter()
        .build();
    loop {
        let slot = match &mut turn {
            Turn::Reading(slot) => slot,
            Turn::Writing(lane, writers, _) => match &mut writers.relaxed {
                Some(relaxed) if *lane == Lane::Relaxed => relaxed,
                _ => &mut writers.durable,
            },
        };
        let result = slot.run(sql.clone(), asks, arguments.clone()).await;
        match (&result, pauses.next()) {
            (Err(failure), Some(pause))
                if error::is_busy(failure) && SystemClock.now() + pause < deadline =>
            {
                SystemClock.sleep_until(SystemClock.now() + pause).await;
            }
            _ => return (turn, result),
        }
    }
}

impl Turn {
    /// The database has answered.
    fn answered(&self) {
        if let Self::Writing(_, _, permit) = self {
            permit.answered();
        }
    }
}

impl Slot {
    async fn run(
        &mut self,
        sql: SqlStr,
        asks: bool,
        arguments: SqliteArguments,
    ) -> Result<Answer, sqlx::Error> {
        // Out of the slot meanwhile: after any failure, or when this future is dropped, a transaction may be open.
        let mut connection = match self.open.take() {
            Some(connection) => connection,
            None => {
                self.openings += 1;
                self.options.connect().await?
            }
        };
        let openings = self.openings;
        let query = sqlx::query_with(sql, arguments);
        let answer = if asks {
            // All rows, also where one is enough: the commit comes after the last, and may fail.
            query.fetch_all(&mut connection).await.map(|rows| Answer { rows, changed: None, openings })
        } else {
            query.execute(&mut connection).await.map(|done| Answer {
                rows: Vec::new(),
                changed: (done.rows_affected() > 0).then(|| done.last_insert_rowid()),
                openings,
            })
        };
        match &answer {
            Ok(_) => self.open = Some(connection),
            Err(failure) if error::is_busy(failure) => self.open = at_rest(connection).await,
            Err(_) => drop(connection.close().await),
        }
        answer
    }
}

/// The connection with no transaction open, if that can be said for certain.
async fn at_rest(mut connection: SqliteConnection) -> Option<SqliteConnection> {
    match sqlx::query("ROLLBACK").execute(&mut connection).await {
        Ok(_) => Some(connection),
        // There was none.
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("1") => Some(connection),
        Err(_) => None,
    }
}

/// The output of `future`, unless `deadline` comes first.
async fn before<F: Future>(deadline: Moment, future: F) -> Option<F::Output> {
    tokio::time::timeout(deadline.since(SystemClock.now()), future).await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use sqlx::Row;

    /// Writes one row, after some tenths of a second of computing.
    const SLOW: &str = "INSERT INTO t WITH RECURSIVE c(x) AS \
                        (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 3000000) SELECT max(x) FROM c";

    struct Setting {
        connections: Connections,
        _directory: tempfile::TempDir,
    }

    impl Setting {
        async fn new(patience: Duration) -> Self {
            let directory = tempfile::TempDir::new().unwrap();
            let config = Config::new(directory.path().join("x.db"));
            let connections = Connections::new(&config, config.path.clone());
            let mut setting = Self { connections, _directory: directory };
            // A busy machine may take longer for it than the test has patience.
            setting.run(Lane::Durable, "PRAGMA journal_mode = WAL; CREATE TABLE t (x)").await.unwrap();
            setting.connections.patience = patience;
            setting
        }

        async fn run(&self, lane: Lane, sql: &'static str) -> Result<Vec<SqliteRow>> {
            let sql = SqlStr::from_static(sql);
            let read = |answer: Answer| Ok(answer.rows);
            self.connections
                .run(lane, Operation::Claim, Sql::Asks(&sql), SqliteArguments::default(), read)
                .await
        }
    }

    #[tokio::test]
    async fn what_hangs_is_given_up_in_time_but_not_overtaken() {
        let setting = Setting::new(Duration::from_millis(50)).await;
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
            assert!(SystemClock.now().since(start) < Duration::from_secs(60), "never ends");
        };
        assert_eq!(rows, 1, "overtaken, after {refused} refusals");
    }

    #[tokio::test]
    async fn what_was_dropped_half_way_leaves_no_transaction_open() {
        let setting = Setting::new(Duration::from_secs(5)).await;
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
    async fn an_error_half_way_leaves_no_transaction_open() {
        let setting = Setting::new(Duration::from_secs(5)).await;
        let script = "BEGIN IMMEDIATE; INSERT INTO t VALUES (1); INSERT INTO nowhere VALUES (1); COMMIT";
        assert!(setting.run(Lane::Relaxed, script).await.is_err());
        setting.run(Lane::Durable, "BEGIN IMMEDIATE; INSERT INTO t VALUES (2); COMMIT").await.unwrap();
        let rows = setting.run(Lane::Reading, "SELECT x FROM t").await.unwrap();
        assert_eq!(rows.iter().map(|row| row.get::<i64, _>(0)).collect::<Vec<_>>(), [2]);
    }
}
