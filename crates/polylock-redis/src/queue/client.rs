//! The identity of a client, and the receivers of its push messages.

use std::sync::Arc;

use polylock_core::HoldAlerts;

use crate::endpoint::PushHandler;

/// The parts of a store that its connections share.
#[derive(Clone)]
pub(crate) struct Client {
    /// A text that no other client has.
    pub(crate) id: String,
    pub(crate) on_push: PushHandler,
    pub(crate) alerts: Arc<HoldAlerts>,
}
