//! When a command is asked to stop and when it is killed: the pure part.

use std::time::Duration;

use polylock::{LostReason, Moment};

use crate::args::OnLost;

/// What a kill may take at most, from the clock to the last process: it begins this much before the deadline.
const KILL_TIME: Duration = Duration::from_millis(50);

/// The rules of one run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timeline {
    pub(super) on_lost: OnLost,
    pub(super) grace: Duration,
    kill_time: Duration,
    /// When the hold has lasted long enough.
    pub(super) hold_until: Moment,
}

/// Why a command is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    pub(super) fn is_loss(self) -> bool {
        matches!(self, Self::RunsOut | Self::Lost(_))
    }
}

/// A command that is being stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stop {
    pub(super) why: Why,
    /// When it is killed at the latest.
    pub(super) kill_at: Moment,
}

impl Timeline {
    /// The rules for a lease of `ttl`.
    pub(super) fn new(on_lost: OnLost, ttl: Duration, grace: Duration, hold_until: Moment) -> Self {
        Self { on_lost, grace, kill_time: KILL_TIME.min(ttl / 20), hold_until }
    }

    /// When it must be killed, for a hold that ends at `deadline`.
    pub(super) fn kill_at(&self, deadline: Moment) -> Moment {
        if self.on_lost == OnLost::Continue { Moment::NEVER } else { deadline - self.kill_time }
    }

    /// When it is asked to stop, for a hold that ends at `deadline`.
    fn ask_at(&self, deadline: Moment) -> Moment {
        match self.on_lost {
            OnLost::Term => self.kill_at(deadline) - self.grace,
            OnLost::Kill | OnLost::Continue => self.kill_at(deadline),
        }
    }

    /// When to look next, while nothing has been asked.
    pub(super) fn look_at(&self, deadline: Moment) -> Moment {
        self.ask_at(deadline).min(self.hold_until)
    }

    /// Whether it is time to stop, and why.
    pub(super) fn due(&self, now: Moment, deadline: Moment) -> Option<Stop> {
        if now >= self.ask_at(deadline) {
            Some(Stop { why: Why::RunsOut, kill_at: self.kill_at(deadline) })
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
        assert_eq!(rules.look_at(at(29_700)), at(19_650));
        assert_eq!(rules.due(at(19_649), at(29_700)), None);
        assert_eq!(rules.due(at(19_650), at(29_700)), Some(Stop { why: Why::RunsOut, kill_at: at(29_650) }));
    }

    #[test]
    fn a_short_lease_leaves_most_of_itself() {
        let rules = Timeline::new(OnLost::Term, ms(200), ms(60), Moment::NEVER);
        assert_eq!(rules.kill_at(at(190)), at(180));
    }

    #[test]
    fn kill_asks_nobody_and_continue_stops_nobody() {
        assert_eq!(rules(OnLost::Kill).look_at(at(29_700)), at(29_650));
        assert_eq!(rules(OnLost::Continue).look_at(at(29_700)), Moment::NEVER);
        assert_eq!(rules(OnLost::Continue).lost(at(5), LostReason::Gone), None);
        assert_eq!(rules(OnLost::Kill).lost(at(5), LostReason::Gone).unwrap().kill_at, at(5));
        assert_eq!(rules(OnLost::Term).lost(at(5), LostReason::Gone).unwrap().kill_at, at(10_005));
    }

    #[test]
    fn max_hold_stops_without_a_loss() {
        let rules = Timeline::new(OnLost::Continue, ms(30_000), ms(1_000), at(4_000));
        let stop = rules.due(at(4_000), at(29_700)).unwrap();
        assert_eq!((stop.why, stop.kill_at), (Why::MaxHold, at(5_000)));
        assert!(!stop.why.is_loss());
    }
}
