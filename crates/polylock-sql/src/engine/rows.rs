//! What the rows of an answer mean, the same for every database.

use std::{fmt::Write, time::Duration};

#[cfg(any(feature = "postgres", feature = "mysql"))]
use polylock_core::Release;
use polylock_core::{
    BreakNotice, Entry, FencingToken, LockName, LockStatus, LostReason, Mode, OwnerId, RequestId,
};
use sqlx::Error;

/// A time or a distance of times, as microseconds.
pub(crate) fn micros(time: Duration) -> i64 {
    // Rounded up: a lease may be longer than asked for, never shorter.
    i64::try_from(time.as_nanos().div_ceil(1000)).unwrap_or(i64::MAX)
}

pub(crate) fn duration(micros: Option<i64>) -> Duration {
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

/// The name that the tables keep as these bytes, if it is one.
pub(crate) fn name(bytes: Vec<u8>) -> Option<LockName> {
    LockName::new(String::from_utf8(bytes).ok()?).ok()
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
    /// A text, which others may have written: what is not UTF-8 in it is replaced.
    fn text(&self, column: usize) -> Result<Option<String>, Error>;
}

/// Where a request stands: `Held` from a row (token, what is left of the lease, ...), `Behind` from a row (NULL, what is
/// left of the lease of the last in its way, whatever, number of conflicting entries ahead), `Free` from none.
pub(crate) enum Look {
    /// It holds the lock, for this long.
    Held(FencingToken, Duration),
    /// It waits for one whose lease lasts this long, behind so many, if they were counted.
    Behind { left: Duration, ahead: Option<u32> },
    /// Nobody is in its way.
    Free,
}

/// What a keep-alive has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// A hold, which was extended.
    Held,
    /// A queue entry, which was extended.
    Queued,
    /// A hold that was marked or removed by a break.
    Broken,
    /// Neither a hold nor a queue entry.
    Gone,
    /// An entry that another transaction is changing.
    Contested,
}

/// The reply to a keep-alive: a row whose first column has a letter for each request.
pub(crate) fn states(rows: &[impl Columns]) -> Result<Vec<State>, Error> {
    let letters = rows.first().ok_or(Error::RowNotFound)?.text(0)?.unwrap_or_default();
    let state = |letter| match letter {
        'H' => Some(State::Held),
        'Q' => Some(State::Queued),
        'B' => Some(State::Broken),
        'G' => Some(State::Gone),
        'C' => Some(State::Contested),
        _ => None,
    };
    known(0, letters.chars().map(state).collect())
}

/// Why a request has lost its hold, from a row (notice of a break or NULL) if there is one.
pub(crate) fn loss(rows: &[impl Columns]) -> Result<LostReason, Error> {
    Ok(lost(rows.first().map_or(Ok(None), |row| row.text(0))?))
}

pub(crate) fn look(rows: &[impl Columns]) -> Result<Look, Error> {
    let Some(row) = rows.first() else { return Ok(Look::Free) };
    let left = duration(row.int(1)?);
    if row.int(0)?.is_some() {
        return Ok(Look::Held(token(row, 0)?, left));
    }
    let ahead = row.int(3)?.map(|ahead| u32::try_from(ahead).unwrap_or(u32::MAX));
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

/// The reply to an operation that expires: the server's clock, and the outcome unless the operation had expired.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) struct Timed<T> {
    pub(crate) clock_us: i64,
    pub(crate) outcome: Option<T>,
}

/// The reply to a claim: a row as [`look`] reads it, with the clock in the fifth column; both of the first are NULL if the claim
/// had expired.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn timed_look(rows: &[impl Columns]) -> Result<Timed<Look>, Error> {
    let row = rows.first().ok_or(Error::RowNotFound)?;
    let clock_us = known(4, row.int(4)?)?;
    let expired = row.int(0)?.is_none() && row.int(1)?.is_none();
    Ok(Timed { clock_us, outcome: if expired { None } else { Some(look(rows)?) } })
}

/// The reply to a break: a row (NULL, 1 if it was in time, ..., clock), then the holds.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn timed_break(rows: &[impl Columns]) -> Result<Timed<Vec<Entry>>, Error> {
    let (head, holds) = rows.split_first().ok_or(Error::RowNotFound)?;
    let clock_us = known(6, head.int(6)?)?;
    let in_time = head.int(1)? == Some(1);
    Ok(Timed { clock_us, outcome: if in_time { Some(holders(holds)?) } else { None } })
}

/// The outcome of a release, from columns (1 if there was an entry, break notice or NULL) of `row`, the first of them at
/// `first`. After a reply that was lost, a missing entry may be the work of the attempt before.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn release(row: Option<&impl Columns>, first: usize, reply_lost: bool) -> Result<Release, Error> {
    let row = row.ok_or(Error::RowNotFound)?;
    let found = row.int(first)?.is_some_and(|found| found > 0);
    let notice = row.text(first + 1)?;
    Ok(if found || (reply_lost && notice.is_none()) {
        Release::Released
    } else {
        Release::Lost(lost(notice))
    })
}

/// Why a hold is gone that has left this notice.
pub(crate) fn lost(notice: Option<String>) -> LostReason {
    notice.map_or(LostReason::Gone, |notice| LostReason::Broken(BreakNotice::from_text(&notice)))
}

/// The locks that rows (name, token or NULL, mode, owner, label, age, what is left of the lease, break notice or NULL) describe,
/// in their order. A row that polylock cannot have written is an error if it is `strict`, else it is left out, with a warning.
pub(crate) fn statuses(rows: &[impl Columns], strict: bool) -> Result<Vec<LockStatus>, Error> {
    let mut locks: Vec<LockStatus> = Vec::new();
    for row in rows {
        let (name, entry) = match entry(row, 0) {
            Ok(entry) => entry,
            Err(error) if strict => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "an entry is left out of the list");
                continue;
            }
        };
        if locks.last().is_none_or(|lock| lock.name != name) {
            locks.push(LockStatus::new(name, Vec::new(), Vec::new()));
        }
        if let Some(lock) = locks.last_mut() {
            if entry.token.is_some() { lock.holders.push(entry) } else { lock.waiters.push(entry) }
        }
    }
    Ok(locks)
}

/// A part of a list of locks.
pub(crate) struct Page {
    pub(crate) locks: Vec<LockStatus>,
    pub(crate) next: Next,
}

/// What follows a page.
pub(crate) enum Next {
    End,
    /// The page that begins with this name.
    From(Vec<u8>),
    /// The lock of this name, which has more entries than a page.
    Long(Vec<u8>),
}

/// Reads a page from rows as [`statuses`] reads them, of which the holders and the waiters may each have been cut off after
/// `limit` of them.
pub(crate) fn page(rows: &[impl Columns], limit: i64) -> Result<Page, Error> {
    let (mut counts, mut last) = ([0, 0], [Vec::new(), Vec::new()]);
    for row in rows {
        let table = usize::from(row.int(1)?.is_none());
        counts[table] += 1;
        last[table] = row.bytes(0)?;
    }
    // Of the last name of a table that was cut off, and of those behind it, entries may be missing.
    let cut = counts.iter().zip(last).filter(|(count, _)| **count >= limit).map(|(_, name)| name).min();
    let Some(cut) = cut else { return Ok(Page { locks: statuses(rows, false)?, next: Next::End }) };
    let mut whole = 0;
    while whole < rows.len() && rows[whole].bytes(0)? < cut {
        whole += 1;
    }
    let next = if whole == 0 { Next::Long(cut) } else { Next::From(cut) };
    Ok(Page { locks: statuses(&rows[..whole], false)?, next })
}

/// The entries of holds that were broken, from rows as [`statuses`] reads them.
pub(crate) fn holders(rows: &[impl Columns]) -> Result<Vec<Entry>, Error> {
    Ok(statuses(rows, false)?.into_iter().flat_map(|lock| lock.holders).collect())
}

/// One entry, from columns as in [`statuses`], the first of them at `first`.
///
/// Others can write to the tables, too: texts are made printable, and anything else that polylock never writes is an error that
/// names the row.
fn entry(row: &impl Columns, first: usize) -> Result<(LockName, Entry), Error> {
    let bytes = row.bytes(first)?;
    let strange = |what: &str| Error::ColumnDecode {
        index: what.to_owned(),
        source: format!(
            "an entry of the lock {:?} holds what polylock never writes: delete that row",
            String::from_utf8_lossy(&bytes)
        )
        .into(),
    };
    let name = name(bytes.clone());
    let mode = row.int(first + 2)?.and_then(|bit| u8::try_from(bit).ok()).and_then(Mode::from_bit);
    let token = match row.int(first + 1)? {
        Some(token) => Some(FencingToken::new(token).ok_or_else(|| strange("token"))?),
        None => None,
    };
    let entry = Entry::new(
        mode.ok_or_else(|| strange("mode"))?,
        OwnerId::sanitized(&row.text(first + 3)?.unwrap_or_default()),
        &row.text(first + 4)?.unwrap_or_default(),
        token,
        duration(row.int(first + 5)?),
        duration(row.int(first + 6)?),
    );
    let notice = row.text(first + 7)?;
    Ok((
        name.ok_or_else(|| strange("name"))?,
        entry.broken(notice.map(|notice| BreakNotice::from_text(&notice))),
    ))
}

/// A value, or, where polylock can't have written what is there, an error, not a panic.
fn known<T>(column: usize, value: Option<T>) -> Result<T, Error> {
    value.ok_or_else(|| Error::ColumnDecode {
        index: column.to_string(),
        source: "the row holds what polylock never writes".into(),
    })
}
