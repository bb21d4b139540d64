//! Durations in the form that people write in URLs, config files and on the command line.

use std::time::Duration;

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

#[cfg(test)]
mod tests {
    use super::*;

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
