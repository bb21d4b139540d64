//! The wall clock, for display only.

use std::time::{Duration, SystemTime};

/// Returns the time of day, for display and logs.
pub(crate) fn now() -> SystemTime {
    #[expect(clippy::disallowed_methods, reason = "printed for people and logs; no decision rests on it")]
    SystemTime::now()
}

/// Returns the time as RFC 3339 in UTC, in milliseconds.
pub(crate) fn timestamp() -> String {
    humantime::format_rfc3339_millis(now()).to_string()
}

/// Returns the time after `time` from now in milliseconds since 1970.
pub(crate) fn epoch_ms_in(time: Duration) -> u128 {
    (now() + time).duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis())
}

/// Returns the time since 1970 as RFC 3339 in UTC, in seconds.
pub(crate) fn at(since_1970: Duration) -> String {
    humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + since_1970).to_string()
}
