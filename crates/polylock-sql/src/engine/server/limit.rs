//! The limit on the connections of one process to one server, across all its runtimes.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use deadpool::managed::{Manager, Pool, WeakPool};
use polylock_core::sync::lock;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The idle time after which a connection may be closed for a pool that can do without a new one.
const IDLE_TIME: Duration = Duration::from_secs(1);

/// Issues the permits for connections to the pools of several runtimes.
///
/// A connection stays with the pool that opened it. So a pool that needs one when the limit is reached closes an idle connection of another
/// pool:
/// 1. the pool counts itself as waiting, and closes an idle connection if there is one;
/// 2. otherwise all connections are in use, and the next operation that returns one checks for waiting pools, and closes an idle connection
///    for them.
///
/// Opening a connection takes longer than an operation. So a pool checks first whether there is [room](Self::has_room) if another pool can
/// execute its operations: two busy pools would otherwise close each other's connections.
pub(crate) struct ConnectionLimit<M: Manager> {
    connections: Arc<Semaphore>,
    pools: Mutex<Vec<WeakPool<M>>>,
    waiting: AtomicUsize,
}

/// Counts one waiting pool until it is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<M: Manager> ConnectionLimit<M> {
    /// Creates a limit of `size` connections.
    pub(crate) fn new(size: usize) -> Self {
        Self {
            connections: Arc::new(Semaphore::new(size)),
            pools: Mutex::default(),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Registers `pool`, so that its idle connections may be closed for other pools.
    pub(crate) fn add(&self, pool: &Pool<M>) {
        let mut pools = lock(&self.pools);
        pools.retain(|pool| pool.upgrade().is_some());
        pools.push(pool.weak());
    }

    /// Returns the permit for one more connection as soon as there is one; never `None` while the limit exists.
    ///
    /// # Cancel safety
    /// Dropping the future may cost an idle connection, which was closed to make room.
    pub(crate) async fn acquire(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(permit) = self.connections.clone().try_acquire_owned() {
            return Some(permit);
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let _waiting = Waiting(&self.waiting);
        self.close_idle(Duration::ZERO);
        self.connections.clone().acquire_owned().await.ok()
    }

    /// Returns true if one more connection may be opened, after closing one that was idle for [`IDLE_TIME`] if necessary.
    pub(crate) fn has_room(&self) -> bool {
        self.connections.available_permits() > 0 || self.close_idle(IDLE_TIME)
    }

    /// Reports that a connection has become idle, and closes an idle one if a pool waits.
    pub(crate) fn on_idle(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.close_idle(Duration::ZERO);
        }
    }

    /// Closes one connection that was idle for at least `least`; returns false if there is none.
    fn close_idle(&self, least: Duration) -> bool {
        let pools = lock(&self.pools);
        let pools: Vec<_> = pools.iter().filter_map(WeakPool::upgrade).collect();
        for pool in pools {
            let mut is_closed = false;
            pool.retain(|_, metrics| {
                let keep = is_closed || metrics.last_used() < least;
                is_closed |= !keep;
                keep
            });
            if is_closed {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deadpool::managed::{Metrics, RecycleResult};
    use futures_util::FutureExt;

    struct TestManager(Arc<ConnectionLimit<Self>>);

    impl Manager for TestManager {
        type Type = OwnedSemaphorePermit;
        type Error = ();

        async fn create(&self) -> Result<Self::Type, ()> {
            self.0.acquire().await.ok_or(())
        }

        async fn recycle(&self, _: &mut Self::Type, _: &Metrics) -> RecycleResult<()> {
            Ok(())
        }
    }

    fn pools(size: usize) -> (Arc<ConnectionLimit<TestManager>>, [Pool<TestManager>; 2]) {
        let limit = Arc::new(ConnectionLimit::new(size));
        let pools = [(); 2].map(|()| {
            let pool: Pool<_> = Pool::builder(TestManager(limit.clone())).max_size(size).build().unwrap();
            limit.add(&pool);
            pool
        });
        (limit, pools)
    }

    #[test]
    fn an_idle_connection_of_another_pool_makes_room() {
        let (_limit, [first, second]) = pools(2);
        let both = [(); 2].map(|()| first.get().now_or_never().unwrap().unwrap());
        assert!(second.get().now_or_never().is_none(), "all are in use");
        drop(both);
        let one = second.get().now_or_never().unwrap().unwrap();
        assert_eq!((first.status().size, second.status().size), (1, 1));
        drop(one);
    }

    #[test]
    fn a_returned_connection_makes_room_for_a_waiting_pool() {
        let (limit, [first, second]) = pools(1);
        let one = first.get().now_or_never().unwrap().unwrap();
        let mut waiting = Box::pin(second.get());
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(one);
        limit.on_idle();
        assert!(waiting.now_or_never().unwrap().is_ok());
        assert_eq!(first.status().size, 0);
    }

    #[test]
    fn a_pool_with_a_substitute_closes_no_recently_used_connection() {
        let (limit, [first, second]) = pools(2);
        drop(first.get().now_or_never().unwrap().unwrap());
        assert!(limit.has_room());
        drop([(); 2].map(|()| first.get().now_or_never().unwrap().unwrap()));
        assert!(!limit.has_room());
        assert_eq!(first.status().size, 2);
        assert!(limit.close_idle(Duration::ZERO) && limit.has_room());
        assert_eq!((first.status().size, second.status().size), (1, 0));
    }

    #[test]
    fn the_connections_of_a_dropped_pool_do_not_count() {
        let (_limit, [first, second]) = pools(1);
        drop(first.get().now_or_never().unwrap().unwrap());
        drop(first);
        assert!(second.get().now_or_never().unwrap().is_ok());
    }
}
