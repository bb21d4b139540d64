//! Detects grants and releases by other processes. These servers send no notifications, so each process polls for all its waiters
//! with one statement. It polls only for waiters that another process may have granted the lock; all other waiters wait behind
//! these.
//!
//! While the queue moves, the server itself polls until a change, for up to [`MAX_WAIT`] per statement: that saves a message for
//! each check, and the time until the next one. While nothing moves, each statement checks once, and the pauses between the
//! statements grow with the time since the last change.

use std::{sync::Mutex, time::Duration};

use polylock_core::{
    Clock, Mode, Moment, Operation, RequestId, Result, SystemClock,
    sync::lock,
    wakeups::{Candidate, Handover, Wakeups},
};
use sqlx::Error;

use super::{hand_over, local_requests::LocalRequests};
use crate::engine::{
    columns::{Columns, require, unhex},
    dialect::{PollInterval, PollOutcome, bytes},
    rows::micros,
    server::{
        driver::Driver,
        literal::{Arg, Template},
        pool::Server,
    },
};

/// The pause between two statements after a change.
const MIN_PAUSE: Duration = Duration::from_micros(500);

/// The minimum pause, as a multiple of the time of a statement that did not wait.
const MIN_RATIO: u32 = 2;

/// The pause between two checks by the server for a waiter that is next. It is longer for a waiter with others ahead.
const CHECK_INTERVAL: Duration = Duration::from_micros(400);

/// The time that the server waits with one statement. A waiter of another lock that arrives in the meantime is polled when the
/// statement ends.
const MAX_WAIT: Duration = Duration::from_millis(20);

/// The time after a change for which the server waits with each statement.
const ACTIVE_TIME: Duration = Duration::from_millis(100);

/// The maximum number of waiters, each of them next for another lock, for a statement that waits.
const MAX_WAITERS: usize = 16;

/// The maximum number of waiters in one statement.
const BATCH: usize = 256;

/// The minimum number of simultaneous claims for which one connection may be occupied by a statement that waits.
const MIN_CLAIMS: usize = 2;

/// Returns the pace of the rounds, with `longest` as the longest pause.
pub(super) const fn poll_interval(longest: Duration) -> PollInterval {
    PollInterval { shortest: MIN_PAUSE, longest, min_ratio: MIN_RATIO }
}

/// The state of the queues at the last check.
#[derive(Debug, Default)]
pub(super) struct Watch(Mutex<LastPoll>);

#[derive(Debug, Default)]
struct LastPoll {
    /// The time of the last change.
    changed_at: Option<Moment>,
    /// The waiters, each with the request that it waited for.
    waiters: Vec<(RequestId, RequestId)>,
    /// The number of waiters ahead of the one that is next.
    nearest: Option<i64>,
}

/// The reply to the statement.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) grants: Vec<Handover>,
    pub(super) removed: Vec<RequestId>,
    pub(super) changed: bool,
    pub(super) nearest: Option<i64>,
}

impl Watch {
    /// Polls once for all waiters.
    pub(super) async fn poll<DB: Driver>(
        &self,
        server: &Server<DB>,
        statement: &Template,
        local: &LocalRequests,
        wakeups: &Wakeups,
    ) -> Result<PollOutcome> {
        let mut waiters = wakeups.candidates();
        waiters.retain(|waiter| !local.is_claimed(waiter.watches));
        if waiters.is_empty() {
            return Ok(PollOutcome::Unchanged);
        }
        let is_active = self.is_active(&waiters);
        let waits = waiters.len() <= MAX_WAITERS && server.claims_at_once() >= MIN_CLAIMS && is_active;
        let length = if waits { MAX_WAIT } else { Duration::ZERO };
        let (mut changed, mut nearest) = (false, None);
        for batch in waiters.chunks(BATCH) {
            let arguments =
                [Arg::Bytes(&packed(batch)), Arg::Int(micros(CHECK_INTERVAL)), Arg::Int(micros(length))];
            let reply = server.query(Operation::Wait, statement, &arguments, read).await?;
            changed |= reply.changed || !reply.grants.is_empty() || !reply.removed.is_empty();
            nearest = nearest.min(reply.nearest).or(reply.nearest);
            reply.grants.into_iter().for_each(|grant| wakeups.deliver(grant));
            reply.removed.into_iter().for_each(|removed| wakeups.notify(removed));
        }
        let changed = self.record(changed, nearest);
        Ok(match (waits, changed) {
            (true, changed) => PollOutcome::Waited { changed },
            (false, true) => PollOutcome::NextAfter(MIN_PAUSE),
            (false, false) => PollOutcome::Unchanged,
        })
    }

    /// Returns true if there was a change within [`ACTIVE_TIME`]: in the waiters, in the requests that they wait for, or in the last
    /// reply.
    fn is_active(&self, waiters: &[Candidate]) -> bool {
        let mut last = lock(&self.0);
        let now = SystemClock.now();
        let waiters: Vec<_> = waiters.iter().map(|waiter| (waiter.request, waiter.watches)).collect();
        if last.waiters != waiters {
            last.waiters = waiters;
            last.changed_at = Some(now);
        }
        last.changed_at.is_some_and(|changed_at| now.since(changed_at) < ACTIVE_TIME)
    }

    /// Records the outcome of a round. Returns true if there was a change since the round before.
    fn record(&self, changed: bool, nearest: Option<i64>) -> bool {
        let mut last = lock(&self.0);
        let changed = changed || last.nearest != nearest;
        last.nearest = nearest;
        if changed {
            last.changed_at = Some(SystemClock.now());
        }
        changed
    }
}

/// Encodes the waiters for `routines/watch.sql`.
fn packed(waiters: &[Candidate]) -> Vec<u8> {
    let mut packed = Vec::with_capacity(waiters.len() * 80);
    for waiter in waiters {
        let name = bytes(&waiter.name);
        packed.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
        packed.extend(name);
        packed.extend(waiter.request.to_bytes());
        packed.push(u8::from(waiter.mode == Mode::Exclusive));
        packed.extend(micros(waiter.queue_lease).to_be_bytes());
        packed.extend(waiter.position.to_be_bytes());
        packed.extend(waiter.watches.to_bytes());
    }
    packed
}

pub(super) fn read(rows: &[impl Columns]) -> Result<Reply, Error> {
    let row = rows.first().ok_or(Error::RowNotFound)?;
    let removed = row.text(1)?.unwrap_or_default();
    let request = |digits| require(1, unhex(1, digits)?.try_into().ok().map(RequestId::from_bytes));
    Ok(Reply {
        grants: hand_over::read(row, 0)?,
        removed: removed.split_terminator(',').map(request).collect::<Result<_, _>>()?,
        changed: row.int(2)? == Some(1),
        nearest: row.int(3)?,
    })
}
