//! Holds without a process, from the side of the process that gives one up or takes it over.

use std::sync::Arc;

use super::{
    acquisition::FIRST_REPLY,
    hold_limits::HoldLimits,
    shared_hold::{SharedHold, StoreHandle},
};
use crate::{
    Error, Grant, HoldHandle, HoldLifetime, HoldTerms, KeepAlive, LostReason, Operation, Release, Request,
    Result, bug::Bug, io, process::has_bug,
};

impl SharedHold {
    /// Returns the handle of the hold, which other processes may know from now on.
    pub(crate) fn hold_handle(&self) -> Result<HoldHandle> {
        check_lifetime(self.handle())?;
        let hold = self.hold();
        // In this order: a hold that is lost before is released, and one that is lost from now on may have been renewed elsewhere.
        hold.share();
        hold.check_held()?;
        Ok(HoldHandle::new(&hold.request, hold.mode(), hold.token()))
    }

    /// Renews the hold a last time, and ends it in this process without a release.
    pub(crate) async fn into_handle(mut self) -> Result<HoldHandle> {
        let handle = self.hold_handle()?;
        let lease = self.renew_last().await?;
        // Less by the time that the store took for its reply would be too short for the next adoption.
        let ttl = handle.ttl().max(lease);
        Ok(handle.with_ttl(ttl))
    }
}

/// Renews the hold of `request`, which other processes may know, and returns it as a hold of this process. `terms` are those of its handle; the
/// store has others if the hold was converted since.
pub(crate) async fn adopt(
    handle: Arc<StoreHandle>,
    request: Request,
    terms: HoldTerms,
) -> Result<Arc<SharedHold>> {
    check_lifetime(&handle)?;
    let adopting = handle.context.lifecycle.begin()?;
    let (context, request) = (handle.context.clone(), Arc::new(request));
    let renewed = {
        let (context, request) = (context.clone(), request.clone());
        async move {
            let sent = context.now();
            let until = sent + context.options.outage.max(FIRST_REPLY);
            (sent, context.renew_until(&request, until).await)
        }
    };
    let failed = |cause| io::failed(context.backend(), Operation::Renew, cause);
    let (sent, outcome) = handle.foreground.begin(Operation::Renew, renewed)?.await.map_err(failed)?;
    let (lease, present) = match outcome? {
        KeepAlive::Held { lease, terms } => (lease, terms),
        KeepAlive::Lost(reason) => return Err(Error::Lost { name: request.name.clone(), reason }),
        KeepAlive::Queued | KeepAlive::Unknown => {
            return Err(Error::Lost { name: request.name.clone(), reason: LostReason::Gone });
        }
    };
    let present = present.filter(|_| !has_bug(Bug::TrustedHandle));
    let HoldTerms { token, mode } = present.unwrap_or(terms);
    // The guard renews by its own TTL, even if another process has given the hold a longer lease.
    let (grant, limits) = (Grant::new(token, lease.min(request.ttl)), HoldLimits::default());
    let adopted = SharedHold::begin(handle, request, None, grant, sent, limits);
    adopted.hold().set_mode(mode);
    adopted.hold().receive();
    drop(adopting);
    Ok(adopted)
}

/// Releases the hold of `request`, which other processes may know, whatever its lease.
pub(crate) async fn release(handle: Arc<StoreHandle>, request: Request) -> Result<()> {
    check_lifetime(&handle)?;
    let _releasing = handle.context.lifecycle.begin()?;
    let (context, request) = (handle.context.clone(), Arc::new(request));
    let released = {
        let (context, request) = (context.clone(), request.clone());
        async move {
            let until = context.now() + context.options.outage.max(FIRST_REPLY);
            context.release_until(&request, until, 0).await
        }
    };
    let failed = |cause| io::failed(context.backend(), Operation::Release, cause);
    match handle.foreground.begin(Operation::Release, released)?.await.map_err(failed)?? {
        Release::Released => Ok(()),
        Release::Lost(reason) => Err(Error::Lost { name: request.name.clone(), reason }),
    }
}

fn check_lifetime(handle: &StoreHandle) -> Result<()> {
    let context = &handle.context;
    match context.store.backend.capabilities().hold_lifetime {
        HoldLifetime::Lease => Ok(()),
        HoldLifetime::Session => {
            Err(Error::Unsupported { backend: context.backend(), capability: "holds without a process" })
        }
    }
}
