//! The interface between the strategy and a kind of database: its statements, its errors and the connections to it.

use std::{fmt, time::Duration};

use async_trait::async_trait;
use polylock_core::{
    BreakNotice, BreakOrder, Clock, Error, Fault, FencingToken, LockName, LockStatus, Mode, Moment,
    Operation, Record, Request, RequestId, Result, StoredRecord, SystemClock,
};
use sqlx::SqlStr;

use crate::engine::{
    columns::Columns,
    dialect::{bytes, label, notice, range, targets},
    rows::{self, TimedReply, micros},
    server::{
        connection::PooledConnection,
        driver::{ClassifyErrors, Driver, ErrorClass},
        literal::{Arg, Template},
        pool::Server,
        records::RecordStatements,
    },
};

/// The time limit of one waiting statement, after which the waiter repeats it: the longest time that a waiter on a dead machine
/// keeps its connection.
pub(crate) const SLICE: Duration = Duration::from_secs(15);

/// Classifies the errors of a kind of database.
pub(crate) trait ErrorCodes: fmt::Debug + Send + Sync + 'static {
    type Database: Driver;

    /// Returns true if a row is locked: at once, or until the time limit of the wait.
    fn is_locked(error: &sqlx::Error) -> bool;

    /// Returns true if no session has that identity any more.
    fn is_no_session(error: &sqlx::Error) -> bool;

    /// Returns true if the transaction has ended, but not the connection.
    fn is_transaction_ended(error: &sqlx::Error) -> bool;
}

/// The messages to the server, one for each operation. The rows of every reply are three integers: the kind of the row (see
/// [`ReplyRow`]), and two values.
#[derive(Debug)]
pub(crate) struct Statements {
    /// Inserts the rows of `$1`, opens the transaction, joins the users of the name and tries its lock. The server ends the
    /// transaction after `$2` ms of silence. `$3` and `$4` are random, for servers that identify a session by them.
    pub(crate) enter: LockStatements,
    /// Prepares a wait. From then on the limit of silence is `$1` ms.
    pub(crate) wait_limits: Template,
    /// Waits for the lock of `$1`, for one slice of time.
    pub(crate) wait: LockStatements,
    /// Prepares the wait for another slice of time.
    pub(crate) wait_again: Template,
    /// Confirms that the transaction is the one that was opened, and reads whether the hold of name `$4` and request `$5` is
    /// marked as broken. From then on the limit of silence is `$1` ms; `$2` and `$3` are the session's identity.
    pub(crate) confirm: Template,
    /// Sets the limit of silence to `$1` ms.
    pub(crate) limit: Template,
    /// Ends the transaction, and deletes the record of the hold of request `$2` and the rows of `$1` if no other session uses
    /// them.
    pub(crate) leave: Template,
    /// Deletes the record of the hold of request `$2`, and the rows of `$1` if no session uses them. If sessions use them, it returns
    /// [`ReplyRow::InUse`], or fails as a wait for a locked row does.
    pub(crate) clear: Template,
    /// Deletes up to `$1` unused rows.
    pub(crate) sweep: Template,
    /// Rolls back the open transaction, if there is one.
    pub(crate) rollback: Template,
    /// Commits the open transaction, if there is one.
    pub(crate) commit: Template,
    /// Cancels the running statement of the session of identity `$1`, `$2`.
    pub(crate) cancel: Template,
    /// Ends the session of identity `$1`, `$2`, and returns a row if there was one.
    pub(crate) kill: Template,
    /// Draws a token for `$1`, which is durable when it is returned, and records the holder.
    pub(crate) token: Template,
    /// Raise the tokens of `$1` to `$2`: see [`Server::raise`].
    pub(crate) raise: Vec<Template>,
    /// Read and write the records of jobs.
    pub(crate) records: RecordStatements,
    /// Marks the holds of `$1` with the notice `$2`, before `$3`.
    pub(crate) mark: Template,
    /// Reads the notice for the hold of name `$1` and request `$2`.
    pub(crate) notice: Template,
    /// Lists the holds of `$1`, or of the names from `$1` to before `$2`.
    pub(crate) holds_by_name: Template,
    pub(crate) holds_by_prefix: Template,
}

/// A statement that takes a lock, in the two modes of row locks.
#[derive(Debug)]
pub(crate) struct LockStatements {
    pub(crate) exclusive: Template,
    pub(crate) shared: Template,
}

impl LockStatements {
    pub(crate) const fn for_mode(&self, mode: Mode) -> &Template {
        match mode {
            Mode::Shared => &self.shared,
            _ => &self.exclusive,
        }
    }
}

/// A row of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplyRow {
    /// `1`: the session of this identity is among the users of the name.
    Session(Identity),
    /// `2`: the lock is held.
    Locked,
    /// `3`: sessions use the rows of the name.
    InUse,
    /// `4`: the hold is marked as broken.
    Broken,
    /// A row of another kind, which is ignored.
    Other,
}

impl ReplyRow {
    pub(crate) const fn session(&self) -> Option<Identity> {
        if let Self::Session(identity) = self { Some(*identity) } else { None }
    }
}

/// The identity of a session with a transaction of this store: two numbers that no other session ever has, even after a restart
/// of the server. So ending a session by its identity never ends another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity(i64, i64);

impl Identity {
    /// Returns 126 random bits.
    pub(crate) fn random() -> Self {
        let bits = u128::from_be_bytes(RequestId::random().to_bytes());
        let half = |bits: u128| i64::try_from(bits & u128::from(i64::MAX.unsigned_abs())).unwrap_or(0);
        Self(half(bits), half(bits >> 64))
    }

    pub(crate) const fn arguments(self) -> [Arg<'static>; 2] {
        [Arg::Int(self.0), Arg::Int(self.1)]
    }
}

/// The locks that a statement of the pessimistic strategy returns: all at once, because each of them occupies a connection.
#[derive(Debug, Clone, Copy)]
pub(super) enum LockFilter<'a> {
    Name(&'a LockName),
    /// The locks with names that begin with this prefix.
    Prefix(&'a str),
}

impl LockFilter<'_> {
    /// Returns true if an entry that can't be shown is an error; a list leaves it out instead.
    pub(super) const fn is_strict(self) -> bool {
        matches!(self, Self::Name(_))
    }

    /// Returns the range of the names, from the first to before the second, as bytes; the second is `None` for a single name.
    pub(super) fn range(self) -> (Vec<u8>, Option<Vec<u8>>) {
        match self {
            Self::Name(name) => (bytes(name).to_vec(), None),
            Self::Prefix(prefix) => {
                let (first, end) = range(prefix);
                (first, Some(end))
            }
        }
    }
}

/// A database and the connections to it.
#[async_trait]
pub(crate) trait LockServer: fmt::Debug + Send + Sync + 'static {
    fn statements(&self) -> &Statements;

    /// Returns the message of `template` with its arguments.
    fn text(&self, template: &Template, arguments: &[Arg<'_>]) -> SqlStr;

    /// Returns a connection for a transaction of its own.
    async fn acquire(&self, operation: Operation, deadline: Moment) -> Result<Box<dyn Connection>>;

    /// Sends a message on a side connection. Retries after contention and on broken connections.
    async fn on_side_connection(
        &self,
        operation: Operation,
        template: &Template,
        arguments: &[Arg<'_>],
    ) -> Result<Vec<ReplyRow>>;

    /// Draws a token for a request that holds the lock in the session of this identity, and records the hold.
    async fn token(&self, request: &Request, session: Identity) -> Result<FencingToken>;

    /// Makes all later tokens of `name` greater than `to`; returns a number that no earlier one exceeds.
    async fn raise(&self, name: &LockName, to: FencingToken) -> Result<FencingToken>;

    /// Returns the record of the job `name`, and the clock of the server.
    async fn read_record(&self, name: &LockName) -> Result<StoredRecord>;

    /// Writes the record of the job `name`, unless there is one of the same or a greater version.
    async fn write_record(&self, name: &LockName, record: &Record, keep: Duration) -> Result<()>;

    /// Marks the targets of `order` among the live holds of a name as broken.
    async fn mark(&self, name: &LockName, order: &BreakOrder) -> Result<()>;

    /// Reads the notice for a broken hold.
    async fn notice(&self, operation: Operation, request: &Request) -> Result<Option<BreakNotice>>;

    /// Lists the live holds and their sessions.
    async fn holds(
        &self,
        operation: Operation,
        filter: LockFilter<'_>,
    ) -> Result<(Vec<LockStatus>, Vec<Identity>)>;

    fn error_class(&self, error: &sqlx::Error) -> ErrorClass;

    fn is_locked(&self, error: &sqlx::Error) -> bool;

    fn is_transaction_ended(&self, error: &sqlx::Error) -> bool;

    /// Returns the time limit of an operation.
    fn timeout(&self) -> Duration;

    /// Returns the error of `operation` with the driver's error as its source.
    fn failed(&self, operation: Operation, error: sqlx::Error) -> Error;

    /// Returns a temporary error of `operation` without a driver's error.
    fn temporary_error(&self, operation: Operation, advice: String) -> Error;

    fn timed_out(&self, operation: Operation) -> Error;
}

/// A connection. A drop closes it, which ends an open transaction.
#[async_trait]
pub(crate) trait Connection: Send {
    async fn fetch(&mut self, sql: SqlStr) -> Result<Vec<ReplyRow>, sqlx::Error>;

    /// Returns the connection to the pool. It must have no open transaction.
    fn return_to_pool(self: Box<Self>);
}

/// The connections to a server in two pools: those of the locks, which are pinned for long, and the side connections.
#[derive(Debug)]
pub(crate) struct ServerPools<W: ErrorCodes> {
    pub(crate) pinned: Server<W::Database>,
    pub(crate) side: Server<W::Database>,
    pub(crate) statements: Statements,
}

#[async_trait]
impl<W: ErrorCodes> LockServer for ServerPools<W> {
    fn statements(&self) -> &Statements {
        &self.statements
    }

    fn text(&self, template: &Template, arguments: &[Arg<'_>]) -> SqlStr {
        template.with::<W::Database>(arguments)
    }

    async fn acquire(&self, operation: Operation, deadline: Moment) -> Result<Box<dyn Connection>> {
        Ok(Box::new(self.pinned.acquire(operation, deadline).await?))
    }

    async fn on_side_connection(
        &self,
        operation: Operation,
        template: &Template,
        arguments: &[Arg<'_>],
    ) -> Result<Vec<ReplyRow>> {
        let (sql, deadline) = (self.text(template, arguments), SystemClock.now() + self.timeout());
        loop {
            let mut connection = self.side.acquire(operation, deadline).await?;
            // A connection is closed after an error: it may have an open transaction.
            let error =
                match SystemClock.before(deadline, Connection::fetch(&mut connection, sql.clone())).await {
                    None => return Err(self.timed_out(operation)),
                    Some(Ok(rows)) => {
                        connection.return_to_pool();
                        return Ok(rows);
                    }
                    Some(Err(error)) if W::is_no_session(&error) => return Ok(Vec::new()),
                    Some(Err(error)) => error,
                };
            let is_retryable = self.error_class(&error) != ErrorClass::Other && !self.is_locked(&error);
            if !is_retryable || SystemClock.now() >= deadline {
                return Err(self.failed(operation, error));
            }
        }
    }

    async fn token(&self, request: &Request, session: Identity) -> Result<FencingToken> {
        let [first, second] = session.arguments();
        let arguments = [
            Arg::Bytes(bytes(&request.name)),
            Arg::Id(request.id),
            first,
            second,
            Arg::Int(request.mode.bit().into()),
            Arg::Text(request.owner.as_str()),
            Arg::Text(label(request)),
            Arg::Int(micros(request.ttl)),
        ];
        let read = |rows: Vec<<W::Database as Driver>::Row>, _| {
            let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
            let clock_us = row.int(1)?.unwrap_or(0);
            Ok(TimedReply { clock_us, outcome: row.int(0)?.and_then(FencingToken::new) })
        };
        self.side.query_expiring(Operation::Claim, None, &self.statements.token, &arguments, read).await
    }

    async fn raise(&self, name: &LockName, to: FencingToken) -> Result<FencingToken> {
        self.side.raise(&self.statements.raise, name, to).await
    }

    async fn read_record(&self, name: &LockName) -> Result<StoredRecord> {
        self.side.read_record(&self.statements.records, name).await
    }

    async fn write_record(&self, name: &LockName, record: &Record, keep: Duration) -> Result<()> {
        self.side.write_record(&self.statements.records, name, record, keep).await
    }

    async fn mark(&self, name: &LockName, order: &BreakOrder) -> Result<()> {
        let (notice, targets) = (notice(order), targets(order));
        let arguments = [Arg::Bytes(bytes(name)), Arg::Text(&notice), Arg::Text(&targets)];
        self.side.break_holds(&self.statements.mark, &arguments).await.map(drop)
    }

    async fn notice(&self, operation: Operation, request: &Request) -> Result<Option<BreakNotice>> {
        let arguments = [Arg::Bytes(bytes(&request.name)), Arg::Id(request.id)];
        let read = |rows: &[<W::Database as Driver>::Row]| rows.first().map_or(Ok(None), |row| row.text(0));
        let notice = self.side.query(operation, &self.statements.notice, &arguments, read).await?;
        Ok(notice.map(|notice| BreakNotice::from_text(&notice)))
    }

    async fn holds(
        &self,
        operation: Operation,
        filter: LockFilter<'_>,
    ) -> Result<(Vec<LockStatus>, Vec<Identity>)> {
        let (first, end) = filter.range();
        let (template, end) = match &end {
            None => (&self.statements.holds_by_name, Arg::Int(0)),
            Some(end) => (&self.statements.holds_by_prefix, Arg::Bytes(end)),
        };
        let read = |rows: &[<W::Database as Driver>::Row]| {
            let identity = |row: &<W::Database as Driver>::Row| {
                Ok(Identity(row.int(8)?.unwrap_or(0), row.int(9)?.unwrap_or(0)))
            };
            let identities: Result<_, sqlx::Error> = rows.iter().map(identity).collect();
            Ok((rows::statuses(rows, filter.is_strict())?, identities?))
        };
        self.side.query(operation, template, &[Arg::Bytes(&first), end], read).await
    }

    fn error_class(&self, error: &sqlx::Error) -> ErrorClass {
        <W::Database as ClassifyErrors>::error_class(error)
    }

    fn is_locked(&self, error: &sqlx::Error) -> bool {
        W::is_locked(error)
    }

    fn is_transaction_ended(&self, error: &sqlx::Error) -> bool {
        W::is_transaction_ended(error)
    }

    fn timeout(&self) -> Duration {
        self.pinned.timeout
    }

    fn failed(&self, operation: Operation, error: sqlx::Error) -> Error {
        self.pinned.failed(operation, error)
    }

    fn temporary_error(&self, operation: Operation, advice: String) -> Error {
        self.pinned.at(operation).advise(Fault::Temporary, advice)
    }

    fn timed_out(&self, operation: Operation) -> Error {
        self.pinned.timed_out(operation)
    }
}

#[async_trait]
impl<DB: Driver> Connection for PooledConnection<DB> {
    async fn fetch(&mut self, sql: SqlStr) -> Result<Vec<ReplyRow>, sqlx::Error> {
        self.fetch(sql).await?.iter().map(reply_row).collect()
    }

    fn return_to_pool(self: Box<Self>) {
        (*self).return_to_pool();
    }
}

fn reply_row(row: &impl Columns) -> Result<ReplyRow, sqlx::Error> {
    let number = |column| Ok::<_, sqlx::Error>(row.int(column)?.unwrap_or(0));
    Ok(match number(0)? {
        1 => ReplyRow::Session(Identity(number(1)?, number(2)?)),
        2 => ReplyRow::Locked,
        3 => ReplyRow::InUse,
        4 => ReplyRow::Broken,
        _ => ReplyRow::Other,
    })
}
