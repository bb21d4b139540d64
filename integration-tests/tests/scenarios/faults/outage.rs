//! Outages of the network, and of a service behind it.

use polylock_integration_tests::proxy::{End, Flow, Proxy, RequestFault};
use tokio::task::block_in_place;

/// An outage of all servers behind some proxies.
#[derive(Debug, Clone)]
pub(crate) enum Outage {
    /// Bytes in both directions are treated in this way.
    Silent(Flow),
    /// Connections are reset, and refused.
    Unreachable,
    /// The service gives this reply to every request.
    Refused(RequestFault),
}

impl Outage {
    /// Returns the outages that every network can have.
    pub(crate) fn of_networks() -> Vec<Self> {
        let silent = [Flow::Hold, Flow::Stall, Flow::Drop].map(Self::Silent);
        silent.into_iter().chain([Self::Unreachable]).collect()
    }

    pub(crate) fn begin(&self, proxies: &[Proxy]) {
        block_in_place(|| {
            for proxy in proxies {
                match self {
                    Self::Silent(flow) => proxy.set_both(*flow),
                    Self::Unreachable => {
                        proxy.refuse(true);
                        proxy.cut(End::Reset);
                    }
                    Self::Refused(fault) => proxy.fault_every([""], fault.clone()),
                }
            }
        });
    }

    pub(crate) fn end(&self, proxies: &[Proxy]) {
        block_in_place(|| {
            for proxy in proxies {
                match self {
                    Self::Silent(_) => proxy.set_both(Flow::Pass),
                    Self::Unreachable => proxy.refuse(false),
                    Self::Refused(_) => proxy.clear_faults(),
                }
            }
        });
    }
}
