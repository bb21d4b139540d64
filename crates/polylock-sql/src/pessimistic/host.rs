//! The seam: what one kind of database says in its own way, and the connections to it.

use std::{fmt, time::Duration};

use async_trait::async_trait;
use polylock_core::{
    BreakNotice, Clock, Error, Fault, FencingToken, LockName, LockStatus, Mode, Moment, Operation, Request,
    RequestId, Result, SystemClock,
};
use sqlx::{Database, Executor, SqlStr};

use crate::engine::{
    Which, bytes, label,
    literal::{Arg, Template},
    pool::{Diagnose, Dial, Lent, Server, Trouble},
    rows::{self, Columns, Timed, micros},
};

/// How a database tells what matters here.
pub(crate) trait Wording: fmt::Debug + Send + Sync + 'static {
    type Database: Dial<Row: Columns>;

    /// Whether a row was not to be had: at once, or within the slice of time that a wait has.
    fn is_locked(error: &sqlx::Error) -> bool;

    /// Whether there is no session of that identity any more.
    fn is_gone(error: &sqlx::Error) -> bool;

    /// Whether the transaction has ended though the connection has not.
    fn is_over(error: &sqlx::Error) -> bool;
}

/// What is sent to the server, each in one message. The rows of every answer are three whole numbers: what they are about
/// (see [`Fact`]), and two more.
#[derive(Debug)]
pub(crate) struct Statements {
    /// Makes the rows of `$1`, opens the transaction, joins the users of the name and tries its lock. The server ends the
    /// transaction when it has heard nothing for `$2` ms. `$3` and `$4` are random, for servers that identify a session by them.
    pub(crate) enter: Strengths,
    /// Waits for the lock of `$1`, for one slice of time. From then on `$2` as above.
    pub(crate) wait: Strengths,
    /// Waits for one slice more.
    pub(crate) wait_on: Strengths,
    /// Says that the transaction is the one that was opened, and whether the hold of name `$4` and request `$5` is marked as
    /// broken. From then on `$1` ms as above; `$2` and `$3` are its identity.
    pub(crate) confirm: Template,
    /// From then on `$1` ms as above.
    pub(crate) limit: Template,
    /// Ends the transaction, deletes the record of the hold of request `$2`, and the rows of `$1` if nobody else uses them.
    pub(crate) leave: Template,
    /// Deletes the record of the hold of request `$2`, and the rows of `$1` if nobody uses them.
    pub(crate) clear: Template,
    /// Deletes up to `$1` of all rows that nobody uses.
    pub(crate) sweep: Template,
    /// Ends whatever transaction is open, without what it has done ...
    pub(crate) rollback: Template,
    /// ... or with it.
    pub(crate) commit: Template,
    /// Ends the statement that runs in the session of identity `$1`, `$2`.
    pub(crate) cancel: Template,
    /// Ends the session of identity `$1`, `$2`, and answers with a row if there is one.
    pub(crate) kill: Template,
    /// Draws a token for `$1`, which is durable when it is returned, and records who holds the lock.
    pub(crate) token: Template,
    /// Marks the holds of `$1` with the notice `$2`, before `$3`.
    pub(crate) mark: Template,
    /// The notice for the hold of name `$1` and request `$2`.
    pub(crate) notice: Template,
    /// The holds of `$1`, or of the names from `$1` to before `$2`.
    pub(crate) holds_named: Template,
    pub(crate) holds_under: Template,
}

/// A statement that takes a lock, in the two strengths there are.
#[derive(Debug)]
pub(crate) struct Strengths {
    pub(crate) exclusive: Template,
    pub(crate) shared: Template,
}

impl Strengths {
    pub(crate) const fn of(&self, mode: Mode) -> &Template {
        match mode {
            Mode::Shared => &self.shared,
            _ => &self.exclusive,
        }
    }
}

/// A row of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fact {
    /// `1`: the session of this identity is among the users of the name.
    Inside(Identity),
    /// `2`: the lock is held.
    Locked,
    /// `4`: the hold is marked as broken.
    Broken,
    /// Something else, which is of no interest.
    Other,
}

impl Fact {
    pub(crate) const fn inside(&self) -> Option<Identity> {
        if let Self::Inside(identity) = self { Some(*identity) } else { None }
    }
}

/// The identity of a session with a transaction of ours: two numbers that no other session ever has, not after a restart of the
/// server either, so that ending a session ends exactly that one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity(i64, i64);

impl Identity {
    /// 126 random bits.
    pub(crate) fn random() -> Self {
        let bits = u128::from_be_bytes(RequestId::random().to_bytes());
        let half = |bits: u128| i64::try_from(bits & u128::from(i64::MAX.unsigned_abs())).unwrap_or(0);
        Self(half(bits), half(bits >> 64))
    }

    pub(crate) const fn arguments(self) -> [Arg<'static>; 2] {
        [Arg::Int(self.0), Arg::Int(self.1)]
    }
}

/// A database and the connections to it.
#[async_trait]
pub(crate) trait Host: fmt::Debug + Send + Sync + 'static {
    fn statements(&self) -> &Statements;

    /// What to send.
    fn text(&self, template: &Template, arguments: &[Arg<'_>]) -> SqlStr;

    /// A connection for a transaction of its own.
    async fn lend(&self, operation: Operation, deadline: Moment) -> Result<Box<dyn Link>>;

    /// Asks on a connection for everything else; others in the way and broken connections are tried again.
    async fn aside(
        &self,
        operation: Operation,
        template: &Template,
        arguments: &[Arg<'_>],
    ) -> Result<Vec<Fact>>;

    /// Draws a token for a request that holds the lock in the session of this identity, and records that.
    async fn token(&self, request: &Request, session: Identity) -> Result<FencingToken>;

    /// Marks the live holds of a name as broken.
    async fn mark(&self, name: &LockName, notice: &str) -> Result<()>;

    /// The notice for a hold that was broken.
    async fn notice(&self, operation: Operation, request: &Request) -> Result<Option<BreakNotice>>;

    /// Who holds, live ones only, and their sessions.
    async fn holds(&self, operation: Operation, which: Which<'_>)
    -> Result<(Vec<LockStatus>, Vec<Identity>)>;

    fn trouble(&self, error: &sqlx::Error) -> Trouble;

    fn is_locked(&self, error: &sqlx::Error) -> bool;

    fn is_over(&self, error: &sqlx::Error) -> bool;

    /// How long an operation may take in all.
    fn patience(&self) -> Duration;

    /// `operation` failed for what the driver says.
    fn failed(&self, operation: Operation, error: sqlx::Error) -> Error;

    /// `operation` failed for a reason of our own, for the moment.
    fn busy(&self, operation: Operation, advice: String) -> Error;

    fn out_of_time(&self, operation: Operation) -> Error;
}

/// A connection. Dropped, it is closed, and what was open on it ends.
#[async_trait]
pub(crate) trait Link: Send {
    async fn ask(&mut self, sql: SqlStr) -> Result<Vec<Fact>, sqlx::Error>;

    /// For the next who needs one. Nothing may be left open on it.
    fn give_back(self: Box<Self>);
}

/// The connections to a server, of which one kind may be pinned for long without keeping the other waiting.
#[derive(Debug)]
pub(crate) struct Servers<W: Wording> {
    pub(crate) own: Server<W::Database>,
    pub(crate) shared: Server<W::Database>,
    pub(crate) statements: Statements,
}

#[async_trait]
impl<W: Wording> Host for Servers<W>
where
    for<'c> &'c mut <W::Database as Database>::Connection: Executor<'c, Database = W::Database>,
{
    fn statements(&self) -> &Statements {
        &self.statements
    }

    fn text(&self, template: &Template, arguments: &[Arg<'_>]) -> SqlStr {
        template.with::<W::Database>(arguments)
    }

    async fn lend(&self, operation: Operation, deadline: Moment) -> Result<Box<dyn Link>> {
        Ok(Box::new(self.own.lend(operation, deadline).await?))
    }

    async fn aside(
        &self,
        operation: Operation,
        template: &Template,
        arguments: &[Arg<'_>],
    ) -> Result<Vec<Fact>> {
        let (sql, deadline) = (self.text(template, arguments), SystemClock.now() + self.patience());
        loop {
            let mut lent = self.shared.lend(operation, deadline).await?;
            // A connection on which something went wrong is closed: a transaction may be open on it.
            let error = match SystemClock.before(deadline, Link::ask(&mut lent, sql.clone())).await {
                None => return Err(self.out_of_time(operation)),
                Some(Ok(facts)) => {
                    lent.give_back();
                    return Ok(facts);
                }
                Some(Err(error)) if W::is_gone(&error) => return Ok(Vec::new()),
                Some(Err(error)) => error,
            };
            let again = self.trouble(&error) != Trouble::Other && !self.is_locked(&error);
            if !again || SystemClock.now() >= deadline {
                return Err(self.failed(operation, error));
            }
        }
    }

    async fn token(&self, request: &Request, session: Identity) -> Result<FencingToken> {
        let (id, [first, second]) = (request.id.to_bytes(), session.arguments());
        let arguments = [
            Arg::Bytes(bytes(&request.name)),
            Arg::Bytes(&id),
            first,
            second,
            Arg::Int(request.mode.bit().into()),
            Arg::Text(request.owner.as_str()),
            Arg::Text(label(request)),
            Arg::Int(micros(request.ttl)),
        ];
        let read = |rows: &[<W::Database as Database>::Row]| {
            let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
            let clock_us = row.int(1)?.unwrap_or(0);
            Ok(Timed { clock_us, outcome: row.int(0)?.and_then(FencingToken::new) })
        };
        self.shared.ask_expiring(Operation::Claim, &self.statements.token, &arguments, read).await
    }

    async fn mark(&self, name: &LockName, notice: &str) -> Result<()> {
        let arguments = [Arg::Bytes(bytes(name)), Arg::Text(notice)];
        let marked =
            self.shared.ask_expiring(Operation::Break, &self.statements.mark, &arguments, rows::timed_break);
        marked.await.map(drop)
    }

    async fn notice(&self, operation: Operation, request: &Request) -> Result<Option<BreakNotice>> {
        let id = request.id.to_bytes();
        let arguments = [Arg::Bytes(bytes(&request.name)), Arg::Bytes(&id)];
        let read = |rows: &[<W::Database as Database>::Row]| rows.first().map_or(Ok(None), |row| row.text(0));
        let notice = self.shared.ask(operation, &self.statements.notice, &arguments, read).await?;
        Ok(notice.map(|notice| BreakNotice::from_text(&notice)))
    }

    async fn holds(
        &self,
        operation: Operation,
        which: Which<'_>,
    ) -> Result<(Vec<LockStatus>, Vec<Identity>)> {
        let (first, end) = which.range();
        let (template, end) = match &end {
            None => (&self.statements.holds_named, Arg::Int(0)),
            Some(end) => (&self.statements.holds_under, Arg::Bytes(end)),
        };
        let read = |rows: &[<W::Database as Database>::Row]| {
            let identity = |row: &<W::Database as Database>::Row| {
                Ok(Identity(row.int(8)?.unwrap_or(0), row.int(9)?.unwrap_or(0)))
            };
            let identities: Result<_, sqlx::Error> = rows.iter().map(identity).collect();
            Ok((rows::statuses(rows, which.is_strict())?, identities?))
        };
        self.shared.ask(operation, template, &[Arg::Bytes(&first), end], read).await
    }

    fn trouble(&self, error: &sqlx::Error) -> Trouble {
        <W::Database as Diagnose>::trouble(error)
    }

    fn is_locked(&self, error: &sqlx::Error) -> bool {
        W::is_locked(error)
    }

    fn is_over(&self, error: &sqlx::Error) -> bool {
        W::is_over(error)
    }

    fn patience(&self) -> Duration {
        self.own.patience
    }

    fn failed(&self, operation: Operation, error: sqlx::Error) -> Error {
        self.own.failed(operation, error)
    }

    fn busy(&self, operation: Operation, advice: String) -> Error {
        self.own.at(operation).ours(Fault::Temporary, advice)
    }

    fn out_of_time(&self, operation: Operation) -> Error {
        self.own.out_of_time(operation)
    }
}

#[async_trait]
impl<DB: Dial<Row: Columns>> Link for Lent<DB>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    async fn ask(&mut self, sql: SqlStr) -> Result<Vec<Fact>, sqlx::Error> {
        self.ask(sql).await?.iter().map(fact).collect()
    }

    fn give_back(self: Box<Self>) {
        (*self).give_back();
    }
}

fn fact(row: &impl Columns) -> Result<Fact, sqlx::Error> {
    let number = |column| Ok::<_, sqlx::Error>(row.int(column)?.unwrap_or(0));
    Ok(match number(0)? {
        1 => Fact::Inside(Identity(number(1)?, number(2)?)),
        2 => Fact::Locked,
        4 => Fact::Broken,
        _ => Fact::Other,
    })
}
