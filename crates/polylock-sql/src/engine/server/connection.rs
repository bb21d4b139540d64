//! A connection of a pool.

use std::{
    io::{self, ErrorKind},
    sync::Arc,
    time::Duration,
};

use deadpool::managed::{Manager, Metrics, Object, RecycleError, RecycleResult};
use polylock_core::{Clock, Moment, SystemClock};
use sqlx::SqlStr;
use tokio::sync::OwnedSemaphorePermit;

use super::{
    driver::{Driver, ErrorClass, classify_encryption_error},
    idle::IdleTime,
    limit::ConnectionLimit,
};
use crate::engine::source::Source;

/// A statement that every server executes, to try a connection.
pub(crate) const TRY: SqlStr = SqlStr::from_static("SELECT 1");

/// A connection that does not answer a try within this time is given up.
pub(super) const TRY_LIMIT: Duration = Duration::from_secs(1);

/// What the pools of all runtimes share.
pub(super) struct Connections<DB: Driver> {
    pub(super) source: Source<DB::Options>,
    pub(super) connect_timeout: Option<Duration>,
    pub(super) limit: ConnectionLimit<Connector<DB>>,
    pub(super) idle: IdleTime,
}

/// Opens connections for a pool.
pub(super) struct Connector<DB: Driver>(pub(super) Arc<Connections<DB>>);

/// A connection with its permit.
pub(super) struct LimitedConnection<C> {
    connection: C,
    /// The end of its last use.
    used: Moment,
    _permit: OwnedSemaphorePermit,
}

impl<C> LimitedConnection<C> {
    /// Returns the time since its last use.
    pub(super) fn idle_time(&self) -> Duration {
        SystemClock.now().since(self.used)
    }
}

impl<DB: Driver> Manager for Connector<DB> {
    type Type = LimitedConnection<DB::Connection>;
    type Error = sqlx::Error;

    async fn create(&self) -> Result<Self::Type, sqlx::Error> {
        let permit = self.0.limit.acquire().await.ok_or(sqlx::Error::PoolClosed)?;
        let options = self.0.source.next().await?;
        let connecting = DB::connect(&options);
        let connected = match self.0.connect_timeout {
            None => connecting.await,
            Some(timeout) => SystemClock
                .before(SystemClock.now() + timeout, connecting)
                .await
                .unwrap_or_else(|| Err(io::Error::from(ErrorKind::TimedOut).into())),
        };
        let connection =
            connected.map_err(|error| classify_encryption_error(error, DB::is_local(&options)))?;
        Ok(LimitedConnection { connection, used: SystemClock.now(), _permit: permit })
    }

    async fn recycle(&self, limited: &mut Self::Type, _: &Metrics) -> RecycleResult<sqlx::Error> {
        // A broken connection shows when it is used, and then another one is tried: no round trip for a check, unless the server is known to
        // close idle connections.
        let (idle, time) = (limited.idle_time(), &self.0.idle);
        if time.suspect().is_none_or(|suspect| idle < suspect) {
            return Ok(());
        }
        let trying = DB::fetch(&mut limited.connection, TRY);
        match SystemClock.before(SystemClock.now() + TRY_LIMIT, trying).await {
            Some(Ok(_)) => {
                limited.used = SystemClock.now();
                time.found_open(idle);
                Ok(())
            }
            Some(Err(error)) => {
                if DB::error_class(&error) == ErrorClass::Broken {
                    time.found_closed(idle);
                }
                Err(RecycleError::Backend(error))
            }
            None => Err(RecycleError::message("no reply")),
        }
    }
}

/// A connection from the pool. If it is dropped before [`return_to_pool`](Self::return_to_pool), it is closed, along with any reply
/// or transaction that is still open on it.
pub(crate) struct PooledConnection<DB: Driver> {
    connection: Option<Object<Connector<DB>>>,
    connections: Arc<Connections<DB>>,
    /// How long it was idle before it was taken from the pool.
    was_idle: Duration,
}

impl<DB: Driver> PooledConnection<DB> {
    pub(super) fn new(connection: Object<Connector<DB>>, connections: Arc<Connections<DB>>) -> Self {
        let was_idle = connection.idle_time();
        Self { connection: Some(connection), connections, was_idle }
    }

    /// Returns how long it was idle before it was taken from the pool.
    pub(super) const fn was_idle(&self) -> Duration {
        self.was_idle
    }

    /// Sends `sql` and returns the rows of the reply.
    pub(crate) async fn fetch(&mut self, sql: SqlStr) -> Result<Vec<DB::Row>, sqlx::Error> {
        let connection = self.connection.as_mut().ok_or(sqlx::Error::PoolClosed)?;
        DB::fetch(&mut connection.connection, sql).await
    }

    /// Returns the connection to the pool. Nothing may be left open on it.
    pub(crate) fn return_to_pool(mut self) {
        if let Some(mut connection) = self.connection.take() {
            connection.used = SystemClock.now();
        }
        self.connections.limit.on_idle();
    }
}

impl<DB: Driver> Drop for PooledConnection<DB> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            drop(Object::take(connection));
        }
    }
}
