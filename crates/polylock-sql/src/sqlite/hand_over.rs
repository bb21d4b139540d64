//! The reply of `hand_over.sql`.

use polylock_core::{FencingToken, Grant, RequestId};
use sqlx::{Row, sqlite::SqliteRow};

use crate::engine::{columns::Columns, rows};

/// The outcome of a release.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ReleaseOutcome {
    /// True if a hold or a queue entry was removed.
    pub(super) released: bool,
    pub(super) grants: Vec<GrantedWaiter>,
}

/// A waiter that was granted the lock.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct GrantedWaiter {
    pub(super) waiter: NextWaiter,
    pub(super) grant: Grant,
}

/// A waiter that can be granted the lock.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NextWaiter {
    pub(super) request: RequestId,
    pub(super) position: u64,
    /// The socket name of its process, which receives the ticket as wake-up; `None` if that process only polls.
    pub(super) channel: Option<Vec<u8>>,
    pub(super) ticket: i64,
}

impl ReleaseOutcome {
    /// Decodes rows of one column for removed entries, of four for the waiters, and of three for the grants.
    pub(super) fn read(reply: &[SqliteRow]) -> Result<Self, sqlx::Error> {
        let mut next = Vec::new();
        let mut outcome = Self { released: false, grants: Vec::new() };
        for row in reply {
            match row.len() {
                1 => outcome.released |= row.int(0)? == Some(1),
                4 => next.push(NextWaiter {
                    request: rows::request(row, 0)?,
                    position: row.int(1)?.unwrap_or_default().unsigned_abs(),
                    channel: row.try_get(2)?,
                    ticket: row.int(3)?.unwrap_or_default(),
                }),
                _ => {
                    let request = rows::request(row, 0)?;
                    let token = row.int(1)?.and_then(FencingToken::new);
                    let waiter = next.iter().position(|waiter| waiter.request == request);
                    // A waiter that joined between the two statements, which is impossible, would find its grant itself.
                    if let (Some(token), Some(waiter)) = (token, waiter) {
                        let grant = Grant::new(token, rows::duration(row.int(2)?));
                        outcome.grants.push(GrantedWaiter { waiter: next.swap_remove(waiter), grant });
                    }
                }
            }
        }
        Ok(outcome)
    }
}
