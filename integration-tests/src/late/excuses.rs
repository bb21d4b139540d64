//! The exceptions that a store documents.

use std::time::Duration;

use super::{
    acts::Act,
    check::{Kind, Violation},
    message::Way,
    script::Script,
};

/// The longest lease of a blob.
const AZURE_LEASE: Duration = Duration::from_secs(60);

/// Returns the name of the documented exception that explains a violation in this schedule.
#[must_use]
pub fn excuse(store: &str, violation: &Violation, script: &Script) -> Option<&'static str> {
    let Violation { kind, entry, .. } = violation;
    // A hold is parked, and adopted, by an acquisition with another lease.
    let acquires = |act| {
        matches!(act, Act::Acquire { .. } | Act::Adopt { .. } | Act::IntoHandle | Act::End(Way::After(_)))
    };
    let is_end = matches!(script.trapped_act(), Some(Act::End(_)));
    let is_acquisition = script.trapped_act().is_some_and(acquires) || script.copies.are_of_all();
    match (store, kind, entry) {
        ("azure", Kind::Shortened | Kind::Extended, Some(_)) => {
            Some("the service shows the lease that was claimed, and not its rest")
        }
        ("azure", Kind::Shortened | Kind::Overlap, None) if is_end => {
            Some("a release that its process has given up ends the hold for all that know it")
        }
        ("azure", Kind::Ghost, Some(entry)) if is_acquisition && entry.expires_in <= AZURE_LEASE => {
            Some("an acquisition that its process does not look for lasts for its lease")
        }
        _ => None,
    }
}
