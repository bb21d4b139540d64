//! Reads the grants that a release has made, as `release.sql` returns them.

use polylock_core::{FencingToken, Grant, RequestId, wakeups::Wakeups};
use sqlx::Error;

use crate::engine::{
    columns::{Columns, require, unhex},
    rows::duration,
};

/// The grant of a lock to a waiter.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct GrantedWaiter {
    request: RequestId,
    /// The queue position for which the grant was made.
    position: u64,
    grant: Grant,
}

impl GrantedWaiter {
    /// Reads all grants from `column` of `row`: the request in hexadecimal digits, its queue position, the token, and the rest of
    /// the lease in us, separated by spaces, with a comma after each grant.
    pub(super) fn read(row: &impl Columns, column: usize) -> Result<Vec<Self>, Error> {
        let text = row.text(column)?.unwrap_or_default();
        text.split_terminator(',').map(|grant| Self::parse(column, grant)).collect()
    }

    fn parse(column: usize, text: &str) -> Result<Self, Error> {
        let fields: Vec<&str> = text.split(' ').collect();
        let &[request, position, token, left] = fields.as_slice() else { return require(column, None) };
        let request = unhex(column, request)?.try_into().ok().map(RequestId::from_bytes);
        let token = token.parse::<i64>().ok().and_then(FencingToken::new);
        Ok(Self {
            request: require(column, request)?,
            position: require(column, position.parse().ok())?,
            grant: Grant::new(require(column, token)?, duration(Some(require(column, left.parse().ok())?))),
        })
    }

    /// Wakes the waiter with its grant, if it belongs to this process.
    pub(super) fn deliver(self, wakeups: &Wakeups) {
        wakeups.grant(self.request, self.position, self.grant);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn grants_are_decoded_and_invalid_text_is_an_error() {
        let read = |text: &str| {
            text.split_terminator(',')
                .map(|grant| GrantedWaiter::parse(2, grant))
                .collect::<Result<Vec<_>, _>>()
        };
        let grant = |id, position, token, left| GrantedWaiter {
            request: RequestId::from_bytes([id; 16]),
            position,
            grant: Grant::new(FencingToken::new(token).unwrap(), Duration::from_micros(left)),
        };
        let (first, second) = ("AB".repeat(16), "07".repeat(16));
        let text = format!("{first} 7 9 1500000,{second} 8 10 0,");
        assert_eq!(read(&text).unwrap(), [grant(0xab, 7, 9, 1_500_000), grant(7, 8, 10, 0)]);
        assert_eq!(read("").unwrap(), []);
        for invalid in
            ["x", "AB 7 9 1", &format!("{first} 7 9"), &format!("{first} 7 -9 1"), &format!("{first} -7 9 1")]
        {
            assert!(read(invalid).is_err(), "{invalid}");
        }
    }
}
