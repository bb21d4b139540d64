//! Connections to a server: acquired for one operation, and returned only if nothing of it is left on them.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use backon::{BackoffBuilder, ExponentialBuilder};
use deadpool::managed::{Pool, PoolError, QueueMode};
use polylock_core::{
    Clock, ConfigError, Error, Fault, Moment, Operation, Request, RequestId, Result, SystemClock,
    failure::At, gate::Permit, server_clock::ServerClock, time_limit,
};

use super::{
    connection::{Connections, Connector, PooledConnection},
    driver::{Driver, DriverError, ErrorClass, message},
    idle::IdleTime,
    keeper::Keeper,
    late::{ClaimInFlight, LateClaims},
    limit::ConnectionLimit,
    literal::{Arg, Template},
};
use crate::engine::{
    config::CommonConfig,
    gate::Gate,
    rows::{TimedReply, micros},
    source::{Source, is_missing_credentials},
    strategy::Strategy,
};

/// The maximum number of attempts of an operation that the server refuses as expired: it does so if its clock is not known yet, and each
/// time its clock is stepped forward.
const EXPIRIES: u32 = 4;

/// The pause before the next attempt of an operation whose last message, without a reply, may still arrive.
const PAUSE: Duration = Duration::from_millis(50);

/// The maximum timeout of an operation that a caller drives: far longer than the caller drives it, and short enough that a release can wait
/// until a claim that the caller dropped has expired.
const CALLER_TIMEOUT: Duration = Duration::from_millis(250);

/// The number of connections that a store of the pessimistic strategy may have in addition to those of the locks: for tokens, and to
/// end sessions that hang.
const SIDE_CONNECTIONS: u32 = 4;

/// The connections of one runtime to one server.
pub(crate) struct Server<DB: Driver> {
    pool: Pool<Connector<DB>>,
    context: Arc<ServerContext<DB>>,
    /// The time limit of an operation, all attempts together.
    pub(crate) timeout: Duration,
}

/// The state that all connections to one server share.
struct ServerContext<DB: Driver> {
    connections: Arc<Connections<DB>>,
    gate: Gate,
    size: usize,
    /// That of the I/O thread's pool.
    keeper: OnceLock<Arc<Keeper<DB>>>,
    /// The endpoint, without secrets.
    endpoint: String,
    clock: ServerClock,
    late: LateClaims,
    /// The longest time for which the server may carry out a claim after its sending.
    claim_validity: Duration,
}

impl<DB: Driver> Clone for Server<DB> {
    fn clone(&self) -> Self {
        Self { pool: self.pool.clone(), context: self.context.clone(), timeout: self.timeout }
    }
}

impl<DB: Driver> fmt::Debug for Server<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("endpoint", &self.context.endpoint).finish_non_exhaustive()
    }
}

impl<DB: Driver> Server<DB> {
    /// Returns the pool on which a store is opened, and with [`Strategy::Pessimistic`] the pool of the connections that locks pin.
    pub(crate) fn pools(
        source: &Source<DB::Options>,
        endpoint: &str,
        common: &CommonConfig,
    ) -> (Self, Option<Self>) {
        let pool = |connections| Self::new(source.clone(), connections, endpoint.to_owned(), common);
        match common.strategy {
            Strategy::Lease => (pool(common.connections), None),
            Strategy::Pessimistic => (pool(SIDE_CONNECTIONS), Some(pool(common.connections))),
        }
    }

    /// Creates a pool of at most `connections`, which are opened on demand and kept.
    fn new(source: Source<DB::Options>, connections: u32, endpoint: String, common: &CommonConfig) -> Self {
        let size = usize::try_from(connections).unwrap_or(usize::MAX);
        let connections = Connections {
            source,
            connect_timeout: common.connect_timeout,
            limit: ConnectionLimit::new(size),
            idle: IdleTime::default(),
        };
        let context = ServerContext {
            connections: Arc::new(connections),
            claim_validity: common.timeout.max(time_limit::LONGEST),
            gate: Gate::new(size),
            size,
            keeper: OnceLock::new(),
            endpoint,
            clock: ServerClock::default(),
            late: LateClaims::default(),
        };
        let server = Self::for_one_runtime(Arc::new(context), common.timeout);
        server.context.keeper.get_or_init(|| Keeper::new(&server.pool, server.context.connections.clone()));
        server
    }

    fn for_one_runtime(context: Arc<ServerContext<DB>>, timeout: Duration) -> Self {
        #[expect(
            clippy::expect_used,
            reason = "only time limits of the pool's own, which are not set, can fail"
        )]
        let pool = Pool::builder(Connector(context.connections.clone()))
            .max_size(context.size)
            // The others stay idle, and may be closed.
            .queue_mode(QueueMode::Lifo)
            .build()
            .expect("a pool without time limits");
        context.connections.limit.add(&pool);
        Self { pool, context, timeout }
    }

    /// Returns true if a caller may drive its operation on a connection of its own. That needs a second connection, because the I/O thread
    /// needs one for renewals, and room in the gate: an operation that waits belongs on the I/O thread, which keeps its position in the
    /// gate's queue even if the caller is not polled.
    pub(crate) fn serves_callers(&self) -> bool {
        self.context.size > 1 && self.context.gate.has_room()
    }

    /// Returns true if a connection of this runtime is idle or may be opened. Those that may have been closed meanwhile are given up, and no
    /// other one is opened while an operation waits: the I/O thread keeps some open.
    pub(crate) fn has_connection(&self) -> bool {
        let given_up = self.idle_time().suspect().is_some_and(|suspect| {
            !self.pool.retain(|connection, _| connection.idle_time() < suspect).removed.is_empty()
        });
        self.pool.status().available > 0 || !given_up && self.context.connections.limit.has_room()
    }

    /// Returns the time after which the server closes idle connections.
    pub(crate) fn idle_time(&self) -> &IdleTime {
        &self.context.connections.idle
    }

    /// Returns true if this runtime has a connection.
    pub(crate) fn is_open(&self) -> bool {
        self.pool.status().size > 0
    }

    /// Returns the same server on connections of the current runtime, one of which is open, for operations that callers drive. They count
    /// towards the same limit.
    ///
    /// # Errors
    /// The errors of [`acquire`](Self::acquire).
    pub(crate) async fn for_caller(&self) -> Result<Self> {
        let server = Self::for_one_runtime(self.context.clone(), self.timeout.min(CALLER_TIMEOUT));
        server.acquire_to_open().await?.return_to_pool();
        Ok(server)
    }

    /// Returns the endpoint, without secrets.
    pub(crate) fn endpoint(&self) -> &str {
        &self.context.endpoint
    }

    /// Returns the estimate of the server's clock.
    pub(crate) fn clock(&self) -> &ServerClock {
        &self.context.clock
    }

    /// Returns the claims that the server may execute late.
    pub(crate) fn late_claims(&self) -> &LateClaims {
        &self.context.late
    }

    /// Returns the time in us for which copies of claims of `request` may arrive after its release; 0 if none can. The processes that pass holds
    /// to each other have the same time limit.
    pub(crate) fn refused_us(&self, request: &Request) -> i64 {
        let own = self.context.late.until(request.id).map(|until| until.since(SystemClock.now()));
        let of_others = request.outlives_process.then_some(self.context.claim_validity);
        own.max(of_others).map_or(0, micros)
    }

    /// Returns the number of claims that can run at once without one of them waiting for another.
    pub(crate) fn claims_at_once(&self) -> usize {
        self.context.gate.claim_capacity
    }

    /// Sends `template` and returns the value that `read` decodes from the rows of the reply.
    ///
    /// # Errors
    /// The errors of [`send`](Self::send), and of `read`.
    ///
    /// # Cancel safety
    /// As for [`send`](Self::send).
    pub(crate) async fn query<T>(
        &self,
        operation: Operation,
        template: &Template,
        arguments: &[Arg<'_>],
        read: impl FnOnce(&[DB::Row]) -> Result<T, sqlx::Error>,
    ) -> Result<T> {
        let (rows, _) = self.send(operation, template, arguments).await?;
        read(&rows).map_err(|error| self.failed(operation, error))
    }

    /// Like [`query`](Self::query), for an operation that must have no effect once the client has abandoned it: a message may be delivered long
    /// after its connection was given up. So an error is returned when all copies have expired, except that of a claim, whose release refuses them.
    ///
    /// The last argument of the statement is the time, by the server's clock, at which this call ends at the latest. The server compares it
    /// with its clock behind the lock that serialises the operation, refuses the operation if it has expired, and returns its clock in any
    /// case. If it refuses the operation although this call is still running, because the clock was stepped forward or is not known yet,
    /// the operation is sent again with a new expiry. If a copy was sent and not answered, the [late claims](Self::late_claims) contain
    /// `request` until that copy has expired. `read` decodes the rows of a reply, and receives true if an earlier copy of the call was sent and not
    /// answered.
    ///
    /// # Errors
    /// The errors of [`send`](Self::send), and of `read`.
    ///
    /// # Cancel safety
    /// As for [`send`](Self::send).
    pub(crate) async fn query_expiring<T>(
        &self,
        operation: Operation,
        request: Option<RequestId>,
        template: &Template,
        arguments: &[Arg<'_>],
        read: impl Fn(Vec<DB::Row>, bool) -> Result<TimedReply<T>, sqlx::Error>,
    ) -> Result<T> {
        let _permit = self.enter(operation).await?;
        let deadline = SystemClock.now() + time_limit::within(self.timeout);
        let mut in_flight = ClaimInFlight::new(&self.context.late, request, deadline);
        let (mut lost, mut refusals) = (false, 0);
        while refusals < EXPIRIES {
            let sent = SystemClock.now();
            // Without a sample of the clock, a time long past: the refusal returns a sample.
            let expiry = self.clock().expiry_us(deadline.since(sent)).unwrap_or(0);
            let arguments = [arguments, &[Arg::Int(expiry)]].concat();
            in_flight.is_unanswered = true;
            let rows = match self.send_by(deadline, operation, template, &arguments, &mut lost).await {
                Ok(rows) => rows,
                // The release that follows a claim refuses a copy of it.
                Err(error) if !lost || operation == Operation::Claim => return Err(error),
                Err(error) => {
                    let again = SystemClock.now() + PAUSE;
                    SystemClock.sleep_until(again.min(deadline)).await;
                    if error.is_temporary() && again < deadline {
                        continue;
                    }
                    SystemClock.sleep_until(deadline).await;
                    return Err(error);
                }
            };
            in_flight.is_unanswered = lost;
            refusals += 1;
            let reply = read(rows, in_flight.is_unanswered).map_err(|error| self.failed(operation, error))?;
            self.clock().observe(sent, reply.clock_us);
            if let Some(outcome) = reply.outcome {
                return Ok(outcome);
            }
        }
        let advice =
            "the server rejects it as expired: the server is busy, or its clock was changed".to_owned();
        Err(self.at(operation).advise(Fault::Temporary, advice))
    }

    /// Sends `template` and returns the rows of the reply, and true if the reply to an earlier attempt was lost: its outcome is unknown.
    ///
    /// Attempts that met contention or a broken connection are retried: operations are idempotent.
    ///
    /// # Errors
    /// A temporary error when the time limit `timeout` has passed, at the latest; it starts when a connection is free.
    ///
    /// # Cancel safety
    /// The connection is closed; the server may still execute the statement that was sent.
    pub(crate) async fn send(
        &self,
        operation: Operation,
        template: &Template,
        arguments: &[Arg<'_>],
    ) -> Result<(Vec<DB::Row>, bool)> {
        let _permit = self.enter(operation).await?;
        let (deadline, mut lost) = (SystemClock.now() + self.timeout, false);
        let rows = self.send_by(deadline, operation, template, arguments, &mut lost).await?;
        Ok((rows, lost))
    }

    /// Waits until a connection is free for `operation`, by the precedence of the [`gate`](crate::engine::gate).
    async fn enter(&self, operation: Operation) -> Result<Permit> {
        let permit = self.context.gate.enter(operation, self.timeout).await;
        permit.ok_or_else(|| self.timed_out(operation))
    }

    /// Sends `template` until `deadline`, and returns the rows of the reply. Sets `lost` if a copy was sent and not answered.
    async fn send_by(
        &self,
        deadline: Moment,
        operation: Operation,
        template: &Template,
        arguments: &[Arg<'_>],
        lost: &mut bool,
    ) -> Result<Vec<DB::Row>> {
        let sql = template.with::<DB>(arguments);
        let mut pauses = ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(1))
            .with_max_delay(Duration::from_millis(50))
            .without_max_times()
            .with_jitter()
            .build();
        loop {
            let mut connection = self.acquire(operation, deadline).await?;
            let error = match SystemClock.before(deadline, connection.fetch(sql.clone())).await {
                None => return Err(self.timed_out(operation)),
                Some(Ok(rows)) => {
                    connection.return_to_pool();
                    self.context.gate.answered();
                    if let Some(keeper) = self.context.keeper.get() {
                        keeper.used();
                    }
                    return Ok(rows);
                }
                Some(Err(error)) => error,
            };
            match DB::error_class(&error) {
                ErrorClass::Contention => {
                    connection.return_to_pool();
                    match pauses.next() {
                        Some(pause) if SystemClock.now() + pause < deadline => {
                            SystemClock.sleep_until(SystemClock.now() + pause).await;
                        }
                        _ => return Err(self.failed(operation, error)),
                    }
                }
                // Each broken connection leaves the pool, so the retries end: a new connection works, or can't be opened.
                ErrorClass::Broken => {
                    self.idle_time().found_closed(connection.was_idle());
                    *lost = true;
                    if SystemClock.now() >= deadline {
                        return Err(self.failed(operation, error));
                    }
                }
                ErrorClass::Other => return Err(self.failed(operation, error)),
            }
        }
    }

    /// Acquires a connection to open the store on, and for its first operation.
    ///
    /// # Errors
    /// The errors of [`acquire`](Self::acquire).
    pub(crate) async fn acquire_to_open(&self) -> Result<PooledConnection<DB>> {
        self.acquire(Operation::Connect, SystemClock.now() + self.timeout).await
    }

    /// Acquires a connection, for as long as the caller needs it.
    ///
    /// # Errors
    /// The driver's error if a connection can't be opened; a temporary error if `deadline` passes first.
    pub(crate) async fn acquire(
        &self,
        operation: Operation,
        deadline: Moment,
    ) -> Result<PooledConnection<DB>> {
        match SystemClock.before(deadline, self.pool.get()).await {
            Some(Ok(connection)) => Ok(PooledConnection::new(connection, self.context.connections.clone())),
            Some(Err(PoolError::Backend(error))) => Err(self.failed(operation, error)),
            // The deadline has passed: the pool has no other reason to fail.
            Some(Err(_)) | None => Err(self.timed_out(operation)),
        }
    }

    /// Returns the error of `operation` for the driver's `error`.
    pub(crate) fn failed(&self, operation: Operation, error: sqlx::Error) -> Error {
        if operation == Operation::Connect && DB::is_missing_database(&error) {
            let problem =
                format!("{}: the database does not exist: create it, or correct the URL", self.endpoint());
            return ConfigError::new("store", problem).into();
        }
        let advice = match &error {
            sqlx::Error::Io(error) if is_missing_credentials(error) => {
                Some("the callback of the configuration returned no credentials".to_owned())
            }
            error => DB::advice(error),
        };
        let (fault, rejected) = (DB::fault(&error), DB::rejects_credentials(&error));
        self.at(operation)
            .failed(fault, advice, DriverError::new::<DB>(error))
            .rejecting_credentials(rejected)
    }

    /// Returns the error for tables that are missing and can't be created because of the `refusal`, with the statements that create them,
    /// for a user with that right.
    pub(crate) fn missing_tables(&self, statements: &str, refusal: &sqlx::Error) -> Error {
        let advice = "the tables are missing or outdated, and this user has no right to create them: ask an administrator to run the \
            statements that `polylock schema` prints for the same URL";
        // The statements come last, because they are many lines.
        let refusal = message::<DB>(refusal);
        let source = format!("{refusal}\nthe statements are:\n{statements}");
        self.at(Operation::Connect).failed(Fault::Denied, Some(advice.to_owned()), source)
    }

    pub(crate) fn at(&self, operation: Operation) -> At<'_> {
        At { backend: DB::BACKEND, operation, endpoint: self.endpoint() }
    }

    /// Sends `template` on a connection that the caller keeps while the store is opened, and returns the driver's result.
    ///
    /// # Errors
    /// A temporary error if the time limit of an operation has passed.
    pub(crate) async fn query_on(
        &self,
        connection: &mut PooledConnection<DB>,
        template: &Template,
    ) -> Result<Result<Vec<DB::Row>, sqlx::Error>> {
        let answer = SystemClock
            .before(SystemClock.now() + self.timeout, connection.fetch(template.with::<DB>(&[])))
            .await;
        answer.ok_or_else(|| self.timed_out(Operation::Connect))
    }

    /// Runs statements that drop tables and routines.
    pub(crate) async fn drop_tables(&self, statements: &Template) -> Result<()> {
        let mut connection = self.acquire_to_open().await?;
        let dropped = self.query_on(&mut connection, statements).await?;
        dropped.map(drop).map_err(|error| self.failed(Operation::Connect, error))
    }

    pub(crate) fn timed_out(&self, operation: Operation) -> Error {
        let advice =
            format!("no reply within {:?}: the server is busy, hangs or can't be reached", self.timeout);
        self.at(operation).advise(Fault::Temporary, advice)
    }
}
