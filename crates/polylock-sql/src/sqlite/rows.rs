//! What the rows of an answer mean.

use std::time::Duration;

use polylock_core::{Entry, FencingToken, LockName, LockStatus, Mode, OwnerId, RequestId};
use sqlx::{Decode, Error, Row, Sqlite, Type, sqlite::SqliteRow};

/// A time or a distance of times, as microseconds.
pub(super) fn micros(time: Duration) -> i64 {
    // Rounded up: a lease may be longer than asked for, never shorter.
    i64::try_from(time.as_nanos().div_ceil(1000)).unwrap_or(i64::MAX)
}

fn duration(micros: i64) -> Duration {
    Duration::from_micros(micros.max(0).unsigned_abs())
}

/// Where a request stands, as `look.sql` tells it.
pub(super) enum Look {
    /// It holds the lock, for this long.
    Held(FencingToken, Duration),
    /// It waits for this one, whose lease lasts this long, behind so many.
    Behind(RequestId, Duration, u32),
    /// Nobody is in its way.
    Free,
}

pub(super) fn look(rows: &[SqliteRow]) -> Result<Look, Error> {
    let Some(row) = rows.first() else { return Ok(Look::Free) };
    let left = duration(row.try_get(1)?);
    if row.try_get::<Option<i64>, _>(0)?.is_some() {
        return Ok(Look::Held(token(row, 0)?, left));
    }
    let ahead: i64 = row.try_get(3)?;
    Ok(Look::Behind(request(row, 2)?, left, u32::try_from(ahead).unwrap_or(u32::MAX)))
}

pub(super) fn token(row: &SqliteRow, column: usize) -> Result<FencingToken, Error> {
    checked(row, column, |token: i64| FencingToken::new(token))
}

pub(super) fn request(row: &SqliteRow, column: usize) -> Result<RequestId, Error> {
    checked(row, column, |id: Vec<u8>| id.try_into().ok().map(RequestId::from_bytes))
}

/// The locks that `inspect.sql` or `list.sql` tells of, in its order; each row from column `first` on.
pub(super) fn statuses(rows: &[SqliteRow], first: usize) -> Result<Vec<LockStatus>, Error> {
    let mut locks: Vec<LockStatus> = Vec::new();
    for row in rows {
        let name = checked(row, first, |name: Vec<u8>| {
            String::from_utf8(name).ok().and_then(|n| LockName::new(n).ok())
        })?;
        let holds = row.try_get::<Option<i64>, _>(first + 1)?.is_some();
        let token = if holds { Some(token(row, first + 1)?) } else { None };
        let entry = Entry::new(
            checked(row, first + 2, |bit: i64| u8::try_from(bit).ok().and_then(Mode::from_bit))?,
            checked(row, first + 3, |owner: String| OwnerId::new(owner).ok())?,
            row.try_get(first + 4)?,
            token,
            duration(row.try_get(first + 5)?),
            duration(row.try_get(first + 6)?),
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

/// What `read` makes of a column; rows that polylock can't have written are an error, not a panic.
fn checked<'r, T, V>(row: &'r SqliteRow, column: usize, read: impl FnOnce(T) -> Option<V>) -> Result<V, Error>
where
    T: Decode<'r, Sqlite> + Type<Sqlite>,
{
    read(row.try_get(column)?).ok_or_else(|| Error::ColumnDecode {
        index: column.to_string(),
        source: "the row holds what polylock never writes".into(),
    })
}
