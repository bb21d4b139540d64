//! The periods of a job, as pure functions of the time of the store.

use std::time::Duration;

/// The longest time before the begin of a period that counts as a part of it.
const MAX_LEAD: Duration = Duration::from_secs(60);

/// Periods of equal length, aligned to a time of day in UTC.
///
/// A run that begins shortly before a period counts for that period: for a minute, or a tenth of the period if that is less. The machines
/// that start a job at the begin of a period have clocks that differ by seconds, so some of them start it too early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Periods {
    pub(crate) every: Duration,
    pub(crate) at: Duration,
}

/// One period, by the time of the store since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Period {
    pub(crate) begin: Duration,
    pub(crate) end: Duration,
}

impl Periods {
    /// The shortest length.
    pub(crate) const SHORTEST: Duration = Duration::from_secs(1);

    /// Returns the period to which a run that begins at `now` belongs.
    pub(crate) fn period(&self, now: Duration) -> Period {
        let every = self.every.as_millis().max(1);
        let lead = MAX_LEAD.min(self.every / 10).as_millis();
        // One period is added before the subtraction, so that it does not go below zero.
        let since = now.as_millis() + lead + every - self.at.as_millis() % every;
        let begin = (since / every).saturating_sub(1) * every + self.at.as_millis() % every;
        Period { begin: from_millis(begin), end: from_millis(begin + every) }
    }
}

fn from_millis(millis: u128) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);
    const HOUR: Duration = Duration::from_secs(3600);
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_day_begins_at_the_time_of_day() {
        let periods = Periods { every: DAY, at: 2 * HOUR };
        let (begin, end) = (20_000 * DAY + 2 * HOUR, 20_001 * DAY + 2 * HOUR);
        for now in [begin, begin + SECOND, begin - 59 * SECOND, begin - 60 * SECOND, end - 61 * SECOND] {
            assert_eq!(periods.period(now), Period { begin, end }, "{now:?}");
        }
        assert_eq!(periods.period(begin - 61 * SECOND).end, begin);
        assert_eq!(periods.period(end - 60 * SECOND).begin, end);
    }

    #[test]
    fn short_periods_have_a_short_lead() {
        let periods = Periods { every: 10 * SECOND, at: Duration::ZERO };
        assert_eq!(periods.period(100 * SECOND - Duration::from_millis(1000)).begin, 100 * SECOND);
        assert_eq!(periods.period(100 * SECOND - Duration::from_millis(1001)).begin, 90 * SECOND);
        assert_eq!(periods.period(Duration::ZERO).begin, Duration::ZERO);
    }

    #[test]
    fn periods_follow_each_other_without_a_gap() {
        let periods = Periods { every: 7 * SECOND, at: 3 * SECOND };
        let mut last = periods.period(1000 * SECOND);
        for step in 1..500 {
            let next = periods.period(1000 * SECOND + step * Duration::from_millis(100));
            assert!(next == last || next.begin == last.end, "{last:?} {next:?}");
            last = next;
        }
    }
}
