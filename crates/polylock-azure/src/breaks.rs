//! Breaking a lock: its lease is broken, with a notice for the holder in a blob beside the lock's.
//!
//! The service's own *break* is cooperative: without a break period the lease keeps others out for the time that it has left, can't be
//! renewed, and can be released by its holder. What it does not have is a place for a notice: the metadata of a leased blob are
//! its holder's to write. So the notice is in a blob of its own, one for each lock, which names the grant that it is for.
//!
//! A notice is deleted by the release of its holder, if that has found it, and by the next break of any lock when it is older than any
//! lease can be.

use std::{pin::pin, time::Duration};

use azure_core::http::Etag;
use futures_util::TryStreamExt;
use polylock_core::{BreakNotice, BreakOrder, Entry, Fault, LockName, LostReason, Request, RequestId};

use crate::{
    backend::{Leases, TRIES, is_gone},
    blobs::{Seen, age},
    error::{Refusal, Trouble},
    inspect::{PATIENCE, holder},
    names,
    record::{Broken, Fingerprint, Written},
    wire::LeaseId,
};

/// No lease that was broken this long ago can last yet.
const OLD: Duration = Duration::from_secs(120);

/// The shortest lease, for one that is released at once.
const MOMENT: Duration = Duration::from_secs(15);

impl Leases {
    /// Breaks the lease of whoever holds `name`, and returns the holder.
    pub(crate) async fn break_hold(
        &self,
        name: &LockName,
        order: &BreakOrder,
    ) -> Result<Option<Entry>, Trouble> {
        for _ in 0..TRIES {
            let seen = match self.blobs.look(name, None, PATIENCE).await {
                Ok(seen) if seen.leased => seen,
                Ok(_) => return Ok(None),
                Err(trouble) if is_gone(&trouble) => return Ok(None),
                Err(trouble) => return Err(trouble),
            };
            let Some(entry) = holder(&seen.written, seen.age) else { return Ok(None) };
            // Before the lease is broken, so that the holder finds it.
            let notice = self.leave_notice(name, &seen, &order.notice).await?;
            match self.blobs.break_lease(name, order.force, seen.etag.as_ref(), PATIENCE).await {
                Ok(_) if order.force => {
                    self.take_away(name).await;
                    return Ok(Some(entry));
                }
                Ok(left) => {
                    let mut entry = entry.broken(Some(notice));
                    entry.expires_in = left.unwrap_or(entry.expires_in);
                    return Ok(Some(entry));
                }
                // Another grant was written meanwhile.
                Err(trouble) if trouble.refusal() == Some(Refusal::Changed) => {}
                Err(trouble) if is_gone(&trouble) => return Ok(None),
                Err(trouble) => return Err(trouble),
            }
        }
        let advice = "the lock changes hands all the time: try again";
        Err(Trouble::Unfit(Fault::Temporary, advice.to_owned()))
    }

    /// Leaves the notice for the holder of this grant, and returns the one that counts: the first one for it.
    async fn leave_notice(
        &self,
        name: &LockName,
        seen: &Seen,
        notice: &BreakNotice,
    ) -> Result<BreakNotice, Trouble> {
        // Until the holder has written its grant, nothing says who it is.
        let Written::Grant(record) = &seen.written else { return Ok(notice.clone()) };
        let broken = Broken { grant: record.grant.clone(), notice: notice.clone() };
        for _ in 0..TRIES {
            let before = match self.blobs.notice(name, PATIENCE).await? {
                Some((earlier, _)) if earlier.grant == broken.grant => return Ok(earlier.notice),
                Some((_, etag)) => etag,
                None => None,
            };
            match self.blobs.write_notice(name, &broken, before, PATIENCE).await {
                Ok(()) => return Ok(broken.notice),
                // Another one has been left at the same time.
                Err(trouble) if matches!(trouble.refusal(), Some(Refusal::Changed | Refusal::Exists)) => {}
                Err(trouble) => return Err(trouble),
            }
        }
        let advice = "others break the lock at the same time: try again";
        Err(Trouble::Unfit(Fault::Temporary, advice.to_owned()))
    }

    /// Takes a broken lease away from its former holder, who could still release it, and would take that for the release of a hold.
    /// If somebody has the lock by now, that has happened.
    async fn take_away(&self, name: &LockName) {
        let lease = LeaseId::of(RequestId::random());
        let outcome = match self.blobs.acquire(name, &lease, MOMENT, PATIENCE).await {
            Ok(_) => self.blobs.release(name, &lease, PATIENCE).await,
            Err(trouble) => Err(trouble),
        };
        if let Err(trouble) = outcome
            && trouble.refusal().is_none()
        {
            tracing::warn!(lock.name = %name, ?trouble, "a broken lease could not be taken from its former holder");
        }
    }

    /// The notice of the break of a grant, if there is one.
    pub(crate) async fn notice_of(
        &self,
        name: &LockName,
        grant: &Fingerprint,
        patience: Duration,
    ) -> Result<Option<(BreakNotice, Option<Etag>)>, Trouble> {
        let found = self.blobs.notice(name, patience).await?;
        Ok(found.filter(|(broken, _)| broken.grant == *grant).map(|(broken, etag)| (broken.notice, etag)))
    }

    /// Why the hold of `request` has ended, of which it is certain that it has: `refusal` says so. If the service does not tell more,
    /// that must do.
    pub(crate) async fn why_lost(&self, request: &Request, refusal: Option<Refusal>) -> LostReason {
        let grant = Fingerprint::of(request.id);
        let found = self.notice_of(&request.name, &grant, self.patience(request)).await;
        match (found, refusal) {
            (Ok(Some((notice, _))), _) => LostReason::Broken(notice),
            (_, Some(Refusal::Broken)) => LostReason::Broken(BreakNotice::default()),
            _ => LostReason::Gone,
        }
    }

    /// Deletes the notice of `request`, whose holder has stopped.
    pub(crate) async fn drop_notice(&self, request: &Request) {
        let (grant, patience) = (Fingerprint::of(request.id), self.patience(request));
        let dropped = async {
            if let Some((_, etag)) = self.notice_of(&request.name, &grant, patience).await? {
                let blob = names::notice(&self.blobs.prefix, &request.name);
                self.blobs.delete(&blob, etag, patience).await?;
            }
            Ok::<_, Trouble>(())
        };
        if let Err(trouble) = dropped.await {
            tracing::debug!(?trouble, "the notice of a break could not be deleted yet");
        }
    }

    /// Deletes the notices that no holder can be waiting for any more.
    pub(crate) async fn drop_old_notices(&self) -> Result<(), Trouble> {
        let mut pages = pin!(self.blobs.list(names::notices(&self.blobs.prefix), PATIENCE)?);
        while let Some((items, now)) = pages.try_next().await? {
            for item in items {
                let (Some(blob), Some(properties)) = (item.name, item.properties) else { continue };
                let metadata = item.metadata.and_then(|metadata| metadata.values).unwrap_or_default();
                let is_notice = Broken::read(|key| metadata.get(key).map(String::as_str)).is_some();
                if is_notice && age(now, properties.last_modified) > OLD {
                    self.blobs.delete(&blob, properties.etag, PATIENCE).await?;
                }
            }
        }
        Ok(())
    }
}
