//! The operations of a database, and values as its tables store them.

use std::{fmt, pin::Pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use polylock_core::{
    BreakOrder, Capabilities, Conversion, ConversionOutcome, Entry, FencingToken, HoldAlerts, LockName,
    LockStatus, LostReason, Mode, Moment, Record, Release, Request, RequestId, Result, StoredRecord,
    wakeups::{Waiter, Wakeups},
};

use super::rows::{ClaimRow, EntryState, Page};

/// The shortest TTL: far above the step of a database's clock and the margin of the deadline.
pub(crate) const MIN_TTL: Duration = Duration::from_millis(100);
/// The longest TTL: waiters wait this long for a holder that died.
pub(crate) const MAX_TTL: Duration = Duration::from_secs(24 * 3600);

/// The number of claims from one sweep to the next.
pub(crate) const SWEEP_EVERY: u32 = 256;
/// The number of rows of each table that one sweep examines: more than were added since the last one, so that the sweep reaches every row.
pub(crate) const SWEEP_ROWS: i64 = 1024;

/// The maximum number of rows of each table that one statement of a list returns, except for a lock with more entries.
pub(crate) const LIST_ROWS: i64 = 1000;

/// The operations that each database implements in its own way. Every operation is atomic, idempotent by the request's id and ends in
/// bounded time, as [`Backend`] requires.
#[async_trait]
pub(crate) trait Dialect: fmt::Debug + Send + Sync + 'static {
    fn capabilities(&self) -> &Capabilities;

    /// Returns a future that opens the same dialect on connections of the runtime that polls it, for claims and releases that the callers
    /// on that runtime drive; `None` if that saves nothing.
    fn for_caller(&self) -> Option<Pin<Box<dyn Future<Output = Result<Self>> + Send>>>
    where
        Self: Sized,
    {
        None
    }

    /// Returns true if a connection for one more operation is idle or may be opened, for a dialect [of a caller](Self::for_caller).
    fn has_connection(&self) -> bool {
        true
    }

    /// Returns true if a connection is open, for a dialect [of a caller](Self::for_caller).
    fn is_open(&self) -> bool {
        true
    }

    /// Returns the range of the pauses between [rounds](Self::poll).
    fn poll_interval(&self) -> PollInterval;

    /// Returns a future that wakes waiters whenever another process reports that it is their turn, and never ends. It may be dropped at any
    /// time, and keeps no store alive. Without an implementation it does nothing: the database pushes no notifications to the poller.
    fn receive_notifications(&self, _wakeups: &Arc<Wakeups>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(std::future::pending())
    }

    /// Takes the lock if it is the request's turn. Otherwise, if the request queues, it joins the queue or refreshes its queue entry, and
    /// records its position, or the request that it waits for, with `waiter`, which is registered in the `wakeups`.
    async fn claim(&self, request: &Request, waiter: &Waiter<'_>, wakeups: &Arc<Wakeups>)
    -> Result<ClaimRow>;

    /// Returns the time until which an earlier copy of a claim of `request` may be executed; `None` if none can be.
    fn late_until(&self, _request: RequestId) -> Option<Moment> {
        None
    }

    /// Returns the number of records about requests, for [`Backend::request_records`](polylock_core::Backend::request_records).
    fn request_records(&self) -> usize {
        0
    }

    /// Extends the live holds among `requests`, unless they were marked as broken, and the live queue entries. Returns one state for each
    /// request, in their order; `requests` is not empty.
    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<EntryState>>;

    /// Returns the reason for the loss of a hold: the break that left a notice, or [`LostReason::Gone`] without one.
    async fn loss(&self, request: &Request) -> Result<LostReason>;

    /// Makes the hold of `request` with this token end in `left`, as [`Park`](polylock_core::Park) requires.
    async fn park(&self, request: &Request, token: FencingToken, left: Duration) -> Result<Release>;

    /// Releases the hold or withdraws the queue entry, and wakes the waiters of this process that wait for the request. From then on, no copy
    /// of a claim of the request has an effect.
    async fn release(&self, request: &Request, wakeups: &Wakeups) -> Result<Release>;

    /// Checks, while there are waiters, for requests of other processes that have left, and wakes their waiters. `waiter_added` is true
    /// if a waiter was added since the last round.
    async fn poll(&self, wakeups: &Arc<Wakeups>, waiter_added: bool) -> Result<PollOutcome>;

    /// Returns the holders of `name` and its waiters, live entries only.
    async fn lock(&self, name: &[u8]) -> Result<Vec<LockStatus>>;

    /// Returns the locks with names from `first` to before `end`, by name: from the first [`LIST_ROWS`] live entries of each table.
    async fn page(&self, first: &[u8], end: &[u8]) -> Result<Page>;

    /// Marks the targets of `order` among the holds of `name`, or removes them. Returns their entries.
    async fn break_lock(&self, name: &LockName, order: &BreakOrder) -> Result<Vec<Entry>>;

    /// Converts the hold of `request`, and gives it a new token. Returns `None` if it has no live hold, or it is marked as broken.
    async fn convert(&self, request: &Request, conversion: &Conversion) -> Result<Option<ConversionOutcome>>;

    /// Makes all later tokens of `name` greater than `to`; returns a number that no earlier one exceeds.
    async fn raise(&self, name: &LockName, to: FencingToken) -> Result<FencingToken>;

    /// Returns the record of the job `name`, and the clock of the database.
    async fn read_record(&self, name: &LockName) -> Result<StoredRecord>;

    /// Writes the record of the job `name`, unless there is one of the same or a greater version, and keeps it for `keep`.
    async fn write_record(&self, name: &LockName, record: &Record, keep: Duration) -> Result<()>;

    /// Deletes expired rows from the next section of the tables.
    async fn sweep(&self) -> Result<()>;

    /// Returns the alerts to notify of a broken lock, if the database pushes breaks to the holders' processes.
    fn alerts(&self) -> Option<&Arc<HoldAlerts>> {
        None
    }

    /// Returns a number that differs after each change of a lock, if that can be read without a message to a server.
    async fn version(&self) -> Result<Option<u64>> {
        Ok(None)
    }
}

/// The pauses between rounds, from the first to the longest.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PollInterval {
    /// The pause after a request begins to wait, and after a round that found a departure.
    pub(crate) shortest: Duration,
    /// The maximum pause: the longest time that a hand-over between processes waits for a round.
    pub(crate) longest: Duration,
    /// The minimum pause, as a multiple of the duration of the round.
    pub(crate) min_ratio: u32,
}

/// The outcome of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PollOutcome {
    /// Nothing has happened, or the round can't detect it.
    Unchanged,
    /// Something has happened: the next round is due after this pause. It is the shortest one if a watched request has left; otherwise at
    /// most a few times that, because a queue of processes moves on this fast.
    NextAfter(Duration),
    /// The database waited in the statement until something happened, for a moment at most, so the round took time without work. If
    /// something happened (`changed`), the next round is due after the shortest pause.
    #[cfg_attr(not(feature = "mysql"), expect(dead_code, reason = "only MySQL waits in a statement"))]
    Waited { changed: bool },
}

/// Returns the range of the names that begin with `prefix`: from the first to before the second, as bytes.
pub(crate) fn range(prefix: &str) -> (Vec<u8>, Vec<u8>) {
    // UTF-8 never contains the byte FF, so incrementing the last byte gives the end of the range.
    let mut end = prefix.as_bytes().to_vec();
    match end.last_mut() {
        Some(last) => *last += 1,
        None => end.push(0xff),
    }
    (prefix.as_bytes().to_vec(), end)
}

/// Returns the name as the tables store it.
pub(crate) fn bytes(name: &LockName) -> &[u8] {
    name.as_str().as_bytes()
}

/// Returns the label as the tables store it.
pub(crate) fn label(request: &Request) -> &str {
    request.label.as_ref().map_or("", |label| label.as_str())
}

/// Returns the break notice as the tables store it.
pub(crate) fn notice(order: &BreakOrder) -> String {
    order.notice.to_text()
}

/// Returns the tokens of the targets of `order`, separated by commas.
pub(crate) fn targets(order: &BreakOrder) -> String {
    let tokens: Vec<String> = order.targets.iter().flatten().map(ToString::to_string).collect();
    tokens.join(",")
}

/// Returns the part of a hold that is unique beside its name: nothing if the hold is exclusive, so that the unique index itself refuses a
/// second one; the request otherwise.
pub(crate) fn slot(request: &Request) -> Option<RequestId> {
    (request.mode != Mode::Exclusive).then_some(request.id)
}
