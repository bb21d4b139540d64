//! Ticks as the moments and durations of core, for its predicates.

use std::time::Duration;

use polylock_core::{Moment, deadline};

/// Returns the duration of `count` ticks. A tick is much longer than the margin of a deadline.
#[must_use]
pub fn ticks(count: u8) -> Duration {
    Duration::from_secs(count.into())
}

/// Returns the moment of tick `tick`.
#[must_use]
pub fn at(tick: u8) -> Moment {
    Moment::default() + ticks(tick)
}

/// Returns true if at `now` the deadline has not passed of a hold with a claim or keep-alive that was sent at `sent` and gave `lease`.
#[must_use]
pub fn is_before_deadline(now: u8, sent: u8, lease: u8) -> bool {
    at(now) < deadline::of(at(sent), ticks(lease))
}
