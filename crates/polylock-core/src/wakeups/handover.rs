//! The grant of a lock to a waiter, and the identity of that waiter.

use std::time::Duration;

use crate::{FencingToken, Grant, RequestId};

/// The identity of a waiter of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaiterId {
    /// The number that its claim has stored. It is not a secret: stores identify requests by their ids.
    Ticket(u64),
    /// Its request.
    Request(RequestId),
}

/// The grant of a lock to a waiter, made by the release of another request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handover {
    /// The waiter.
    pub waiter: WaiterId,
    /// The queue position for which the grant was made.
    pub position: u64,
    /// The grant.
    pub grant: Grant,
}

impl Handover {
    /// Creates a handover from the ticket, the queue position, the token and the remaining lease in microseconds; returns `None` if one
    /// of them is out of range.
    #[must_use]
    pub fn new([ticket, position, token, left]: [i64; 4]) -> Option<Self> {
        let lease = Duration::from_micros(u64::try_from(left).ok()?);
        Some(Self {
            waiter: WaiterId::Ticket(u64::try_from(ticket).ok()?),
            position: u64::try_from(position).ok()?,
            grant: Grant::new(FencingToken::new(token)?, lease),
        })
    }

    /// Parses a notification: the four numbers of [`new`](Self::new), separated by spaces.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let numbers: Vec<i64> = text.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
        Self::new(numbers.try_into().ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handover_is_parsed_from_four_valid_numbers() {
        let grant = Grant::new(FencingToken::new(9).unwrap(), Duration::from_millis(1500));
        let handover = Handover { waiter: WaiterId::Ticket(3), position: 7, grant };
        assert_eq!(Handover::parse("3 7 9 1500000"), Some(handover));
        for text in ["", "0", "3 7 9", "3 7 9 1500000 1", "3 7 9 -1", "3 7 -9 5", "3 -7 9 5", "a b c d"] {
            assert_eq!(Handover::parse(text), None, "{text:?}");
        }
    }
}
