//! Operations that the task of the caller drives, and their hand-over to the I/O thread.
#![allow(clippy::unwrap_used, reason = "tests")]

mod two_connections;

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Wake},
    thread,
    time::Duration,
};

use futures_util::FutureExt;
use polylock_core::{Clock, Error, Locks, OwnerId, SystemClock};
use tokio::runtime::Runtime;
use two_connections::{CallerConnection, Reply, locks};

/// Waits until the lock `a` is free.
async fn wait_until_free(locks: &Locks) {
    let by = SystemClock.now() + Duration::from_secs(20);
    while !locks.inspect("a").await.unwrap().is_free() {
        assert!(SystemClock.now() < by, "it is never freed");
        SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn a_caller_claims_and_releases_itself() {
    let (locks, connection) = locks(Reply::Delivered);
    for pairs in 1..=100 {
        let guard = locks.lock("a").acquire().await.unwrap();
        assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
        guard.release().await.unwrap();
        assert_eq!(connection.driven(), 3 * pairs);
    }
    wait_until_free(&locks).await;
}

#[tokio::test]
async fn a_waiter_waits_on_the_io_thread() {
    let (locks, connection) = locks(Reply::Delivered);
    let holder = locks.lock("a").acquire().await.unwrap();
    let waiter = tokio::spawn(locks.lock("a").acquire());
    while locks.inspect("a").await.unwrap().waiters.is_empty() {
        tokio::task::yield_now().await;
    }
    holder.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(connection.driven(), 4);
}

#[tokio::test]
async fn a_claim_without_a_reply_is_taken_over_and_finds_its_grant() {
    for reply in [Reply::Lost, Reply::NeverSent] {
        let (locks, connection) = locks(reply);
        let guard = locks.lock("a").acquire().await.unwrap();
        let [held] = &locks.inspect("a").await.unwrap().holders[..] else { panic!("one holder") };
        assert_eq!(held.token, Some(guard.fencing_token()));
        // The next operations begin on the I/O thread, for a while.
        guard.release().await.unwrap();
        assert_eq!(connection.driven(), 1);
        wait_until_free(&locks).await;
    }
}

#[tokio::test]
async fn a_failure_on_the_callers_connection_is_retried_on_the_io_thread() {
    let (locks, connection) = locks(Reply::Fails);
    let guard = locks.lock("a").try_acquire().await.unwrap().unwrap();
    guard.release().await.unwrap();
    assert_eq!(connection.driven(), 2);
    wait_until_free(&locks).await;
}

/// Otherwise the first claim could be delivered after the reply, and take a free lock for nobody.
#[tokio::test]
async fn a_try_whose_first_claim_may_be_late_is_released_though_the_lock_is_busy() {
    let (locks, connection) = locks(Reply::Delivered);
    let holder = locks.lock("a").acquire().await.unwrap();
    connection.set_reply(Reply::NeverSent);
    assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
    assert_eq!(connection.on_io_thread(), [1, 1]);
    drop(holder);
}

/// Whether the caller or the I/O thread claims.
#[tokio::test]
async fn a_try_is_released_if_the_store_reports_a_late_copy() {
    let (locks, connection) = locks(Reply::Delivered);
    let holder = locks.lock("a").acquire().await.unwrap();
    connection.set_reply(Reply::Repeated);
    assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
    assert_eq!((connection.driven(), connection.on_io_thread()), (2, [0, 1]));
    // A reentrant acquisition begins on the I/O thread.
    let owner = OwnerId::new("another").unwrap();
    assert!(locks.lock("a").reentrant(&owner).try_acquire().await.unwrap().is_none());
    assert_eq!((connection.driven(), connection.on_io_thread()), (2, [1, 2]));
    drop(holder);
}

#[tokio::test]
async fn a_release_without_a_reply_is_taken_over_and_is_not_a_loss() {
    for reply in [Reply::Lost, Reply::NeverSent] {
        let (locks, connection) = locks(Reply::Delivered);
        let guard = locks.lock("a").acquire().await.unwrap();
        connection.set_reply(reply);
        guard.release().await.unwrap();
        assert!(locks.inspect("a").await.unwrap().is_free());
        assert_eq!(connection.driven(), 2);
    }
}

#[tokio::test]
async fn an_operation_dropped_by_its_caller_is_rolled_back_or_completed() {
    for reply in [Reply::Lost, Reply::NeverSent] {
        let (locks, connection) = locks(reply);
        assert!(locks.lock("a").ttl(Duration::from_secs(60)).acquire().now_or_never().is_none());
        wait_until_free(&locks).await;
        connection.set_reply(Reply::Delivered);
        let guard = locks.lock("a").ttl(Duration::from_secs(60)).acquire().await.unwrap();
        connection.set_reply(reply);
        assert!(guard.release().now_or_never().is_none());
        wait_until_free(&locks).await;
        assert_eq!(connection.driven(), 3);
    }
}

/// Delays the task that hands its acquisition over, until the I/O thread has continued it.
struct Delayed(Arc<CallerConnection>);

impl Wake for Delayed {
    fn wake(self: Arc<Self>) {
        let by = SystemClock.now() + Duration::from_secs(20);
        while self.0.on_io_thread() == [0, 0] {
            assert!(SystemClock.now() < by, "the I/O thread does not go on");
            thread::yield_now();
        }
    }
}

#[tokio::test]
async fn the_io_thread_does_not_claim_for_a_cancelled_caller() {
    let (locks, connection) = locks(Reply::NeverSent);
    let mut acquisition = Box::pin(locks.lock("a").acquire());
    let waker = Arc::new(Delayed(connection.clone())).into();
    assert!(acquisition.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(acquisition);
    assert!(locks.close(Duration::from_secs(20)).await, "it is withdrawn");
    assert_eq!((connection.driven(), connection.on_io_thread()), (1, [0, 1]));
}

#[test]
fn an_operation_dropped_by_its_runtime_is_rolled_back_or_completed() {
    let outliving = Runtime::new().unwrap();
    for reply in [Reply::Lost, Reply::NeverSent] {
        let (locks, connection) = locks(Reply::Delivered);
        let runtime = Runtime::new().unwrap();
        let guard = runtime.block_on(locks.lock("a").ttl(Duration::from_secs(60)).acquire()).unwrap();
        connection.set_reply(reply);
        runtime.spawn(guard.release());
        runtime.spawn(locks.lock("b").ttl(Duration::from_secs(60)).acquire());
        while connection.driven() < 3 {
            thread::yield_now();
        }
        drop(runtime);
        outliving.block_on(async {
            wait_until_free(&locks).await;
            while !locks.inspect("b").await.unwrap().is_free() {
                tokio::task::yield_now().await;
            }
        });
    }
}

#[tokio::test]
async fn a_lock_whose_caller_is_not_polled_is_passed_on() {
    for reply in [Reply::Lost, Reply::NeverSent] {
        let (locks, connection) = locks(reply);
        let mut unpolled = pin!(locks.lock("a").ttl(Duration::from_millis(2400)).acquire());
        assert!(unpolled.as_mut().now_or_never().is_none());
        connection.set_reply(Reply::Delivered);
        let other = locks.lock("a").wait(Duration::from_secs(20)).acquire().await.unwrap();
        other.release().await.unwrap();
        // The first acquisition gets the lock when it is polled again. Without a takeover it waits for the lost reply for ever.
        let guard =
            tokio::time::timeout(Duration::from_secs(20), unpolled).await.expect("it was not taken over");
        guard.unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn a_panic_of_the_store_is_an_error() {
    let (locks, _connection) = locks(Reply::Panics);
    let error = locks.lock("a").acquire().await.unwrap_err();
    assert!(matches!(&error, Error::Unavailable(_)), "{error:?}");
    assert!(error.chain().contains("a planted panic"), "{}", error.chain());
}

mod connections {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use polylock_core::PerRuntime;

    use super::*;

    /// A connection that counts its drop.
    struct Connection {
        number: u32,
        is_working: AtomicBool,
        dropped: Arc<AtomicU32>,
    }

    impl Drop for Connection {
        fn drop(&mut self) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[derive(Default)]
    struct Pool {
        connections: PerRuntime<Connection>,
        opened: Arc<AtomicU32>,
        dropped: Arc<AtomicU32>,
        fails: Arc<AtomicBool>,
    }

    impl Pool {
        fn get(&self) -> Option<Arc<Connection>> {
            let (opened, dropped, fails) = (self.opened.clone(), self.dropped.clone(), self.fails.clone());
            self.connections.get(
                |connection| connection.is_working.load(Ordering::Relaxed),
                || async move {
                    let number = opened.fetch_add(1, Ordering::Relaxed) + 1;
                    if fails.load(Ordering::Relaxed) {
                        return polylock_core::LockName::new("").map(|_| unreachable!()).map_err(Error::from);
                    }
                    Ok(Connection { number, is_working: AtomicBool::new(true), dropped })
                },
            )
        }

        async fn open(&self) -> Arc<Connection> {
            let by = SystemClock.now() + Duration::from_secs(20);
            loop {
                assert!(SystemClock.now() < by);
                if let Some(connection) = self.get() {
                    return connection;
                }
                tokio::task::yield_now().await;
            }
        }
    }

    #[test]
    fn each_runtime_has_its_own_connection_until_it_ends() {
        let pool = Arc::new(Pool::default());
        let [first, second] = [(); 2].map(|()| Runtime::new().unwrap());
        let numbers = [&first, &second].map(|runtime| runtime.block_on(pool.open()).number);
        assert_eq!(numbers, [1, 2]);
        assert_eq!(first.block_on(pool.open()).number, 1);
        assert!(pool.get().is_none(), "no runtime");
        drop(first);
        assert_eq!(pool.dropped.load(Ordering::Relaxed), 1);
        let pool_after_runtime = pool.clone();
        let handle = second.handle().clone();
        drop(second);
        // The task ends before it begins, and nothing hangs.
        let _inside = handle.enter();
        for _ in 0..10 {
            assert!(pool_after_runtime.get().is_none());
        }
        assert_eq!(pool.dropped.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn a_broken_connection_is_replaced_after_a_pause() {
        let pool = Pool::default();
        pool.open().await.is_working.store(false, Ordering::Relaxed);
        let began = SystemClock.now();
        assert_eq!(pool.open().await.number, 2);
        assert!(SystemClock.now().since(began) >= Duration::from_secs(1));
        assert_eq!(pool.dropped.load(Ordering::Relaxed), 1);
        let Pool { connections, dropped, .. } = pool;
        drop(connections);
        while dropped.load(Ordering::Relaxed) < 2 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_connection_that_can_not_be_opened_is_retried_after_a_pause() {
        let pool = Pool::default();
        pool.fails.store(true, Ordering::Relaxed);
        let began = SystemClock.now();
        while pool.opened.load(Ordering::Relaxed) < 1 {
            assert!(pool.get().is_none());
            tokio::task::yield_now().await;
        }
        pool.fails.store(false, Ordering::Relaxed);
        let connection = loop {
            match pool.get() {
                Some(connection) => break connection,
                None => SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(20)).await,
            }
        };
        assert_eq!(connection.number, 2);
        assert!(SystemClock.now().since(began) >= Duration::from_secs(1));
    }
}

mod moving {
    use async_trait::async_trait;
    use polylock_core::{
        Backend, Capabilities, ClaimOutcome, KeepAlive, Release, Request, Result, Store, Wake, memory,
    };
    use tokio::sync::Mutex;

    use super::*;

    /// The in-memory store over one connection, which each operation keeps for a while.
    #[derive(Debug)]
    struct SingleConnection {
        inner: Arc<dyn Backend>,
        connection: Mutex<()>,
    }

    impl SingleConnection {
        async fn execute<T>(&self, operation: impl Future<Output = Result<T>>) -> Result<T> {
            let _connection = self.connection.lock().await;
            SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(5)).await;
            operation.await
        }
    }

    #[async_trait]
    impl Backend for SingleConnection {
        fn capabilities(&self) -> &Capabilities {
            self.inner.capabilities()
        }

        async fn claim(&self, request: &Request) -> Result<ClaimOutcome> {
            self.execute(self.inner.claim(request)).await
        }

        async fn wait(&self, request: &Request) -> Result<Wake> {
            self.inner.wait(request).await
        }

        async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
            self.execute(self.inner.keep_alive(requests)).await
        }

        async fn release(&self, request: &Request) -> Result<Release> {
            self.execute(self.inner.release(request)).await
        }
    }

    fn single_connection() -> Locks {
        let inner = memory::connect();
        let inspect = inner.inspect.clone();
        let store = SingleConnection { inner: inner.backend, connection: Mutex::default() };
        Locks::new(Store { inspect, ..Store::new(Arc::new(store)) })
    }

    #[test]
    fn a_caller_that_is_not_polled_keeps_no_connection() {
        let locks = single_connection();
        // There is no runtime: the timers and wake-ups are those of the I/O thread.
        // A thread that is suspended within the first poll finds the operation taken over and completed.
        let unpolled = loop {
            let mut acquiring = Box::pin(locks.lock("a").acquire());
            if acquiring.as_mut().now_or_never().is_none() {
                break acquiring;
            }
        };
        let runtime = Runtime::new().unwrap();
        runtime.block_on(async {
            let other = locks.lock("b").wait(Duration::from_secs(20)).acquire().await.unwrap();
            let mut releasing = Box::pin(other.release());
            let released = releasing.as_mut().now_or_never();
            drop(locks.lock("b").wait(Duration::from_secs(20)).acquire().await.unwrap());
            match released {
                Some(released) => released.unwrap(),
                None => releasing.await.unwrap(),
            }
            unpolled.await.unwrap().release().await.unwrap();
        });
    }

    #[tokio::test]
    async fn a_dropped_operation_continues_and_is_rolled_back() {
        let locks = single_connection();
        assert!(locks.lock("a").ttl(Duration::from_secs(60)).acquire().now_or_never().is_none());
        wait_until_free(&locks).await;
        let guard = locks.lock("a").ttl(Duration::from_secs(60)).acquire().await.unwrap();
        assert!(guard.release().now_or_never().is_none());
        wait_until_free(&locks).await;
    }
}

#[tokio::test]
async fn a_store_is_closed_with_its_last_handle() {
    let mut stores = Vec::new();
    for _ in 0..100 {
        let (locks, connection) = locks(Reply::Delivered);
        locks.lock("a").acquire().await.unwrap().release().await.unwrap();
        stores.push(connection);
    }
    // When this returns, the I/O thread has polled each earlier task.
    polylock_core::io::run("memory", async {}).await.unwrap();
    let open = stores.iter().filter(|connection| Arc::strong_count(connection) > 1).count();
    assert_eq!(open, 0, "of 100 stores");
}
