//! The shortest and the longest time of a hold.

use std::time::Duration;

use crate::{ConfigError, LostReason, Moment, deadline};

/// The limits that a lock sets for its hold.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HoldLimits {
    /// No other request is granted the lock before this time.
    pub(crate) min: Duration,
    /// The hold ends after this time.
    pub(crate) max: Option<Duration>,
}

impl HoldLimits {
    /// Checks that the longest time is longer than the shortest one.
    pub(crate) fn check(self) -> Result<(), ConfigError> {
        match self.max {
            Some(max) if max <= self.min => {
                let problem = "the longest time of a hold must be longer than 0 and than its min_hold";
                Err(ConfigError::new("max_hold", problem))
            }
            _ => Ok(()),
        }
    }
}

/// Stores count a lease in milliseconds.
const ROUNDING: Duration = Duration::from_millis(1);

/// The limits as times of one hold.
#[derive(Debug, Clone, Copy)]
pub(super) struct HoldTimes {
    /// The time until which the lock stays taken, even if its holder releases it; the origin if there is no limit.
    pub(super) keep_until: Moment,
    /// The time at which the hold ends at the latest.
    end: Moment,
}

impl HoldTimes {
    /// Returns the times for a claim that was sent at `sent`, and with a grant that was received by `now`. The store has granted the lock
    /// between the two, so the end counts from the first, and the shortest time from the second.
    pub(super) fn new(limits: HoldLimits, sent: Moment, now: Moment) -> Self {
        let keep_until = if limits.min.is_zero() { Moment::default() } else { now + limits.min + ROUNDING };
        Self { keep_until, end: limits.max.map_or(Moment::NEVER, |max| sent + max) }
    }

    /// Returns the deadline of a lease that was given at `sent`.
    pub(super) fn deadline(self, sent: Moment, lease: Duration) -> Moment {
        deadline::of(sent, lease).min(self.end)
    }

    /// Returns the time of the renewal of a lease that was given at `sent`. A lease that lasts until the end of the hold is not renewed, so that
    /// it ends soon after the hold.
    pub(super) fn renew_at(self, sent: Moment, lease: Duration) -> Moment {
        if deadline::of(sent, lease) >= self.end { Moment::NEVER } else { sent + lease / 3 }
    }

    /// Returns true if a hold with this deadline can't be renewed, because it has reached its end.
    pub(super) fn is_end(self, deadline: Moment) -> bool {
        deadline >= self.end
    }

    /// Returns the reason for the loss of a hold with a deadline that has passed at `now`.
    pub(super) fn passed(self, now: Moment) -> LostReason {
        if now >= self.end { LostReason::MaxHold } else { LostReason::DeadlineReached }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn at(time: u64) -> Moment {
        Moment::default() + seconds(time)
    }

    #[test]
    fn without_limits_a_hold_ends_with_its_lease() {
        let times = HoldTimes::new(HoldLimits::default(), at(10), at(11));
        assert_eq!(times.deadline(at(10), seconds(30)), deadline::of(at(10), seconds(30)));
        assert_eq!(times.renew_at(at(10), seconds(30)), at(20));
        assert_eq!(times.passed(at(1_000)), LostReason::DeadlineReached);
        assert_eq!(times.keep_until, at(0));
    }

    #[test]
    fn the_last_renewal_is_the_one_that_reaches_the_end() {
        let times =
            HoldTimes::new(HoldLimits { max: Some(seconds(45)), ..HoldLimits::default() }, at(10), at(11));
        // The first lease ends at 40, and the end is at 55.
        assert_eq!(times.renew_at(at(10), seconds(30)), at(20));
        assert_eq!(times.deadline(at(20), seconds(30)), deadline::of(at(20), seconds(30)));
        assert_eq!(times.renew_at(at(20), seconds(30)), at(30));
        assert_eq!(times.deadline(at(30), seconds(30)), at(55));
        assert_eq!(times.renew_at(at(30), seconds(30)), Moment::NEVER);
        assert!(times.is_end(at(55)) && !times.is_end(at(54)));
        assert_eq!(
            (times.passed(at(54)), times.passed(at(55))),
            (LostReason::DeadlineReached, LostReason::MaxHold)
        );
    }

    #[test]
    fn the_shortest_time_counts_from_the_reply() {
        let limits = HoldLimits { min: seconds(5), max: Some(seconds(60)) };
        assert_eq!(HoldTimes::new(limits, at(10), at(11)).keep_until, at(16) + ROUNDING);
        assert!(limits.check().is_ok());
        for max in [0, 4, 5] {
            assert!(HoldLimits { max: Some(seconds(max)), ..limits }.check().is_err(), "{max}");
        }
        assert!(HoldLimits { min: seconds(0), max: Some(seconds(0)) }.check().is_err());
    }
}
