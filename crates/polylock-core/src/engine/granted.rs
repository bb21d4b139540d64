//! A hold on its way to the caller of its acquisition.
//!
//! Several callers may have a reentrant hold: the first one, which has acquired it, and those that have entered it. A caller that is not polled
//! must not keep the hold, so the rules are:
//! * Until one of them receives the hold, it is kept for the first one. As for every hold, the keeper limits the time for that.
//! * From then on, it lasts as long as its guards. The other callers enter it when they are polled, or begin again if it has ended.

use std::sync::{Arc, Weak};

use super::shared_hold::SharedHold;

/// The hold that an acquisition has for its caller.
pub(super) enum Granted {
    /// No other caller can receive it.
    New(Arc<SharedHold>),
    /// It begins with this acquisition. Others of its owner may enter it.
    Reentrant(Unreceived),
    /// Its owner had it before.
    Entered(Weak<SharedHold>),
}

impl Granted {
    pub(super) fn new(shared_hold: Arc<SharedHold>, is_reentrant: bool) -> Self {
        if !is_reentrant {
            return Self::New(shared_hold);
        }
        let hold = Arc::downgrade(&shared_hold);
        shared_hold.keep_until_received();
        Self::Reentrant(Unreceived(hold))
    }

    /// Returns the hold; `None` if other guards have had it, and it has ended with them.
    pub(super) fn into_hold(self) -> Option<Arc<SharedHold>> {
        match self {
            Self::New(shared_hold) => Some(shared_hold),
            Self::Reentrant(Unreceived(ref shared_hold)) => shared_hold.upgrade(),
            Self::Entered(shared_hold) => {
                shared_hold.upgrade().inspect(|shared_hold| shared_hold.end_keeping())
            }
        }
    }
}

/// The hold of the first caller, which is kept until this is dropped, or another caller has received it.
pub(super) struct Unreceived(Weak<SharedHold>);

impl Drop for Unreceived {
    fn drop(&mut self) {
        if let Some(shared_hold) = self.0.upgrade() {
            shared_hold.end_keeping();
        }
    }
}
