//! The entries in the way of waiters of this process, by the processes that they belong to. The poller looks for processes that have ended.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard},
};

use polylock_core::{LockName, Request, RequestId, sync::lock};
use sqlx::{Row, sqlite::SqliteRow};

use super::process_lock::ProcessId;
use crate::engine::rows::{self, ClaimRow};

/// An entry in the way of a request: a hold or a queue entry.
#[derive(Debug, Clone)]
pub(super) struct Blocker {
    pub(super) name: LockName,
    pub(super) request: RequestId,
    pub(super) process: ProcessId,
}

/// The state of a request, and the entry that it waits for if others can find that the process of that entry has ended.
pub(super) struct Found {
    pub(super) claim_row: ClaimRow,
    pub(super) blocker: Option<Blocker>,
}

impl From<ClaimRow> for Found {
    fn from(claim_row: ClaimRow) -> Self {
        Self { claim_row, blocker: None }
    }
}

impl Found {
    /// Decodes the rows of `look.sql`.
    pub(super) fn read(request: &Request, rows: &[SqliteRow]) -> Result<Self, sqlx::Error> {
        let claim_row = rows::claim_row(rows)?;
        let (ClaimRow::Blocked { .. }, Some(row)) = (&claim_row, rows.first()) else {
            return Ok(claim_row.into());
        };
        let (name, entry) = (request.name.clone(), rows::request(row, 2)?);
        let process: Option<Vec<u8>> = row.try_get(6)?;
        let blocker = process.map(|process| Blocker { name, request: entry, process: ProcessId(process) });
        Ok(Self { claim_row, blocker })
    }
}

/// The entries in the way of the waiters of this process.
#[derive(Debug, Default)]
pub(super) struct Blockers(Mutex<BTreeMap<ProcessId, BTreeMap<RequestId, LockName>>>);

impl Blockers {
    /// Adds an entry that a waiter waits for.
    pub(super) fn add(&self, Blocker { name, request, process }: Blocker) {
        self.lock().entry(process).or_default().insert(request, name);
    }

    /// Keeps the entries that are still waited for.
    pub(super) fn retain(&self, is_watched: impl Fn(RequestId) -> bool) {
        self.lock().retain(|_, entries| {
            entries.retain(|request, _| is_watched(*request));
            !entries.is_empty()
        });
    }

    /// Removes and returns the entries of processes that have ended.
    pub(super) fn take_ended(&self, has_ended: impl Fn(&ProcessId) -> bool) -> Vec<Blocker> {
        let mut blockers = self.lock();
        let ended = blockers.extract_if(.., |process, _| has_ended(process));
        let of_process = |(process, entries): (ProcessId, BTreeMap<RequestId, LockName>)| {
            entries.into_iter().map(move |(request, name)| Blocker {
                name,
                request,
                process: process.clone(),
            })
        };
        ended.flat_map(of_process).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ProcessId, BTreeMap<RequestId, LockName>>> {
        lock(&self.0)
    }
}
