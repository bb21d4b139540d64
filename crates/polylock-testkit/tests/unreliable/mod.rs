//! The in-memory store with outages, and a clock that runs much faster than the machine's.
#![allow(dead_code, reason = "tests, each of which uses a part")]

use std::{
    fmt,
    pin::pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use polylock_core::{
    Backend, Capabilities, ClaimOutcome, Clock, KeepAlive, KeepRecord, LockName, Locks, Operation, Record,
    Release, Request, Result, Store, StoredRecord, SystemClock, Unavailable, Wake, memory,
};
use polylock_testkit::{
    ManualClock,
    faults::{Recording, wrap},
};
use tokio::sync::watch;

/// What an operation does during an outage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Fails,
    /// It does not return before the end of the outage.
    Hangs,
}

type Begins = Box<dyn Fn(Operation, Option<&LockName>) -> bool + Send>;

/// The in-memory store. An outage begins on demand, or with an operation that is chosen.
pub(crate) struct Unreliable {
    /// The store without outages.
    pub(crate) below: Store,
    fault: Fault,
    /// Returns true for the operation with which the outage begins. `None` once it has begun.
    begins: Mutex<Option<Begins>>,
    is_down: watch::Sender<bool>,
}

impl fmt::Debug for Unreliable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unreliable").field("below", &self.below).finish_non_exhaustive()
    }
}

impl Unreliable {
    pub(crate) fn new() -> Arc<Self> {
        Self::beginning(Fault::Fails, |_, _| false)
    }

    /// Returns a store whose outage begins with the first operation for which `begins` returns true.
    pub(crate) fn beginning(
        fault: Fault,
        begins: impl Fn(Operation, Option<&LockName>) -> bool + Send + 'static,
    ) -> Arc<Self> {
        let (begins, is_down) = (Mutex::new(Some(Box::new(begins) as Begins)), watch::Sender::new(false));
        Arc::new(Self { below: memory::connect(), fault, begins, is_down })
    }

    /// Returns locks on this store, with their times by `clock`.
    pub(crate) fn locks(self: &Arc<Self>, clock: &ManualClock) -> Locks {
        locks_by(clock, self.store())
    }

    fn store(self: &Arc<Self>) -> Store {
        let mut store = Store::new(self.clone()).recording(self.clone());
        store.inspect = self.below.inspect.clone();
        store
    }

    /// Returns locks on the store without outages.
    pub(crate) fn stable(&self) -> Locks {
        Locks::new(self.below.clone())
    }

    pub(crate) fn set_down(&self, is_down: bool) {
        self.is_down.send_replace(is_down);
    }

    pub(crate) async fn until_down(&self) {
        drop(soon(self.is_down.subscribe().wait_for(|is_down| *is_down)).await);
    }

    async fn check(&self, operation: Operation, name: Option<&LockName>) -> Result<()> {
        {
            let mut begins = self.begins.lock().unwrap();
            if begins.as_ref().is_some_and(|begins| begins(operation, name)) {
                *begins = None;
                self.set_down(true);
            }
        }
        if self.fault == Fault::Hangs {
            drop(self.is_down.subscribe().wait_for(|is_down| !is_down).await);
        }
        if *self.is_down.borrow() {
            let fault = polylock_core::Fault::Temporary;
            return Err(Unavailable::new("memory", operation, fault, "it was unplugged").into());
        }
        Ok(())
    }
}

pub(crate) fn locks_by(clock: &ManualClock, store: Store) -> Locks {
    Locks::builder(store).clock(Arc::new(clock.clone())).build()
}

/// Returns locks on `store` with their times by `clock`, and a recording of their requests.
pub(crate) fn recorded(store: &Arc<Unreliable>, clock: &ManualClock) -> (Locks, Arc<Recording>) {
    let mut recording = None;
    let store = wrap(store.store(), |inner| recording.insert(Arc::new(Recording::new(inner))).clone());
    (locks_by(clock, store), recording.unwrap())
}

/// Awaits `future` while `clock` runs twenty times as fast as the machine's.
pub(crate) async fn running<T>(clock: &ManualClock, future: impl IntoFuture<Output = T>) -> T {
    let mut future = pin!(future.into_future());
    let limit = SystemClock.now() + Duration::from_secs(60);
    loop {
        tokio::select! {
            biased;
            output = &mut future => return output,
            () = SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(2)) => {
                assert!(SystemClock.now() < limit, "no result");
                clock.advance(Duration::from_millis(40));
            }
        }
    }
}

/// Lets `time` pass by `clock`.
pub(crate) async fn pass(clock: &ManualClock, time: Duration) {
    running(clock, clock.sleep_until(clock.now() + time)).await;
}

pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    let limit = SystemClock.now() + Duration::from_secs(20);
    SystemClock.before(limit, future).await.expect("not within 20 seconds")
}

#[async_trait]
impl Backend for Unreliable {
    fn capabilities(&self) -> &Capabilities {
        self.below.backend.capabilities()
    }

    async fn claim(&self, request: &Request) -> Result<ClaimOutcome> {
        self.check(Operation::Claim, Some(&request.name)).await?;
        self.below.backend.claim(request).await
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        let mut changes = self.is_down.subscribe();
        tokio::select! {
            biased;
            _ = changes.wait_for(|is_down| *is_down) => {}
            wake = self.below.backend.wait(request) => return wake,
        }
        self.check(Operation::Wait, Some(&request.name)).await?;
        Ok(Wake::Stale)
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        self.check(Operation::Renew, None).await?;
        self.below.backend.keep_alive(requests).await
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        self.check(Operation::Release, Some(&request.name)).await?;
        self.below.backend.release(request).await
    }
}

#[async_trait]
impl KeepRecord for Unreliable {
    async fn read_record(&self, name: &LockName) -> Result<StoredRecord> {
        self.check(Operation::Record, Some(name)).await?;
        self.below.records.as_ref().unwrap().read_record(name).await
    }

    async fn write_record(&self, name: &LockName, record: &Record, keep: Duration) -> Result<()> {
        self.check(Operation::Record, Some(name)).await?;
        self.below.records.as_ref().unwrap().write_record(name, record, keep).await
    }
}
