//! Lists and inspects locks, and breaks them.

use async_trait::async_trait;
use polylock_core::{
    BreakNotice, BreakOrder, Entry, FencingToken, Inspect, LockName, LockStatus, Mode, Operation, OwnerId,
    Result,
};

use super::{
    backend::{RedisBackend, from_micros},
    servers::Servers,
};
use crate::{connection::Peer, keys, link::INSPECT_TIMEOUT};

/// Token or -1, mode, age in us, time left in us, owner, label, break notice or empty.
pub(super) type EntryParts = (i64, i64, i64, i64, String, String, String);

/// Decodes an entry; returns `None` if its mode is invalid.
pub(super) fn entry((token, mode, age, left, owner, label, notice): EntryParts) -> Option<Entry> {
    let mode = u8::try_from(mode).ok().and_then(Mode::from_bits)?;
    let (owner, token) = (OwnerId::sanitized(&owner), FencingToken::new(token));
    let broken = (!notice.is_empty()).then(|| BreakNotice::from_text(&notice));
    Some(Entry::new(mode, owner, &label, token, from_micros(age), from_micros(left)).broken(broken))
}

impl RedisBackend {
    fn entries(&self, operation: Operation, entries: Vec<EntryParts>) -> Result<Vec<Entry>> {
        let unexpected = || self.servers.unexpected(operation, "an invalid entry of a lock");
        let entries: Option<Vec<_>> = entries.into_iter().map(entry).collect();
        let mut entries = entries.ok_or_else(unexpected)?;
        entries.sort_by_key(|entry| entry.token);
        Ok(entries)
    }
}

#[async_trait]
impl Inspect for RedisBackend {
    async fn inspect(&self, name: &LockName) -> Result<LockStatus> {
        let invoke = |_: &Peer| self.context.scripts.call(&self.context.scripts.inspect, name);
        let reply = self.call(name, Operation::Inspect, INSPECT_TIMEOUT, &invoke).await.outcome?;
        let (holders, waiters): (Vec<EntryParts>, Vec<EntryParts>) =
            self.servers.read(Operation::Inspect, reply)?;
        let holders = self.entries(Operation::Inspect, holders)?;
        Ok(LockStatus::new(name.clone(), holders, self.entries(Operation::Inspect, waiters)?))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockStatus>> {
        let names = self.servers.scan_names(&self.context.scripts.keys, "hq", prefix).await?;
        keys::inspect_all(self, names).await
    }

    fn lists_semaphores(&self) -> bool {
        // In a cluster the slots are on all nodes, in 256 buckets.
        matches!(self.servers, Servers::Single { .. })
    }

    async fn break_lock(&self, name: &LockName, order: &BreakOrder) -> Result<Vec<Entry>> {
        let notice = order.notice.to_text();
        let invoke = |expiry| {
            let mut call = self.context.scripts.call(&self.context.scripts.break_lock, name);
            call.arg(expiry).arg(name.as_str()).arg(&notice);
            call.arg(u8::from(order.force)).arg(&self.context.break_channel);
            for token in order.targets.iter().flatten() {
                call.arg(token.get());
            }
            call
        };
        let reply = self.call_in_time(name, Operation::Break, INSPECT_TIMEOUT, &invoke).await.outcome?;
        let (holders,) = self.servers.read(Operation::Break, reply)?;
        self.entries(Operation::Break, holders)
    }
}
