//! A claim: takes the lock if it is the request's turn, or joins the queue.

use polylock_core::{FencingToken, Operation, Request, Result, wakeups::Waiter};
use sqlx::sqlite::SqliteArguments;

use super::{
    blockers::Found,
    connection::Lane,
    dialect::{SqliteDialect, WithArgument, id},
};
use crate::engine::{
    columns::Columns,
    dialect::{bytes, label, slot},
    rows::{self, ClaimRow, micros},
};

/// The maximum number of rounds of a claim. Another round follows if the request that it waits for leaves between the two steps of a round.
/// The claim has its queue position from the first round on, so a second one is hardly ever needed.
const MAX_ATTEMPTS: u32 = 3;

/// Returns the arguments of `look.sql`.
fn look_arguments(request: &Request) -> SqliteArguments {
    SqliteArguments::default()
        .with(bytes(&request.name))
        .with(id(request))
        .with(request.mode.bit())
        .with(request.mode.conflicts())
        .with(request.wants_position)
}

impl SqliteDialect {
    /// Takes the lock if it is the request's turn.
    async fn take(&self, request: &Request) -> Result<Option<FencingToken>> {
        let arguments = SqliteArguments::default()
            .with(bytes(&request.name))
            .with(id(request))
            .with(request.mode.bit())
            .with(request.mode.conflicts())
            .with(slot(request).map_or(Vec::new(), |id| id.to_bytes().to_vec()))
            .with(request.owner.as_str())
            .with(label(request))
            .with(micros(request.ttl))
            .with(self.process_of(request));
        let sql = &self.statements.take;
        let inserted = self.changed(Lane::Durable, Operation::Claim, sql, arguments).await?;
        // SQLite's row numbers start at 1, so each of them is a valid token.
        Ok(inserted.and_then(FencingToken::new))
    }

    /// Joins the queue, or keeps the queue position.
    async fn queue(&self, request: &Request, waiter: &Waiter<'_>) -> Result<Found> {
        let ticket = i64::try_from(waiter.ticket()).ok();
        let channel = self.datagrams.channel();
        let arguments = SqliteArguments::default()
            .with(bytes(&request.name))
            .with(id(request))
            .with(request.mode.bit())
            .with(request.mode.conflicts())
            .with(request.wants_position)
            .with(request.owner.as_str())
            .with(label(request))
            .with(micros(request.queue_lease()))
            .with(channel)
            .with(ticket)
            .with(self.process_of(request));
        let sql = &self.statements.queue;
        self.rows(Lane::Relaxed, Operation::Claim, sql, arguments, |rows| {
            let found = Found::read(request, rows)?;
            if let (ClaimRow::Blocked { .. }, Some(row)) = (&found.claim_row, rows.first()) {
                // No other writer of this process is admitted yet, so none of its releases comes in between.
                waiter.queued_behind(rows::request(row, 2)?);
                if let Some(position) = row.int(4)? {
                    waiter.queued_at(position.unsigned_abs());
                }
            }
            Ok(found)
        })
        .await
    }

    /// Reads the state of a request that has a queue entry, without a write. Returns `None` if that is not enough: it has no queue entry
    /// any more, the entry must be refreshed, or no request is in its way.
    async fn read_queued(&self, request: &Request, waiter: &Waiter<'_>) -> Result<Option<Found>> {
        let sql = &self.statements.look;
        self.rows(Lane::Reading, Operation::Claim, sql, look_arguments(request), |rows| {
            let found = Found::read(request, rows)?;
            match (&found.claim_row, rows.first()) {
                (ClaimRow::Held(..), _) => Ok(Some(found)),
                (ClaimRow::Blocked { .. }, Some(row))
                    if row.int(4)?.is_some() && rows::duration(row.int(5)?) > request.queue_lease() / 2 =>
                {
                    // A release of this process may have come in between; the next round detects that.
                    waiter.queued_behind(rows::request(row, 2)?);
                    Ok(Some(found))
                }
                _ => Ok(None),
            }
        })
        .await
    }

    /// Reads the state of a request that does not queue.
    async fn read_unqueued(&self, request: &Request) -> Result<Found> {
        let (sql, arguments) = (&self.statements.look, look_arguments(request));
        self.rows(Lane::Reading, Operation::Claim, sql, arguments, |rows| Found::read(request, rows)).await
    }

    /// Takes the lock, or finds the state of the request: it joins the queue, or keeps its queue position.
    pub(super) async fn take_or_queue(&self, request: &Request, waiter: &Waiter<'_>) -> Result<Found> {
        if waiter.has_position()
            && let Some(found) = self.read_queued(request, waiter).await?
        {
            return Ok(found);
        }
        for _ in 0..MAX_ATTEMPTS {
            if let Some(token) = self.take(request).await? {
                return Ok(Found::from(ClaimRow::Held(token, request.ttl)));
            }
            let found = if request.queues {
                self.queue(request, waiter).await?
            } else {
                self.read_unqueued(request).await?
            };
            if !matches!(found.claim_row, ClaimRow::Free) || !request.queues {
                return Ok(found);
            }
        }
        Ok(Found::from(ClaimRow::Free))
    }

    /// Returns the process with which the entries of `request` end, as the tables store it.
    fn process_of(&self, request: &Request) -> Option<Vec<u8>> {
        self.process.id().filter(|_| !request.outlives_process).map(|process| process.0.clone())
    }
}
