//! The end of a hold by its holder: a release, or a lease that is left to expire.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use super::{acquisition::FIRST_REPLY, ended::Ended, hold::Hold, pending::WorkGuard};
use crate::{FencingToken, KeepAlive, LostReason, Moment, Release, Request, Result, metrics::Measured};

impl Hold {
    /// Records that a hold which its holder has ended is not released: its lease expires.
    pub(crate) fn left_to_expire(&self) {
        self.context.record(&self.request.name, Measured::Release { outcome: "expired", via: "expiry" });
        tracing::debug!(parent: self.span_id(), lock.name = %self.request.name, "left to expire");
    }

    /// Releases a hold that its holder has ended, and retries until `until` at least. `attempts` have been made before.
    pub(crate) async fn release(
        self: Arc<Self>,
        until: Moment,
        via: &'static str,
        attempts: u32,
        under_way: WorkGuard,
    ) -> Result<()> {
        // A renewal without a reply may have been carried out: then the lease ends after its deadline here. Other processes that know the hold
        // may have given it a lease that is longer still.
        let longest = match self.is_known_elsewhere() {
            true => self.context.options.outage.max(FIRST_REPLY),
            false => self.request.ttl,
        };
        let until = until.max(self.context.now() + longest);
        let reply = self.context.release_until(&self.last_request(), until, attempts).await;
        self.released(reply, via, under_way)
    }

    /// Records the outcome of a release and returns it for the holder.
    pub(crate) fn released(
        &self,
        reply: Result<Release>,
        via: &'static str,
        under_way: WorkGuard,
    ) -> Result<()> {
        let outcome = match &reply {
            Ok(Release::Released) => "released",
            Ok(Release::Lost(_)) => "lost",
            Err(_) => "error",
        };
        self.context.record(&self.request.name, Measured::Release { outcome, via });
        tracing::debug!(
            parent: self.span_id(), lock.name = %self.request.name, lock.fencing_token = %self.token(), via, outcome,
            "released"
        );
        let reply = reply.and_then(|release| match release {
            Release::Released => Ok(()),
            // Another holder may have worked at the same time: this reply, not a renewal, reports the loss.
            Release::Lost(reason) => {
                self.report_loss(&reason);
                Ended::Lost(reason).into_result(self.name())
            }
        });
        drop(under_way);
        reply
    }

    /// Makes the store end a hold, which its holder has ended, at `end`, and retries until `until`.
    pub(crate) async fn park(
        self: Arc<Self>,
        until: Moment,
        end: Moment,
        under_way: WorkGuard,
    ) -> Result<()> {
        // A conversion that is under way gives the hold another token.
        let turn = tokio::select! {
            biased;
            turn = self.conversion.clone().lock_owned() => Some(turn),
            () = self.context.until(until) => None,
        };
        let request = self.last_request();
        let token = self.present_token(&request, until).await;
        let outcome = self.context.park_until(&request, token, until, end).await;
        drop(turn);
        self.left(outcome, under_way).await
    }

    /// Returns the token that the hold has in the store.
    async fn present_token(&self, request: &Arc<Request>, until: Moment) -> FencingToken {
        if self.has_unknown_token.load(Ordering::Relaxed)
            && let Ok(KeepAlive::Held { terms: Some(terms), .. }) =
                self.context.renew_until(request, until).await
        {
            return terms.token.max(self.token());
        }
        self.token()
    }

    /// Renews a hold, which its holder has ended, a last time, and retries until `until`. Returns the lease.
    pub(crate) async fn renew_last(self: Arc<Self>, until: Moment, under_way: WorkGuard) -> Result<Duration> {
        let mut lease = Duration::ZERO;
        let outcome =
            self.context.renew_until(&self.last_request(), until).await.map(|outcome| match outcome {
                KeepAlive::Held { lease: kept, .. } => {
                    lease = kept;
                    Release::Released
                }
                KeepAlive::Lost(reason) => Release::Lost(reason),
                KeepAlive::Queued | KeepAlive::Unknown => Release::Lost(LostReason::Gone),
            });
        self.left(outcome, under_way).await.map(|()| lease)
    }

    /// Records the outcome of the last operation on a hold that is left to expire, and returns it for the holder.
    async fn left(self: Arc<Self>, outcome: Result<Release>, under_way: WorkGuard) -> Result<()> {
        let label = match &outcome {
            Ok(Release::Released) => "expired",
            Ok(Release::Lost(_)) => "lost",
            Err(_) => "error",
        };
        self.context.record(&self.request.name, Measured::Release { outcome: label, via: "expiry" });
        tracing::debug!(parent: self.span_id(), lock.name = %self.request.name, outcome = label, "left to expire");
        let Release::Lost(lost) = outcome? else { return Ok(()) };
        self.report_loss(&lost);
        if let LostReason::Broken(_) = lost {
            // The store excludes other requests until this release.
            self.clone().release_lost(under_way).await;
        }
        Ended::Lost(lost).into_result(self.name())
    }
}
