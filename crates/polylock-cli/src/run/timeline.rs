//! When a command is asked to stop and when it is killed: the pure part.

use std::time::Duration;

use polylock::{LostReason, Moment};

use crate::args::OnLost;

/// What is left for a kill at least, from the clock to the last process: it begins this much before the deadline.
const KILL_TIME: Duration = Duration::from_millis(50);

/// The rules of one run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timeline {
    pub(super) on_lost: OnLost,
    pub(super) grace: Duration,
    kill_time: KillTime,
    /// When the hold has lasted long enough.
    pub(super) hold_until: Moment,
}

/// The time that is left for a kill: at least [`KILL_TIME`], and twice what a look at all processes has taken.
#[derive(Debug, Clone, Copy)]
struct KillTime {
    least: Duration,
    now: Duration,
    /// More would leave too little time for renewals.
    most: Duration,
    /// How often in a row it would have had to be more.
    exceeded: u32,
}

impl KillTime {
    fn new(ttl: Duration) -> Self {
        let least = KILL_TIME.min(ttl / 20);
        Self { least, now: least, most: ttl / 10, exceeded: 0 }
    }

    /// Takes account of a look that took `took`.
    fn measured(&mut self, took: Duration) {
        let needed = took * 2;
        self.exceeded = if needed > self.most { self.exceeded + 1 } else { 0 };
        // At once when it must be more, and in steps when it may be less.
        self.now = needed.min(self.most).max(self.now / 2).max(self.least);
    }
}

/// Why a command is stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Why {
    /// No renewal came in time.
    RunsOut,
    /// The lock is gone for certain.
    Lost(LostReason),
    /// `--max-hold`.
    MaxHold,
}

impl Why {
    /// Whether the lock could not be kept.
    pub(super) const fn is_loss(&self) -> bool {
        matches!(self, Self::RunsOut | Self::Lost(_))
    }
}

/// A command that is being stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stop {
    pub(super) why: Why,
    /// When it is killed at the latest.
    pub(super) kill_at: Moment,
}

/// How long a hold lasts if it is not renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) deadline: Moment,
    /// The time between the signal and the kill.
    grace: Duration,
}

impl Timeline {
    /// The rules for a lease of `ttl`.
    pub(super) fn new(on_lost: OnLost, ttl: Duration, grace: Duration, hold_until: Moment) -> Self {
        Self { on_lost, grace, kill_time: KillTime::new(ttl), hold_until }
    }

    /// Takes account of how long a look at all processes took: a kill takes no less. Returns how much time a kill needs if that is
    /// more than there is, once, after two looks of that kind.
    pub(super) fn measured(&mut self, took: Duration) -> Option<Duration> {
        self.kill_time.measured(took);
        (self.kill_time.exceeded == 2 && self.on_lost != OnLost::Continue).then_some(took * 2)
    }

    /// The most that is ever left for a kill.
    pub(super) fn most_for_a_kill(&self) -> Duration {
        self.kill_time.most
    }

    /// When it must be killed, for a hold that ends at `deadline`.
    pub(super) fn kill_at(&self, deadline: Moment) -> Moment {
        if self.on_lost == OnLost::Continue { Moment::NEVER } else { deadline - self.kill_time.now }
    }

    /// The first lease. Of a lock that was handed over it is what was left of the place in the queue, which may be less
    /// than the grace: half of it is left to the renewal that makes it a whole one.
    pub(super) fn first(&self, now: Moment, deadline: Moment) -> Lease {
        Lease { deadline, grace: self.grace.min(self.kill_at(deadline).since(now) / 2) }
    }

    /// A later one.
    pub(super) fn renewed(&self, deadline: Moment) -> Lease {
        Lease { deadline, grace: self.grace }
    }

    /// When it is asked to stop, if `lease` is the last.
    fn ask_at(&self, lease: Lease) -> Moment {
        let kill_at = self.kill_at(lease.deadline);
        match self.on_lost {
            OnLost::Term => kill_at - lease.grace,
            OnLost::Kill | OnLost::Continue => kill_at,
        }
    }

    /// When to look next, while nothing has been asked.
    pub(super) fn look_at(&self, lease: Lease) -> Moment {
        self.ask_at(lease).min(self.hold_until)
    }

    /// Whether it is time to stop, and why.
    pub(super) fn due(&self, now: Moment, lease: Lease) -> Option<Stop> {
        if now >= self.ask_at(lease) {
            Some(Stop { why: Why::RunsOut, kill_at: self.kill_at(lease.deadline) })
        } else if now >= self.hold_until {
            Some(Stop { why: Why::MaxHold, kill_at: now + self.grace })
        } else {
            None
        }
    }

    /// What a definite loss means; nothing with `--on-lost continue`.
    pub(super) fn lost(&self, now: Moment, reason: LostReason) -> Option<Stop> {
        let kill_at = match self.on_lost {
            OnLost::Term => now + self.grace,
            OnLost::Kill => now,
            OnLost::Continue => return None,
        };
        Some(Stop { why: Why::Lost(reason), kill_at })
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

    fn rules(on_lost: OnLost) -> Timeline {
        Timeline::new(on_lost, ms(30_000), ms(10_000), Moment::NEVER)
    }

    #[test]
    fn asked_one_grace_before_the_kill_and_killed_before_the_deadline() {
        let rules = rules(OnLost::Term);
        let whole = rules.first(at(0), at(29_700));
        assert_eq!(rules.renewed(at(29_700)), whole);
        assert_eq!(rules.look_at(whole), at(19_650));
        assert_eq!(rules.due(at(19_649), whole), None);
        assert_eq!(rules.due(at(19_650), whole), Some(Stop { why: Why::RunsOut, kill_at: at(29_650) }));
    }

    #[test]
    fn a_lock_that_was_handed_over_has_time_to_be_renewed() {
        // Five seconds, of which one has passed: less than the grace. It is renewed after a third.
        let rules = rules(OnLost::Term);
        let short = rules.first(at(1_000), at(4_950));
        assert_eq!(rules.look_at(short), at(2_950));
        assert_eq!(rules.due(at(2_950), short).unwrap().kill_at, at(4_900));
        // From the first renewal on, the whole grace, also if the answer came late.
        assert_eq!(rules.look_at(rules.renewed(at(34_700))), at(24_650));
    }

    #[test]
    fn a_short_lease_leaves_most_of_itself() {
        let rules = Timeline::new(OnLost::Term, ms(200), ms(60), Moment::NEVER);
        assert_eq!(rules.kill_at(at(190)), at(180));
    }

    #[test]
    fn a_slow_machine_is_given_more_time_for_a_kill_and_told_when_there_is_not_enough() {
        let mut rules = rules(OnLost::Term);
        assert_eq!(rules.measured(ms(10)), None);
        assert_eq!(rules.kill_at(at(29_700)), at(29_650));
        assert_eq!(rules.measured(ms(200)), None);
        assert_eq!(rules.kill_at(at(29_700)), at(29_300));
        // One quick look proves little.
        assert_eq!(rules.measured(ms(10)), None);
        assert_eq!(rules.kill_at(at(29_700)), at(29_500));
        for _ in 0..9 {
            rules.measured(ms(10));
        }
        assert_eq!(rules.kill_at(at(29_700)), at(29_650));
        // At most a tenth of the TTL, so that renewals keep their time.
        assert_eq!((rules.measured(ms(2_000)), rules.most_for_a_kill()), (None, ms(3_000)));
        assert_eq!(rules.kill_at(at(29_700)), at(26_700));
        assert_eq!(rules.measured(ms(2_500)), Some(ms(5_000)));
        assert_eq!(rules.measured(ms(2_500)), None, "told once");
    }

    #[test]
    fn kill_asks_nobody_and_continue_stops_nobody() {
        assert_eq!(rules(OnLost::Kill).look_at(rules(OnLost::Kill).renewed(at(29_700))), at(29_650));
        assert_eq!(
            rules(OnLost::Continue).look_at(rules(OnLost::Continue).renewed(at(29_700))),
            Moment::NEVER
        );
        assert_eq!(rules(OnLost::Continue).lost(at(5), LostReason::Gone), None);
        assert_eq!(rules(OnLost::Kill).lost(at(5), LostReason::Gone).unwrap().kill_at, at(5));
        assert_eq!(rules(OnLost::Term).lost(at(5), LostReason::Gone).unwrap().kill_at, at(10_005));
    }

    #[test]
    fn max_hold_stops_without_a_loss() {
        let rules = Timeline::new(OnLost::Continue, ms(30_000), ms(1_000), at(4_000));
        let stop = rules.due(at(4_000), rules.renewed(at(29_700))).unwrap();
        assert_eq!((&stop.why, stop.kill_at), (&Why::MaxHold, at(5_000)));
        assert!(!stop.why.is_loss());
    }
}
