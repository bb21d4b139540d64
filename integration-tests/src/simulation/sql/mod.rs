//! The server of the real MySQL and PostgreSQL stores. A store sends it the statements that a real server gets, over connections that break.
//!
//! | module | part |
//! |---|---|
//! | [`node`] | the server: its connections, its clock and its notifications |
//! | [`statement`] | the calls of the routines |
//! | [`tables`], [`routines`] | the tables; the routines that both databases have |
//! | [`mysql`], [`postgres`] | the calls of a database as text, the rows that they return, and what only this database does |
//! | [`rows`] | arguments and rows in a readable form |
//!
//! The driver, `sqlx`, is replaced: it opens its own sockets. Each routine is one step here. That is so in PostgreSQL, but for the renewals, which
//! wait for no other transaction; MySQL runs some routines as several transactions, and interleaves their statements.

pub mod mysql;
pub mod node;
pub mod postgres;
pub mod routines;
pub mod rows;
pub mod statement;
pub mod tables;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use polylock_core::{
    BreakOrder, Clock, Entry, FencingToken, Inspect, LockName, LockStatus, Result, Store, SystemClock,
    simulation::Connecting,
};
use polylock_sql::{mysql as mysql_store, postgres as postgres_store};

use self::{
    node::{LastRelease, Node},
    tables::Grant,
};
use super::{
    clock::WallClock,
    live_entry::LiveEntry,
    network::{Network, nanos},
    plan::{FAULTS_END, Plan, StoreKind, stream},
    servers::{Events, Life, Opening, Servers},
    socket::Wires,
    time::Time,
    timeline::Timeline,
    violation::Violation,
};

/// The greatest time on the server's clock at the begin of a run, in nanoseconds.
const CLOCK_SPREAD: u64 = 200_000_000_000;

/// The time limit of an operation.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(1);

/// The longest time after a grant in which its release is sent, at the latest, unless the process has no connection: the time limits of the
/// claim and of two further operations.
const LONGEST_UNSENT: Duration = Duration::from_secs(3);

/// The longest time after a fault in which a process polls: the pauses between attempts to listen are as long as the outage, up to twice that
/// with jitter.
const LONGEST_POLLED: Duration = Duration::from_secs(6);

/// The longest time after which a process that listens notices a grant, in addition to round trips.
const LONGEST_UNNOTICED: (Duration, u32) = (Duration::from_millis(30), 3);

/// The time after a fault in which broken connections are replaced.
const AFTERMATH: Duration = Duration::from_secs(4);

/// The pause between attempts to open the store.
const REOPEN: Duration = Duration::from_millis(50);

/// The server of a run.
#[derive(Debug)]
pub struct SqlServers {
    plan: Plan,
    network: Arc<Network>,
    wires: Arc<Wires>,
    node: Arc<Node>,
}

impl SqlServers {
    /// Creates the server of `plan`, which is up.
    #[must_use]
    pub fn new(
        plan: &Plan,
        (time, network, timeline): (Arc<Time>, Arc<Network>, Arc<Timeline>),
    ) -> Arc<Self> {
        let clock = WallClock::draw_within(time.clone(), &mut stream(plan.seed, &[9]), CLOCK_SPREAD);
        let node =
            Node::new(clock, (plan.store, plan.planted), (time.clone(), timeline), stream(plan.seed, &[8]));
        let wires = Wires::new(plan.seed, time, network.clone(), u64::MAX);
        Arc::new(Self { plan: plan.clone(), network, wires, node })
    }
}

/// Breaks holds, and finds no lock: the model of the server has the routines, and not the queries of inspection.
#[derive(Debug)]
struct OnlyBreaks(Arc<dyn Inspect>);

#[async_trait]
impl Inspect for OnlyBreaks {
    async fn inspect(&self, name: &LockName) -> Result<LockStatus> {
        Ok(LockStatus::new(name.clone(), Vec::new(), Vec::new()))
    }

    async fn list(&self, _: &str) -> Result<Vec<LockStatus>> {
        Ok(Vec::new())
    }

    async fn break_lock(&self, name: &LockName, order: &BreakOrder) -> Result<Vec<Entry>> {
        self.0.break_lock(name, order).await
    }
}

impl Servers for SqlServers {
    fn open(self: Arc<Self>, _: Life) -> Opening {
        Box::pin(async move {
            loop {
                match self.connect_store().await {
                    Ok(store) => {
                        let breaks = store.inspect.clone().map(|inspect| Arc::new(OnlyBreaks(inspect)) as _);
                        return Store { inspect: breaks, ..store };
                    }
                    Err(error) => assert!(error.is_temporary(), "{}", error.chain()),
                }
                SystemClock.sleep_until(SystemClock.now() + REOPEN).await;
            }
        })
    }

    fn connect(&self, process: Life, address: &str) -> Connecting {
        self.wires.connect(process, address, std::slice::from_ref(&self.node))
    }

    fn end_process(&self, process: usize) {
        self.wires.end_process(process);
    }

    fn stick(&self, process: usize, server: usize, until: u64) {
        self.wires.stick(process, server, until);
    }

    fn pause(&self, _: usize) {
        self.node.pause();
    }

    fn resume(&self, _: usize) {
        self.node.resume();
    }

    fn crash(&self, _: usize) {
        self.node.crash();
    }

    fn restart(&self, _: usize) {
        self.node.restart();
    }

    fn expires(&self, name: &LockName, token: FencingToken) -> Option<u64> {
        let expires_us = self.node.inspect(|database| database.expires(name, token));
        expires_us.map(|expires_us| self.node.clock.to_run(expires_us))
    }

    fn live(&self) -> Vec<LiveEntry> {
        self.node.inspect(|database| database.live())
    }

    fn violations(&self, events: &Events<'_>) -> Vec<Violation> {
        let grants = self.node.inspect(|database| database.grants.clone());
        let was_held = |Grant { name, token, owner, .. }: &&Grant| {
            events.record.needs_no_release(name, token.cast_unsigned(), owner)
        };
        let held: Vec<_> = grants.iter().filter(was_held).map(|grant| &grant.request).collect();
        let releases = self.node.releases();
        let orphans = grants.iter().filter(|grant| !held.contains(&&grant.request));
        let orphans = orphans.filter_map(|grant| self.orphan(grant, &releases, events));
        let polls = self.node.polls().into_iter().filter_map(|(process, times)| self.polls(process, times));
        let pushed = self.node.pushed();
        let pushed = grants.iter().filter(|grant| pushed.contains(&grant.token));
        let unnoticed = pushed.filter_map(|grant| self.unnoticed(grant, events));
        orphans.chain(polls).chain(unnoticed).collect()
    }
}

impl SqlServers {
    async fn connect_store(&self) -> Result<Store> {
        let address = "n0".to_owned();
        if self.plan.store == StoreKind::Postgres {
            let config = postgres_store::Config::new("postgres://app@n0/app")?;
            postgres_store::simulation::connect(config.operation_timeout(OPERATION_TIMEOUT), address).await
        } else {
            let config = mysql_store::Config::new("mysql://n0/app")?;
            mysql_store::simulation::connect(config.operation_timeout(OPERATION_TIMEOUT), address).await
        }
    }

    /// Returns a violation if a process has noticed this grant late although it listens, and nothing has prevented the notification.
    fn unnoticed(&self, grant: &Grant, events: &Events<'_>) -> Option<Violation> {
        let Grant { name, token, owner, .. } = grant;
        let process = events.living(owner)?;
        let section = events.record.sections_of(name.as_str(), token.cast_unsigned()).last()?;
        let patience = events.record.attempts.get(owner)?.patience;
        let at = Duration::from_nanos(self.node.clock.to_run(grant.at_us));
        let longest = LONGEST_UNNOTICED.0 + LONGEST_UNNOTICED.1 * self.network.round_trip_of(process);
        let until = at + longest + patience;
        let is_disturbed = self.plan.is_disturbed(process, (at.saturating_sub(AFTERMATH), until))
            || self.plan.is_noisy && at < FAULTS_END + AFTERMATH
            || self.plan.has_silent_ends(until);
        (section.acquired > nanos(until) && !is_disturbed).then(|| {
            let what = format!("lost notification: {owner} has noticed token {token} of {name} late");
            Violation::new(nanos(at), "lost wake-up", what)
        })
    }

    /// Returns a violation if a process has polled from `since` to `last` although nothing prevents it from listening.
    fn polls(&self, (process, life): Life, (since, last): (u64, u64)) -> Option<Violation> {
        let from = self.plan.disturbed_until(Duration::from_nanos(last)).max(Duration::from_nanos(since));
        (last > nanos(from + LONGEST_POLLED)).then(|| {
            let what = format!("polling: p{process}.{life} polls for grants, and does not listen");
            Violation::new(nanos(from), "polling", what)
        })
    }

    /// Returns a violation if no release of a grant was sent or executed after it, although its process was alive and connected.
    ///
    /// A process whose connections fail can't release. If the request was released before the grant, its process has had no other reason to
    /// open a connection.
    fn orphan(
        &self,
        grant: &Grant,
        releases: &BTreeMap<Vec<u8>, LastRelease>,
        events: &Events<'_>,
    ) -> Option<Violation> {
        let at = self.node.clock.to_run(grant.at_us);
        let process = events.living(&grant.owner)?;
        let released = releases.get(&grant.request);
        let from = Duration::from_nanos(at);
        let since = from.saturating_sub(OPERATION_TIMEOUT);
        let until = from + LONGEST_UNSENT;
        // A release may wait for a connection that is being opened, or for other operations that do.
        let has_connected = || self.wires.has_connected(process, 0, &(nanos(since)..nanos(until)));
        let is_disturbed =
            self.plan.is_disturbed(process, (since, until)) || released.is_none() && has_connected();
        let was_released = released.is_some_and(|LastRelease { sent, executed }| {
            // A release may be on its way, or lost and not repeated before its time limit.
            let is_in_progress = sent > executed && sent + nanos(OPERATION_TIMEOUT) >= at;
            *sent.max(executed) >= at || is_in_progress
        });
        (!is_disturbed && !was_released).then(|| {
            let Grant { name, token, .. } = grant;
            let what = format!("orphan: no client of p{process} has token {token} of {name}, or releases it");
            Violation::new(at, "orphan", what)
        })
    }
}
