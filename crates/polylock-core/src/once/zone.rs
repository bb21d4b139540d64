//! The days of a time zone.

use std::{ops::Range, time::Duration};

use jiff::{
    SignedDuration, Timestamp,
    civil::{self, DateTime},
    tz,
};

use crate::url::nearest;

/// A time zone, by whose calendar the periods of a job are counted: see [`Once::time_zone`](super::Once::time_zone).
///
/// Its rules come from the time zone database of the system (`/usr/share/zoneinfo`, or the directory in the variable `TZDIR`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimeZone(tz::TimeZone);

/// A time zone that can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidTimeZone {
    /// The database has no zone of this name.
    #[error("there is no time zone {name:?}; {}", self.suggestion())]
    Unknown {
        /// The name.
        name: String,
        /// The name that was probably meant.
        nearest: Option<String>,
    },
    /// The system has no time zone database.
    #[error("this machine has no time zone database: install it (package tzdata), or use UTC")]
    NoDatabase,
    /// The zone of the machine can't be determined.
    #[error(
        "the time zone of this machine is unknown: name a zone such as Europe/London, or correct /etc/localtime and TZ"
    )]
    NoLocal,
}

impl InvalidTimeZone {
    fn unknown(name: &str, known: impl Iterator<Item = String>) -> Self {
        let known: Vec<String> = known.collect();
        if known.is_empty() {
            return Self::NoDatabase;
        }
        let nearest = nearest(name, known.iter().map(String::as_str)).map(str::to_owned);
        Self::Unknown { name: name.to_owned(), nearest }
    }

    fn suggestion(&self) -> String {
        match self {
            Self::Unknown { nearest: Some(nearest), .. } => format!("did you mean {nearest}?"),
            _ => "write a name of the time zone database, such as Europe/London".to_owned(),
        }
    }
}

impl TimeZone {
    /// Returns the time zone with this name in the time zone database, such as `Europe/London`. UTC needs no database.
    ///
    /// # Errors
    /// [`InvalidTimeZone`] if there is no such zone, or no database.
    pub fn named(name: &str) -> Result<Self, InvalidTimeZone> {
        if name.eq_ignore_ascii_case("UTC") {
            return Ok(Self(tz::TimeZone::UTC));
        }
        let unknown = |_| InvalidTimeZone::unknown(name, tz::db().available().map(|name| name.to_string()));
        tz::TimeZone::get(name).map(Self).map_err(unknown)
    }

    /// Returns the time zone of this machine: that of the variable `TZ`, else of `/etc/localtime`.
    ///
    /// # Errors
    /// [`InvalidTimeZone::NoLocal`] if it can't be determined.
    pub fn local() -> Result<Self, InvalidTimeZone> {
        let known = tz::TimeZone::try_system().ok().filter(|zone| !zone.is_unknown());
        known.map(Self).ok_or(InvalidTimeZone::NoLocal)
    }

    pub(super) fn is_utc(&self) -> bool {
        self.0 == tz::TimeZone::UTC
    }

    /// Returns the period of this many days that contains `time`. It begins at the time of day `at`. `None` if the calendar ends before.
    pub(super) fn period(&self, days: u64, at: Duration, time: Duration) -> Option<Range<Duration>> {
        let (days, time) = (i64::try_from(days).ok()?, i64::try_from(time.as_millis()).ok()?);
        let date = self.0.to_datetime(Timestamp::from_millisecond(time).ok()?).date();
        let begin = |number: i64| self.begin(number * days, at);
        // The date may be later than that of the period, because of `at`, or earlier, where a clock goes back over midnight.
        let mut number = (date.duration_since(MIDNIGHT_1970.date()).as_hours() / 24).div_euclid(days) + 1;
        while begin(number)? > time {
            number -= 1;
        }
        let since_1970 = |millis: i64| Duration::from_millis(u64::try_from(millis).unwrap_or_default());
        Some(since_1970(begin(number)?)..since_1970(begin(number + 1)?))
    }

    /// Returns the time `at` of this day after 1 January 1970, in milliseconds since 1970: the first one if the clock shows it twice, and
    /// the end of the gap if the clock skips it.
    fn begin(&self, day: i64, at: Duration) -> Option<i64> {
        let local = MIDNIGHT_1970.checked_add(SignedDuration::from_hours(24 * day)).ok()?;
        let local = local.checked_add(at).ok()?;
        let ambiguous = self.0.to_ambiguous_timestamp(local);
        let begin = match ambiguous.offset() {
            tz::AmbiguousOffset::Gap { after, .. } => {
                // With the later offset, a time in the gap is a moment before the gap.
                let before = after.to_timestamp(local).ok()?;
                self.0.following(before).next()?.timestamp()
            }
            _ => ambiguous.earlier().ok()?,
        };
        Some(begin.as_millisecond())
    }
}

const MIDNIGHT_1970: DateTime = civil::date(1970, 1, 1).at(0, 0, 0, 0);

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    /// Returns the number of milliseconds since 1970 of a time in UTC.
    fn utc(text: &str) -> Duration {
        Duration::from_millis(text.parse::<Timestamp>().unwrap().as_millisecond().try_into().unwrap())
    }

    /// Checks that the periods of a day from `at` on begin at these times in UTC, and that every time belongs to one of them.
    fn assert_days(zone: &str, at: &str, begins: &[&str]) {
        let zone_of = TimeZone::named(zone).unwrap();
        let at = at.split_once(':').map(|(hour, minute)| {
            Duration::from_secs(60 * (60 * hour.parse::<u64>().unwrap() + minute.parse::<u64>().unwrap()))
        });
        for pair in begins.windows(2) {
            let (begin, end) = (utc(pair[0]), utc(pair[1]));
            let quarters = (0..).map(|quarter| begin + quarter * (HOUR / 4)).take_while(|time| *time < end);
            for time in quarters.chain([end - Duration::from_millis(1)]) {
                let period = zone_of.period(1, at.unwrap(), time);
                assert_eq!(period, Some(begin..end), "{zone} {time:?} of {pair:?}");
            }
        }
    }

    #[test]
    fn days_have_23_and_25_hours() {
        let spring = ["2027-03-27T00:00Z", "2027-03-28T00:00Z", "2027-03-28T23:00Z", "2027-03-29T23:00Z"];
        assert_days("Europe/London", "00:00", &spring);
        let autumn = ["2027-10-29T23:00Z", "2027-10-30T23:00Z", "2027-11-01T00:00Z", "2027-11-02T00:00Z"];
        assert_days("Europe/London", "00:00", &autumn);
        // Half an hour, in the southern summer.
        assert_days(
            "Australia/Lord_Howe",
            "12:00",
            &["2027-04-03T01:00Z", "2027-04-04T01:30Z", "2027-04-05T01:30Z"],
        );
    }

    #[test]
    fn a_time_that_the_clock_skips_is_the_end_of_the_gap() {
        for at in ["01:00", "01:30", "01:59"] {
            let before = format!("2027-03-27T{at}Z");
            let after = utc(&format!("2027-03-29T{at}Z")) - HOUR;
            let period = Timestamp::from_millisecond(after.as_millis().try_into().unwrap()).unwrap();
            assert_days("Europe/London", at, &[&before, "2027-03-28T01:00Z", &period.to_string()]);
        }
        assert_days(
            "America/New_York",
            "02:30",
            &["2027-03-13T07:30Z", "2027-03-14T07:00Z", "2027-03-15T06:30Z"],
        );
        // Midnight is skipped.
        assert_days(
            "Africa/Cairo",
            "00:00",
            &["2027-04-28T22:00Z", "2027-04-29T22:00Z", "2027-04-30T21:00Z"],
        );
    }

    #[test]
    fn a_time_that_the_clock_shows_twice_is_the_first_one() {
        let begins = ["2027-10-30T00:30Z", "2027-10-31T00:30Z", "2027-11-01T01:30Z"];
        assert_days("Europe/London", "01:30", &begins);
        assert_days(
            "America/New_York",
            "01:00",
            &["2027-11-06T05:00Z", "2027-11-07T05:00Z", "2027-11-08T06:00Z"],
        );
        // The clock goes back from midnight to 23:00: the date is that of the day before for two hours.
        assert_days(
            "Africa/Cairo",
            "23:30",
            &["2027-10-27T20:30Z", "2027-10-28T20:30Z", "2027-10-29T21:30Z"],
        );
        assert_days(
            "Africa/Cairo",
            "00:00",
            &["2027-10-27T21:00Z", "2027-10-28T22:00Z", "2027-10-29T22:00Z"],
        );
    }

    /// Samoa had no 30 December 2011.
    #[test]
    fn a_day_that_does_not_exist_has_no_period() {
        assert_days(
            "Pacific/Apia",
            "00:00",
            &["2011-12-28T10:00Z", "2011-12-29T10:00Z", "2011-12-30T10:00Z", "2011-12-31T10:00Z"],
        );
    }

    #[test]
    fn several_days_are_counted_from_1970() {
        let zone = TimeZone::named("Europe/London").unwrap();
        let at_night = 2 * HOUR;
        let period = zone.period(7, at_night, utc("2027-03-28T12:00Z")).unwrap();
        assert_eq!([period.start, period.end], [utc("2027-03-25T02:00Z"), utc("2027-04-01T01:00Z")]);
        assert_eq!(zone.period(7, at_night, period.end).unwrap().start, period.end);
        // 1970 had not begun then, and years after 9999 have no calendar.
        let first = zone.period(1, Duration::ZERO, Duration::ZERO).unwrap();
        assert_eq!([first.start, first.end], [Duration::ZERO, 23 * HOUR]);
        assert_eq!(zone.period(1, Duration::ZERO, Duration::MAX), None);
        assert_eq!(zone.period(3652, Duration::ZERO, utc("9999-06-01T00:00Z")), None);
    }

    #[test]
    fn the_error_says_what_to_write() {
        let message = |name: &str| TimeZone::named(name).unwrap_err().to_string();
        assert_eq!(
            message("Europe/Lodnon"),
            "there is no time zone \"Europe/Lodnon\"; did you mean Europe/London?"
        );
        assert!(message("").ends_with("such as Europe/London"), "{}", message(""));
        assert!(message("../passwd").contains("there is no time zone"), "{}", message("../passwd"));
        let without = InvalidTimeZone::unknown("Europe/London", std::iter::empty());
        assert_eq!(without, InvalidTimeZone::NoDatabase);
        assert!(TimeZone::named("utc").unwrap().is_utc());
    }
}
