//! Lists and inspects locks, and breaks them.

use std::{pin::pin, time::Duration};

use async_trait::async_trait;
use azure_core::time::OffsetDateTime;
use azure_storage_blob::models::{BlobItem, LeaseDuration, LeaseState};
use futures_util::TryStreamExt;
use polylock_core::{
    BreakOrder, Entry, Inspect, LockName, LockStatus, Mode, Operation, OwnerId, PastGrant, Result,
};

use crate::{
    backend::AzureBackend,
    blobs::age,
    error::{Cause, Refusal, is_gone},
    names,
    record::{Content, Record},
};

/// The time limit of interactive operations.
pub(crate) const INTERACTIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// The time that is shown as left of a lease that has no end.
const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);
/// The label of a holder whose lease has no end.
const ENDLESS: &str = "an infinite lease of another program: `polylock break --force` ends it";

/// Returns the holder, from the metadata and their age. An `endless` lease is none of polylock, so its holder is not that of the metadata.
pub(crate) fn holder_entry(content: &Content, endless: bool, age: Duration) -> Option<Entry> {
    match content {
        Content::Grant(Record { token, .. }) if endless => {
            let unknown = OwnerId::new("unknown").ok()?;
            Some(Entry::new(Mode::Exclusive, unknown, ENDLESS, Some(*token), age, FOREVER))
        }
        Content::Grant(Record { token, owner, label, ttl, .. }) => {
            // The service does not return the time left of a lease.
            Some(Entry::new(Mode::Exclusive, owner.clone(), label, Some(*token), age, *ttl))
        }
        // The lock is leased for the first time, and its holder is about to write the grant.
        Content::NeverGranted => {
            let unknown = OwnerId::new("unknown").ok()?;
            Some(Entry::new(Mode::Exclusive, unknown, "", None, age, age))
        }
        Content::Foreign => None,
    }
}

/// Returns the last grant of a lock without a holder. The metadata were written with the grant, and a release does not change them.
fn past_grant(content: Content, age: Duration) -> Option<PastGrant> {
    let Content::Grant(Record { token, owner, label, .. }) = content else { return None };
    Some(PastGrant::new(owner, &label, token, age))
}

impl AzureBackend {
    async fn status(&self, name: &LockName) -> Result<LockStatus, Cause> {
        let free = || LockStatus::new(name.clone(), Vec::new(), Vec::new());
        match self.blobs.get_state(name, None, INTERACTIVE_TIMEOUT).await {
            Ok(state) if state.leased => {
                let Some(entry) = holder_entry(&state.content, state.endless, state.age) else {
                    return Ok(free());
                };
                let entry = self.with_notice(name, entry, &state.content, state.breaking).await?;
                Ok(LockStatus::new(name.clone(), vec![entry], Vec::new()))
            }
            Ok(state) => Ok(free().last_grant(past_grant(state.content, state.age))),
            Err(cause) if is_gone(&cause) => Ok(free()),
            Err(cause) => Err(cause),
        }
    }

    /// Adds the notice to the entry if its lease is being broken.
    async fn with_notice(
        &self,
        name: &LockName,
        entry: Entry,
        content: &Content,
        breaking: bool,
    ) -> Result<Entry, Cause> {
        if !breaking {
            return Ok(entry);
        }
        let notice = match content {
            Content::Grant(record) => self.notice_of(name, &record.grant, INTERACTIVE_TIMEOUT).await?,
            _ => None,
        };
        // Without a notice, the lease was broken by other means than this store.
        Ok(entry.broken(Some(notice.map(|(notice, _)| notice).unwrap_or_default())))
    }

    async fn list_held(&self, prefix: &str) -> Result<Vec<LockStatus>, Cause> {
        let mut found = Vec::new();
        let mut pages = pin!(self.blobs.list(names::under(&self.blobs.prefix, prefix), INTERACTIVE_TIMEOUT)?);
        while let Some((items, now)) = pages.try_next().await? {
            for item in items {
                found.extend(self.lock_status(item, now).await?);
            }
        }
        found.sort_by(|a: &LockStatus, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// Returns the lock of a blob; `None` if the blob does not belong to a lock, or the lock is not held.
    async fn lock_status(
        &self,
        item: BlobItem,
        now: Option<OffsetDateTime>,
    ) -> Result<Option<LockStatus>, Cause> {
        let name = item.name.and_then(|blob| names::lock(&self.blobs.prefix, &blob));
        let (Some(name), Some(properties)) = (name, item.properties) else { return Ok(None) };
        let breaking = match properties.lease_state {
            Some(LeaseState::Leased) => false,
            Some(LeaseState::Breaking) => true,
            _ => return Ok(None),
        };
        let metadata = item.metadata.and_then(|metadata| metadata.values).unwrap_or_default();
        let content = Content::read(|key| metadata.get(key).map(String::as_str));
        let endless = properties.lease_duration == Some(LeaseDuration::Infinite);
        let entry = holder_entry(&content, endless, age(now, properties.last_modified));
        let Some(entry) = entry else { return Ok(None) };
        let entry = self.with_notice(&name, entry, &content, breaking).await?;
        Ok(Some(LockStatus::new(name, vec![entry], Vec::new())))
    }
}

#[async_trait]
impl Inspect for AzureBackend {
    async fn inspect(&self, name: &LockName) -> Result<LockStatus> {
        self.status(name).await.map_err(|cause| self.failed(Operation::Inspect, cause))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockStatus>> {
        match self.list_held(prefix).await {
            Err(cause) if cause.refusal() == Some(Refusal::NoContainer) => Ok(Vec::new()),
            reply => reply.map_err(|cause| self.failed(Operation::Inspect, cause)),
        }
    }

    fn lists_semaphores(&self) -> bool {
        true
    }

    async fn break_lock(&self, name: &LockName, order: &BreakOrder) -> Result<Vec<Entry>> {
        let broken = self.break_hold(name, order).await;
        let broken = broken.map_err(|cause| self.failed(Operation::Break, cause))?;
        if order.force {
            if broken.is_some() {
                self.fairness.released(name);
            }
            self.waiters.wake(name);
        }
        if broken.is_some()
            && let Err(cause) = self.delete_old_notices().await
        {
            tracing::debug!(trouble = ?cause, "could not delete old notices of breaks yet");
        }
        Ok(broken.into_iter().collect())
    }
}
