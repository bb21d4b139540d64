//! What the author of a store implements: the unstable side of the crate, with a numbered contract.
//!
//! # The contract
//!
//! 1. **Exclusion.** Two requests whose modes conflict are never both held by the store's own clock.
//! 2. **Order.** Where [`Order::Arrival`](crate::Order::Arrival) is declared, a request is granted if and only if no
//!    earlier live entry of the name, holder or waiter, conflicts with its mode ([`queue`](crate::queue) is the
//!    rule in code).
//! 3. **Tokens.** Every grant carries a token strictly greater than every earlier token of the name, drawn inside
//!    the region that the store serialises.
//! 4. **Time.** The store's clock decides expiry. A waiter's place lasts [`Request::place_ttl`] from its last claim,
//!    a hold [`Request::ttl`] from its last claim or renewal.
//! 5. **Idempotent.** Every operation is idempotent in [`Request::id`]: a claim repeated finds its own grant with
//!    the same token, a release repeated finds nothing, a release of what is gone or another's changes nothing. A claim that
//!    arrives after its own release, on an abandoned connection, grants nothing. An operation that undoes another names exactly
//!    that one, by an identity that neither a restart nor a later operation repeats.
//! 6. **No false success.** What the store is not sure of is an error, and an error means *unknown*.
//! 7. **Bounded.** Every operation ends by itself in bounded time, with a temporary error at the latest; only
//!    [`wait`](Backend::wait) may last.
//!
//! Core gives in return: claim, wait and release of one request never overlap, and a release is the last of them; the first
//! waiter of a lock in a process claims again every second at least, and where [`Order::Unordered`](crate::Order) is declared only
//! the first one claims at all; not more than [`Capabilities::claims_at_once`] claims are under way; a claim or a release is never
//! dropped half-way, unless the caller drives it ([`Backend::here`]); names, modes and lease times have been checked against
//! [`Capabilities`]; everything belongs to the store's I/O thread (see [`io`](crate::io)), where connections must be
//! made, too. The first poll of an operation may come from the caller, in that thread's context; it must not block. So a
//! store need not be cancel-safe, but in `wait`.
//!
//! `polylock-testkit` exports the suite that holds a store to all this.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::{
    BreakNotice, BreakOrder, Capabilities, FencingToken, HoldAlerts, KeepAlive, LockName, Mode, OwnerId,
    Release, Request, Result, Standing, Wake, owner,
};

/// A store of locks. See the [module](self) for the contract.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// What this store can do.
    fn capabilities(&self) -> &Capabilities;

    /// The same store on a connection that belongs to the runtime of the present context, if there is one and it works. Then core has
    /// the task of the caller drive a claim or a release on it, which saves two wake-ups of threads. `None` by default.
    ///
    /// A store that has such connections keeps them in a [`PerRuntime`](crate::PerRuntime). A claim or a release on one of them may be
    /// dropped at any point. Then core calls it again, on the store itself and on the I/O thread. So an attempt that was dropped may
    /// arrive later than what follows it: a claim that does must not grant anything after the release of its request.
    fn here(&self) -> Option<Arc<dyn Backend>> {
        None
    }

    /// Joins the queue if absent, refreshes the place if waiting, takes the lock if it is its turn.
    ///
    /// # Errors
    /// A temporary one is tried again; after any error the outcome is unknown, and core settles it by a release.
    async fn claim(&self, request: &Request) -> Result<Standing>;

    /// Returns when the last claim's answer may be stale, or with the grant where the store hands over directly.
    ///
    /// Spurious returns are allowed, missed ones are not: what changed after the claim answered counts, too. Core
    /// never waits for this alone.
    ///
    /// # Errors
    /// Core claims again after a moment.
    ///
    /// # Cancel safety
    /// Must be: core drops it when time is up.
    async fn wait(&self, request: &Request) -> Result<Wake>;

    /// Extends the lease of each of `requests`: of a hold to [`Request::ttl`] from now, of a queue entry to
    /// [`Request::place_ttl`] from now. Never creates or revives one. Returns one outcome for each request, in their order.
    ///
    /// It takes at most [`Capabilities::keep_alive_batch`] requests, in one round trip where the store can. Each request is extended
    /// atomically; the batch need not be. It comes at least every third of the shortest lease. With [`QueueLease::Shared`](crate::QueueLease) it
    /// extends the lease of all waiters, too, also without any request. A hold that was marked by [`Inspect::break_lock`]
    /// is not extended and is [`LostReason::Broken`](crate::LostReason::Broken).
    ///
    /// It may overlap with itself and with a release, and may arrive after the release: then it changes nothing.
    ///
    /// # Errors
    /// An error means [`KeepAlive::Unknown`] for all of them. Only [`KeepAlive::Lost`] means lost.
    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>>;

    /// Releases if held, withdraws if waiting. Returns [`Release::Lost`] if there was no entry of the request and no earlier
    /// attempt within this call can have removed it.
    ///
    /// # Errors
    /// An error means *unknown*. Core tries again until the lease has run out by itself.
    async fn release(&self, request: &Request) -> Result<Release>;
}

/// An optional power: inspecting a store, and breaking a lock.
#[async_trait]
pub trait Inspect: fmt::Debug + Send + Sync + 'static {
    /// Who holds `name` and who waits for it, live entries only.
    ///
    /// # Errors
    /// If the store can't be asked.
    async fn inspect(&self, name: &LockName) -> Result<LockStatus>;

    /// The status of every lock in use whose name starts with `prefix`, by name.
    ///
    /// # Errors
    /// If the store can't be asked.
    async fn list(&self, prefix: &str) -> Result<Vec<LockStatus>>;

    /// Breaks the lock `name` as `order` says, and returns the entries of its holders. Waiters stay and are served.
    ///
    /// * Cooperative: marks every live hold with the notice, and notifies the holders at once if the store can push
    ///   ([`HoldAlerts`]). A marked hold keeps others out until its release or the end of its lease. Of two notices, the first one
    ///   stays.
    /// * With force: removes every live hold. The next renewal or release of a former holder returns the notice, for as long
    ///   as its lease would have lasted.
    ///
    /// The next grant has a greater token, so a resource that checks tokens refuses the former holder.
    ///
    /// # Errors
    /// If the store is unavailable.
    async fn break_lock(&self, name: &LockName, order: &BreakOrder) -> Result<Vec<Entry>>;
}

/// Who holds a lock and who waits for it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockStatus {
    /// Which lock.
    pub name: LockName,
    /// Who holds it, by token.
    pub holders: Vec<Entry>,
    /// Who waits, in order of arrival.
    pub waiters: Vec<Entry>,
}

impl LockStatus {
    /// A lock with these entries.
    #[must_use]
    pub const fn new(name: LockName, holders: Vec<Entry>, waiters: Vec<Entry>) -> Self {
        Self { name, holders, waiters }
    }

    /// Whether nobody holds it and nobody waits.
    #[must_use]
    pub const fn is_free(&self) -> bool {
        self.holders.is_empty() && self.waiters.is_empty()
    }
}

/// A holder or a waiter, as the store's clock sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// How it holds, or wants to hold.
    pub mode: Mode,
    /// Who it is.
    pub owner: OwnerId,
    /// What it says it is for, without control characters; empty if it said nothing.
    pub label: String,
    /// The token of a holder; `None` for a waiter.
    pub token: Option<FencingToken>,
    /// For how long it has held or waited.
    pub age: Duration,
    /// How long until it ends if it is not refreshed.
    pub expires_in: Duration,
    /// The notice of the [break](crate::Locks::break_lock) that has marked this hold, until the holder releases it.
    pub broken: Option<BreakNotice>,
}

impl Entry {
    /// An entry of `owner`.
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

    /// The same entry, marked as broken.
    #[must_use]
    pub fn broken(mut self, notice: Option<BreakNotice>) -> Self {
        self.broken = notice;
        self
    }
}

/// An open store with the powers it has: what a store crate's `connect` returns.
#[derive(Debug, Clone)]
pub struct Store {
    /// The store itself.
    pub backend: Arc<dyn Backend>,
    /// The power to be inspected, if it has it.
    pub inspect: Option<Arc<dyn Inspect>>,
    /// What the store calls when it receives a break notice; `None` if it cannot push: then holders learn of a break at their
    /// next renewal.
    pub alerts: Option<Arc<HoldAlerts>>,
}

impl Store {
    /// A store that can't be inspected.
    #[must_use]
    pub fn new(backend: Arc<dyn Backend>) -> Self {
        Self { backend, inspect: None, alerts: None }
    }

    /// A store that can be inspected.
    #[must_use]
    pub fn inspectable<B: Backend + Inspect>(backend: Arc<B>) -> Self {
        Self { inspect: Some(backend.clone()), ..Self::new(backend) }
    }

    /// The same store, which pushes break notices to `alerts`.
    #[must_use]
    pub fn alerting(mut self, alerts: Arc<HoldAlerts>) -> Self {
        self.alerts = Some(alerts);
        self
    }
}
