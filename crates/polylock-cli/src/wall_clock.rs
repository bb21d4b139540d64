//! The wall clock, which is printed and decides nothing.

use std::time::{Duration, SystemTime};

/// The time of day, for people and logs.
pub(crate) fn now() -> SystemTime {
    #[expect(clippy::disallowed_methods, reason = "printed for people and logs; no decision rests on it")]
    SystemTime::now()
}

/// As RFC 3339 in UTC, to the millisecond.
pub(crate) fn timestamp() -> String {
    humantime::format_rfc3339_millis(now()).to_string()
}

/// Milliseconds since 1970 at the time this far from now.
pub(crate) fn epoch_ms_in(time: Duration) -> u128 {
    (now() + time).duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis())
}
