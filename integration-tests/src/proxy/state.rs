//! The state that the connections of a proxy share with the test.

use std::{
    collections::BTreeSet,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
};

use polylock_core::sync::lock;

use super::{
    request_fault::{self, Choice, RequestFault},
    requests::Framing,
    switches::Direction,
};

/// The current fault, and the counts and records of the traffic.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) framing: Framing,
    pub(super) is_listening: AtomicBool,
    pub(super) connections: AtomicU64,
    open: Mutex<BTreeSet<u64>>,
    pub(super) requests: AtomicU64,
    pub(super) passed: [AtomicU64; 2],
    pub(super) resets_before_reply: AtomicU64,
    pub(super) faulted: AtomicU64,
    choice: Mutex<Option<Choice>>,
    watched: [Mutex<Watched>; 2],
}

/// Requests, or replies, that a test [watches for](super::Proxy::watch_for).
#[derive(Debug, Default)]
pub(super) struct Watched {
    pub(super) part: Option<Vec<u8>>,
    pub(super) connections: Vec<u64>,
}

impl Shared {
    pub(super) fn new(framing: Framing) -> Self {
        Self { framing, ..Self::default() }
    }

    pub(super) fn open(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        lock(&self.open)
    }

    pub(super) fn choice(&self) -> MutexGuard<'_, Option<Choice>> {
        lock(&self.choice)
    }

    pub(super) fn watched(&self, way: Direction) -> MutexGuard<'_, Watched> {
        lock(&self.watched[way as usize])
    }

    /// Records the connection `number` if the test watches for these bytes in this direction.
    pub(super) fn record(&self, way: Direction, bytes: &[u8], number: u64) {
        let mut watched = self.watched(way);
        if watched.part.as_ref().is_some_and(|part| request_fault::has(bytes, part)) {
            watched.connections.push(number);
        }
    }

    /// Returns the fault of this request, if it has one.
    pub(super) fn fault(&self, request: &[u8]) -> Option<RequestFault> {
        let mut choice = self.choice();
        let fault = choice.as_ref()?.fault_of(request)?.clone();
        choice.take_if(|choice| choice.once);
        self.faulted.fetch_add(1, SeqCst);
        Some(fault)
    }
}
