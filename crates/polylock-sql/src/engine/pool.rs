//! Connections to a server: lent for one operation, given back only when nothing of it is left on them.

use std::{
    fmt,
    io::{self, ErrorKind},
    sync::Arc,
    time::Duration,
};

use backon::{BackoffBuilder, ExponentialBuilder};
use deadpool::managed::{Manager, Metrics, Object, Pool, PoolError, RecycleResult};
use polylock_core::{
    Clock, ConfigError, Error, Fault, Moment, Operation, Result, SystemClock, failure::At,
    server_clock::ServerClock,
};
use sqlx::{ConnectOptions, Connection, Database, Executor, SqlStr};

use super::{
    config::Common,
    gate::{Gate, Permit},
    literal::{Arg, Literals, Template},
    rows::Timed,
    source::{Source, lacks_credentials},
};

/// How often an operation that the server refuses as expired is sent: its clock was stepped forward, more than once at the most.
const EXPIRIES: u32 = 4;

/// What a driver's error means for the connection and the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Others were in the way; nothing was done, and the same again may succeed.
    Contention,
    /// The connection is broken; another may be well.
    Broken,
    /// The server says no.
    Other,
}

/// How a dialect reads its driver's errors.
pub(crate) trait Diagnose {
    const BACKEND: &'static str;
    fn trouble(error: &sqlx::Error) -> Trouble;
    fn fault(error: &sqlx::Error) -> Fault;
    fn advice(error: &sqlx::Error) -> Option<String>;
    /// Whether the server has no database of that name.
    fn lacks_database(error: &sqlx::Error) -> bool;
    /// The server's words, without what only the server's authors understand.
    fn words(error: &sqlx::Error) -> Option<String>;
}

/// A driver's error, as people should read it: the driver names the lines of the server's sources, and repeats the cause of an I/O
/// error, which is its source already.
#[derive(Debug)]
struct DriverError {
    words: String,
    /// Shown by `Debug` alone.
    #[expect(dead_code, reason = "for `Debug`")]
    error: sqlx::Error,
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl std::error::Error for DriverError {}

fn words<DB: Diagnose>(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Io(error) => error.to_string(),
        error => DB::words(error).unwrap_or_else(|| error.to_string()),
    }
}

/// The connections to one server.
pub(crate) struct Server<DB: Dial> {
    pool: Pool<Dialler<DB>>,
    gate: Arc<Gate>,
    /// Where it is, without secrets.
    pub(crate) place: String,
    /// How long an operation may take in all.
    pub(crate) patience: Duration,
    /// What is known of the server's clock.
    pub(crate) clock: ServerClock,
}

impl<DB: Dial> fmt::Debug for Server<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("place", &self.place).finish_non_exhaustive()
    }
}

/// A driver whose connections are made from options.
pub(crate) trait Dial:
    Database<Connection: Connection<Options = Self::Options>> + Diagnose + Literals
{
    type Options: ConnectOptions<Connection = Self::Connection>;

    /// Whether the server is reached over a socket of this machine's file system.
    fn is_local(options: &Self::Options) -> bool;
}

/// `error` as one of encryption if it is one: the driver reports a certificate that is not accepted, and a file with certificates
/// that is not there, as errors of the connection, which another try might mend.
fn of_encryption(error: sqlx::Error, is_local: bool) -> sqlx::Error {
    match error {
        sqlx::Error::Io(cause) if cause.kind() == ErrorKind::InvalidData => sqlx::Error::Tls(cause.into()),
        sqlx::Error::Io(cause) if cause.kind() == ErrorKind::NotFound && !is_local => {
            sqlx::Error::Tls(cause.into())
        }
        error => error,
    }
}

/// Makes connections for the pool.
struct Dialler<DB: Dial> {
    source: Source<DB::Options>,
    timeout: Option<Duration>,
}

impl<DB: Dial> Manager for Dialler<DB> {
    type Type = DB::Connection;
    type Error = sqlx::Error;

    async fn create(&self) -> Result<DB::Connection, sqlx::Error> {
        let options = self.source.next().await?;
        let connecting = options.connect();
        let connected = match self.timeout {
            None => connecting.await,
            Some(timeout) => SystemClock
                .before(SystemClock.now() + timeout, connecting)
                .await
                .unwrap_or_else(|| Err(io::Error::from(ErrorKind::TimedOut).into())),
        };
        connected.map_err(|error| of_encryption(error, DB::is_local(&options)))
    }

    async fn recycle(&self, _: &mut DB::Connection, _: &Metrics) -> RecycleResult<sqlx::Error> {
        // Whether it is well shows when it is used, and then another is tried: no round trip to ask for it.
        Ok(())
    }
}

/// A connection out of the pool. Dropped before it is given back, it is closed: what is still on its way on it, or was
/// left open, ends with it.
pub(crate) struct Lent<DB: Dial>(Option<Object<Dialler<DB>>>);

impl<DB: Dial> Lent<DB>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    /// The rows that `sql` answers with.
    pub(crate) async fn ask(&mut self, sql: SqlStr) -> Result<Vec<DB::Row>, sqlx::Error> {
        let connection = self.0.as_mut().ok_or(sqlx::Error::PoolClosed)?;
        sqlx::raw_sql(sql).fetch_all(&mut **connection).await
    }

    /// For the next who asks. Nothing may be left open on it.
    pub(crate) fn give_back(mut self) {
        self.0 = None;
    }
}

impl<DB: Dial> Drop for Lent<DB> {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            drop(Object::take(connection));
        }
    }
}

impl<DB: Dial> Server<DB>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    /// At most `connections` at once, made when they are needed and kept.
    pub(crate) fn new(source: Source<DB::Options>, connections: u32, place: String, common: &Common) -> Self {
        let size = usize::try_from(connections).unwrap_or(usize::MAX);
        #[expect(
            clippy::expect_used,
            reason = "only time limits of the pool's own, which are not set, can fail"
        )]
        let pool = Pool::builder(Dialler { source, timeout: common.connect_timeout })
            .max_size(size)
            .build()
            .expect("a pool without time limits");
        Self { pool, gate: Gate::new(size), place, patience: common.timeout, clock: ServerClock::default() }
    }

    /// How many claims it takes at once, without one of them waiting for another.
    pub(crate) fn claims_at_once(&self) -> usize {
        self.gate.for_claims()
    }

    /// What `read` makes of the rows that `template` answers with.
    ///
    /// # Errors
    /// As [`answer`](Self::answer), or what `read` says.
    ///
    /// # Cancel safety
    /// As [`answer`](Self::answer).
    pub(crate) async fn ask<T>(
        &self,
        operation: Operation,
        template: &Template,
        arguments: &[Arg<'_>],
        read: impl FnOnce(&[DB::Row]) -> Result<T, sqlx::Error>,
    ) -> Result<T> {
        let (rows, _) = self.answer(operation, template, arguments).await?;
        read(&rows).map_err(|error| self.failed(operation, error))
    }

    /// As [`ask`](Self::ask), for an operation that must have no effect once the client has abandoned it: a message may be
    /// delivered long after its connection was given up.
    ///
    /// The last argument that the statement gets is the time, by the server's clock, at which this call ends at the latest. The
    /// server compares it with its clock behind the lock that serialises the operation, refuses the operation if it has
    /// expired, and returns its clock in any case. An operation that was refused although this call goes on, because the clock
    /// was stepped forward or is not known yet, is sent again with a new expiry.
    ///
    /// # Errors
    /// As [`answer`](Self::answer), or what `read` says.
    ///
    /// # Cancel safety
    /// As [`answer`](Self::answer).
    pub(crate) async fn ask_expiring<T>(
        &self,
        operation: Operation,
        template: &Template,
        arguments: &[Arg<'_>],
        read: impl Fn(&[DB::Row]) -> Result<Timed<T>, sqlx::Error>,
    ) -> Result<T> {
        let permit = self.enter(operation).await?;
        let deadline = SystemClock.now() + self.patience;
        for _ in 0..EXPIRIES {
            let sent = SystemClock.now();
            // Without a sample, a time long past: the refusal brings one.
            let expiry = self.clock.expiry_us(deadline.since(sent)).unwrap_or(0);
            let arguments = [arguments, &[Arg::Int(expiry)]].concat();
            let (rows, _) = self.answer_by(&permit, deadline, operation, template, &arguments).await?;
            let reply = read(&rows).map_err(|error| self.failed(operation, error))?;
            self.clock.observe(sent, reply.clock_us);
            if let Some(outcome) = reply.outcome {
                return Ok(outcome);
            }
        }
        let advice = "the server refuses it as expired: it is busy, or its clock is being set".to_owned();
        Err(self.at(operation).ours(Fault::Temporary, advice))
    }

    /// The rows that `template` answers with, and whether an answer was lost before: what the server did then was told to
    /// nobody.
    ///
    /// Others in the way and broken connections are tried again: operations are idempotent.
    ///
    /// # Errors
    /// Temporary when the patience is out, at the latest; it begins when a connection is free.
    ///
    /// # Cancel safety
    /// The connection is closed; what the server was told it may still do.
    pub(crate) async fn answer(
        &self,
        operation: Operation,
        template: &Template,
        arguments: &[Arg<'_>],
    ) -> Result<(Vec<DB::Row>, bool)> {
        let permit = self.enter(operation).await?;
        self.answer_by(&permit, SystemClock.now() + self.patience, operation, template, arguments).await
    }

    /// Waits until a connection is free for `operation`, by the precedence of the [`gate`](super::gate).
    async fn enter(&self, operation: Operation) -> Result<Permit> {
        let permit = self.gate.enter(operation, self.patience).await;
        permit.ok_or_else(|| self.out_of_time(operation))
    }

    async fn answer_by(
        &self,
        permit: &Permit,
        deadline: Moment,
        operation: Operation,
        template: &Template,
        arguments: &[Arg<'_>],
    ) -> Result<(Vec<DB::Row>, bool)> {
        let (sql, mut lost) = (template.with::<DB>(arguments), false);
        let mut pauses = ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(1))
            .with_max_delay(Duration::from_millis(50))
            .without_max_times()
            .with_jitter()
            .build();
        loop {
            let mut lent = self.lend(operation, deadline).await?;
            let error = match SystemClock.before(deadline, lent.ask(sql.clone())).await {
                None => return Err(self.out_of_time(operation)),
                Some(Ok(rows)) => {
                    lent.give_back();
                    permit.answered();
                    return Ok((rows, lost));
                }
                Some(Err(error)) => error,
            };
            match DB::trouble(&error) {
                Trouble::Contention => {
                    lent.give_back();
                    match pauses.next() {
                        Some(pause) if SystemClock.now() + pause < deadline => {
                            SystemClock.sleep_until(SystemClock.now() + pause).await;
                        }
                        _ => return Err(self.failed(operation, error)),
                    }
                }
                // Each broken one leaves the pool, so this comes to an end: a new one is well, or can't be made.
                Trouble::Broken if SystemClock.now() < deadline => lost = true,
                Trouble::Broken | Trouble::Other => return Err(self.failed(operation, error)),
            }
        }
    }

    /// A connection to open the store on, and for its first operation.
    ///
    /// # Errors
    /// As [`lend`](Self::lend).
    pub(crate) async fn lend_to_open(&self) -> Result<Lent<DB>> {
        self.lend(Operation::Connect, SystemClock.now() + self.patience).await
    }

    /// A connection for as long as the caller wants it.
    ///
    /// # Errors
    /// What the driver says if one can't be made, or temporary if `deadline` comes first.
    pub(crate) async fn lend(&self, operation: Operation, deadline: Moment) -> Result<Lent<DB>> {
        match SystemClock.before(deadline, self.pool.get()).await {
            Some(Ok(connection)) => Ok(Lent(Some(connection))),
            Some(Err(PoolError::Backend(error))) => Err(self.failed(operation, error)),
            // Time is up; the pool has no other reason.
            Some(Err(_)) | None => Err(self.out_of_time(operation)),
        }
    }

    /// `operation` failed for what the driver says.
    pub(crate) fn failed(&self, operation: Operation, error: sqlx::Error) -> Error {
        if operation == Operation::Connect && DB::lacks_database(&error) {
            let problem = format!("{}: there is no such database: create it, or correct the URL", self.place);
            return ConfigError::new("store", problem).into();
        }
        let advice = match &error {
            sqlx::Error::Io(error) if lacks_credentials(error) => {
                Some("the callback of the configuration returned no credentials".to_owned())
            }
            error => DB::advice(error),
        };
        let fault = DB::fault(&error);
        self.at(operation).failed(fault, advice, DriverError { words: words::<DB>(&error), error })
    }

    /// The tables are missing and can't be made, because of the `refusal`: says what would make them, for somebody who may.
    pub(crate) fn missing_tables(&self, statements: &str, refusal: &sqlx::Error) -> Error {
        let advice = "the tables are missing or old, and this user may not make them: have somebody who may run the \
            statements that `polylock schema` prints for the same URL";
        // The statements come last, because they are many lines.
        let refusal = words::<DB>(refusal);
        let source = format!("{refusal}\nthe statements are:\n{statements}");
        self.at(Operation::Connect).failed(Fault::Denied, Some(advice.to_owned()), source)
    }

    pub(crate) fn at(&self, operation: Operation) -> At<'_> {
        At { backend: DB::BACKEND, operation, place: &self.place }
    }

    /// What the driver has for `template` on a connection that the caller keeps, while the store is opened.
    ///
    /// # Errors
    /// Temporary if the time that an operation may take is up.
    pub(crate) async fn ask_on(
        &self,
        lent: &mut Lent<DB>,
        template: &Template,
    ) -> Result<Result<Vec<DB::Row>, sqlx::Error>> {
        let answer =
            SystemClock.before(SystemClock.now() + self.patience, lent.ask(template.with::<DB>(&[]))).await;
        answer.ok_or_else(|| self.out_of_time(Operation::Connect))
    }

    pub(crate) fn out_of_time(&self, operation: Operation) -> Error {
        let advice =
            format!("no answer within {:?}: the server is busy, hangs or can't be reached", self.patience);
        self.at(operation).ours(Fault::Temporary, advice)
    }
}
