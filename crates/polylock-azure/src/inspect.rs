//! Looking into the container, and breaking locks.

use std::time::Duration;

use async_trait::async_trait;
use azure_core::http::headers::HeaderName;
use azure_core::time::parse_rfc7231;
use azure_storage_blob::models::{
    BlobContainerClientListBlobsOptions, BlobItem, LeaseState, ListBlobsIncludeItem,
};
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
const PATIENCE: Duration = Duration::from_secs(10);

/// Who holds, by what is written and for how long that has been there.
fn holder(written: &Written, age: Duration) -> Option<Entry> {
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
            Ok(seen) if seen.leased => Ok(holder(&seen.written, seen.age)),
            Ok(_) => Ok(None),
            Err(trouble) if is_gone(&trouble) => Ok(None),
            Err(trouble) => Err(trouble),
        }
    }

    async fn all(&self, prefix: &str) -> Result<Vec<LockStatus>, Trouble> {
        let options = BlobContainerClientListBlobsOptions {
            include: Some(vec![ListBlobsIncludeItem::Metadata]),
            prefix: Some(names::under(&self.blobs.prefix, prefix)),
            ..BlobContainerClientListBlobsOptions::default()
        };
        let mut pages = self.blobs.container.list_blobs(Some(options)).map_err(Trouble::from)?.into_pages();
        let mut found = Vec::new();
        while let Some(page) = self.blobs.answer(PATIENCE, pages.try_next()).await? {
            let date = page.headers().get_optional_string(&HeaderName::from_static("date"));
            let now = date.and_then(|date| parse_rfc7231(&date).ok());
            let items = page.into_model().map_err(Trouble::from)?.blob_items;
            found.extend(items.into_iter().filter_map(|item| self.in_use(item, now)));
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// The lock of a blob, if it is one's and held.
    fn in_use(&self, item: BlobItem, now: Option<azure_core::time::OffsetDateTime>) -> Option<LockStatus> {
        let name = names::lock(&self.blobs.prefix, &item.name?)?;
        let properties = item.properties?;
        if !matches!(properties.lease_state, Some(LeaseState::Leased | LeaseState::Breaking)) {
            return None;
        }
        let metadata = item.metadata.and_then(|metadata| metadata.values).unwrap_or_default();
        let written = Written::read(|key| metadata.get(key).map(String::as_str));
        let holder = holder(&written, age(now, properties.last_modified))?;
        Some(LockStatus::new(name, vec![holder], Vec::new()))
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

    async fn break_lock(&self, name: &LockName, _: &BreakOrder) -> Result<Vec<Entry>> {
        let broken = async {
            let Some(holder) = self.held_by(name).await? else { return Ok(Vec::new()) };
            match self.blobs.break_lease(name, PATIENCE).await {
                Ok(()) => {}
                Err(trouble) if is_gone(&trouble) => {}
                Err(trouble) => return Err(trouble),
            }
            Ok(vec![holder])
        };
        let broken = broken.await.map_err(|trouble| self.failed(Operation::Break, trouble))?;
        self.turns.released(name);
        self.waiters.wake(name);
        Ok(broken)
    }
}
