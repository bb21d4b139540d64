//! Lists and inspects locks, and breaks them.

use async_trait::async_trait;
use polylock_core::{BreakOrder, Entry, Inspect, LockName, LockStatus, Result};

use super::{
    backend::LeaseBackend,
    dialect::{Dialect, LIST_ROWS, bytes, range},
    rows::NextPage,
};

#[async_trait]
impl<D: Dialect> Inspect for LeaseBackend<D> {
    async fn inspect(&self, name: &LockName) -> Result<LockStatus> {
        let lock = self.inner.dialect.lock(bytes(name)).await?.into_iter().next();
        Ok(lock.unwrap_or_else(|| LockStatus::new(name.clone(), Vec::new(), Vec::new())))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockStatus>> {
        let (mut first, end) = range(prefix);
        let mut locks = Vec::new();
        loop {
            let page = self.inner.dialect.page(&first, &end).await?;
            locks.extend(page.locks);
            match page.next {
                NextPage::End => return Ok(locks),
                NextPage::From(name) => first = name,
                NextPage::LongLock(name) => {
                    locks.extend(self.inner.dialect.lock(&name).await?);
                    // The next page begins with the smallest name after it.
                    first = name;
                    first.push(0);
                }
            }
        }
    }

    async fn version(&self) -> Result<Option<u64>> {
        self.inner.dialect.version().await
    }

    fn list_commands(&self, locks: usize) -> usize {
        1 + locks / usize::try_from(LIST_ROWS).unwrap_or(1)
    }

    fn lists_semaphores(&self) -> bool {
        true
    }

    async fn break_lock(&self, name: &LockName, order: &BreakOrder) -> Result<Vec<Entry>> {
        let mut holders = self.inner.dialect.break_lock(name, order).await?;
        if order.force {
            // The waiters of this process claim immediately; those of other processes when they are notified, or poll.
            self.wakeups().notify_all();
        }
        if let Some(alerts) = self.inner.dialect.alerts() {
            // The holds of this store are checked even if it does not listen.
            alerts.check(name);
        }
        holders.sort_by_key(|holder| holder.token);
        Ok(holders)
    }
}
