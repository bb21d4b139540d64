//! The interface that the author of a store implements: the unstable side of the crate, with a numbered contract.
//!
//! # The contract
//!
//! 1. **Exclusion.** Two requests with conflicting modes never hold the lock at the same time, by the store's own clock.
//! 2. **Order.** If [`Order::Fifo`](crate::Order::Fifo) is declared, a request is granted if and only if no earlier live
//!    entry of the name, holder or waiter, conflicts with its mode ([`queue`](crate::queue) implements the rule).
//! 3. **Tokens.** Every grant carries a token strictly greater than every earlier token of the name. It is drawn inside the region
//!    that the store serialises.
//! 4. **Time.** The store's clock decides expiry. From its last claim or keep-alive, a queue entry lasts [`Request::queue_lease`],
//!    and a hold lasts [`Request::ttl`], or longer if another process has extended it for longer.
//! 5. **Idempotent.** Every operation is idempotent in [`Request::id`]: a repeated claim returns its own grant with the same token,
//!    a repeated release finds nothing, and a release changes nothing if the entry is gone or belongs to another request. An operation that
//!    undoes another names exactly that one, by an identity that neither a restart nor a later operation repeats.
//!
//!    A copy of a message may arrive late, twice, or behind later ones, also from another process that knows the request. It changes nothing
//!    that was confirmed since:
//!
//!    | operation | target | a late copy changes nothing, because |
//!    |---|---|---|
//!    | [`claim`](Backend::claim) | request | it has expired, it finds its own grant, or its request was released |
//!    | [`keep_alive`](Backend::keep_alive) | request | it never shortens a lease, and extends no hold that is broken or parked |
//!    | [`release`](Backend::release) | request | no operation of the request follows; if [others know it](Request::outlives_process), the release has expired |
//!    | [`park`](Park::park) | request and token | the first one counts, or it has expired |
//!    | [`convert`](crate::Convert::convert) | request and token | the hold has another token since, or it has expired |
//!    | [`break_lock`](Inspect::break_lock) | tokens | these holds have ended, or it has expired |
//!    | [`raise`](RaiseToken::raise), [`write_record`](KeepRecord::write_record) | name | a number never decreases |
//! 6. **No false success.** If the store is not sure of an outcome, it returns an error, and an error means *unknown*.
//! 7. **Bounded.** Every operation ends by itself in bounded time, with a temporary error at the latest. Only
//!    [`wait`](Backend::wait) has no bound.
//!
//! In return, core guarantees:
//!
//! * Claim, wait and release of one request never overlap, and a release is the last of them.
//! * The first waiter of a lock in a process claims again at least every second. If [`Order::Unordered`](crate::Order) is declared,
//!   only the first waiter claims at all.
//! * At most [`Capabilities::claims_at_once`] claims are in flight.
//! * A claim or a release is never dropped half-way, unless the caller drives it ([`Backend::here`]).
//! * Names, modes and lease times have been checked against [`Capabilities`]. A name of a user contains no NUL byte. The locks of a
//!   [semaphore](crate::Semaphore) contain one, so they are no names of users; a store reads names back with [`LockName::from_store`].
//! * Every operation belongs to the store's I/O thread (see [`io`](crate::io)), on which the store must also open its connections.
//!   The first poll of an operation may come from the caller, in that thread's context; it must not block.
//!
//! So a store need not be cancel-safe, except in `wait`.
//!
//! `polylock-testkit` exports the conformance suite that tests a store against this contract.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::{
    BreakNotice, BreakOrder, Capabilities, ClaimOutcome, Convert, FencingToken, HoldAlerts, KeepAlive,
    KeepRecord, LockName, Mode, OwnerId, Release, Request, Result, Wake, owner,
};

/// A store of locks. See the [module](self) for the contract.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Returns the capabilities of this store.
    fn capabilities(&self) -> &Capabilities;

    /// Returns the same store on a connection that belongs to the current runtime, if such a connection exists and works. The task
    /// of the caller then drives a claim or a release on it, which saves two thread wake-ups. Returns `None` by default.
    ///
    /// A store with such connections keeps them in a [`PerRuntime`](crate::PerRuntime). A claim or a release on one of them may be
    /// dropped at any point, or fail temporarily. Core then repeats it on the store itself, on the I/O thread. So an attempt that
    /// was dropped may arrive after the operations that follow it: such a claim must not grant anything after the release of its
    /// request. The connection must lead to the same server as that of the store itself, which keeps the hold alive.
    fn here(&self) -> Option<Arc<dyn Backend>> {
        None
    }

    /// Enqueues the request if it is new, extends its queue entry if it is waiting, and grants it the lock if it is its turn.
    ///
    /// A store that sends a claim again for lack of a reply reports a copy that the server may still execute with
    /// [`QueuePosition::may_be_granted_late`](crate::QueuePosition#structfield.may_be_granted_late):
    /// 1. A try sends a claim, and its connection breaks.
    /// 2. The store sends the claim again on another connection. It is refused, because another request holds the lock.
    /// 3. The holder releases the lock.
    /// 4. The first copy arrives, and takes the lock for nobody, unless core has released the request after step 2.
    ///
    /// Core repeats a release that fails for two seconds and a lease after the reply or the error. If a copy may have an effect later than two
    /// seconds after it, the store itself must undo that.
    ///
    /// # Errors
    /// Core retries a temporary error. After any error the outcome is unknown, and core settles it by a release.
    async fn claim(&self, request: &Request) -> Result<ClaimOutcome>;

    /// Returns when the outcome of the last claim may have changed, or with the grant if the store hands the lock over directly.
    ///
    /// Spurious returns are allowed, missed wake-ups are not: a change since the reply to the claim counts, even if it precedes
    /// this call. Core also claims again without a wake-up from time to time.
    ///
    /// # Errors
    /// Core claims again after a short pause.
    ///
    /// # Cancel safety
    /// This must be cancel-safe: core drops it when the time is up.
    async fn wait(&self, request: &Request) -> Result<Wake>;

    /// Extends the lease of each of `requests` so that it lasts for at least this long from now: of a hold [`Request::ttl`], of a queue entry
    /// [`Request::queue_lease`]. It is a maximum: it never shortens a lease, so copies may arrive late and in any order, and processes with
    /// different TTLs may extend one hold. Never creates or revives an entry, and never extends a hold that is [parked](Park). Returns one
    /// outcome for each request, in their order.
    ///
    /// Core passes at most [`Capabilities::keep_alive_batch`] requests, and the store sends them in one round trip if it can. Each
    /// request is extended atomically; the batch need not be. Core calls this at least every third of the shortest lease. With
    /// [`QueueLease::Shared`](crate::QueueLease), it also extends the lease of all waiters, even if `requests` is empty. A hold
    /// that was marked by [`Inspect::break_lock`] is not extended; its outcome is
    /// [`LostReason::Broken`](crate::LostReason::Broken).
    ///
    /// A call may overlap with other calls and with a release, and may arrive after the release: then it changes nothing.
    ///
    /// # Errors
    /// An error means [`KeepAlive::Unknown`] for all requests. Only [`KeepAlive::Lost`] means that a lock is lost.
    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>>;

    /// Releases the lock if the request holds it, or withdraws the request if it is waiting. Returns [`Release::Lost`] if there was
    /// no entry of the request and no earlier attempt within this call can have removed it.
    ///
    /// # Errors
    /// An error means *unknown*. Core retries until the lease of the entry has expired.
    async fn release(&self, request: &Request) -> Result<Release>;

    /// Removes what this process keeps about a waiting `request`, without a change in the store and without blocking: its client has gone, or
    /// continues in another process. A later claim begins again. Does nothing by default.
    ///
    /// Core does not call it: the waiters of a process end with their release. A server that passes the operations of clients on does.
    fn drop_waiter(&self, _request: &Request) {}

    /// Returns the number of records that this process keeps about requests that hold the lock or have ended; `None`, the default, if
    /// the store does not count them. It does not block.
    ///
    /// A hold may be left to expire, and a release may never be confirmed, so a store must not wait for a release to remove its
    /// record; a [`RequestTable`](crate::requests::RequestTable) does not.
    fn request_records(&self) -> Option<usize> {
        None
    }
}

/// The optional operations of a store: inspecting and breaking locks.
#[async_trait]
pub trait Inspect: fmt::Debug + Send + Sync + 'static {
    /// Returns the live holders and waiters of `name`.
    ///
    /// # Errors
    /// If the store is unavailable.
    async fn inspect(&self, name: &LockName) -> Result<LockStatus>;

    /// Returns the status of every lock in use with a name that starts with `prefix`, sorted by name.
    ///
    /// # Errors
    /// If the store is unavailable.
    async fn list(&self, prefix: &str) -> Result<Vec<LockStatus>>;

    /// Returns a number that differs after each change of a lock, if the store can read one in this process, without a message to a server;
    /// `None`, the default, if it has none. A [`Watch`](crate::Watch) reads it twenty times a second and lists the locks when it has changed. An
    /// expiry need not change it.
    ///
    /// # Errors
    /// If the store is unavailable.
    async fn version(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Returns the number of commands that [`list`](Self::list) sends for this many locks, by which a [`Watch`](crate::Watch) limits its pace:
    /// by default one, and one for each lock.
    fn list_commands(&self, locks: usize) -> usize {
        locks.saturating_add(1)
    }

    /// Returns true if [`list`](Self::list) with the prefix of a [semaphore](crate::Semaphore), the name of its turnstile, costs about as much
    /// as to inspect a few locks, however many other locks there are.
    ///
    /// An acquisition of a semaphore then lists all slots once a second to compare their number. Otherwise, the default, it inspects the
    /// first ones, and may miss a holder with another number of slots in a later one.
    fn lists_semaphores(&self) -> bool {
        false
    }

    /// Breaks the holds of the lock `name` that are the [targets](BreakOrder::is_target) of `order`, and returns their entries. Every other hold
    /// stays as it is. Waiters stay queued and are granted the lock in turn.
    ///
    /// * Cooperative: marks every live target with the notice, and notifies the holders at once if the store can push
    ///   ([`HoldAlerts`]). A marked hold excludes other requests until its release or the end of its lease. A second notice does
    ///   not replace the first.
    /// * With force: removes every live target. The next renewal or release by a former holder returns the notice, for as long as its
    ///   lease would have lasted.
    ///
    /// The next grant has a greater token, so a resource that checks tokens refuses the former holder.
    ///
    /// # Errors
    /// If the store is unavailable.
    async fn break_lock(&self, name: &LockName, order: &BreakOrder) -> Result<Vec<Entry>>;
}

/// The optional operation that makes a store continue with greater tokens, so that it can replace another store: see
/// [`transition`](crate::transition).
#[async_trait]
pub trait RaiseToken: fmt::Debug + Send + Sync + 'static {
    /// Makes every later grant of the lock that `request` holds carry a token greater than `to`. Returns a number that no token of an
    /// earlier grant of this lock exceeds: if it is smaller than `to`, then `to` was never granted, nor any greater token.
    ///
    /// * It is idempotent, and never lowers a token: without an effect if the tokens are greater already.
    /// * It is as durable as a grant of this store, and holds across releases, expiries, breaks and restarts as a grant does.
    /// * The hold of `request` keeps its own token.
    /// * It does not depend on a hold of `request`. A copy that arrives late is harmless: later tokens are greater than necessary. Tokens of
    ///   other locks may become greater, too.
    ///
    /// Core calls it while `request` holds the lock, and for a request that holds nothing before it copies the record of a job with this token
    /// from another store.
    ///
    /// # Errors
    /// An error means *unknown*. A permanent one if the store can't continue after `to`.
    async fn raise(&self, request: &Request, to: FencingToken) -> Result<FencingToken>;
}

/// The optional operation that ends a hold at a later time, without the process that held it.
#[async_trait]
pub trait Park: fmt::Debug + Send + Sync + 'static {
    /// Ends the hold of `request` that has this `token`, in `left` from now: its lease then expires, whether that is earlier or later than
    /// before. Until then it excludes other requests, and a release or a break removes it. Returns [`Release::Lost`] if the request has no hold
    /// with this token.
    ///
    /// This is the only operation that can shorten a lease, so it is the last one of its hold:
    /// * No keep-alive extends a parked hold. It returns [`KeepAlive::Lost`], so another process that has adopted the
    ///   hold loses it.
    /// * A second call changes nothing, and returns [`Release::Released`], so a copy that arrives late is harmless.
    /// * A copy that arrives after its caller has given up has no effect: another process may have extended the hold since.
    ///
    /// # Errors
    /// An error means *unknown*. Core repeats the call after a temporary one.
    async fn park(&self, request: &Request, token: FencingToken, left: Duration) -> Result<Release>;
}

/// The holders and waiters of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockStatus {
    /// The name of the lock.
    pub name: LockName,
    /// The holders, sorted by token.
    pub holders: Vec<Entry>,
    /// The waiters, in order of arrival.
    pub waiters: Vec<Entry>,
    /// The last grant of a lock without holders, if the store keeps it.
    pub last_grant: Option<PastGrant>,
}

impl LockStatus {
    /// Creates the status of a lock with these entries.
    #[must_use]
    pub const fn new(name: LockName, holders: Vec<Entry>, waiters: Vec<Entry>) -> Self {
        Self { name, holders, waiters, last_grant: None }
    }

    /// Returns the status with the last grant of a lock without holders.
    #[must_use]
    pub fn last_grant(mut self, grant: Option<PastGrant>) -> Self {
        self.last_grant = grant;
        self
    }

    /// Returns the position of the first waiter of `owner`, counted from 1 without the holders; `None` if `owner` does not wait.
    #[must_use]
    pub fn queue_position(&self, owner: &OwnerId) -> Option<usize> {
        self.waiters.iter().position(|waiter| waiter.owner == *owner).map(|index| index + 1)
    }

    /// Returns true if the lock has neither holders nor waiters.
    #[must_use]
    pub const fn is_free(&self) -> bool {
        self.holders.is_empty() && self.waiters.is_empty()
    }
}

/// A holder or a waiter, with times by the store's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// The mode of the hold, or the mode that the waiter requests.
    pub mode: Mode,
    /// The owner of the request.
    pub owner: OwnerId,
    /// The label of the request, without control characters; empty if it has none.
    pub label: String,
    /// The token of a holder; `None` for a waiter.
    pub token: Option<FencingToken>,
    /// The time for which it has held the lock or waited.
    pub age: Duration,
    /// The time until it expires if it is not extended.
    pub expires_in: Duration,
    /// The notice of the [break](crate::Locks::break_lock) that has marked this hold, until the holder releases it.
    pub broken: Option<BreakNotice>,
}

impl Entry {
    /// Creates an entry. Control characters in `label` are replaced, and it is cut at 255 bytes.
    #[must_use]
    pub fn new(
        mode: Mode,
        owner: OwnerId,
        label: &str,
        token: Option<FencingToken>,
        age: Duration,
        expires_in: Duration,
    ) -> Self {
        Self { mode, owner, label: owner::sanitized(label), token, age, expires_in, broken: None }
    }

    /// Returns the entry with the notice of a break; `None` for a hold that is not broken.
    #[must_use]
    pub fn broken(mut self, notice: Option<BreakNotice>) -> Self {
        self.broken = notice;
        self
    }

    /// Returns the entry after `time` without a renewal.
    #[must_use]
    pub fn after(&self, time: Duration) -> Self {
        let (age, expires_in) = (self.age + time, self.expires_in.saturating_sub(time));
        Self { age, expires_in, ..self.clone() }
    }
}

/// A grant that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PastGrant {
    /// The owner of the request.
    pub owner: OwnerId,
    /// The label of the request, without control characters; empty if it had none.
    pub label: String,
    /// The token of the grant.
    pub token: FencingToken,
    /// The time since the grant, by the store's clock.
    pub age: Duration,
}

impl PastGrant {
    /// Creates a grant. Control characters in `label` are replaced, and it is cut at 255 bytes.
    #[must_use]
    pub fn new(owner: OwnerId, label: &str, token: FencingToken, age: Duration) -> Self {
        Self { owner, label: owner::sanitized(label), token, age }
    }
}

/// An open store with its optional interfaces, as returned by the `connect` of a store crate.
#[derive(Debug, Clone)]
pub struct Store {
    /// The store itself.
    pub backend: Arc<dyn Backend>,
    /// The interface for inspection, if the store has it.
    pub inspect: Option<Arc<dyn Inspect>>,
    /// The callback for the break notices that the store receives; `None` if the store can't push: holders then receive a notice at
    /// their next renewal.
    pub alerts: Option<Arc<HoldAlerts>>,
    /// The interface for raising tokens, if the store has it.
    pub raise: Option<Arc<dyn RaiseToken>>,
    /// The interface for the records of jobs, if the store has it.
    pub records: Option<Arc<dyn KeepRecord>>,
    /// The interface for changing the mode of a hold, if the store has it.
    pub convert: Option<Arc<dyn Convert>>,
    /// The interface for ending a hold at a later time, if the store has it.
    pub park: Option<Arc<dyn Park>>,
}

impl Store {
    /// Creates a store that can't be inspected.
    #[must_use]
    pub fn new(backend: Arc<dyn Backend>) -> Self {
        Self { backend, inspect: None, alerts: None, raise: None, records: None, convert: None, park: None }
    }

    /// Creates a store that can be inspected.
    #[must_use]
    pub fn inspectable<B: Backend + Inspect>(backend: Arc<B>) -> Self {
        Self { inspect: Some(backend.clone()), ..Self::new(backend) }
    }

    /// Returns the same store, which pushes break notices to `alerts`.
    #[must_use]
    pub fn alerting(mut self, alerts: Arc<HoldAlerts>) -> Self {
        self.alerts = Some(alerts);
        self
    }

    /// Returns the same store, whose tokens can be raised.
    #[must_use]
    pub fn raising(mut self, raise: Arc<dyn RaiseToken>) -> Self {
        self.raise = Some(raise);
        self
    }

    /// Returns the same store, which keeps records of jobs.
    #[must_use]
    pub fn recording(mut self, records: Arc<dyn KeepRecord>) -> Self {
        self.records = Some(records);
        self
    }

    /// Returns the same store, which changes the modes of holds.
    #[must_use]
    pub fn converting(mut self, convert: Arc<dyn Convert>) -> Self {
        self.convert = Some(convert);
        self
    }

    /// Returns the same store, which ends holds at a later time.
    #[must_use]
    pub fn parking(mut self, park: Arc<dyn Park>) -> Self {
        self.park = Some(park);
        self
    }
}
