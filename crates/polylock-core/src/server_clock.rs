//! A lower bound on a server's clock, from the times in its replies.
//!
//! A claim carries an expiry by the server's clock, so that a claim that is delivered late, after its client has abandoned the
//! connection, grants nothing. It works without agreement on the time of day:
//! 1. A request sent at `S` gets its reply at `R`, and the reply carries the server's clock `C`: at `R` that clock shows at least `C`,
//!    and at most `C + (R - S)`.
//! 2. At `t` it shows at least `C + (t - R)`, less the drift between the two clocks.
//! 3. The client abandons a claim at `t + limit`, so it sends that lower bound plus `limit` with it.
//! 4. After `t + limit` the server's clock shows more than that, so the server rejects the claim, and the release that the client
//!    sends then has nothing to undo.
//!
//! If a claim is rejected although it was in time (the server's clock was stepped forward), the reply carries the server's clock,
//! and the claim is sent again.

use std::{
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use crate::{Clock, Moment, SystemClock, bug::Bug, process::has_bug, sync::lock};

/// The greatest drift between two clocks, as a fraction: one thousandth, several times the drift of crystals.
const DRIFT: u32 = 1000;

/// The latest sample of one server's clock. Times are whole microseconds since 1970, by the server's clock.
#[derive(Debug, Default)]
pub struct ServerClock {
    sample: Mutex<Option<Sample>>,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    received: Moment,
    clock_us: i64,
}

impl Sample {
    fn earliest_us(self, now: Moment) -> i64 {
        let since = now.since(self.received);
        let drift = if has_bug(Bug::DriftlessClock) { Duration::ZERO } else { since / DRIFT };
        self.clock_us.saturating_add(micros(since - drift))
    }
}

impl ServerClock {
    /// Records the server's clock from a reply that has just arrived to a request sent at `sent`.
    pub fn observe(&self, sent: Moment, clock_us: i64) {
        self.observe_at(sent, SystemClock.now(), clock_us);
    }

    fn observe_at(&self, sent: Moment, received: Moment, clock_us: i64) {
        let latest_us = clock_us.saturating_add(micros(received.since(sent)));
        let clock_us = if has_bug(Bug::LateClock) { latest_us } else { clock_us };
        let new = Sample { received, clock_us };
        let mut sample = self.lock();
        // The greater bound is kept, unless the new reply contradicts it: then the clock was stepped back.
        let keep = sample.is_some_and(|old| {
            let bound = old.earliest_us(received);
            bound > clock_us && bound <= latest_us
        });
        if !keep {
            *sample = Some(new);
        }
    }

    /// Returns the least time that the clock can show now, unless it was stepped back since the last reply; `None` before the first
    /// reply.
    #[must_use]
    pub fn earliest_us(&self) -> Option<i64> {
        self.earliest_us_at(SystemClock.now())
    }

    fn earliest_us_at(&self, now: Moment) -> Option<i64> {
        self.lock().map(|sample| sample.earliest_us(now))
    }

    /// Returns the expiry, by the server's clock, of a claim that is sent now and abandoned after `limit`; `None` before the first
    /// reply.
    #[must_use]
    pub fn expiry_us(&self, limit: Duration) -> Option<i64> {
        self.earliest_us().map(|now| now.saturating_add(micros(limit)))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Sample>> {
        lock(&self.sample)
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(ms: u64) -> Moment {
        Moment::default() + Duration::from_millis(ms)
    }

    #[test]
    fn a_slow_reply_does_not_replace_a_better_bound() {
        let clock = ServerClock::default();
        assert_eq!(clock.earliest_us_at(at(0)), None);
        clock.observe_at(at(1000), at(1001), 5_000_000);
        assert_eq!(clock.earliest_us_at(at(2001)), Some(5_999_000));
        // The server read its clock right after the request was sent, and the reply took a second.
        clock.observe_at(at(2001), at(3001), 6_000_500);
        assert_eq!(clock.earliest_us_at(at(3001)), Some(6_998_000));
    }

    #[test]
    fn a_step_is_followed_in_both_directions() {
        let clock = ServerClock::default();
        clock.observe_at(at(1000), at(1001), 5_000_000);
        clock.observe_at(at(1100), at(1101), 3_605_000_000);
        assert_eq!(clock.earliest_us_at(at(1101)), Some(3_605_000_000));
        clock.observe_at(at(1200), at(1201), 5_200_000);
        assert_eq!(clock.earliest_us_at(at(1201)), Some(5_200_000));
    }

    proptest! {
        /// The bound never exceeds the server's clock, for any delays and drift.
        #[test]
        fn the_bound_is_never_late(
            offset in 0_i64..1_000_000_000_000,
            drift in -900_i64..=900,
            replies in prop::collection::vec((1_u64..5_000, 0_u64..3_000, 0_u64..3_000), 1..20),
            last in 0_u64..100_000,
        ) {
            // The time that the server's clock shows when the client's shows `ms`.
            let server = |ms: u64| offset + i64::try_from(ms).unwrap() * (1_000_000 + drift) / 1000;
            let (clock, mut now) = (ServerClock::default(), 0);
            for (pause, there, back) in replies {
                let sent = now + pause;
                now = sent + there + back;
                clock.observe_at(at(sent), at(now), server(sent + there));
                prop_assert!(clock.earliest_us_at(at(now)).unwrap() <= server(now));
            }
            prop_assert!(clock.earliest_us_at(at(now + last)).unwrap() <= server(now + last));
        }
    }
}
