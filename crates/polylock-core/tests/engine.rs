//! The engine on the in-memory store: tests of behaviour that the conformance suite does not reach from outside.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use polylock_core::{
    Backend, BreakNotice, Capabilities, ClaimOutcome, Clock, Error, Fault, HoldLifetime, KeepAlive, Locks,
    LostReason, Mode, Moment, Operation, Options, OwnerId, Release, Request, Store, SystemClock, Unavailable,
    Wake, memory,
};

fn locks() -> Locks {
    Locks::new(memory::connect())
}

#[tokio::test]
async fn repeated_acquisitions_return_growing_tokens() {
    let locks = locks();
    let mut last = None;
    for _ in 0..100 {
        let guard = locks.lock("a").acquire().await.unwrap();
        assert!(guard.is_held() && Some(guard.fencing_token()) > last);
        last = Some(guard.fencing_token());
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn waiters_are_served_in_order() {
    let locks = locks();
    let first = locks.lock("a").acquire().await.unwrap();
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    for index in 0..10 {
        let (lock, sender) = (locks.lock("a"), sender.clone());
        tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            sender.send(index).unwrap();
            guard.release().await.unwrap();
        });
        while locks.inspect("a").await.unwrap().waiters.len() <= index {
            tokio::task::yield_now().await;
        }
    }
    drop(first);
    for index in 0..10 {
        assert_eq!(receiver.recv().await, Some(index));
    }
}

#[tokio::test]
async fn a_hold_is_renewed_beyond_its_lease() {
    let locks = locks();
    let guard = locks.lock("a").ttl(Duration::from_millis(2400)).acquire().await.unwrap();
    for _ in 0..4 {
        assert!(guard.renewed().await.is_some());
    }
    guard.ensure_held().unwrap();
}

#[tokio::test]
async fn a_broken_lock_is_lost_and_its_work_is_stopped() {
    let locks = locks();
    let guard = locks.lock("a").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    let lost = guard.lost();
    let token = guard.fencing_token();
    assert_eq!(locks.break_lock("a").await.unwrap().len(), 1);
    let error = guard.run(std::future::pending::<()>()).await.unwrap_err();
    let notice = BreakNotice::new(OwnerId::process(), None);
    assert_eq!(error.lost(), Some(&LostReason::Broken(notice.clone())));
    assert_eq!(lost.await, LostReason::Broken(notice));
    assert!(locks.lock("a").acquire().await.unwrap().fencing_token() > token);
}

#[tokio::test]
async fn an_owner_reenters_and_the_last_guard_releases() {
    let (locks, owner, other_owner) = (locks(), OwnerId::unique(), OwnerId::unique());
    let outer = locks.lock("a").reentrant(&owner).acquire().await.unwrap();
    let inner = locks.lock("a").reentrant(&owner).shared().acquire().await.unwrap();
    assert_eq!(outer.fencing_token(), inner.fencing_token());
    outer.release().await.unwrap();
    assert!(locks.lock("a").reentrant(&other_owner).try_acquire().await.unwrap().is_none());
    inner.release().await.unwrap();
    let reader = locks.lock("a").reentrant(&other_owner).shared().acquire().await.unwrap();
    let refused = locks.lock("a").reentrant(&other_owner).acquire().await.unwrap_err();
    assert!(
        matches!(refused, Error::Reentry { held: Mode::Shared, wanted: Mode::Exclusive, .. }),
        "{refused}"
    );
    drop(reader);
}

#[test]
fn works_from_any_executor_and_releases_outside_one() {
    let locks = locks();
    let holder = block_on(locks.lock("a").acquire()).unwrap();
    let waiting = futures_util::FutureExt::now_or_never(locks.lock("a").acquire());
    assert!(waiting.is_none(), "it is held");
    // A future that was abandoned half-way has left nothing behind.
    assert!(block_on(locks.clone().close(Duration::from_secs(5))));
    assert!(block_on(locks.inspect("a")).unwrap().waiters.is_empty());
    block_on(holder.release()).unwrap();
    let guard = block_on(locks.lock("a").try_acquire()).unwrap().unwrap();
    drop(guard);
    assert!(block_on(locks.clone().close(Duration::from_secs(5))));
    assert!(block_on(locks.inspect("a")).unwrap().is_free());
}

/// An executor that only parks its thread.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut future = std::pin::pin!(future);
    loop {
        if let std::task::Poll::Ready(output) =
            future.as_mut().poll(&mut std::task::Context::from_waker(&waker))
        {
            return output;
        }
        std::thread::park();
    }
}

/// A store that is not available before a time that it states.
#[derive(Debug)]
struct Delayed {
    inner: Arc<dyn Backend>,
    until: Moment,
}

impl Delayed {
    fn locks(delay: Duration) -> Locks {
        let (Store { backend, .. }, until) = (memory::connect(), SystemClock.now() + delay);
        let mut options = Options::default();
        options.outage = Duration::from_millis(30);
        Locks::builder(Store::new(Arc::new(Self { inner: backend, until }))).options(options).build()
    }
}

#[async_trait]
impl Backend for Delayed {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn claim(&self, request: &Request) -> Result<ClaimOutcome, Error> {
        let left = self.until.since(SystemClock.now());
        if left.is_zero() {
            return self.inner.claim(request).await;
        }
        let error = Unavailable::new("delayed", Operation::Claim, Fault::Temporary, "it starts");
        Err(error.retry_after(left).into())
    }

    async fn wait(&self, request: &Request) -> Result<Wake, Error> {
        self.inner.wait(request).await
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>, Error> {
        self.inner.keep_alive(requests).await
    }

    async fn release(&self, request: &Request) -> Result<Release, Error> {
        self.inner.release(request).await
    }
}

#[tokio::test]
async fn a_delay_that_the_store_states_is_not_an_outage() {
    let began = SystemClock.now();
    // Ten times the limit for outages.
    let locks = Delayed::locks(Duration::from_millis(300));
    let guard = locks.lock("a").acquire().await.unwrap();
    let took = SystemClock.now().since(began);
    assert!(took >= Duration::from_millis(250) && took < Duration::from_secs(5), "{took:?}");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_delay_is_waited_out_within_the_callers_limit_and_then_reported() {
    let locks = Delayed::locks(Duration::from_secs(60));
    let remaining = |error: Error| error.retry_after().expect("the store has stated it");
    let began = SystemClock.now();
    let error = locks.lock("a").wait(Duration::from_millis(200)).acquire().await.unwrap_err();
    let took = SystemClock.now().since(began);
    assert!(took >= Duration::from_millis(190) && took < Duration::from_secs(5), "{took:?}");
    let left = remaining(error);
    assert!(left < Duration::from_secs(60) && left > Duration::from_secs(50), "{left:?}");
    let error = locks.lock("a").try_acquire().await.unwrap_err();
    assert!(remaining(error) > Duration::from_secs(50), "a try does not wait");
}

/// The in-memory store, declared as one with holds that end with the process.
#[derive(Debug)]
struct SessionStore(Store, Capabilities);

#[async_trait]
impl Backend for SessionStore {
    fn capabilities(&self) -> &Capabilities {
        &self.1
    }

    async fn claim(&self, request: &Request) -> polylock_core::Result<ClaimOutcome> {
        self.0.backend.claim(request).await
    }

    async fn wait(&self, request: &Request) -> polylock_core::Result<Wake> {
        self.0.backend.wait(request).await
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> polylock_core::Result<Vec<KeepAlive>> {
        self.0.backend.keep_alive(requests).await
    }

    async fn release(&self, request: &Request) -> polylock_core::Result<Release> {
        self.0.backend.release(request).await
    }
}

#[tokio::test]
async fn a_release_after_a_delay_leaves_a_lease_of_that_delay() {
    let (locks, delay) = (locks(), Duration::from_secs(4));
    for ttl in [Duration::from_secs(2), Duration::from_secs(3600)] {
        let guard = locks.lock("a").ttl(ttl).acquire().await.unwrap();
        let began = SystemClock.now();
        guard.release_after(delay).await.unwrap();
        assert!(SystemClock.now().since(began) < delay / 2, "it need not wait");
        locks.lock("a").acquire().await.unwrap().release().await.unwrap();
        let free_after = SystemClock.now().since(began);
        assert!(free_after >= delay && free_after < delay + Duration::from_secs(2), "{free_after:?}");
    }
}

#[tokio::test]
async fn a_release_after_a_delay_keeps_a_hold_that_would_end_with_the_process() {
    let store = memory::connect();
    let mut capabilities = store.backend.capabilities().clone();
    capabilities.hold_lifetime = HoldLifetime::Session;
    let locks = Locks::new(Store::new(Arc::new(SessionStore(store, capabilities))));
    let delay = Duration::from_secs(6);
    let guard = locks.lock("a").ttl(Duration::from_secs(2)).acquire().await.unwrap();
    let began = SystemClock.now();
    let mut releasing = Box::pin(guard.release_after(delay));
    tokio::select! {
        _ = &mut releasing => panic!("it did not wait"),
        () = SystemClock.sleep_until(began + delay / 2) => {}
    }
    assert!(locks.lock("a").try_acquire().await.unwrap().is_none(), "it was not renewed");
    releasing.await.unwrap();
    assert!(SystemClock.now().since(began) >= delay);
    locks.lock("a").try_acquire().await.unwrap().unwrap().release().await.unwrap();

    // Dropping the future releases the lock at once.
    let guard = locks.lock("a").acquire().await.unwrap();
    let releasing =
        tokio::time::timeout(Duration::from_millis(20), guard.release_after(Duration::from_secs(3600)));
    releasing.await.unwrap_err();
    locks.lock("a").wait(Duration::from_secs(20)).acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_release_after_a_delay_of_a_lost_lock_reports_the_loss() {
    let locks = locks();
    let guard = locks.lock("a").acquire().await.unwrap();
    locks.break_lock("a").force().await.unwrap();
    let outcome = guard.release_after(Duration::from_secs(1)).await;
    assert!(outcome.as_ref().is_err_and(|error| error.lost().is_some()), "{outcome:?}");
}

/// A runtime with a paused clock advances it whenever it waits for the library's thread: only the library's own limit holds.
#[tokio::test(start_paused = true)]
async fn a_limit_of_the_lock_holds_under_a_paused_clock() {
    let locks = locks();
    let holder = locks.lock("a").acquire().await.unwrap();
    let began = SystemClock.now();
    let error = locks.lock("a").wait(Duration::from_millis(200)).acquire().await.unwrap_err();
    let took = SystemClock.now().since(began);
    assert!(error.is_not_acquired() && took >= Duration::from_millis(190), "{error:?} after {took:?}");
    holder.release().await.unwrap();
    locks.lock("a").wait(Duration::from_secs(60)).acquire().await.unwrap().release().await.unwrap();
}
