//! Looking into the container, and breaking locks.

use std::{pin::pin, time::Duration};

use async_trait::async_trait;
use azure_core::time::OffsetDateTime;
use azure_storage_blob::models::{BlobItem, LeaseState};
use futures_util::TryStreamExt;
use polylock_core::{BreakOrder, Entry, Inspect, LockName, LockStatus, Mode, Operation, OwnerId, Result};

use crate::{
    backend::{Leases, is_gone},
    blobs::age,
    error::{Refusal, Trouble},
    names,
    record::{Record, Written},
};

/// How long people wait for an answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Who holds, by what is written and for how long that has been there.
pub(crate) fn holder(written: &Written, age: Duration) -> Option<Entry> {
    match written {
        Written::Grant(Record { token, owner, label, ttl, .. }) => {
            // The service tells nobody how much is left of a lease.
            Some(Entry::new(Mode::Exclusive, owner.clone(), label, Some(*token), age, *ttl))
        }
        // Taken for the first time, and its holder is about to write.
        Written::Nothing => {
            let unknown = OwnerId::new("unknown").ok()?;
            Some(Entry::new(Mode::Exclusive, unknown, "", None, age, age))
        }
        Written::Strange => None,
    }
}

impl Leases {
    async fn held_by(&self, name: &LockName) -> Result<Option<Entry>, Trouble> {
        match self.blobs.look(name, None, PATIENCE).await {
            Ok(seen) if seen.leased => {
                let Some(entry) = holder(&seen.written, seen.age) else { return Ok(None) };
                self.marked(name, entry, &seen.written, seen.breaking).await.map(Some)
            }
            Ok(_) => Ok(None),
            Err(trouble) if is_gone(&trouble) => Ok(None),
            Err(trouble) => Err(trouble),
        }
    }

    /// The entry with the notice of the break of its lease, if that is being broken.
    async fn marked(
        &self,
        name: &LockName,
        entry: Entry,
        written: &Written,
        breaking: bool,
    ) -> Result<Entry, Trouble> {
        if !breaking {
            return Ok(entry);
        }
        let notice = match written {
            Written::Grant(record) => self.notice_of(name, &record.grant, PATIENCE).await?,
            _ => None,
        };
        // Somebody has broken it by other means than ours.
        Ok(entry.broken(Some(notice.map(|(notice, _)| notice).unwrap_or_default())))
    }

    async fn all(&self, prefix: &str) -> Result<Vec<LockStatus>, Trouble> {
        let mut found = Vec::new();
        let mut pages = pin!(self.blobs.list(names::under(&self.blobs.prefix, prefix), PATIENCE)?);
        while let Some((items, now)) = pages.try_next().await? {
            for item in items {
                found.extend(self.in_use(item, now).await?);
            }
        }
        found.sort_by(|a: &LockStatus, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// The lock of a blob, if it is one's and held.
    async fn in_use(
        &self,
        item: BlobItem,
        now: Option<OffsetDateTime>,
    ) -> Result<Option<LockStatus>, Trouble> {
        let name = item.name.and_then(|blob| names::lock(&self.blobs.prefix, &blob));
        let (Some(name), Some(properties)) = (name, item.properties) else { return Ok(None) };
        let breaking = match properties.lease_state {
            Some(LeaseState::Leased) => false,
            Some(LeaseState::Breaking) => true,
            _ => return Ok(None),
        };
        let metadata = item.metadata.and_then(|metadata| metadata.values).unwrap_or_default();
        let written = Written::read(|key| metadata.get(key).map(String::as_str));
        let Some(entry) = holder(&written, age(now, properties.last_modified)) else { return Ok(None) };
        let entry = self.marked(&name, entry, &written, breaking).await?;
        Ok(Some(LockStatus::new(name, vec![entry], Vec::new())))
    }
}

#[async_trait]
impl Inspect for Leases {
    async fn inspect(&self, name: &LockName) -> Result<LockStatus> {
        let holder = self.held_by(name).await.map_err(|trouble| self.failed(Operation::Inspect, trouble))?;
        Ok(LockStatus::new(name.clone(), holder.into_iter().collect(), Vec::new()))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockStatus>> {
        match self.all(prefix).await {
            Err(trouble) if trouble.refusal() == Some(Refusal::NoContainer) => Ok(Vec::new()),
            answer => answer.map_err(|trouble| self.failed(Operation::Inspect, trouble)),
        }
    }

    async fn break_lock(&self, name: &LockName, order: &BreakOrder) -> Result<Vec<Entry>> {
        let broken = self.break_hold(name, order).await;
        let broken = broken.map_err(|trouble| self.failed(Operation::Break, trouble))?;
        if order.force {
            self.turns.released(name);
            self.waiters.wake(name);
        }
        if broken.is_some()
            && let Err(trouble) = self.drop_old_notices().await
        {
            tracing::debug!(?trouble, "old notices of breaks could not be deleted yet");
        }
        Ok(broken.into_iter().collect())
    }
}
