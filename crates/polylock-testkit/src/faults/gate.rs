//! Operations that hang until a test releases them.

use std::{collections::HashMap, future::Future, sync::Arc};

use async_trait::async_trait;
use polylock_core::{
    Backend, Capabilities, ClaimOutcome, KeepAlive, Operation, Release, Request, Result, Wake,
};
use tokio::sync::watch;

use super::Driver;

/// The side of its effect on which an operation is blocked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The request hangs: the operation has not taken effect yet.
    Request,
    /// The reply hangs: the operation has taken effect, but the caller does not know.
    Reply,
}

/// Blocks operations until it opens. With all operations blocked it simulates a frozen store: [`freeze`](Self::freeze).
#[derive(Debug, Clone)]
pub struct Gate {
    inner: Arc<dyn Backend>,
    driver: Driver,
    state: watch::Sender<State>,
}

#[derive(Debug, Default, Clone)]
struct State {
    shut: HashMap<Operation, Side>,
    blocked: HashMap<Operation, usize>,
    ever_blocked: HashMap<Operation, u64>,
}

const OPERATIONS: [Operation; 4] = [Operation::Claim, Operation::Wait, Operation::Renew, Operation::Release];

impl Gate {
    /// Creates an open gate in front of `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn Backend>) -> Self {
        Self { inner, driver: Driver::Thread, state: watch::Sender::new(State::default()) }
    }

    /// Blocks every `operation` from now on.
    pub fn shut(&self, operation: Operation, side: Side) {
        self.state.send_modify(|state| {
            state.shut.insert(operation, side);
        });
    }

    /// Lets every `operation` pass, blocked ones first.
    pub fn open(&self, operation: Operation) {
        self.state.send_modify(|state| {
            state.shut.remove(&operation);
        });
    }

    /// Blocks every operation before it takes effect: a store that is reachable and answers nothing.
    pub fn freeze(&self) {
        OPERATIONS.into_iter().for_each(|operation| self.shut(operation, Side::Request));
    }

    /// Lets every operation pass.
    pub fn thaw(&self) {
        OPERATIONS.into_iter().for_each(|operation| self.open(operation));
    }

    /// Waits until an `operation` is blocked at the gate.
    pub async fn blocked(&self, operation: Operation) {
        let blocked = |state: &State| state.blocked.get(&operation).is_some_and(|count| *count > 0);
        // The sender is a field of `self`, so the channel can't be closed.
        drop(self.state.subscribe().wait_for(blocked).await);
    }

    /// Returns the number of times that an `operation` has been blocked here so far.
    pub fn blocked_count(&self, operation: Operation) -> u64 {
        self.state.borrow().ever_blocked.get(&operation).copied().unwrap_or(0)
    }

    async fn pass_through<T: Send + 'static>(
        &self,
        operation: Operation,
        future: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let state = self.state.clone();
        self.driver
            .send(self.capabilities().backend, operation, async move {
                pass(&state, operation, Side::Request).await;
                let reply = future.await;
                pass(&state, operation, Side::Reply).await;
                reply
            })
            .await
    }
}

/// Passes the gate, or waits until it opens.
async fn pass(state: &watch::Sender<State>, operation: Operation, side: Side) {
    let shut = |state: &State| state.shut.get(&operation) == Some(&side);
    let mut changes = state.subscribe();
    if !shut(&changes.borrow_and_update()) {
        return;
    }
    let _blocked = BlockedCall::new(state, operation);
    drop(changes.wait_for(|state| !shut(state)).await);
}

/// One operation that is blocked at the gate. Dropping it decrements the count.
struct BlockedCall<'a>(&'a watch::Sender<State>, Operation);

impl<'a> BlockedCall<'a> {
    fn new(state: &'a watch::Sender<State>, operation: Operation) -> Self {
        state.send_modify(|state| {
            *state.blocked.entry(operation).or_default() += 1;
            *state.ever_blocked.entry(operation).or_default() += 1;
        });
        Self(state, operation)
    }
}

impl Drop for BlockedCall<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|state| *state.blocked.entry(self.1).or_default() -= 1);
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Backend for Gate {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn here(&self) -> Option<Arc<dyn Backend>> {
        self.inner.here().map(|inner| Arc::new(Self { inner, driver: Driver::Caller, ..self.clone() }) as _)
    }

    async fn claim(&self, request: &Request) -> Result<ClaimOutcome> {
        let (inner, request) = (self.inner.clone(), request.clone());
        self.pass_through(Operation::Claim, async move { inner.claim(&request).await }).await
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        pass(&self.state, Operation::Wait, Side::Request).await;
        let wake = self.inner.wait(request).await;
        pass(&self.state, Operation::Wait, Side::Reply).await;
        wake
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        let (inner, requests) = (self.inner.clone(), requests.to_vec());
        self.pass_through(Operation::Renew, async move { inner.keep_alive(&requests).await }).await
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        let (inner, request) = (self.inner.clone(), request.clone());
        self.pass_through(Operation::Release, async move { inner.release(&request).await }).await
    }

    fn drop_waiter(&self, request: &Request) {
        self.inner.drop_waiter(request);
    }

    fn request_records(&self) -> Option<usize> {
        self.inner.request_records()
    }
}
