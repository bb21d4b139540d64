//! Holds without a process, from the side of the process that gives one up or takes it over.

use std::sync::Arc;

use super::{
    acquisition::FIRST_REPLY,
    hold_limits::HoldLimits,
    shared_hold::{SharedHold, StoreHandle},
};
use crate::{
    Error, FencingToken, Grant, HoldHandle, HoldLifetime, KeepAlive, LostReason, Mode, Operation, Request,
    Result, io,
};

impl SharedHold {
    pub(crate) fn hold_handle(&self) -> Result<HoldHandle> {
        check_lifetime(self.handle())?;
        let hold = self.hold();
        Ok(HoldHandle::new(&hold.request, hold.mode(), hold.token()))
    }

    /// Renews the hold a last time, and ends it in this process without a release.
    pub(crate) async fn into_handle(mut self) -> Result<HoldHandle> {
        let handle = self.hold_handle()?;
        self.hold().check_held()?;
        let end = self.handle().context.now() + self.hold().request.ttl;
        self.park(end).await?;
        Ok(handle)
    }
}

/// Renews the hold of `request`, which belongs to no process, and returns it as a hold of this process.
pub(crate) async fn adopt(
    handle: Arc<StoreHandle>,
    request: Request,
    mode: Mode,
    token: FencingToken,
) -> Result<Arc<SharedHold>> {
    check_lifetime(&handle)?;
    let adopting = handle.context.lifecycle.begin()?;
    let (context, request) = (handle.context.clone(), Arc::new(request));
    let renewed = {
        let (context, request) = (context.clone(), request.clone());
        async move {
            let sent = context.now();
            let (until, end) = (sent + context.options.outage.max(FIRST_REPLY), sent + request.ttl);
            (sent, context.renew_until(&request, until, end).await)
        }
    };
    let failed = |cause| io::failed(context.backend(), Operation::Renew, cause);
    let (sent, outcome) = handle.foreground.begin(Operation::Renew, renewed)?.await.map_err(failed)?;
    let lease = match outcome? {
        KeepAlive::Held { lease } => lease,
        KeepAlive::Lost(reason) => return Err(Error::Lost { name: request.name.clone(), reason }),
        KeepAlive::Queued | KeepAlive::Unknown => {
            return Err(Error::Lost { name: request.name.clone(), reason: LostReason::Gone });
        }
    };
    let (grant, limits) = (Grant::new(token, lease), HoldLimits::default());
    let adopted = SharedHold::begin(handle, request, None, grant, sent, limits);
    adopted.hold().set_mode(mode);
    adopted.hold().receive();
    drop(adopting);
    Ok(adopted)
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
