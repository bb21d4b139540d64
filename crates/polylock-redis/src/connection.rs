//! An open connection: the server at the other end, and the channels that it is subscribed to.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use polylock_core::{server_clock::ServerClock, sync::lock};
use redis::{AsyncConnectionConfig, Client, RedisResult, aio::MultiplexedConnection};

use crate::{checkup::Health, flow::Traffic};

/// The server process at the other end of a connection. The connection ends with it.
#[derive(Debug)]
pub(crate) struct Peer {
    /// The state of the server when the connection was made.
    pub(crate) health: Health,
    pub(crate) clock: ServerClock,
}

/// A working connection, as far as is known.
#[derive(Clone)]
pub(crate) struct LiveConnection {
    pub(crate) connection: MultiplexedConnection,
    /// Dropped with the connection.
    pub(crate) _driver: Driver,
    /// The number of the attempt that made it.
    pub(crate) attempt: u64,
    pub(crate) peer: Arc<Peer>,
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) slots: Arc<SlotChannels>,
}

/// Opens a connection to the server of `client`.
///
/// # Errors
/// If the server can't be reached, or refuses the connection.
pub(crate) async fn open(
    client: &Client,
    config: &AsyncConnectionConfig,
) -> RedisResult<(MultiplexedConnection, Driver)> {
    #[cfg(feature = "simulation")]
    if let Some(stream) = polylock_core::simulation::connect(&client.get_connection_info().addr().to_string())
    {
        let settings = client.get_connection_info().redis_settings();
        let (connection, driver) =
            MultiplexedConnection::new_with_config(settings, stream.await?, config.clone()).await?;
        let task = polylock_core::Executor::current().spawn(driver);
        return Ok((connection, Driver { _task: Some(Arc::new(simulated::Task(task.abort_handle()))) }));
    }
    let connection = client.get_multiplexed_async_connection_with_config(config).await?;
    Ok((connection, Driver::default()))
}

/// The task of a connection. The driver ends it together with the connection, except in a simulated process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Driver {
    #[cfg(feature = "simulation")]
    _task: Option<Arc<simulated::Task>>,
}

#[cfg(feature = "simulation")]
mod simulated {
    use tokio::task::AbortHandle;

    /// Ends the task when dropped.
    #[derive(Debug)]
    pub(super) struct Task(pub(super) AbortHandle);

    impl Drop for Task {
        fn drop(&mut self) {
            self.0.abort();
        }
    }
}

/// The slot channels that a connection is subscribed to.
#[derive(Debug, Default)]
pub(crate) struct SlotChannels {
    subscribed: Mutex<HashSet<String>>,
    /// True if the server has ended a subscription by itself. The driver takes that message for the reply to the oldest command in flight,
    /// so no later reply can be matched with its command.
    garbled: AtomicBool,
}

impl SlotChannels {
    pub(crate) fn lock(&self) -> MutexGuard<'_, HashSet<String>> {
        lock(&self.subscribed)
    }

    /// Records that the server has ended a subscription by itself.
    pub(crate) fn mark_garbled(&self) {
        self.garbled.store(true, Ordering::Release);
    }

    /// Returns true if replies on this connection can't be trusted any more.
    pub(crate) fn is_garbled(&self) -> bool {
        self.garbled.load(Ordering::Acquire)
    }
}
