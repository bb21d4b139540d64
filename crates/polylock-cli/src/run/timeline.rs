//! The times at which a command is requested to stop and is killed, as pure functions.

use std::time::Duration;

use polylock::{LostReason, Moment};

use crate::args::OnLost;

/// The minimum time that a kill needs, from the timer to the last process: it begins this much before the deadline.
const MIN_KILL_TIME: Duration = Duration::from_millis(50);

/// The rules of one run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timeline {
    pub(super) on_lost: OnLost,
    pub(super) grace: Duration,
    kill_time: KillTime,
    /// The end of `--max-hold`.
    pub(super) hold_until: Moment,
}

/// The time reserved for a kill: at least [`MIN_KILL_TIME`], and twice the duration of a search for all processes.
#[derive(Debug, Clone, Copy)]
struct KillTime {
    min: Duration,
    now: Duration,
    /// The maximum: more would leave too little time for renewals.
    max: Duration,
    /// The number of consecutive searches that needed more than that.
    exceeded: u32,
}

impl KillTime {
    fn new(ttl: Duration) -> Self {
        let min = MIN_KILL_TIME.min(ttl / 20);
        Self { min, now: min, max: ttl / 10, exceeded: 0 }
    }

    /// Adapts the reserve to a search that took `duration`.
    fn record_search(&mut self, duration: Duration) {
        let needed = duration * 2;
        self.exceeded = if needed > self.max { self.exceeded + 1 } else { 0 };
        // It increases at once, and decreases in steps.
        self.now = needed.min(self.max).max(self.now / 2).max(self.min);
    }
}

/// The reason why a command is stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StopCause {
    /// The lease was not renewed in time.
    NotRenewed,
    /// The lock is certainly gone.
    Lost(LostReason),
    /// `--max-hold`.
    MaxHold,
}

impl StopCause {
    /// Returns true if the lock could not be kept.
    pub(super) const fn is_loss(&self) -> bool {
        matches!(self, Self::NotRenewed | Self::Lost(_))
    }
}

/// A command that is being stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stop {
    pub(super) cause: StopCause,
    /// The latest time at which it is killed.
    pub(super) kill_at: Moment,
}

/// The time limits of a hold that is not renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) deadline: Moment,
    /// The time between the signal and the kill.
    grace: Duration,
}

impl Timeline {
    /// Returns the rules for a lease of `ttl`.
    pub(super) fn new(on_lost: OnLost, ttl: Duration, grace: Duration, hold_until: Moment) -> Self {
        Self { on_lost, grace, kill_time: KillTime::new(ttl), hold_until }
    }

    /// Adapts the reserve to the duration of a search for all processes: a kill takes at least as long. Returns the time that a kill
    /// needs if that exceeds the maximum, once, after two such searches in a row.
    pub(super) fn record_search(&mut self, duration: Duration) -> Option<Duration> {
        self.kill_time.record_search(duration);
        (self.kill_time.exceeded == 2 && self.on_lost != OnLost::Continue).then_some(duration * 2)
    }

    /// Returns the maximum time that is reserved for a kill.
    pub(super) fn max_kill_time(&self) -> Duration {
        self.kill_time.max
    }

    /// Returns the time at which the command must be killed, for a hold that ends at `deadline`.
    pub(super) fn kill_at(&self, deadline: Moment) -> Moment {
        if self.on_lost == OnLost::Continue { Moment::NEVER } else { deadline - self.kill_time.now }
    }

    /// Returns the limits of the first lease. After a hand-over that lease is the rest of the lease in the queue, which may be shorter
    /// than the grace period: half of it is left for the renewal that extends it to a full lease.
    pub(super) fn first_lease(&self, now: Moment, deadline: Moment) -> Lease {
        Lease { deadline, grace: self.grace.min(self.kill_at(deadline).since(now) / 2) }
    }

    /// Returns the limits of a renewed lease.
    pub(super) fn renewed_lease(&self, deadline: Moment) -> Lease {
        Lease { deadline, grace: self.grace }
    }

    /// Returns the time at which the command is requested to stop, if `lease` is not renewed.
    fn signal_at(&self, lease: Lease) -> Moment {
        let kill_at = self.kill_at(lease.deadline);
        match self.on_lost {
            OnLost::Term => kill_at - lease.grace,
            OnLost::Kill | OnLost::Continue => kill_at,
        }
    }

    /// Returns the time of the next check, until the command is requested to stop.
    pub(super) fn next_check(&self, lease: Lease) -> Moment {
        self.signal_at(lease).min(self.hold_until)
    }

    /// Returns the stop if it is due.
    pub(super) fn due(&self, now: Moment, lease: Lease) -> Option<Stop> {
        if now >= self.signal_at(lease) {
            Some(Stop { cause: StopCause::NotRenewed, kill_at: self.kill_at(lease.deadline) })
        } else if now >= self.hold_until {
            Some(Stop { cause: StopCause::MaxHold, kill_at: now + self.grace })
        } else {
            None
        }
    }

    /// Returns the stop after a definite loss; `None` with `--on-lost continue`.
    pub(super) fn stop_after_loss(&self, now: Moment, reason: LostReason) -> Option<Stop> {
        let kill_at = match self.on_lost {
            OnLost::Term => now + self.grace,
            OnLost::Kill => now,
            OnLost::Continue => return None,
        };
        Some(Stop { cause: StopCause::Lost(reason), kill_at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn at(time: u64) -> Moment {
        Moment::default() + ms(time)
    }

    fn timeline(on_lost: OnLost) -> Timeline {
        Timeline::new(on_lost, ms(30_000), ms(10_000), Moment::NEVER)
    }

    #[test]
    fn the_signal_comes_one_grace_period_before_the_kill() {
        let timeline = timeline(OnLost::Term);
        let lease = timeline.first_lease(at(0), at(29_700));
        assert_eq!(timeline.renewed_lease(at(29_700)), lease);
        assert_eq!(timeline.next_check(lease), at(19_650));
        assert_eq!(timeline.due(at(19_649), lease), None);
        assert_eq!(
            timeline.due(at(19_650), lease),
            Some(Stop { cause: StopCause::NotRenewed, kill_at: at(29_650) })
        );
    }

    #[test]
    fn the_first_lease_after_a_hand_over_leaves_time_for_a_renewal() {
        // A lease of five seconds, of which one has passed, is shorter than the grace period. It is renewed after a third.
        let timeline = timeline(OnLost::Term);
        let short = timeline.first_lease(at(1_000), at(4_950));
        assert_eq!(timeline.next_check(short), at(2_950));
        assert_eq!(timeline.due(at(2_950), short).unwrap().kill_at, at(4_900));
        // From the first renewal on the full grace period applies, also if the reply came late.
        assert_eq!(timeline.next_check(timeline.renewed_lease(at(34_700))), at(24_650));
    }

    #[test]
    fn a_kill_reserves_little_of_a_short_lease() {
        let timeline = Timeline::new(OnLost::Term, ms(200), ms(60), Moment::NEVER);
        assert_eq!(timeline.kill_at(at(190)), at(180));
    }

    #[test]
    fn slow_searches_reserve_more_time_and_report_a_ttl_that_is_too_short() {
        let mut timeline = timeline(OnLost::Term);
        assert_eq!(timeline.record_search(ms(10)), None);
        assert_eq!(timeline.kill_at(at(29_700)), at(29_650));
        assert_eq!(timeline.record_search(ms(200)), None);
        assert_eq!(timeline.kill_at(at(29_700)), at(29_300));
        // A single fast search is not enough.
        assert_eq!(timeline.record_search(ms(10)), None);
        assert_eq!(timeline.kill_at(at(29_700)), at(29_500));
        for _ in 0..9 {
            timeline.record_search(ms(10));
        }
        assert_eq!(timeline.kill_at(at(29_700)), at(29_650));
        // At most a tenth of the TTL, so that renewals keep their time.
        assert_eq!((timeline.record_search(ms(2_000)), timeline.max_kill_time()), (None, ms(3_000)));
        assert_eq!(timeline.kill_at(at(29_700)), at(26_700));
        assert_eq!(timeline.record_search(ms(2_500)), Some(ms(5_000)));
        assert_eq!(timeline.record_search(ms(2_500)), None, "reported once");
    }

    #[test]
    fn on_lost_kill_sends_no_signal_and_on_lost_continue_never_stops() {
        assert_eq!(
            timeline(OnLost::Kill).next_check(timeline(OnLost::Kill).renewed_lease(at(29_700))),
            at(29_650)
        );
        assert_eq!(
            timeline(OnLost::Continue).next_check(timeline(OnLost::Continue).renewed_lease(at(29_700))),
            Moment::NEVER
        );
        assert_eq!(timeline(OnLost::Continue).stop_after_loss(at(5), LostReason::Gone), None);
        assert_eq!(timeline(OnLost::Kill).stop_after_loss(at(5), LostReason::Gone).unwrap().kill_at, at(5));
        assert_eq!(
            timeline(OnLost::Term).stop_after_loss(at(5), LostReason::Gone).unwrap().kill_at,
            at(10_005)
        );
    }

    #[test]
    fn max_hold_stops_without_a_loss() {
        let timeline = Timeline::new(OnLost::Continue, ms(30_000), ms(1_000), at(4_000));
        let stop = timeline.due(at(4_000), timeline.renewed_lease(at(29_700))).unwrap();
        assert_eq!((&stop.cause, stop.kill_at), (&StopCause::MaxHold, at(5_000)));
        assert!(!stop.cause.is_loss());
    }
}
