//! The task that keeps some idle connections open while the store is in use, where a server or a proxy [closes them](super::idle): an
//! operation finds one that is open.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use deadpool::managed::{Pool, WeakPool};
use polylock_core::{Clock, Executor, Moment, SystemClock};

use super::{
    connection::{Connections, Connector, TRY_LIMIT},
    driver::Driver,
};

/// The time without an operation after which connections are no longer kept open.
const IN_USE: Duration = Duration::from_secs(60);

/// The number of idle connections that are kept open: one for an operation, and one for another meanwhile.
const KEPT: usize = 2;

/// Keeps idle connections of one pool open.
pub(super) struct Keeper<DB: Driver> {
    pool: WeakPool<Connector<DB>>,
    connections: Arc<Connections<DB>>,
    executor: Executor,
    is_running: AtomicBool,
    /// The number of operations.
    uses: AtomicU64,
}

impl<DB: Driver> Keeper<DB> {
    /// Creates the keeper of `pool`, which belongs to the current runtime.
    pub(super) fn new(pool: &Pool<Connector<DB>>, connections: Arc<Connections<DB>>) -> Arc<Self> {
        Arc::new(Self {
            pool: pool.weak(),
            connections,
            executor: Executor::current(),
            is_running: AtomicBool::default(),
            uses: AtomicU64::default(),
        })
    }

    /// Records an operation. Starts the task if connections were found closed, and it is not running.
    pub(super) fn used(self: &Arc<Self>) {
        self.uses.fetch_add(1, Ordering::Relaxed);
        if self.connections.idle.suspect().is_some() && !self.is_running.swap(true, Ordering::AcqRel) {
            self.executor.spawn(keep_open(Arc::downgrade(self), self.connections.clone()));
        }
    }

    /// Tries the idle connections that were used last. A suspect one that is closed is replaced.
    async fn try_some(&self, pool: &Pool<Connector<DB>>) {
        let mut tried = Vec::new();
        while tried.len() < KEPT && pool.status().available > 0 {
            let getting = SystemClock.before(SystemClock.now() + TRY_LIMIT, pool.get());
            let Some(Ok(connection)) = getting.await else { break };
            tried.push(connection);
        }
        drop(tried);
        self.connections.limit.on_idle();
    }
}

/// Keeps connections open until the store has not been used for [`IN_USE`].
async fn keep_open<DB: Driver>(keeper: Weak<Keeper<DB>>, connections: Arc<Connections<DB>>) {
    let mut last: (Moment, u64) = (SystemClock.now(), 0);
    let mut pause = Duration::ZERO;
    loop {
        SystemClock.before(SystemClock.now() + pause, connections.idle.shortened()).await;
        let Some((keeper, pool)) = keeper.upgrade().and_then(|it| it.pool.upgrade().map(|pool| (it, pool)))
        else {
            return;
        };
        let (now, uses) = (SystemClock.now(), keeper.uses.load(Ordering::Relaxed));
        if uses != last.1 {
            last = (now, uses);
        }
        match connections.idle.suspect() {
            // Twice as often as a connection becomes suspect, so each is tried before it is closed.
            Some(suspect) if now.since(last.0) < IN_USE => pause = (suspect / 2).min(IN_USE),
            _ => return keeper.is_running.store(false, Ordering::Release),
        }
        keeper.try_some(&pool).await;
    }
}
