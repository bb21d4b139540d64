//! Ending a hold at a later time in both stores.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;

use super::{backend::together_released, capabilities::NAME};
use crate::{
    Backend, Clock, Fault, FencingToken, KeepAlive, LostReason, Operation, Park, Release, Request, Result,
    Store, SystemClock, Unavailable, requests::RequestTable, sync::lock,
};

#[derive(Debug)]
pub(super) struct ParkBoth {
    old: (Arc<dyn Backend>, Arc<dyn Park>),
    new: (Arc<dyn Backend>, Arc<dyn Park>),
    /// The tokens of holds that are being parked, in the two stores: a repetition can't read them again, because a parked hold is not
    /// renewed.
    tokens: Mutex<RequestTable<Tokens>>,
}

type Tokens = [FencingToken; 2];

impl ParkBoth {
    /// Returns the interface if both stores have it.
    pub(super) fn of(old: &Store, new: &Store) -> Option<Arc<dyn Park>> {
        let parts = |store: &Store| Some((store.backend.clone(), store.park.clone()?));
        Some(Arc::new(Self { old: parts(old)?, new: parts(new)?, tokens: Mutex::default() }))
    }

    /// Returns the tokens of the hold of `request` in the two stores, or the outcome if it holds nothing in one of them.
    async fn tokens(&self, request: &Request, token: FencingToken) -> Result<Result<Tokens, Release>> {
        if let Some(tokens) = lock(&self.tokens).get(&request.id) {
            return Ok(Ok(*tokens));
        }
        let requests = [Arc::new(request.clone())];
        let mut tokens = [token; 2];
        for ((store, _), token) in [&self.old, &self.new].into_iter().zip(&mut tokens) {
            match store.keep_alive(&requests).await?.into_iter().next() {
                Some(KeepAlive::Held { terms, .. }) => *token = terms.map_or(*token, |terms| terms.token),
                Some(KeepAlive::Lost(reason)) => return Ok(Err(Release::Lost(reason))),
                Some(KeepAlive::Queued | KeepAlive::Unknown) | None => {
                    let cause = "a store has not reported the hold";
                    return Err(Unavailable::new(NAME, Operation::Renew, Fault::Temporary, cause).into());
                }
            }
        }
        let now = SystemClock.now();
        lock(&self.tokens).update(request.id, now, request.obsolete_at(now), || tokens);
        Ok(Ok(tokens))
    }
}

#[async_trait]
impl Park for ParkBoth {
    async fn park(&self, request: &Request, token: FencingToken, left: Duration) -> Result<Release> {
        let [in_old, in_new] = match self.tokens(request, token).await? {
            // The token of a hold is the greater one of the two, or even greater in a mode that others share.
            Ok([old, new]) if token < old.max(new) => return Ok(Release::Lost(LostReason::Gone)),
            Ok(tokens) => tokens,
            Err(outcome) => return Ok(outcome),
        };
        let new = self.new.1.park(request, in_new, left).await;
        let old = self.old.1.park(request, in_old, left).await;
        together_released(old, new)
    }
}
