//! Operations that the task of the caller drives, and their hand-over to the I/O thread.
#![allow(clippy::unwrap_used, reason = "tests")]

mod twofold;

use std::{pin::pin, thread, time::Duration};

use futures_util::FutureExt;
use polylock_core::{Clock, Error, Locks, SystemClock};
use tokio::runtime::Runtime;
use twofold::{Reply, locks};

/// Waits until the lock `a` is free.
async fn free(locks: &Locks) {
    let by = SystemClock.now() + Duration::from_secs(20);
    while !locks.inspect("a").await.unwrap().is_free() {
        assert!(SystemClock.now() < by, "it is never freed");
        SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn a_caller_claims_and_releases_itself() {
    let (locks, here) = locks(Reply::Comes);
    for pairs in 1..=100 {
        let guard = locks.lock("a").acquire().await.unwrap();
        assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
        guard.release().await.unwrap();
        assert_eq!(here.driven(), 3 * pairs);
    }
    free(&locks).await;
}

#[tokio::test]
async fn a_waiter_waits_on_the_thread() {
    let (locks, here) = locks(Reply::Comes);
    let holder = locks.lock("a").acquire().await.unwrap();
    let waiter = tokio::spawn(locks.lock("a").acquire());
    while locks.inspect("a").await.unwrap().waiters.is_empty() {
        tokio::task::yield_now().await;
    }
    holder.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(here.driven(), 4);
}

#[tokio::test]
async fn a_claim_without_a_reply_is_taken_over_and_finds_its_grant() {
    for reply in [Reply::IsLost, Reply::NeverSent] {
        let (locks, here) = locks(reply);
        let guard = locks.lock("a").acquire().await.unwrap();
        let [held] = &locks.inspect("a").await.unwrap().holders[..] else { panic!("one holder") };
        assert_eq!(held.token, Some(guard.fencing_token()));
        // The next operations begin on the thread, for a while.
        guard.release().await.unwrap();
        assert_eq!(here.driven(), 1);
        free(&locks).await;
    }
}

#[tokio::test]
async fn a_release_without_a_reply_is_taken_over_and_is_no_loss() {
    for reply in [Reply::IsLost, Reply::NeverSent] {
        let (locks, here) = locks(Reply::Comes);
        let guard = locks.lock("a").acquire().await.unwrap();
        here.replies(reply);
        guard.release().await.unwrap();
        assert!(locks.inspect("a").await.unwrap().is_free());
        assert_eq!(here.driven(), 2);
    }
}

#[tokio::test]
async fn what_a_caller_drops_half_way_is_undone_or_ended() {
    for reply in [Reply::IsLost, Reply::NeverSent] {
        let (locks, here) = locks(reply);
        assert!(locks.lock("a").ttl(Duration::from_secs(60)).acquire().now_or_never().is_none());
        free(&locks).await;
        here.replies(Reply::Comes);
        let guard = locks.lock("a").ttl(Duration::from_secs(60)).acquire().await.unwrap();
        here.replies(reply);
        assert!(guard.release().now_or_never().is_none());
        free(&locks).await;
        assert_eq!(here.driven(), 3);
    }
}

#[test]
fn what_a_runtime_drops_at_its_end_is_undone_or_ended() {
    let lasting = Runtime::new().unwrap();
    for reply in [Reply::IsLost, Reply::NeverSent] {
        let (locks, here) = locks(Reply::Comes);
        let runtime = Runtime::new().unwrap();
        let guard = runtime.block_on(locks.lock("a").ttl(Duration::from_secs(60)).acquire()).unwrap();
        here.replies(reply);
        runtime.spawn(guard.release());
        runtime.spawn(locks.lock("b").ttl(Duration::from_secs(60)).acquire());
        while here.driven() < 3 {
            thread::yield_now();
        }
        drop(runtime);
        lasting.block_on(async {
            free(&locks).await;
            while !locks.inspect("b").await.unwrap().is_free() {
                tokio::task::yield_now().await;
            }
        });
    }
}

#[tokio::test]
async fn a_lock_whose_caller_is_not_polled_is_passed_on() {
    for reply in [Reply::IsLost, Reply::NeverSent] {
        let (locks, here) = locks(reply);
        let mut unpolled = pin!(locks.lock("a").ttl(Duration::from_millis(900)).acquire());
        assert!(unpolled.as_mut().now_or_never().is_none());
        here.replies(Reply::Comes);
        let other = locks.lock("a").wait(Duration::from_secs(20)).acquire().await.unwrap();
        other.release().await.unwrap();
        // It gets the lock when it is polled again.
        unpolled.await.unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn a_panic_of_the_store_is_an_error() {
    let (locks, _here) = locks(Reply::Panics);
    let error = locks.lock("a").acquire().await.unwrap_err();
    assert!(matches!(&error, Error::Unavailable(_)), "{error:?}");
    assert!(error.chain().contains("a planted panic"), "{}", error.chain());
}

mod connections {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    };

    use polylock_core::PerRuntime;

    use super::*;

    /// A connection that notes when it is dropped.
    struct Connection {
        number: u32,
        works: AtomicBool,
        dropped: Arc<AtomicU32>,
    }

    impl Drop for Connection {
        fn drop(&mut self) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[derive(Default)]
    struct Site {
        connections: PerRuntime<Connection>,
        opened: Arc<AtomicU32>,
        dropped: Arc<AtomicU32>,
        fails: Arc<AtomicBool>,
    }

    impl Site {
        fn get(&self) -> Option<Arc<Connection>> {
            let (opened, dropped, fails) = (self.opened.clone(), self.dropped.clone(), self.fails.clone());
            self.connections.get(
                |connection| connection.works.load(Ordering::Relaxed),
                || async move {
                    let number = opened.fetch_add(1, Ordering::Relaxed) + 1;
                    if fails.load(Ordering::Relaxed) {
                        return polylock_core::LockName::new("").map(|_| unreachable!()).map_err(Error::from);
                    }
                    Ok(Connection { number, works: AtomicBool::new(true), dropped })
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
    fn each_runtime_has_its_own_until_it_ends() {
        let site = Arc::new(Site::default());
        let [first, second] = [(); 2].map(|()| Runtime::new().unwrap());
        let numbers = [&first, &second].map(|runtime| runtime.block_on(site.open()).number);
        assert_eq!(numbers, [1, 2]);
        assert_eq!(first.block_on(site.open()).number, 1);
        assert!(site.get().is_none(), "no runtime");
        drop(first);
        assert_eq!(site.dropped.load(Ordering::Relaxed), 1);
        let late = site.clone();
        let handle = second.handle().clone();
        drop(second);
        // The task ends before it begins, and nothing hangs.
        let _inside = handle.enter();
        for _ in 0..10 {
            assert!(late.get().is_none());
        }
        assert_eq!(site.dropped.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn one_that_does_not_work_is_replaced() {
        let site = Site::default();
        site.open().await.works.store(false, Ordering::Relaxed);
        assert_eq!(site.open().await.number, 2);
        assert_eq!(site.dropped.load(Ordering::Relaxed), 1);
        let Site { connections, dropped, .. } = site;
        drop(connections);
        while dropped.load(Ordering::Relaxed) < 2 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn one_that_can_not_be_opened_is_tried_again_after_a_pause() {
        let site = Site::default();
        site.fails.store(true, Ordering::Relaxed);
        let began = SystemClock.now();
        while site.opened.load(Ordering::Relaxed) < 1 {
            assert!(site.get().is_none());
            tokio::task::yield_now().await;
        }
        site.fails.store(false, Ordering::Relaxed);
        let connection = loop {
            match site.get() {
                Some(connection) => break connection,
                None => SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(20)).await,
            }
        };
        assert_eq!(connection.number, 2);
        assert!(SystemClock.now().since(began) >= Duration::from_secs(1));
    }
}

mod moving {
    use std::sync::Arc;

    use async_trait::async_trait;
    use polylock_core::{
        Backend, Capabilities, KeepAlive, Release, Request, Result, Standing, Store, Wake, memory,
    };
    use tokio::sync::Mutex;

    use super::*;

    /// The in-memory store, over one connection that each operation keeps for a while.
    #[derive(Debug)]
    struct Narrow {
        inner: Arc<dyn Backend>,
        connection: Mutex<()>,
    }

    impl Narrow {
        async fn carry_out<T>(&self, operation: impl Future<Output = Result<T>>) -> Result<T> {
            let _connection = self.connection.lock().await;
            SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(5)).await;
            operation.await
        }
    }

    #[async_trait]
    impl Backend for Narrow {
        fn capabilities(&self) -> &Capabilities {
            self.inner.capabilities()
        }

        async fn claim(&self, request: &Request) -> Result<Standing> {
            self.carry_out(self.inner.claim(request)).await
        }

        async fn wait(&self, request: &Request) -> Result<Wake> {
            self.inner.wait(request).await
        }

        async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
            self.carry_out(self.inner.keep_alive(requests)).await
        }

        async fn release(&self, request: &Request) -> Result<Release> {
            self.carry_out(self.inner.release(request)).await
        }
    }

    fn narrow() -> Locks {
        let inner = memory::connect();
        let inspect = inner.inspect.clone();
        let store = Narrow { inner: inner.backend, connection: Mutex::default() };
        Locks::new(Store { inspect, ..Store::new(Arc::new(store)) })
    }

    #[test]
    fn a_caller_that_is_not_polled_keeps_no_connection() {
        let locks = narrow();
        // No runtime at all: its timers and wake-ups are those of the I/O thread.
        let mut unpolled = pin!(locks.lock("a").acquire());
        assert!(unpolled.as_mut().now_or_never().is_none());
        let runtime = Runtime::new().unwrap();
        runtime.block_on(async {
            let other = locks.lock("b").wait(Duration::from_secs(20)).acquire().await.unwrap();
            let mut releasing = Box::pin(other.release());
            assert!(releasing.as_mut().now_or_never().is_none());
            drop(locks.lock("b").wait(Duration::from_secs(20)).acquire().await.unwrap());
            releasing.await.unwrap();
            unpolled.await.unwrap().release().await.unwrap();
        });
    }

    #[tokio::test]
    async fn what_is_dropped_half_way_goes_on_and_is_undone() {
        let locks = narrow();
        assert!(locks.lock("a").ttl(Duration::from_secs(60)).acquire().now_or_never().is_none());
        free(&locks).await;
        let guard = locks.lock("a").ttl(Duration::from_secs(60)).acquire().await.unwrap();
        assert!(guard.release().now_or_never().is_none());
        free(&locks).await;
    }
}

#[tokio::test]
async fn a_store_is_closed_with_its_last_handle() {
    let mut stores = Vec::new();
    for _ in 0..100 {
        let (locks, here) = locks(Reply::Comes);
        locks.lock("a").acquire().await.unwrap().release().await.unwrap();
        stores.push(here);
    }
    // The I/O thread has taken a step of each task before.
    polylock_core::io::run("memory", async {}).await.unwrap();
    let open = stores.iter().filter(|here| std::sync::Arc::strong_count(here) > 1).count();
    assert_eq!(open, 0, "of 100 stores");
}
