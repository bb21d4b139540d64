//! Breaks a lock: breaks its lease, and leaves a notice for the holder in a blob beside the lock's.
//!
//! The service's own *break* is cooperative: without a break period the lease keeps others out for its remaining time, can't be renewed,
//! and can be released by its holder. It has no field for a notice, and only the holder can write the metadata of a leased blob. So the
//! notice is in a separate blob, one for each lock, which names the grant that it is for.
//!
//! A notice is deleted by the release of its holder, if the holder has read it and still had its lease. Otherwise the release reports the break,
//! and may have to be repeated for lack of a reply: then the notice stays until the next break of any lock finds that it is older than any
//! lease can be.

use std::{pin::pin, time::Duration};

use azure_core::http::Etag;
use futures_util::TryStreamExt;
use polylock_core::{BreakNotice, BreakOrder, Entry, Fault, LockName, LostReason, Request, RequestId};

use crate::{
    backend::{AzureBackend, TRIES},
    blobs::{BlobState, age},
    error::{Cause, Refusal, is_gone},
    inspect::{INTERACTIVE_TIMEOUT, holder_entry},
    names,
    record::{Content, Fingerprint, GrantNotice},
    wire::LeaseId,
};

/// The age above which the lease of a break has ended in any case.
const NOTICE_LIFETIME: Duration = Duration::from_secs(120);

/// The shortest lease, for a lease that is released at once.
const SHORTEST_LEASE: Duration = Duration::from_secs(15);

impl AzureBackend {
    /// Breaks the lease of the holder of `name` if it is a target of `order`, and returns the holder.
    pub(crate) async fn break_hold(
        &self,
        name: &LockName,
        order: &BreakOrder,
    ) -> Result<Option<Entry>, Cause> {
        let mut ended = None;
        for _ in 0..TRIES {
            let state = match self.blobs.get_state(name, None, INTERACTIVE_TIMEOUT).await {
                Ok(state) if state.leased => state,
                Ok(_) => return Ok(ended),
                Err(cause) if is_gone(&cause) => return Ok(ended),
                Err(cause) => return Err(cause),
            };
            let entry = holder_entry(&state.content, state.endless, state.age);
            let entry = entry.filter(|entry| order.is_target(entry.token));
            let Some(entry) = entry else { return Ok(ended) };
            // Written before the lease is broken, so that the holder finds it.
            let notice = self.post_notice(name, &state, &order.notice).await?;
            match self.blobs.break_lease(name, order.force, state.etag.as_ref(), INTERACTIVE_TIMEOUT).await {
                Ok(_) if order.force => {
                    if self.revoke_broken_lease(name, &state).await {
                        return Ok(Some(entry));
                    }
                    ended = Some(entry);
                }
                Ok(remaining) => {
                    let mut entry = entry.broken(Some(notice));
                    entry.expires_in = remaining.unwrap_or(entry.expires_in);
                    return Ok(Some(entry));
                }
                // Another grant was written in the meantime.
                Err(cause) if cause.refusal() == Some(Refusal::Changed) => {}
                Err(cause) if is_gone(&cause) => return Ok(ended),
                Err(cause) => return Err(cause),
            }
        }
        let advice = "the lock got new holders during the break: try again";
        ended.map(Some).ok_or_else(|| Cause::Unusable(Fault::Temporary, advice.to_owned()))
    }

    /// Leaves the notice for the holder of this grant. Returns the notice that counts: the first one for the grant.
    async fn post_notice(
        &self,
        name: &LockName,
        state: &BlobState,
        notice: &BreakNotice,
    ) -> Result<BreakNotice, Cause> {
        // The holder is unknown until it has written its grant.
        let Content::Grant(record) = &state.content else { return Ok(notice.clone()) };
        let broken = GrantNotice { grant: record.grant.clone(), notice: notice.clone() };
        for _ in 0..TRIES {
            let before = match self.blobs.notice(name, INTERACTIVE_TIMEOUT).await? {
                Some((earlier, _)) if earlier.grant == broken.grant => return Ok(earlier.notice),
                Some((_, etag)) => etag,
                None => None,
            };
            match self.blobs.write_notice(name, &broken, before, INTERACTIVE_TIMEOUT).await {
                Ok(()) => return Ok(broken.notice),
                // Another break has left a notice at the same time.
                Err(cause) if matches!(cause.refusal(), Some(Refusal::Changed | Refusal::Exists)) => {}
                Err(cause) => return Err(cause),
            }
        }
        let advice = "other clients break the lock at the same time: try again";
        Err(Cause::Unusable(Fault::Temporary, advice.to_owned()))
    }

    /// Takes a lease that was broken at once away from its former holder, by another acquisition, and writes the record in `state` once more.
    /// Otherwise the holder could still release the lease, and the success would look like the release of a hold; and an acquisition that
    /// [prolongs](Self::prolong) the hold could revive it, as long as the blob is unchanged.
    ///
    /// Returns false if the lease was acquired before: by another client, which may be about to write its grant, or for the hold that was
    /// broken.
    async fn revoke_broken_lease(&self, name: &LockName, state: &BlobState) -> bool {
        let lease = LeaseId::of(RequestId::random());
        let revoked = async {
            self.blobs.acquire(name, &lease, SHORTEST_LEASE, None, INTERACTIVE_TIMEOUT).await?;
            let written = match &state.content {
                Content::Grant(record) => {
                    self.blobs.write(name, &lease, record, state.etag.as_ref(), INTERACTIVE_TIMEOUT).await
                }
                _ => Ok(None),
            };
            self.blobs.release(name, &lease, INTERACTIVE_TIMEOUT).await?;
            written
        };
        let Err(cause) = revoked.await else { return true };
        if cause.refusal().is_none() {
            tracing::warn!(lock.name = %name, trouble = ?cause, "could not revoke a broken lease from its former holder");
        }
        cause.refusal() != Some(Refusal::Leased)
    }

    /// Returns the notice of the break of a grant, if there is one.
    pub(crate) async fn notice_of(
        &self,
        name: &LockName,
        grant: &Fingerprint,
        timeout: Duration,
    ) -> Result<Option<(BreakNotice, Option<Etag>)>, Cause> {
        let found = self.blobs.notice(name, timeout).await?;
        Ok(found.filter(|(broken, _)| broken.grant == *grant).map(|(broken, etag)| (broken.notice, etag)))
    }

    /// Returns the reason for the end of the hold of `request`, which `refusal` has made certain. Without a notice the reason follows from
    /// `refusal` alone.
    pub(crate) async fn loss_reason(&self, request: &Request, refusal: Option<Refusal>) -> LostReason {
        let grant = Fingerprint::of(request.id);
        let found = self.notice_of(&request.name, &grant, self.timeout(request)).await;
        match (found, refusal) {
            (Ok(Some((notice, _))), _) => LostReason::Broken(notice),
            (_, Some(Refusal::Broken | Refusal::Breaking)) => LostReason::Broken(BreakNotice::default()),
            _ => LostReason::Gone,
        }
    }

    /// Deletes the notice of `request` after its holder has released it.
    pub(crate) async fn delete_notice(&self, request: &Request) {
        let (grant, timeout) = (Fingerprint::of(request.id), self.timeout(request));
        let deleted = async {
            if let Some((_, etag)) = self.notice_of(&request.name, &grant, timeout).await? {
                let blob = names::notice(&self.blobs.prefix, &request.name);
                self.blobs.delete(&blob, etag, timeout).await?;
            }
            Ok::<_, Cause>(())
        };
        if let Err(cause) = deleted.await {
            tracing::debug!(trouble = ?cause, "could not delete the notice of a break yet");
        }
    }

    /// Deletes the notices that no holder can be waiting for any more.
    pub(crate) async fn delete_old_notices(&self) -> Result<(), Cause> {
        let mut pages = pin!(self.blobs.list(names::notices(&self.blobs.prefix), INTERACTIVE_TIMEOUT)?);
        while let Some((items, now)) = pages.try_next().await? {
            for item in items {
                let (Some(blob), Some(properties)) = (item.name, item.properties) else { continue };
                let metadata = item.metadata.and_then(|metadata| metadata.values).unwrap_or_default();
                let is_notice = GrantNotice::read(|key| metadata.get(key).map(String::as_str)).is_some();
                if is_notice && age(now, properties.last_modified) > NOTICE_LIFETIME {
                    self.blobs.delete(&blob, properties.etag, INTERACTIVE_TIMEOUT).await?;
                }
            }
        }
        Ok(())
    }
}
