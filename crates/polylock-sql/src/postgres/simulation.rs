//! The store on the connections of a simulated process, for tests in virtual time. This module is unstable: it is no part of the interface
//! that versions promise.

use std::{collections::VecDeque, io::ErrorKind, time::Duration};

use polylock_core::{Clock, Result, Store, SystemClock};
use sqlx::{AssertSqlSafe, Error, Postgres, SqlSafeStr, SqlStr};

use super::{
    config::Config,
    dialect::PostgresDialect,
    push::{Notification, PushDriver},
};
use crate::{
    engine::{LeaseBackend, server::pool::Server, source::Source},
    simulation::{Row, Simulated, Stream, decode, decode_notification, open, receive, send},
};

/// Opens the store on the simulated server at `address`, which has the tables and the routines.
///
/// # Errors
/// [`polylock_core::Error::Unavailable`] if the server can't be reached.
///
/// # Cancel safety
/// Yes.
pub async fn connect(config: Config, address: String) -> Result<Store> {
    polylock_core::io::run(super::NAME, async move {
        let source = Source::new(address.clone());
        let (server, _) = Server::<Simulated<Postgres>>::pools(&source, &address, &config.common);
        server.acquire_to_open().await?.return_to_pool();
        Ok(LeaseBackend::open(PostgresDialect::new(&config, server, Some(source))).await)
    })
    .await?
}

/// A connection that receives notifications.
pub(super) struct SimulatedListener {
    stream: Stream,
    received: Vec<u8>,
    /// The notifications that have arrived before a reply.
    notifications: VecDeque<Notification>,
}

impl PushDriver for Simulated<Postgres> {
    type Listener = SimulatedListener;

    async fn listener(address: String, timeout: Duration) -> Result<SimulatedListener, Error> {
        let opened = SystemClock.before(SystemClock.now() + timeout, open(&address)).await;
        let stream = opened.ok_or(Error::PoolTimedOut)??;
        Ok(SimulatedListener { stream, received: Vec::new(), notifications: VecDeque::new() })
    }

    async fn fetch(listener: &mut SimulatedListener, sql: SqlStr) -> Result<Vec<Row>, Error> {
        let SimulatedListener { stream, received, notifications } = listener;
        send(stream, &sql).await?;
        loop {
            let message = receive(stream, received).await?;
            match decode_notification(&message) {
                Some((channel, payload)) => notifications.push_back(Notification { channel, payload }),
                None => return decode(&message),
            }
        }
    }

    async fn listen(listener: &mut SimulatedListener, channels: [&str; 2]) -> Result<(), Error> {
        let statement = channels.map(|channel| format!("LISTEN \"{channel}\";")).concat();
        <Self as PushDriver>::fetch(listener, AssertSqlSafe(statement).into_sql_str()).await.map(drop)
    }

    async fn next(listener: &mut SimulatedListener) -> Result<Option<Notification>, Error> {
        let SimulatedListener { stream, received, notifications } = listener;
        if let Some(notification) = notifications.pop_front() {
            return Ok(Some(notification));
        }
        loop {
            match receive(stream, received).await {
                Ok(message) => {
                    if let Some((channel, payload)) = decode_notification(&message) {
                        return Ok(Some(Notification { channel, payload }));
                    }
                }
                Err(Error::Io(error)) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }
}
