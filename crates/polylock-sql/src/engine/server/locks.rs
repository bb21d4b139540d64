//! The operations on locks that are the same on every server.

use std::{sync::Arc, time::Duration};

use polylock_core::{
    Capabilities, Clock, Entry, Fencing, LockStatus, LostReason, Mode, Operation, Release, Request, Result,
    Scope, SystemClock,
};

use super::{
    driver::Driver,
    literal::{Arg, Template},
    pool::Server,
};
use crate::engine::{
    columns::{Columns, require},
    dialect::{LIST_ROWS, MAX_TTL, MIN_TTL, bytes, label, slot},
    rows::{self, TimedReply, micros},
};

/// The replacements in a server's `locks.sql` for one lock, with the name `$1`.
const BY_NAME: [(&str, &str); 3] = [("{which}", "name = $1"), ("{holds}", ""), ("{waiters}", "")];

/// The replacements in a server's `locks.sql` for a page: the names from `$1` to before `$2`, at most `$3` rows of each table.
const BY_PREFIX: [(&str, &str); 3] = [
    ("{which}", "name >= $1 AND name < $2"),
    ("{holds}", "ORDER BY name, slot LIMIT $3"),
    ("{waiters}", "ORDER BY name, seq LIMIT $3"),
];

/// The statements that list locks.
#[derive(Debug)]
pub(crate) struct LockLists {
    by_name: Template,
    by_prefix: Template,
}

impl LockLists {
    /// Creates the statements with `fill`, which returns the server's `locks.sql` with these replacements.
    pub(crate) fn new(fill: impl Fn(&[(&str, &str)]) -> Template) -> Self {
        Self { by_name: fill(&BY_NAME), by_prefix: fill(&BY_PREFIX) }
    }
}

impl<DB: Driver> Server<DB> {
    /// Returns the capabilities that every store with leases has. `durable` is true if grants survive a crash of the server's machine.
    pub(crate) fn capabilities(&self, durable: bool) -> Capabilities {
        let mut capabilities = Capabilities::new(DB::BACKEND, MIN_TTL..=MAX_TTL);
        capabilities.scope = Scope::Network;
        capabilities.claims_at_once = self.claims_at_once();
        if !durable {
            capabilities.fencing = Fencing::WhileRunning;
        }
        capabilities
    }

    /// Returns the holders of `name` and its waiters.
    pub(crate) async fn lock(&self, lists: &LockLists, name: &[u8]) -> Result<Vec<LockStatus>> {
        let read = |rows: &[DB::Row]| rows::statuses(rows, true);
        self.query(Operation::Inspect, &lists.by_name, &[Arg::Bytes(name)], read).await
    }

    /// Returns the locks with names from `first` to before `end`: from the first [`LIST_ROWS`] entries of each table.
    pub(crate) async fn page(&self, lists: &LockLists, first: &[u8], end: &[u8]) -> Result<rows::Page> {
        let arguments = [Arg::Bytes(first), Arg::Bytes(end), Arg::Int(LIST_ROWS)];
        let read = |rows: &[DB::Row]| rows::page(rows, LIST_ROWS);
        self.query(Operation::Inspect, &lists.by_prefix, &arguments, read).await
    }

    /// Sends a break, and returns the entries of the holders.
    pub(crate) async fn break_holds(&self, template: &Template, arguments: &[Arg<'_>]) -> Result<Vec<Entry>> {
        let read = |rows: Vec<DB::Row>, _| rows::timed_break(&rows);
        self.query_expiring(Operation::Break, None, template, arguments, read).await
    }

    /// Sends a park that ends the hold in `left`, and returns its outcome. The last two arguments of the statement, which this adds, are the time for which it refuses claims
    /// of `request`, and its expiry.
    pub(crate) async fn park(
        &self,
        template: &Template,
        request: &Request,
        left: Duration,
        arguments: &[Arg<'_>],
    ) -> Result<Release> {
        let arguments = [arguments, &[Arg::Int(self.refused_us(request))]].concat();
        let end = SystemClock.now() + left;
        let read = |rows: Vec<DB::Row>, lost| {
            let mut reply = rows::timed_park(&rows)?;
            if lost && reply.outcome == Some(Release::Lost(LostReason::Gone)) && SystemClock.now() >= end {
                // An earlier copy has parked the hold, which has ended since.
                reply.outcome = Some(Release::Released);
            }
            Ok(reply)
        };
        self.query_expiring(Operation::Renew, None, template, &arguments, read).await
    }

    /// Sends a release, and returns the rows of the reply, and true if an earlier copy was sent and not answered. The last two arguments of the
    /// statement, which this adds, are the time for which it refuses claims of `request`, and its expiry. `clock` is the column of the first row
    /// with the clock of a release that has expired, `found` that with its outcome.
    ///
    /// Only the release of a request that other processes may know expires: one of them may have renewed the hold since. Any other is still
    /// wanted, however late it arrives.
    pub(crate) async fn release(
        &self,
        template: &Template,
        request: &Request,
        arguments: &[Arg<'_>],
        [clock, found]: [usize; 2],
    ) -> Result<(Vec<DB::Row>, bool)> {
        let arguments = [arguments, &[Arg::Int(self.refused_us(request))]].concat();
        if !request.outlives_process {
            return self
                .send(Operation::Release, template, &[&arguments[..], &[Arg::Int(i64::MAX)]].concat())
                .await;
        }
        let read = |rows: Vec<DB::Row>, lost| {
            let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
            let (clock_us, is_in_time) = (require(clock, row.int(clock)?)?, row.int(found)?.is_some());
            Ok(TimedReply { clock_us, outcome: is_in_time.then_some((rows, lost)) })
        };
        self.query_expiring(Operation::Release, None, template, &arguments, read).await
    }
}

/// Returns the first arguments of every claim: the name, the request, its mode, the modes that conflict with it, its slot, the owner, the
/// label, the TTL, and the TTL of the queue entry, which is 0 if the request does not queue.
pub(crate) fn claim_arguments(request: &Request) -> [Arg<'_>; 9] {
    let queue_lease = if request.queues { micros(request.queue_lease()) } else { 0 };
    [
        Arg::Bytes(bytes(&request.name)),
        Arg::Id(request.id),
        Arg::Int(request.mode.bit().into()),
        Arg::Int(request.mode.conflicts().into()),
        slot_argument(request),
        Arg::Text(request.owner.as_str()),
        Arg::Text(label(request)),
        Arg::Int(micros(request.ttl)),
        Arg::Int(queue_lease),
    ]
}

/// Returns the [slot](slot) of the request.
pub(crate) fn slot_argument(request: &Request) -> Arg<'_> {
    slot(request).map_or(Arg::Bytes(&[]), Arg::Id)
}

/// Packs the requests of a keep-alive for its routine. Each one consists of one byte for the length of its name, the name, its id, a byte
/// that is 1 if it is exclusive, its TTL and the TTL of its queue entry in us, in eight bytes each, the most significant first.
pub(crate) fn packed(requests: &[Arc<Request>]) -> Vec<u8> {
    let mut packed = Vec::with_capacity(requests.len() * 64);
    for request in requests {
        let name = bytes(&request.name);
        packed.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
        packed.extend(name);
        packed.extend(request.id.to_bytes());
        packed.push(u8::from(request.mode == Mode::Exclusive));
        packed.extend(micros(request.ttl).to_be_bytes());
        packed.extend(micros(request.queue_lease()).to_be_bytes());
    }
    packed
}
