//! The driver's connections that receive notifications.

use std::time::Duration;

use sqlx::{
    ConnectOptions, Error, Postgres, SqlStr,
    postgres::{PgConnectOptions, PgListener, PgPoolOptions, PgRow},
};

use crate::engine::server::driver::Driver;

/// A notification.
#[derive(Debug)]
pub(super) struct Notification {
    pub(super) channel: String,
    pub(super) payload: String,
}

/// A driver with connections that receive notifications.
pub(super) trait PushDriver: Driver {
    type Listener: Send;

    /// Opens a connection within `timeout`.
    fn listener(
        options: Self::Options,
        timeout: Duration,
    ) -> impl Future<Output = Result<Self::Listener, Error>> + Send;

    /// Sends `sql` unprepared, and returns the rows of the reply.
    fn fetch(
        listener: &mut Self::Listener,
        sql: SqlStr,
    ) -> impl Future<Output = Result<Vec<Self::Row>, Error>> + Send;

    /// Listens on these channels.
    fn listen(
        listener: &mut Self::Listener,
        channels: [&str; 2],
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Returns the next notification, or `None` if the connection was lost. It may be dropped at any time.
    fn next(
        listener: &mut Self::Listener,
    ) -> impl Future<Output = Result<Option<Notification>, Error>> + Send;
}

impl PushDriver for Postgres {
    type Listener = PgListener;

    async fn listener(options: PgConnectOptions, timeout: Duration) -> Result<PgListener, Error> {
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(timeout)
            .connect_lazy_with(options.disable_statement_logging());
        let mut listener = PgListener::connect_with(&pool).await?;
        // Until a lost connection is reported, waiters are not polled: the driver is not to open another one first.
        listener.eager_reconnect(false);
        Ok(listener)
    }

    async fn fetch(listener: &mut PgListener, sql: SqlStr) -> Result<Vec<PgRow>, Error> {
        sqlx::raw_sql(sql).fetch_all(listener).await
    }

    async fn listen(listener: &mut PgListener, channels: [&str; 2]) -> Result<(), Error> {
        listener.listen_all(channels).await
    }

    async fn next(listener: &mut PgListener) -> Result<Option<Notification>, Error> {
        let received = listener.try_recv().await?;
        Ok(received.map(|received| Notification {
            channel: received.channel().to_owned(),
            payload: received.payload().to_owned(),
        }))
    }
}
