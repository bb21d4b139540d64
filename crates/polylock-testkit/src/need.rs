//! The capabilities that cases need.

use polylock_core::{Fencing, HoldLifetime, Mode, Modes, Notifications, Order};

use crate::trial::Trial;

/// A capability that a case needs. A store without it reports the case as unsupported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// All six modes.
    Modes,
    /// The shared mode in addition to the exclusive one.
    Shared,
    /// Grants in order of arrival.
    Order,
    /// Fencing tokens.
    Tokens,
    /// Inspection.
    Inspect,
    /// Inspection that lists the locks of a semaphore.
    Slots,
    /// Pushed break notices.
    Alerts,
    /// A count of the stored entries.
    Count,
    /// Pushed wake-ups.
    Push,
    /// Tokens that can be raised.
    Raise,
    /// Holds whose mode can be changed.
    Convert,
    /// Records of jobs.
    JobRecords,
    /// A count of the records that the process keeps about requests.
    Records,
    /// Holds that any connection can renew and release.
    Anywhere,
    /// Holds that end at a later time.
    Park,
}

impl Trial {
    /// Returns a description of the missing capability if the target lacks `need`.
    pub(crate) async fn lacks(&self, need: Need) -> Option<String> {
        let capabilities = self.capabilities();
        let lack = |lacks: bool, reason: &str| lacks.then(|| reason.to_owned());
        match need {
            Need::Modes => {
                lack(capabilities.modes != Modes::AllSix, "the store does not grant all six modes")
            }
            Need::Shared => {
                lack(!capabilities.modes.contains(Mode::Shared), "the store grants only the exclusive mode")
            }
            Need::Order => {
                lack(capabilities.order != Order::Fifo, "the store does not grant in order of arrival")
            }
            Need::Tokens => lack(capabilities.fencing == Fencing::Absent, "the store has no fencing tokens"),
            Need::Push => lack(
                capabilities.notifications != Notifications::Pushed,
                "the store sends no notifications; waiters poll",
            ),
            Need::Anywhere => {
                let reason = "a hold belongs to its connection; no other connection can renew or release it";
                lack(capabilities.hold_lifetime != HoldLifetime::Lease, reason)
            }
            Need::Park => lack(self.bare.park.is_none(), "the store can't end a hold at a later time"),
            Need::Raise => lack(self.bare.raise.is_none(), "the tokens of the store can't be raised"),
            Need::Convert => lack(self.bare.convert.is_none(), "the store can't change the mode of a hold"),
            Need::JobRecords => lack(self.bare.records.is_none(), "the store keeps no records of jobs"),
            Need::Inspect => lack(self.bare.inspect.is_none(), "the store does not support inspection"),
            Need::Slots => {
                let lists = self.bare.inspect.as_ref().is_some_and(|inspect| inspect.lists_semaphores());
                lack(!lists, "the store does not list the locks of a semaphore")
            }
            Need::Records => {
                let lacks = self.bare.backend.request_records().is_none();
                lack(lacks, "the store does not count its records of requests")
            }
            Need::Alerts => lack(self.bare.alerts.is_none(), "the store does not push break notices"),
            Need::Count => {
                let lacks = self.count().await.is_none();
                lack(
                    lacks,
                    "the store does not support inspection, and the target does not count the entries",
                )
            }
        }
    }
}
