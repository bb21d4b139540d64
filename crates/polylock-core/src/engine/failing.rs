//! The outage of a store, from the point of view of an acquisition.

use std::sync::{Arc, Mutex};

use crate::{Error, Moment, sync::lock};

/// The time since which every attempt has failed. Clones share it: a step that begins during an outage continues it.
#[derive(Debug, Clone, Default)]
pub(crate) struct FailingSince(Arc<Mutex<Option<Moment>>>);

impl FailingSince {
    /// Records `error` of an attempt that was sent at `sent`, and returns the start of the outage. A delay that the store states is no outage,
    /// and ends one.
    pub(super) fn failed(&self, error: &Error, sent: Moment) -> Moment {
        let mut since = lock(&self.0);
        if error.retry_after().is_some() {
            *since = None;
        }
        *since.get_or_insert(sent)
    }

    /// Records a reply of the store.
    pub(super) fn replied(&self) {
        *lock(&self.0) = None;
    }
}
