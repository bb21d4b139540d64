//! Reads the grants that a release has made, as `release.sql` returns them.

use polylock_core::{
    FencingToken, Grant, RequestId,
    wakeups::{Handover, WaiterId},
};
use sqlx::Error;

use crate::engine::{
    columns::{Columns, require, unhex},
    rows::duration,
};

/// Reads all grants from `column` of `row`: the request in hexadecimal digits, its queue position, the token, and the rest of the lease
/// in us, separated by spaces, with a comma after each grant.
pub(super) fn read(row: &impl Columns, column: usize) -> Result<Vec<Handover>, Error> {
    let text = row.text(column)?.unwrap_or_default();
    text.split_terminator(',').map(|grant| parse(column, grant)).collect()
}

fn parse(column: usize, text: &str) -> Result<Handover, Error> {
    let fields: Vec<&str> = text.split(' ').collect();
    let &[request, position, token, left] = fields.as_slice() else { return require(column, None) };
    let request = unhex(column, request)?.try_into().ok().map(RequestId::from_bytes);
    let token = token.parse::<i64>().ok().and_then(FencingToken::new);
    Ok(Handover {
        waiter: WaiterId::Request(require(column, request)?),
        position: require(column, position.parse().ok())?,
        grant: Grant::new(require(column, token)?, duration(Some(require(column, left.parse().ok())?))),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn grants_are_decoded_and_invalid_text_is_an_error() {
        let read = |text: &str| {
            text.split_terminator(',').map(|grant| parse(2, grant)).collect::<Result<Vec<_>, _>>()
        };
        let grant = |id, position, token, left| Handover {
            waiter: WaiterId::Request(RequestId::from_bytes([id; 16])),
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
