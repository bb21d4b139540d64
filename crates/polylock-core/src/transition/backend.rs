//! The operations on both stores. The races are numbered in the [module](super).

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard},
};

use async_trait::async_trait;

use crate::{
    Backend, Capabilities, ClaimOutcome, Clock, FencingToken, Grant, KeepAlive, LostReason, QueueLease,
    Release, Request, RequestId, Result, Store, SystemClock, Wake, bug::Bug, process::has_bug,
    requests::RequestTable, sync::lock,
};

use super::{order::OrderCheck, tokens::Tokens};

/// The numbers of the queue entries in the old store begin here: a request that waits in the new one is ahead of all of them.
const IN_OLD: u64 = 1 << 63;

/// The last claim of a request, as far as its further operations depend on it.
#[derive(Debug, Clone, Copy)]
enum Record {
    /// It waits in the old store. It has no entry in the new one, or one that must expire.
    WaitsInOld,
    /// It holds the lock in the old store, and may have an entry in the new one.
    WaitsInNew,
    /// It was granted `token`, with these tokens of the two stores. A mode that excludes itself needs no record: its token is the greater
    /// one of the two.
    Granted { old: FencingToken, new: FencingToken, token: FencingToken },
}

/// Two stores that acquire every lock together.
#[derive(Debug)]
pub(super) struct Both {
    old: Arc<dyn Backend>,
    new: Arc<dyn Backend>,
    tokens: Tokens,
    capabilities: Capabilities,
    records: Mutex<RequestTable<Record>>,
    order: Arc<OrderCheck>,
}

impl Both {
    pub(super) fn new(old: Store, new: Store, tokens: Tokens, capabilities: Capabilities) -> Self {
        let order = OrderCheck::new(&old, &new);
        Self { old: old.backend, new: new.backend, tokens, capabilities, records: Mutex::default(), order }
    }

    fn records(&self) -> MutexGuard<'_, RequestTable<Record>> {
        lock(&self.records)
    }

    fn record(&self, request: &Request, record: Record) {
        let now = SystemClock.now();
        *self.records().update(request.id, now, request.obsolete_at(now), || record) = record;
    }

    fn recorded(&self, request: &Request) -> Option<Record> {
        self.records().get(&request.id).copied()
    }

    /// Returns the token of a request that holds the lock in both stores with these tokens, and records it if a repeated claim can't
    /// compute it again.
    async fn token(&self, request: &Request, old: FencingToken, new: FencingToken) -> Result<FencingToken> {
        if let Some(Record::Granted { old: known_old, new: known_new, token }) = self.recorded(request)
            && (known_old, known_new) == (old, new)
        {
            return Ok(token);
        }
        let token = self.tokens.of(request, old, new).await?;
        if request.mode.conflicts_with(request.mode) {
            self.records().remove(&request.id);
        } else {
            self.record(request, Record::Granted { old, new, token });
        }
        Ok(token)
    }
}

#[async_trait]
impl Backend for Both {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn claim(&self, request: &Request) -> Result<ClaimOutcome> {
        if has_bug(Bug::NewStoreAlone) {
            return self.new.claim(request).await;
        }
        let old = match self.old.claim(request).await? {
            ClaimOutcome::Granted(grant) => grant,
            ClaimOutcome::Queued(position) => {
                if request.queues {
                    self.record(request, Record::WaitsInOld);
                }
                return Ok(ClaimOutcome::Queued(
                    position.number(Some(IN_OLD | position.number.unwrap_or(0))),
                ));
            }
        };
        if has_bug(Bug::OldStoreAlone) {
            return Ok(ClaimOutcome::Granted(old));
        }
        if let Some(Record::WaitsInOld) = self.recorded(request) {
            // From now on, a keep-alive must extend the entry in the new store, too.
            self.record(request, Record::WaitsInNew);
        }
        let new = match self.new.claim(request).await? {
            ClaimOutcome::Granted(grant) => grant,
            ClaimOutcome::Queued(position) => {
                if request.queues {
                    self.record(request, Record::WaitsInNew);
                    self.order.check(request)?;
                    let number = position.number.unwrap_or(0).min(IN_OLD - 1);
                    return Ok(ClaimOutcome::Queued(position.number(Some(number))));
                }
                // A try leaves nothing behind. If that fails, core releases it.
                let is_held = self.old.release(request).await.is_err();
                let is_late = position.may_be_granted_late || is_held;
                return Ok(ClaimOutcome::Queued(position.may_be_granted_late(is_late)));
            }
        };
        let token = self.token(request, old.token, new.token).await?;
        Ok(ClaimOutcome::Granted(Grant::new(token, old.lease.min(new.lease))))
    }

    /// Waits in the store in which the request is queued. The next claim returns a grant that this store has made.
    async fn wait(&self, request: &Request) -> Result<Wake> {
        match self.recorded(request) {
            Some(Record::WaitsInOld) => self.old.wait(request).await?,
            Some(Record::WaitsInNew) => self.new.wait(request).await?,
            Some(Record::Granted { .. }) | None => Wake::Stale,
        };
        Ok(Wake::Stale)
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        let (in_new, skipped) = self.in_new(requests);
        let extends_new = !in_new.is_empty() || self.new.capabilities().queue_lease == QueueLease::Shared;
        let keep_new =
            async { if extends_new { self.new.keep_alive(&in_new).await } else { Ok(Vec::new()) } };
        let (old, new) = tokio::join!(self.old.keep_alive(requests), keep_new);
        if let (Some(request), Err(error)) = (in_new.first(), &new) {
            tracing::warn!(
                lock.name = %request.name, count = in_new.len(), error = error as &dyn std::error::Error,
                "renewal in the new store failed, retrying",
            );
        }
        // Without a proper reply of the new store, nothing is known about a request in it.
        let mut new = new.ok().filter(|outcomes| outcomes.len() == in_new.len()).map(Vec::into_iter);
        let outcomes = requests.iter().zip(old?).map(|(request, old)| {
            let new = if skipped.contains(&request.id) {
                None
            } else {
                Some(new.as_mut().and_then(Iterator::next).unwrap_or(KeepAlive::Unknown))
            };
            together(old, new)
        });
        Ok(outcomes.collect())
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        // The record stays until both have replied, for the repetition of a release that has failed.
        let waits_in_old = matches!(self.recorded(request), Some(Record::WaitsInOld));
        let new = self.new.release(request).await;
        let old = self.old.release(request).await;
        let outcome = match (old, new) {
            (Ok(Release::Released), Ok(Release::Lost(_))) if waits_in_old => Release::Released,
            (old, new) => together_released(old, new)?,
        };
        self.records().remove(&request.id);
        self.order.forget(request);
        Ok(outcome)
    }

    fn drop_waiter(&self, request: &Request) {
        self.records().remove(&request.id);
        self.order.forget(request);
        self.old.drop_waiter(request);
        self.new.drop_waiter(request);
    }

    fn request_records(&self) -> Option<usize> {
        let of_stores = [&self.old, &self.new].map(|store| store.request_records().unwrap_or(0));
        Some(self.records().len() + self.order.len() + of_stores.iter().sum::<usize>())
    }
}

impl Both {
    /// Returns those of `requests` that may have an entry in the new store which must be kept alive, and the ids of the others. Extends the
    /// records of all of them.
    fn in_new(&self, requests: &[Arc<Request>]) -> (Vec<Arc<Request>>, HashSet<RequestId>) {
        let now = SystemClock.now();
        let (mut in_new, mut skipped) = (Vec::new(), HashSet::new());
        let mut records = self.records();
        for request in requests {
            records.extend(&request.id, request.obsolete_at(now));
            if let Some(Record::WaitsInOld) = records.get(&request.id) {
                skipped.insert(request.id);
            } else {
                in_new.push(request.clone());
            }
        }
        (in_new, skipped)
    }
}

/// Returns the outcome of a release in the old store and in the new one: a hold that either store did not have was lost.
pub(super) fn together_released(old: Result<Release>, new: Result<Release>) -> Result<Release> {
    match (old, new) {
        // An error that a repetition may end comes first.
        (Err(old), Err(new)) => Err(if old.is_temporary() { old } else { new }),
        (Err(error), _) | (_, Err(error)) => Err(error),
        (Ok(Release::Lost(old)), Ok(Release::Lost(new))) => Ok(Release::Lost(reason(old, new))),
        (Ok(Release::Lost(reason)), Ok(Release::Released))
        | (Ok(Release::Released), Ok(Release::Lost(reason))) => Ok(Release::Lost(reason)),
        (Ok(Release::Released), Ok(Release::Released)) => Ok(Release::Released),
    }
}

/// Returns the outcome of a keep-alive in the old store and in the new one; `None` for a request that has only waited in the old one.
///
/// A request is held if both stores hold the lock for it, and lost if either does not. A waiter claims again after any outcome but
/// [`KeepAlive::Queued`], so one that holds the lock in the old store alone is reported as lost.
fn together(old: KeepAlive, new: Option<KeepAlive>) -> KeepAlive {
    match (old, new) {
        (KeepAlive::Held { lease, .. }, Some(KeepAlive::Lost(_) | KeepAlive::Unknown))
            if has_bug(Bug::HalfRenewal) =>
        {
            KeepAlive::Held { lease, terms: None }
        }
        (KeepAlive::Lost(old), Some(KeepAlive::Lost(new))) => KeepAlive::Lost(reason(old, new)),
        (KeepAlive::Lost(reason), _) => KeepAlive::Lost(reason),
        (KeepAlive::Queued, _) => KeepAlive::Queued,
        (_, Some(KeepAlive::Lost(reason))) => KeepAlive::Lost(reason),
        (KeepAlive::Unknown, _) | (_, Some(KeepAlive::Unknown)) => KeepAlive::Unknown,
        (KeepAlive::Held { .. }, Some(KeepAlive::Queued)) => KeepAlive::Queued,
        // No conversion changes the terms: the transitional store has none.
        (KeepAlive::Held { lease: old, .. }, Some(KeepAlive::Held { lease: new, .. })) => {
            KeepAlive::Held { lease: old.min(new), terms: None }
        }
        (KeepAlive::Held { .. }, None) => KeepAlive::Lost(LostReason::Gone),
    }
}

/// Returns the more exact reason of two.
fn reason(old: LostReason, new: LostReason) -> LostReason {
    if matches!(new, LostReason::Broken(_)) || old == LostReason::Gone { new } else { old }
}
