//! Operations that hang for as long as a test wants.

use std::{collections::HashMap, future::Future, sync::Arc};

use async_trait::async_trait;
use polylock_core::{Backend, Capabilities, KeepAlive, Operation, Release, Request, Result, Standing, Wake};
use tokio::sync::watch;

use super::Driver;

/// On which side of its effect an operation is held up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The request hangs: nothing has happened yet.
    Request,
    /// The reply hangs: it has happened, and nobody knows.
    Reply,
}

/// Holds operations up until it opens. All of them at once make a frozen store: [`freeze`](Self::freeze).
#[derive(Debug, Clone)]
pub struct Gate {
    inner: Arc<dyn Backend>,
    driver: Driver,
    state: watch::Sender<State>,
}

#[derive(Debug, Default, Clone)]
struct State {
    shut: HashMap<Operation, Side>,
    standing: HashMap<Operation, usize>,
    arrived: HashMap<Operation, u64>,
}

const OPERATIONS: [Operation; 4] = [Operation::Claim, Operation::Wait, Operation::Renew, Operation::Release];

impl Gate {
    /// An open one before `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn Backend>) -> Self {
        Self { inner, driver: Driver::Thread, state: watch::Sender::new(State::default()) }
    }

    /// Holds up every `operation` from now on.
    pub fn shut(&self, operation: Operation, side: Side) {
        self.state.send_modify(|state| {
            state.shut.insert(operation, side);
        });
    }

    /// Lets every `operation` pass, those that stand here first of all.
    pub fn open(&self, operation: Operation) {
        self.state.send_modify(|state| {
            state.shut.remove(&operation);
        });
    }

    /// Holds up everything before it takes effect: a store that is reachable and answers nothing.
    pub fn freeze(&self) {
        OPERATIONS.into_iter().for_each(|operation| self.shut(operation, Side::Request));
    }

    /// Lets everything pass.
    pub fn thaw(&self) {
        OPERATIONS.into_iter().for_each(|operation| self.open(operation));
    }

    /// Ready once an `operation` stands at the gate.
    pub async fn arrived(&self, operation: Operation) {
        let standing = |state: &State| state.standing.get(&operation).is_some_and(|count| *count > 0);
        // The sender lives in `self`, so the channel can't be closed.
        drop(self.state.subscribe().wait_for(standing).await);
    }

    /// How many of an `operation` have been held up here so far.
    pub fn held_up(&self, operation: Operation) -> u64 {
        self.state.borrow().arrived.get(&operation).copied().unwrap_or(0)
    }

    async fn through<T: Send + 'static>(
        &self,
        operation: Operation,
        future: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let state = self.state.clone();
        self.driver
            .send(self.capabilities().backend, operation, async move {
                pass(&state, operation, Side::Request).await;
                let answer = future.await;
                pass(&state, operation, Side::Reply).await;
                answer
            })
            .await
    }
}

/// Passes the gate, or stands there until it opens.
async fn pass(state: &watch::Sender<State>, operation: Operation, side: Side) {
    let shut = |state: &State| state.shut.get(&operation) == Some(&side);
    let mut changes = state.subscribe();
    if !shut(&changes.borrow_and_update()) {
        return;
    }
    let _standing = Standee::new(state, operation);
    drop(changes.wait_for(|state| !shut(state)).await);
}

/// One operation that stands at the gate; counted off when it goes on or is dropped.
struct Standee<'a>(&'a watch::Sender<State>, Operation);

impl<'a> Standee<'a> {
    fn new(state: &'a watch::Sender<State>, operation: Operation) -> Self {
        state.send_modify(|state| {
            *state.standing.entry(operation).or_default() += 1;
            *state.arrived.entry(operation).or_default() += 1;
        });
        Self(state, operation)
    }
}

impl Drop for Standee<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|state| *state.standing.entry(self.1).or_default() -= 1);
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

    async fn claim(&self, request: &Request) -> Result<Standing> {
        let (inner, request) = (self.inner.clone(), request.clone());
        self.through(Operation::Claim, async move { inner.claim(&request).await }).await
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        pass(&self.state, Operation::Wait, Side::Request).await;
        let wake = self.inner.wait(request).await;
        pass(&self.state, Operation::Wait, Side::Reply).await;
        wake
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        let (inner, requests) = (self.inner.clone(), requests.to_vec());
        self.through(Operation::Renew, async move { inner.keep_alive(&requests).await }).await
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        let (inner, request) = (self.inner.clone(), request.clone());
        self.through(Operation::Release, async move { inner.release(&request).await }).await
    }
}
