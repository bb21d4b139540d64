//! Opens a store.

use std::{sync::Arc, time::Duration};

use polylock_core::{
    Capabilities, Fencing, HoldLifetime, Modes, Notifications, Order, QueueLease, Scope, Store,
};

use super::{
    backend::PessimisticBackend,
    server::{ErrorCodes, ServerPools},
};
use crate::engine::{dialect::MAX_TTL, server::driver::ClassifyErrors};

/// Opens the store on `pools` of a server that has been checked. `durable` is true if tokens survive a crash of the server's machine;
/// `connections` is the number of connections that locks may pin.
pub(crate) async fn open<W: ErrorCodes>(
    pools: ServerPools<W>,
    min_ttl: Duration,
    durable: bool,
    connections: u32,
) -> Store {
    let mut capabilities = Capabilities::new(W::Database::BACKEND, min_ttl..=MAX_TTL);
    capabilities.modes = Modes::ExclusiveAndShared;
    capabilities.order = Order::Unordered;
    capabilities.notifications = Notifications::Pushed;
    capabilities.hold_lifetime = HoldLifetime::Session;
    capabilities.queue_lease = QueueLease::Absent;
    capabilities.keep_alive_batch = 1;
    capabilities.scope = Scope::Network;
    if !durable {
        capabilities.fencing = Fencing::WhileRunning;
    }
    let store = PessimisticBackend::new(capabilities, Arc::new(pools), connections);
    store.sweep().await;
    let store = Arc::new(store);
    Store::inspectable(store.clone()).raising(store.clone()).recording(store)
}
