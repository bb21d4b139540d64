//! The invariants as pure predicates, shared by the code, the history checker and the models.

use std::time::Duration;

use crate::{FencingToken, Mode, clock::Moment};

/// Exclusion: returns true if no two holders conflict.
#[must_use]
pub fn holders_are_compatible(holders: impl IntoIterator<Item = Mode>) -> bool {
    let mut held = 0;
    holders.into_iter().all(|mode| {
        let is_compatible = mode.conflicts() & held == 0;
        held |= mode.bit();
        is_compatible
    })
}

/// Fencing: returns true if the later grant has a strictly greater token.
#[must_use]
pub fn token_grows(earlier: FencingToken, later: FencingToken) -> bool {
    later > earlier
}

/// Returns the margin of a deadline: the larger of 10 ms and 1 % of the lease.
#[must_use]
pub fn margin(lease: Duration) -> Duration {
    (lease / 100).max(Duration::from_millis(10))
}

/// Returns the deadline of a hold. Its last successful claim or renewal was **sent** at `sent` and gave `lease`.
///
/// The deadline counts from the sending, because the store can't have begun to count earlier.
#[must_use]
pub fn deadline(sent: Moment, lease: Duration) -> Moment {
    sent + lease.saturating_sub(margin(lease))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_are_compatible_by_mode() {
        use Mode::{Exclusive, Null, Shared};
        assert!(holders_are_compatible([Shared, Shared, Null]));
        assert!(!holders_are_compatible([Shared, Exclusive]));
        assert!(!holders_are_compatible([Exclusive, Exclusive]));
    }

    #[test]
    fn the_deadline_is_before_the_store_can_expire_the_lease() {
        let sent = Moment::from_nanos(1_000_000_000);
        for lease in [1, 10, 100, 5_000, 3_600_000].map(Duration::from_millis) {
            let deadline = deadline(sent, lease);
            assert!(deadline + Duration::from_millis(10).min(lease) <= sent + lease, "{lease:?}");
        }
        assert_eq!(deadline(sent, Duration::from_secs(30)), sent + Duration::from_millis(29_700));
    }
}
