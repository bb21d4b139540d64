//! Decoding of the rows of a reply, the same for every database.

use std::{fmt::Write, time::Duration};

use polylock_core::{
    BreakNotice, Entry, FencingToken, HoldTerms, LockName, LockStatus, LostReason, Mode, OwnerId, Release,
    RequestId,
};
use sqlx::Error;

use super::columns::{Columns, require};

/// Returns a duration in microseconds.
pub(crate) fn micros(time: Duration) -> i64 {
    // Rounded up: a lease may be longer than requested, never shorter.
    i64::try_from(time.as_nanos().div_ceil(1000)).unwrap_or(i64::MAX)
}

pub(crate) fn duration(micros: Option<i64>) -> Duration {
    Duration::from_micros(micros.unwrap_or(0).max(0).unsigned_abs())
}

/// Returns `bytes` as lower-case digits, two for each byte.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        write!(text, "{byte:02x}").ok();
    }
    text
}

/// Decodes a name from the bytes that the tables store; `None` if they are no valid name.
pub(crate) fn name(bytes: Vec<u8>) -> Option<LockName> {
    LockName::from_store(String::from_utf8(bytes).ok()?).ok()
}

/// The state of a request: `Held` from a row (token, remaining lease, ...), `Blocked` from a row (NULL, remaining lease of the last entry
/// in its way, any value, number of conflicting entries ahead), `Free` from no row.
pub(crate) enum ClaimRow {
    /// The request holds the lock, for this remaining lease.
    Held(FencingToken, Duration),
    /// The request waits for an entry with the remaining lease `left`, behind `ahead` entries, if they were counted.
    Blocked { left: Duration, ahead: Option<u32> },
    /// No entry is in the way of the request.
    Free,
}

/// The outcome of a keep-alive for one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EntryState {
    /// A hold, which was extended, and lasts for this time.
    Held(Duration, HoldTerms),
    /// A queue entry, which was extended.
    Queued,
    /// A hold that was marked or removed by a break.
    Broken,
    /// Neither a hold nor a queue entry.
    Gone,
    /// An entry that another transaction is changing.
    Contested,
}

/// Decodes the reply to a keep-alive: a row with a text for each request in its first column, separated by commas. That of a hold has its
/// remaining lease, its token and its modes.
pub(crate) fn states(rows: &[impl Columns]) -> Result<Vec<EntryState>, Error> {
    let texts = rows.first().ok_or(Error::RowNotFound)?.text(0)?.unwrap_or_default();
    let held = |parts: &str| {
        let mut numbers = parts.split(' ').map(|number| number.parse::<i64>().ok());
        let (left, token, modes) = (numbers.next()??, numbers.next()??, numbers.next()??);
        let mode = u8::try_from(modes).ok().and_then(Mode::from_bits)?;
        Some(EntryState::Held(duration(Some(left)), HoldTerms::new(FencingToken::new(token)?, mode)))
    };
    let state = |text: &str| match text {
        "Q" => Some(EntryState::Queued),
        "B" => Some(EntryState::Broken),
        "G" => Some(EntryState::Gone),
        "C" => Some(EntryState::Contested),
        hold => held(hold.strip_prefix("H ")?),
    };
    // MySQL writes a comma after the last one, too.
    require(0, texts.trim_end_matches(',').split(',').map(state).collect())
}

/// Decodes the reply to a park: a row (1 or 0 or NULL, notice, clock).
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn timed_park(rows: &[impl Columns]) -> Result<TimedReply<Release>, Error> {
    let row = rows.first().ok_or(Error::RowNotFound)?;
    let clock_us = require(2, row.int(2)?)?;
    Ok(TimedReply { clock_us, outcome: row.int(0)?.map(|_| parked(row)).transpose()? })
}

/// Decodes the outcome of a park, from a row (1 or 0, notice).
pub(crate) fn parked(row: &impl Columns) -> Result<Release, Error> {
    Ok(match row.int(0)? {
        Some(1) => Release::Released,
        _ => Release::Lost(loss_reason(row.text(1)?)),
    })
}

/// Decodes the reason for the loss of a hold, from a row (notice of a break or NULL) if there is one.
pub(crate) fn loss(rows: &[impl Columns]) -> Result<LostReason, Error> {
    Ok(loss_reason(rows.first().map_or(Ok(None), |row| row.text(0))?))
}

pub(crate) fn claim_row(rows: &[impl Columns]) -> Result<ClaimRow, Error> {
    let Some(row) = rows.first() else { return Ok(ClaimRow::Free) };
    let left = duration(row.int(1)?);
    if row.int(0)?.is_some() {
        return Ok(ClaimRow::Held(token(row, 0)?, left));
    }
    let ahead = row.int(3)?.map(|ahead| u32::try_from(ahead).unwrap_or(u32::MAX));
    Ok(ClaimRow::Blocked { left, ahead })
}

fn token(row: &impl Columns, column: usize) -> Result<FencingToken, Error> {
    require(column, row.int(column)?.and_then(FencingToken::new))
}

pub(crate) fn request(row: &impl Columns, column: usize) -> Result<RequestId, Error> {
    require(column, row.bytes(column)?.try_into().ok().map(RequestId::from_bytes))
}

/// Decodes the requests in the first column.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) fn requests(rows: &[impl Columns]) -> Result<Vec<RequestId>, Error> {
    rows.iter().map(|row| request(row, 0)).collect()
}

/// The reply to an operation that expires: the server's clock, and the outcome unless the operation had expired.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) struct TimedReply<T> {
    pub(crate) clock_us: i64,
    pub(crate) outcome: Option<T>,
}

/// Decodes the reply to a claim: a row as [`claim_row`] reads it, with the clock in the fifth column; the first two columns are NULL if the
/// claim had expired.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn timed_claim_row(rows: &[impl Columns]) -> Result<TimedReply<ClaimRow>, Error> {
    let row = rows.first().ok_or(Error::RowNotFound)?;
    let clock_us = require(4, row.int(4)?)?;
    let expired = row.int(0)?.is_none() && row.int(1)?.is_none();
    Ok(TimedReply { clock_us, outcome: if expired { None } else { Some(claim_row(rows)?) } })
}

/// Decodes the reply to a break: a row (NULL, 1 if it was in time, ..., clock), then the holds.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn timed_break(rows: &[impl Columns]) -> Result<TimedReply<Vec<Entry>>, Error> {
    let (head, holds) = rows.split_first().ok_or(Error::RowNotFound)?;
    let clock_us = require(6, head.int(6)?)?;
    let in_time = head.int(1)? == Some(1);
    Ok(TimedReply { clock_us, outcome: if in_time { Some(holders(holds)?) } else { None } })
}

/// Decodes the outcome of a release, from columns (1 if there was an entry, break notice or NULL) of `row`, the first of them at `first`.
/// If the reply to an earlier attempt was lost, that attempt may have removed the entry.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn release(row: Option<&impl Columns>, first: usize, reply_lost: bool) -> Result<Release, Error> {
    let row = row.ok_or(Error::RowNotFound)?;
    let found = row.int(first)?.is_some_and(|found| found > 0);
    let notice = row.text(first + 1)?;
    Ok(if found || (reply_lost && notice.is_none()) {
        Release::Released
    } else {
        Release::Lost(loss_reason(notice))
    })
}

/// Returns the reason for the loss of a hold with this break notice, if any.
pub(crate) fn loss_reason(notice: Option<String>) -> LostReason {
    // A hold with an empty notice is parked.
    let notice = notice.filter(|notice| !notice.is_empty());
    notice.map_or(LostReason::Gone, |notice| LostReason::Broken(BreakNotice::from_text(&notice)))
}

/// Decodes locks from rows (name, token or NULL, mode, owner, label, age, remaining lease, break notice or NULL), in their order. A row
/// that polylock cannot have written is an error if `strict`; otherwise it is left out, with a warning.
pub(crate) fn statuses(rows: &[impl Columns], strict: bool) -> Result<Vec<LockStatus>, Error> {
    let mut locks: Vec<LockStatus> = Vec::new();
    for row in rows {
        let (name, entry) = match entry(row, 0) {
            Ok(entry) => entry,
            Err(error) if strict => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "an invalid entry is omitted from the list");
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
    pub(crate) next: NextPage,
}

/// The continuation of a list after a page.
pub(crate) enum NextPage {
    End,
    /// The page that begins with this name.
    From(Vec<u8>),
    /// The lock of this name, which has more entries than a page.
    LongLock(Vec<u8>),
}

/// Decodes a page from rows as [`statuses`] reads them, of which the holders and the waiters may each have been cut off after `limit` of
/// them.
pub(crate) fn page(rows: &[impl Columns], limit: i64) -> Result<Page, Error> {
    let (mut counts, mut last) = ([0, 0], [Vec::new(), Vec::new()]);
    for row in rows {
        let table = usize::from(row.int(1)?.is_none());
        counts[table] += 1;
        last[table] = row.bytes(0)?;
    }
    // Entries may be missing for the last name of a table that was cut off, and for the names behind it.
    let truncated = counts.iter().zip(last).filter(|(count, _)| **count >= limit).map(|(_, name)| name).min();
    let Some(truncated) = truncated else {
        return Ok(Page { locks: statuses(rows, false)?, next: NextPage::End });
    };
    let mut complete = 0;
    while complete < rows.len() && rows[complete].bytes(0)? < truncated {
        complete += 1;
    }
    let next = if complete == 0 { NextPage::LongLock(truncated) } else { NextPage::From(truncated) };
    Ok(Page { locks: statuses(&rows[..complete], false)?, next })
}

/// Decodes the entries of broken holds, from rows as [`statuses`] reads them.
pub(crate) fn holders(rows: &[impl Columns]) -> Result<Vec<Entry>, Error> {
    Ok(statuses(rows, false)?.into_iter().flat_map(|lock| lock.holders).collect())
}

/// Decodes one entry from columns as in [`statuses`], the first of them at `first`.
///
/// Other programs can write to the tables, too: texts are made printable, and any other value that polylock never writes is an error that
/// names the lock.
fn entry(row: &impl Columns, first: usize) -> Result<(LockName, Entry), Error> {
    let bytes = row.bytes(first)?;
    let invalid = |what: &str| Error::ColumnDecode {
        index: what.to_owned(),
        source: format!(
            "an entry of the lock {:?} has an invalid value, which polylock did not write: delete that row",
            String::from_utf8_lossy(&bytes)
        )
        .into(),
    };
    let name = name(bytes.clone());
    let mode = row.int(first + 2)?.and_then(|bit| u8::try_from(bit).ok()).and_then(Mode::from_bits);
    let token = match row.int(first + 1)? {
        Some(token) => Some(FencingToken::new(token).ok_or_else(|| invalid("token"))?),
        None => None,
    };
    let entry = Entry::new(
        mode.ok_or_else(|| invalid("mode"))?,
        OwnerId::sanitized(&row.text(first + 3)?.unwrap_or_default()),
        &row.text(first + 4)?.unwrap_or_default(),
        token,
        duration(row.int(first + 5)?),
        duration(row.int(first + 6)?),
    );
    let notice = row.text(first + 7)?.filter(|notice| !notice.is_empty());
    Ok((
        name.ok_or_else(|| invalid("name"))?,
        entry.broken(notice.map(|notice| BreakNotice::from_text(&notice))),
    ))
}
