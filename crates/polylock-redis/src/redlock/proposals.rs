//! What this process remembers of its requests: which numbers it proposed for them, and to whom.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
};

use polylock_core::RequestId;

/// What is remembered of one request.
#[derive(Debug)]
pub(super) struct Attempt {
    number: AtomicI64,
    token: AtomicI64,
    undone: AtomicI64,
    /// By node: whether it may have voted for it, or may do so yet.
    asked: Vec<AtomicBool>,
    /// Whether a node may have noted that it waits.
    waits: AtomicBool,
}

impl Attempt {
    fn new(nodes: usize) -> Self {
        let asked = (0..nodes).map(|_| AtomicBool::new(false)).collect();
        Self {
            number: AtomicI64::new(0),
            token: AtomicI64::new(0),
            undone: AtomicI64::new(0),
            asked,
            waits: AtomicBool::new(false),
        }
    }

    /// The greatest number proposed for it; 0 if none was.
    pub(super) fn number(&self) -> i64 {
        self.number.load(Ordering::Acquire)
    }

    /// `number` is proposed for it.
    pub(super) fn proposes(&self, number: i64) {
        self.token.store(0, Ordering::Release);
        self.number.fetch_max(number, Ordering::AcqRel);
    }

    /// The number that a majority has accepted; 0 if none has.
    pub(super) fn token(&self) -> i64 {
        self.token.load(Ordering::Acquire)
    }

    /// A majority has accepted `token`.
    pub(super) fn holds(&self, token: i64) {
        self.number.fetch_max(token, Ordering::AcqRel);
        self.token.store(token, Ordering::Release);
    }

    /// The votes for all numbers so far are taken back.
    pub(super) fn undoes(&self) {
        self.undone.fetch_max(self.number(), Ordering::AcqRel);
    }

    /// Whether a vote for `token` counts. If it was taken back, the node will hear of that yet.
    pub(super) fn counts(&self, token: i64) -> bool {
        token > self.undone.load(Ordering::Acquire)
    }

    /// It was refused, and waits.
    pub(super) fn waits(&self) {
        self.waits.store(true, Ordering::Release);
    }

    /// Whether a node may have noted that it waits.
    pub(super) fn may_be_noted(&self) -> bool {
        self.waits.load(Ordering::Acquire)
    }

    /// The node of this index is asked; whether it may have been before.
    pub(super) fn asks(&self, node: usize) -> bool {
        self.asked[node].swap(true, Ordering::AcqRel)
    }

    /// The node has not been asked after all, or has taken back its vote.
    pub(super) fn clear(&self, node: usize) {
        self.asked[node].store(false, Ordering::Release);
    }

    /// Whether the node may have voted for it, or may do so yet.
    pub(super) fn may_have(&self, node: usize) -> bool {
        self.asked[node].load(Ordering::Acquire)
    }
}

/// Of all requests that hold or wait.
#[derive(Debug, Default)]
pub(super) struct Attempts(Mutex<HashMap<RequestId, Arc<Attempt>>>);

impl Attempts {
    /// Of `request`, new if there was none.
    pub(super) fn begin(&self, request: RequestId, nodes: usize) -> Arc<Attempt> {
        self.lock().entry(request).or_insert_with(|| Arc::new(Attempt::new(nodes))).clone()
    }

    /// Of `request`, for which all nodes may have voted.
    pub(super) fn begin_asked(&self, request: RequestId, nodes: usize) -> Arc<Attempt> {
        let attempt = self.begin(request, nodes);
        attempt.asked.iter().for_each(|asked| asked.store(true, Ordering::Release));
        attempt
    }

    /// Of `request`, if it is this process's.
    pub(super) fn find(&self, request: RequestId) -> Option<Arc<Attempt>> {
        self.lock().get(&request).cloned()
    }

    /// `request` holds and waits no more.
    pub(super) fn forget(&self, request: RequestId) {
        self.lock().remove(&request);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RequestId, Arc<Attempt>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
