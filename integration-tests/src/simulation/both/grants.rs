//! The grants of the transitional store, as its processes are told of them. Each of the two servers knows a hold by another token.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
};

use async_trait::async_trait;
use polylock_core::{
    Backend, Capabilities, ClaimOutcome, KeepAlive, LockName, Release, Request, RequestId, Result, Store,
    Wake, sync::lock,
};

/// The grants of a run.
#[derive(Debug, Default)]
pub struct Grants(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The number of times that all processes of a store alone have ended.
    ended: u64,
    /// The greatest such number before the begin of a request that was granted its lock.
    granted_after: u64,
    /// The requests that were claimed in both stores.
    requests: BTreeMap<RequestId, Claimed>,
    tokens: BTreeMap<(LockName, u64), RequestId>,
}

/// A request that was claimed in both stores.
#[derive(Debug)]
struct Claimed {
    /// The number of [`State::ended`] when it began.
    after: u64,
    /// Its token while it holds its lock.
    token: Option<u64>,
}

impl Grants {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }

    /// Returns the same store, whose grants are recorded.
    pub fn recording(self: &Arc<Self>, store: Store) -> Store {
        Store { backend: Arc::new(Recording { store: store.backend, grants: self.clone() }), ..store }
    }

    /// Returns the request that was granted `name` with this token.
    pub fn request(&self, name: &LockName, token: u64) -> Option<RequestId> {
        self.state().tokens.get(&(name.clone(), token)).copied()
    }

    /// Returns true if the request was claimed in both stores.
    pub fn contains(&self, request: RequestId) -> bool {
        self.state().requests.contains_key(&request)
    }

    /// Returns the token of a request that was granted its lock; `None` if it waits.
    pub fn token(&self, request: RequestId) -> Option<u64> {
        self.state().requests.get(&request).and_then(|claimed| claimed.token)
    }

    /// Records that all processes of one store alone have ended.
    pub fn end_step(&self) {
        self.state().ended += 1;
    }

    /// Returns true if a request that began after that was granted its lock. Until then the other store does not know the tokens of the one
    /// that those processes have used. In a real store, that holds for each lock.
    #[must_use]
    pub fn has_both_tokens(&self) -> bool {
        let state = self.state();
        state.granted_after == state.ended
    }
}

/// The transitional store of one process.
#[derive(Debug)]
struct Recording {
    store: Arc<dyn Backend>,
    grants: Arc<Grants>,
}

#[async_trait]
impl Backend for Recording {
    fn capabilities(&self) -> &Capabilities {
        self.store.capabilities()
    }

    async fn claim(&self, request: &Request) -> Result<ClaimOutcome> {
        {
            let state = &mut *self.grants.state();
            let new = Claimed { after: state.ended, token: None };
            state.requests.entry(request.id).or_insert(new);
        }
        let outcome = self.store.claim(request).await?;
        let state = &mut *self.grants.state();
        let token = match &outcome {
            ClaimOutcome::Granted(grant) => Some(grant.token.get()),
            ClaimOutcome::Queued(_) => None,
        };
        if let Some(claimed) = state.requests.get_mut(&request.id) {
            claimed.token = token;
            if token.is_some() {
                state.granted_after = state.granted_after.max(claimed.after);
            }
        }
        state.tokens.extend(token.map(|token| ((request.name.clone(), token), request.id)));
        Ok(outcome)
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        self.store.wait(request).await
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        self.store.keep_alive(requests).await
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        self.store.release(request).await
    }

    fn drop_waiter(&self, request: &Request) {
        self.store.drop_waiter(request);
    }

    fn request_records(&self) -> Option<usize> {
        self.store.request_records()
    }
}
