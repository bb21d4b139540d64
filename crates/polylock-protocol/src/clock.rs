//! The clock of a server, by which claims expire.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A time by the clock of one server, from its start to its end: as text `SERVER;MICROSECONDS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ServerTime {
    /// The random id of the server's process. Its clock can't be compared with that of another process.
    pub server: u64,
    /// Whole microseconds since an arbitrary time.
    pub us: i64,
}

impl ServerTime {
    /// Returns true if a claim that expires at this time must not be executed at `now`.
    #[must_use]
    pub const fn has_passed(self, now: Self) -> bool {
        self.server != now.server || self.us < now.us
    }
}

impl fmt::Display for ServerTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x};{}", self.server, self.us)
    }
}

impl From<ServerTime> for String {
    fn from(time: ServerTime) -> Self {
        time.to_string()
    }
}

/// The error for a text that is no [`ServerTime`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a time of a server: SERVER;MICROSECONDS")]
pub struct InvalidServerTime;

impl FromStr for ServerTime {
    type Err = InvalidServerTime;

    fn from_str(text: &str) -> Result<Self, InvalidServerTime> {
        let (server, us) = text.split_once(';').ok_or(InvalidServerTime)?;
        let server = u64::from_str_radix(server, 16).map_err(|_| InvalidServerTime)?;
        Ok(Self { server, us: us.parse().map_err(|_| InvalidServerTime)? })
    }
}

impl TryFrom<String> for ServerTime {
    type Error = InvalidServerTime;

    fn try_from(text: String) -> Result<Self, InvalidServerTime> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_survives_its_text_form_and_expires_at_its_own_server_alone() {
        let time = ServerTime { server: 7, us: 1_000 };
        assert_eq!(time.to_string().parse(), Ok(time));
        assert!(!time.has_passed(time));
        assert!(time.has_passed(ServerTime { us: 1_001, ..time }));
        assert!(time.has_passed(ServerTime { server: 8, us: 0 }));
        for text in ["", "7", "x;1", "7;", "7;x"] {
            assert_eq!(text.parse::<ServerTime>(), Err(InvalidServerTime), "{text}");
        }
    }
}
