//! The periods of a job, as pure functions of the time of the store.

use std::time::Duration;

use crate::{ConfigError, duration};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// The longest time before the begin of a period that counts as a part of it.
const MAX_LEAD: Duration = Duration::from_secs(60);

/// Periods of equal length, aligned to a time of day in UTC.
///
/// A run that begins shortly before a period counts for that period: for a minute, or a tenth of the period if that is less. The machines
/// that start a job at the begin of a period have clocks that differ by seconds, so some of them start it too early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Periods {
    pub(super) every: Duration,
    pub(super) at: Duration,
}

/// One period, by the time of the store since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Period {
    pub(super) begin: Duration,
    pub(super) end: Duration,
}

impl Periods {
    const SHORTEST: Duration = Duration::from_secs(1);
    const LONGEST: Duration = Duration::from_secs(3652 * 24 * 3600);

    /// # Errors
    /// [`ConfigError`] on `every` or `at` if there are no such periods.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        duration::check("every", self.every, &(Self::SHORTEST..=Self::LONGEST))?;
        if self.at >= DAY {
            return Err(ConfigError::new("at", "must be a time of day, before 24:00"));
        }
        let (every, day) = (self.every.as_nanos(), DAY.as_nanos());
        if !self.at.is_zero() && every % day != 0 && day % every != 0 {
            let problem = format!(
                "has no meaning for periods of {}: set a period that divides a day, such as 6h, or whole days",
                duration::format(self.every)
            );
            return Err(ConfigError::new("at", problem));
        }
        Ok(())
    }

    /// Returns the period to which a run that begins at `now` belongs.
    pub(super) fn at_time(&self, now: Duration) -> Period {
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

    const HOUR: Duration = Duration::from_secs(3600);
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_day_begins_at_the_time_of_day() {
        let periods = Periods { every: DAY, at: 2 * HOUR };
        let (begin, end) = (20_000 * DAY + 2 * HOUR, 20_001 * DAY + 2 * HOUR);
        for now in [begin, begin + SECOND, begin - 59 * SECOND, begin - 60 * SECOND, end - 61 * SECOND] {
            assert_eq!(periods.at_time(now), Period { begin, end }, "{now:?}");
        }
        assert_eq!(periods.at_time(begin - 61 * SECOND).end, begin);
        assert_eq!(periods.at_time(end - 60 * SECOND).begin, end);
    }

    #[test]
    fn short_periods_have_a_short_lead() {
        let periods = Periods { every: 10 * SECOND, at: Duration::ZERO };
        assert_eq!(periods.at_time(100 * SECOND - Duration::from_millis(1000)).begin, 100 * SECOND);
        assert_eq!(periods.at_time(100 * SECOND - Duration::from_millis(1001)).begin, 90 * SECOND);
        assert_eq!(periods.at_time(Duration::ZERO).begin, Duration::ZERO);
    }

    #[test]
    fn periods_follow_each_other_without_a_gap() {
        let periods = Periods { every: 7 * SECOND, at: 3 * SECOND };
        let mut last = periods.at_time(1000 * SECOND);
        for step in 1..500 {
            let next = periods.at_time(1000 * SECOND + step * Duration::from_millis(100));
            assert!(next == last || next.begin == last.end, "{last:?} {next:?}");
            last = next;
        }
    }

    #[test]
    fn periods_without_a_meaning_are_refused() {
        let key = |every: Duration, at: Duration| Periods { every, at }.check().err().map(|error| error.key);
        for (every, at) in [
            (DAY, HOUR),
            (7 * DAY, HOUR),
            (HOUR, 60 * SECOND),
            (SECOND, Duration::ZERO),
            (7 * SECOND, Duration::ZERO),
        ] {
            assert_eq!(key(every, at), None, "{every:?} {at:?}");
        }
        assert_eq!(key(DAY, DAY).as_deref(), Some("at"));
        assert_eq!(key(7 * HOUR, HOUR).as_deref(), Some("at"));
        assert_eq!(key(SECOND / 2, Duration::ZERO).as_deref(), Some("every"));
        assert_eq!(key(3653 * DAY, Duration::ZERO).as_deref(), Some("every"));
    }
}
