//! The reply of `hand_over.sql`.

use polylock_core::{FencingToken, Grant, RequestId};
use sqlx::{Row, sqlite::SqliteRow};

use crate::engine::rows::{self, Columns};

/// What a release has done.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HandOver {
    /// Whether there was a hold to be released.
    pub(super) released: bool,
    pub(super) grants: Vec<Granted>,
}

/// A waiter that was granted the lock.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Granted {
    pub(super) waiter: Next,
    pub(super) grant: Grant,
}

/// A waiter whose turn it was.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Next {
    pub(super) request: RequestId,
    pub(super) place: u64,
    /// Where its process wants to be woken, and by which number; `None` if it looks itself.
    pub(super) channel: Option<Vec<u8>>,
    pub(super) ticket: i64,
}

impl HandOver {
    /// From rows of one column for the holds, of four for the waiters, and of three for the grants.
    pub(super) fn read(answer: &[SqliteRow]) -> Result<Self, sqlx::Error> {
        let mut next = Vec::new();
        let mut outcome = Self { released: false, grants: Vec::new() };
        for row in answer {
            match row.len() {
                1 => outcome.released |= row.int(0)? == Some(1),
                4 => next.push(Next {
                    request: rows::request(row, 0)?,
                    place: row.int(1)?.unwrap_or_default().unsigned_abs(),
                    channel: row.try_get(2)?,
                    ticket: row.int(3)?.unwrap_or_default(),
                }),
                _ => {
                    let request = rows::request(row, 0)?;
                    let token = row.int(1)?.and_then(FencingToken::new);
                    let waiter = next.iter().position(|waiter| waiter.request == request);
                    // One that is not among them has joined between the statements, which is impossible: it finds its grant itself.
                    if let (Some(token), Some(waiter)) = (token, waiter) {
                        let grant = Grant::new(token, rows::duration(row.int(2)?));
                        outcome.grants.push(Granted { waiter: next.swap_remove(waiter), grant });
                    }
                }
            }
        }
        Ok(outcome)
    }
}
