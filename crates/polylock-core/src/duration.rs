//! Durations in the form that people write in URLs, config files and on the command line.

use std::{ops::RangeInclusive, time::Duration};

use crate::ConfigError;

/// Parses `1m30s`, `250ms`, or a bare number of seconds with an optional fraction: `2.5`.
///
/// # Errors
/// A sentence that states the accepted forms.
///
/// ```
/// use std::time::Duration;
/// use polylock_core::duration::parse;
///
/// assert_eq!(parse("1m30s"), Ok(Duration::from_secs(90)));
/// assert_eq!(parse("0.25"), Ok(Duration::from_millis(250)));
/// assert!(parse("soon").is_err());
/// ```
pub fn parse(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let bare =
        text.starts_with(|c: char| c.is_ascii_digit()) && !text.contains(|c: char| c.is_ascii_alphabetic());
    let duration = if bare {
        text.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    } else {
        humantime::parse_duration(text).ok()
    };
    duration.ok_or_else(|| format!("{text:?} is not a duration: write seconds (2.5) or units (1m30s, 250ms)"))
}

/// Formats a duration in a form that [`parse`] accepts: `1m 30s`.
#[must_use]
pub fn format(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}

/// Checks that `duration`, the value of `key`, is in `range`.
///
/// # Errors
/// [`ConfigError`] on `key` that states the range, as in `must be 5ms to 1m`.
pub fn check(key: &str, duration: Duration, range: &RangeInclusive<Duration>) -> Result<(), ConfigError> {
    if range.contains(&duration) {
        return Ok(());
    }
    let [shortest, longest] = [*range.start(), *range.end()].map(in_hours);
    Err(ConfigError::new(key, format!("must be {shortest} to {longest}")))
}

/// Formats a duration, without days.
fn in_hours(duration: Duration) -> String {
    const HOUR: Duration = Duration::from_secs(3600);
    if duration.as_nanos().is_multiple_of(HOUR.as_nanos()) {
        return format!("{}h", duration.as_secs() / HOUR.as_secs());
    }
    format(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_about_a_range_is_made_from_the_range() {
        let range = |start, end| Duration::from_millis(start)..=Duration::from_millis(end);
        for (range, problem) in [
            (range(100, 600_000), "must be 100ms to 10m"),
            (range(300, 24 * 3_600_000), "must be 300ms to 24h"),
            (range(5, 60_000), "must be 5ms to 1m"),
            (range(2, 1000), "must be 2ms to 1s"),
            (range(10, 3_600_000), "must be 10ms to 1h"),
        ] {
            for inside in [*range.start(), *range.end()] {
                assert_eq!(check("key", inside, &range), Ok(()));
            }
            for outside in [Duration::ZERO, *range.end() + Duration::from_nanos(1)] {
                assert_eq!(check("key", outside, &range), Err(ConfigError::new("key", problem)));
            }
        }
    }

    #[test]
    fn odd_texts_are_refused_and_never_panic() {
        for text in
            ["", "-1", "1e400", "nan", "inf", "1 parsec", "--", "99999999999999999999999", "1h-2m", "é"]
        {
            assert!(parse(text).is_err(), "{text:?}");
        }
        assert_eq!(parse("0"), Ok(Duration::ZERO));
        assert_eq!(parse(&format(Duration::from_millis(61_500))), Ok(Duration::from_millis(61_500)));
    }
}
