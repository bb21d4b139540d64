//! The deadline of a hold: the time from which its holder regards it as lost, before the store can grant the lock to another request.

use std::time::Duration;

use crate::clock::Moment;

/// Returns the margin of a deadline: the larger of 10 ms and 1 % of the lease.
#[must_use]
pub fn margin(lease: Duration) -> Duration {
    (lease / 100).max(Duration::from_millis(10))
}

/// Returns the deadline of a hold. Its last successful claim or renewal was **sent** at `sent` and gave `lease`.
///
/// The deadline counts from the sending, because the store can't have begun to count earlier.
#[must_use]
pub fn of(sent: Moment, lease: Duration) -> Moment {
    sent + lease.saturating_sub(margin(lease))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deadline_is_before_the_store_can_expire_the_lease() {
        let sent = Moment::from_nanos(1_000_000_000);
        for lease in [1, 10, 100, 5_000, 3_600_000].map(Duration::from_millis) {
            let deadline = of(sent, lease);
            assert!(deadline + Duration::from_millis(10).min(lease) <= sent + lease, "{lease:?}");
        }
        assert_eq!(of(sent, Duration::from_secs(30)), sent + Duration::from_millis(29_700));
    }
}
