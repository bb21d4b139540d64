//! The optional interfaces: conversions, holds that end later, raised tokens, inspection and breaks.

use std::{sync::atomic::Ordering, time::Duration};

use async_trait::async_trait;

use super::{MemoryBackend, NAME, Record, Space};
use crate::{
    BreakOrder, Conversion, ConversionOutcome, Convert, Entry, FencingToken, Inspect, LockName, LockStatus,
    Operation, Park, RaiseToken, Release, Request, Result, time_limit,
};

#[async_trait]
impl Convert for MemoryBackend {
    async fn convert(&self, request: &Request, conversion: &Conversion) -> Result<ConversionOutcome> {
        time_limit::check(NAME, Operation::Convert)?;
        let outcome = self.space.convert(request, conversion);
        self.space.changed();
        Ok(outcome)
    }
}

#[async_trait]
impl Park for MemoryBackend {
    async fn park(&self, request: &Request, token: FencingToken, left: Duration) -> Result<Release> {
        time_limit::check(NAME, Operation::Renew)?;
        let outcome = self.space.park(request, token, left);
        self.space.changed();
        Ok(outcome)
    }
}

#[async_trait]
impl RaiseToken for MemoryBackend {
    async fn raise(&self, _: &Request, to: FencingToken) -> Result<FencingToken> {
        let last = &mut self.space.lock().token;
        let before = *last;
        *last = before.max(to.get());
        // Each token was drawn from this counter, so it is valid.
        Ok(FencingToken::new(before).unwrap_or(to))
    }
}

#[async_trait]
impl Inspect for MemoryBackend {
    async fn inspect(&self, name: &LockName) -> Result<LockStatus> {
        Ok(self.space.on(name, |entries, _, now| Space::status(name.clone(), entries, now)))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockStatus>> {
        let (state, now) = (self.space.lock(), self.space.clock.now());
        let mut locks: Vec<LockStatus> = state
            .locks
            .live(now)
            .filter(|(name, _)| name.as_str().starts_with(prefix))
            .map(|(name, entries)| Space::status(name.clone(), entries, now))
            .filter(|status| !status.is_free())
            .collect();
        locks.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(locks)
    }

    async fn version(&self) -> Result<Option<u64>> {
        Ok(Some(self.space.version.load(Ordering::Relaxed)))
    }

    fn list_commands(&self, _: usize) -> usize {
        1
    }

    fn lists_semaphores(&self) -> bool {
        true
    }

    async fn break_lock(&self, name: &LockName, order: &BreakOrder) -> Result<Vec<Entry>> {
        time_limit::check(NAME, Operation::Break)?;
        let broken = self.space.on(name, |entries, counters, now| {
            if order.force {
                let is_target = |entry: &mut Record| entry.queue_entry.held && order.is_target(entry.token);
                let removed: Vec<Record> = entries.extract_if(.., is_target).collect();
                for entry in &removed {
                    counters.broken.update(entry.id, now, entry.expires, || order.notice.clone());
                    self.space.wakeups.notify(entry.id);
                }
                return removed.iter().map(|entry| entry.entry(now)).collect();
            }
            let held =
                entries.iter_mut().filter(|entry| entry.queue_entry.held && order.is_target(entry.token));
            held.map(|entry| {
                entry.broken.get_or_insert_with(|| order.notice.clone());
                entry.entry(now)
            })
            .collect()
        });
        self.space.alerts.check(name);
        self.space.changed();
        Ok(broken)
    }
}
