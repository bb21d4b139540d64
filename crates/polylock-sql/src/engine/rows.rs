//! What the rows of an answer mean, the same for every database.

use std::{fmt::Write, time::Duration};

use polylock_core::{Entry, FencingToken, LockName, LockStatus, Mode, OwnerId, RequestId};
use sqlx::Error;

/// A time or a distance of times, as microseconds.
pub(crate) fn micros(time: Duration) -> i64 {
    // Rounded up: a lease may be longer than asked for, never shorter.
    i64::try_from(time.as_nanos().div_ceil(1000)).unwrap_or(i64::MAX)
}

fn duration(micros: Option<i64>) -> Duration {
    Duration::from_micros(micros.unwrap_or(0).max(0).unsigned_abs())
}

/// Two digits a byte, lower case.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        write!(text, "{byte:02x}").ok();
    }
    text
}

/// The bytes that [`hex`] wrote as `digits` into a column.
#[cfg(feature = "postgres")]
pub(crate) fn unhex(column: usize, digits: &str) -> Result<Vec<u8>, Error> {
    let pair = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
    known(column, digits.as_bytes().chunks(2).map(pair).collect())
}

/// How the columns of a row are read, by position.
pub(crate) trait Columns {
    fn int(&self, column: usize) -> Result<Option<i64>, Error>;
    fn bytes(&self, column: usize) -> Result<Vec<u8>, Error>;
    fn text(&self, column: usize) -> Result<String, Error>;
}

/// Where a request stands: `Held` from a row (token, what is left of the lease, ...), `Behind` from a row (NULL, what is
/// left of the lease of the last in its way, whatever, number of conflicting entries ahead), `Free` from none.
pub(crate) enum Look {
    /// It holds the lock, for this long.
    Held(FencingToken, Duration),
    /// It waits for one whose lease lasts this long, behind so many.
    Behind { left: Duration, ahead: u32 },
    /// Nobody is in its way.
    Free,
}

pub(crate) fn look(rows: &[impl Columns]) -> Result<Look, Error> {
    let Some(row) = rows.first() else { return Ok(Look::Free) };
    let left = duration(row.int(1)?);
    if row.int(0)?.is_some() {
        return Ok(Look::Held(token(row, 0)?, left));
    }
    let ahead = u32::try_from(row.int(3)?.unwrap_or(0)).unwrap_or(u32::MAX);
    Ok(Look::Behind { left, ahead })
}

fn token(row: &impl Columns, column: usize) -> Result<FencingToken, Error> {
    known(column, row.int(column)?.and_then(FencingToken::new))
}

pub(crate) fn request(row: &impl Columns, column: usize) -> Result<RequestId, Error> {
    known(column, row.bytes(column)?.try_into().ok().map(RequestId::from_bytes))
}

/// The requests that the first column names.
pub(crate) fn requests(rows: &[impl Columns]) -> Result<Vec<RequestId>, Error> {
    rows.iter().map(|row| request(row, 0)).collect()
}

/// The locks that rows (name, token or NULL, mode, owner, label, age, what is left of the lease) tell of, in their order;
/// each row from column `first` on.
pub(crate) fn statuses(rows: &[impl Columns], first: usize) -> Result<Vec<LockStatus>, Error> {
    let mut locks: Vec<LockStatus> = Vec::new();
    for row in rows {
        let name = String::from_utf8(row.bytes(first)?).ok().and_then(|name| LockName::new(name).ok());
        let name = known(first, name)?;
        let holds = row.int(first + 1)?.is_some();
        let token = if holds { Some(token(row, first + 1)?) } else { None };
        let mode = row.int(first + 2)?.and_then(|bit| u8::try_from(bit).ok()).and_then(Mode::from_bit);
        let entry = Entry::new(
            known(first + 2, mode)?,
            OwnerId::sanitized(&row.text(first + 3)?),
            &row.text(first + 4)?,
            token,
            duration(row.int(first + 5)?),
            duration(row.int(first + 6)?),
        );
        if locks.last().is_none_or(|lock| lock.name != name) {
            locks.push(LockStatus::new(name, Vec::new(), Vec::new()));
        }
        if let Some(lock) = locks.last_mut() {
            if holds { lock.holders.push(entry) } else { lock.waiters.push(entry) }
        }
    }
    Ok(locks)
}

/// A value, or, where polylock can't have written what is there, an error, not a panic.
fn known<T>(column: usize, value: Option<T>) -> Result<T, Error> {
    value.ok_or_else(|| Error::ColumnDecode {
        index: column.to_string(),
        source: "the row holds what polylock never writes".into(),
    })
}
