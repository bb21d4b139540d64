//! The end of a hold, as its holder is told.

use crate::{Error, LockName, LostReason, Result};

/// The reason for the end of a hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ended {
    Left,
    Lost(LostReason),
}

impl Ended {
    pub(crate) fn into_result(self, name: &LockName) -> Result<()> {
        match self {
            Self::Left => Ok(()),
            Self::Lost(_) => Err(self.into_lost(name)),
        }
    }

    /// Returns the error of a guard that is used after this end.
    pub(crate) fn into_lost(self, name: &LockName) -> Error {
        let reason = match self {
            Self::Lost(reason) => reason,
            // Another guard of this hold has left it to expire.
            Self::Left => LostReason::Gone,
        };
        Error::Lost { name: name.clone(), reason }
    }
}
