//! An open connection: the server at the other end, and the channels that it is subscribed to.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use polylock_core::{server_clock::ServerClock, sync::lock};
use redis::aio::MultiplexedConnection;

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
    /// The number of the attempt that made it.
    pub(crate) attempt: u64,
    pub(crate) peer: Arc<Peer>,
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) slots: Arc<SlotChannels>,
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
