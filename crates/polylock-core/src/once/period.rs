//! The periods of a job, as pure functions of the time of the store.

use std::time::Duration;

use super::zone::TimeZone;
use crate::{ConfigError, duration};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// The longest time before the begin of a period that counts as a part of it.
const MAX_LEAD: Duration = Duration::from_secs(60);

/// Periods of equal length, aligned to a time of day in UTC; or those of a number of days in a time zone, which may have 23 or 25 hours.
///
/// A run that begins shortly before a period counts for that period: for a minute, or a tenth of the period if that is less. The machines
/// that start a job at the begin of a period have clocks that differ by seconds, so some of them start it too early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Periods {
    pub(super) every: Duration,
    pub(super) at: Duration,
    /// `None` is UTC.
    pub(super) zone: Option<TimeZone>,
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
        if self.zone.is_some() && every % day != 0 {
            let problem = format!(
                "has no meaning for periods of {}: set a period of whole days, such as 1d, or omit the time zone",
                duration::format(self.every)
            );
            return Err(ConfigError::new("time_zone", problem));
        }
        Ok(())
    }

    /// Returns the period to which a run that begins at `now` belongs.
    pub(super) fn at_time(&self, now: Duration) -> Period {
        self.containing(now.saturating_add(MAX_LEAD.min(self.every / 10)))
    }

    /// Returns the time at which a job is due again that is not due in the period `present`, because of a run in a period that began at
    /// `last`: by another length, perhaps, or before the clock was set back.
    pub(super) fn due_after(&self, last: Duration, present: Period) -> Duration {
        self.containing(last.max(present.begin)).end
    }

    /// Returns the period that contains `time`.
    fn containing(&self, time: Duration) -> Period {
        let days = self.every.as_secs() / DAY.as_secs();
        if let Some(days) = self.zone.as_ref().and_then(|zone| zone.period(days, self.at, time)) {
            return Period { begin: days.start, end: days.end };
        }
        let every = self.every.as_millis().max(1);
        // One period is added before the subtraction, so that it does not go below zero.
        let since = time.as_millis() + every - self.at.as_millis() % every;
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
        let periods = Periods { every: DAY, at: 2 * HOUR, zone: None };
        let (begin, end) = (20_000 * DAY + 2 * HOUR, 20_001 * DAY + 2 * HOUR);
        for now in [begin, begin + SECOND, begin - 59 * SECOND, begin - 60 * SECOND, end - 61 * SECOND] {
            assert_eq!(periods.at_time(now), Period { begin, end }, "{now:?}");
        }
        assert_eq!(periods.at_time(begin - 61 * SECOND).end, begin);
        assert_eq!(periods.at_time(end - 60 * SECOND).begin, end);
    }

    #[test]
    fn short_periods_have_a_short_lead() {
        let periods = Periods { every: 10 * SECOND, at: Duration::ZERO, zone: None };
        assert_eq!(periods.at_time(100 * SECOND - Duration::from_millis(1000)).begin, 100 * SECOND);
        assert_eq!(periods.at_time(100 * SECOND - Duration::from_millis(1001)).begin, 90 * SECOND);
        assert_eq!(periods.at_time(Duration::ZERO).begin, Duration::ZERO);
    }

    #[test]
    fn periods_follow_each_other_without_a_gap() {
        let periods = Periods { every: 7 * SECOND, at: 3 * SECOND, zone: None };
        let mut last = periods.at_time(1000 * SECOND);
        for step in 1..500 {
            let next = periods.at_time(1000 * SECOND + step * Duration::from_millis(100));
            assert!(next == last || next.begin == last.end, "{last:?} {next:?}");
            last = next;
        }
    }

    #[test]
    fn a_job_that_was_skipped_is_due_in_a_later_period_of_the_same_length() {
        let periods = Periods { every: DAY, at: 2 * HOUR, zone: None };
        let begin = 20_000 * DAY + 2 * HOUR;
        let present = periods.at_time(begin + 9 * HOUR);
        // A run of this period; one of an hour in it, which is over; and one of the next period, before the clock was set back.
        assert_eq!(periods.due_after(begin, present), begin + DAY);
        assert_eq!(periods.due_after(begin + HOUR, present), begin + DAY);
        assert_eq!(periods.due_after(begin + DAY - 30 * SECOND, present), begin + DAY);
        assert_eq!(periods.due_after(begin + DAY, present), begin + 2 * DAY);
    }

    #[test]
    fn periods_without_a_meaning_are_refused() {
        let key = |every: Duration, at: Duration| {
            Periods { every, at, zone: None }.check().err().map(|error| error.key)
        };
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

    #[test]
    #[cfg(feature = "time-zones")]
    fn days_of_a_time_zone() {
        let zone = TimeZone::named("Asia/Kolkata").unwrap();
        let periods = |every: Duration| Periods { every, at: 2 * HOUR, zone: Some(zone.clone()) };
        // 02:00 is 20:30 of the day before in UTC.
        let begin = 20_000 * DAY + 20 * HOUR + HOUR / 2;
        assert_eq!(periods(DAY).at_time(begin - 60 * SECOND), Period { begin, end: begin + DAY });
        assert_eq!(periods(DAY).at_time(begin - 61 * SECOND).end, begin);
        assert_eq!(periods(2 * DAY).check(), Ok(()));
        let error = periods(6 * HOUR).check().unwrap_err();
        assert_eq!(error.key, "time_zone");
    }
}
