//! The primaries of a cluster, and the routing of a call to the primary that serves its slot.
//!
//! Replies of the nodes correct the slot table: each redirection corrects one slot, and the whole table is read again when a node moves a
//! slot, does not reply, or is no longer a primary. Callers that need the table at the same time share one read.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use futures_util::{StreamExt, future, stream::FuturesUnordered};
use polylock_core::{ConfigError, Error, Fault, LockName, Operation, Result, sync::lock};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind, ProtocolVersion,
    ServerErrorKind, Value,
};

use super::{
    query_order::query_order,
    topology::{self, Address, Range},
};
use crate::{
    call::{Call, Routing},
    config::{Settings, address, with_host},
    endpoint::{Endpoint, Expected, Push},
    error::{Cause, NO_CLUSTER},
    keys::{self, Bucket, Keys},
    link::{Link, Reply},
    queue::Client as StoreClient,
};

/// The maximum number of redirections of a call: more than a slot moves during one call.
const REDIRECTIONS: u32 = 5;
const DISAGREE: &str = "the nodes of the cluster disagree about which of them serves the slot of this lock: a failover or a \
    migration is under way";
const UNSERVED: &str = "no node of the cluster serves the slot of this lock: see CLUSTER INFO, and CLUSTER SLOTS for the missing \
    slots";

/// The primaries of a cluster.
pub(crate) struct Nodes {
    backend: &'static str,
    settings: Settings,
    client: StoreClient,
    state: Mutex<State>,
    /// Locked while the table is read.
    refreshing: tokio::sync::Mutex<()>,
}

struct State {
    links: HashMap<Address, Arc<Link>>,
    /// The primary that serves each bucket.
    primaries_by_bucket: Vec<Option<Arc<Link>>>,
    /// The number of reads of the table, and the outcome of the last one.
    refreshes: u64,
    refreshed: Result<(), Cause>,
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nodes").field("links", &self.links()).finish_non_exhaustive()
    }
}

/// The next step after a failed call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The slot is served at this address.
    Moved(String),
    /// The slot is about to be served at this address. Only this call is sent there.
    Ask(String),
    /// Another node may serve the slot now, so the table is read again.
    Refresh,
    Fail,
}

impl Step {
    pub(super) fn after(cause: &Cause) -> Self {
        let Cause::Driver(error) = cause else {
            return match cause {
                Cause::Unusable(Fault::Temporary, _) | Cause::TimedOut(_) | Cause::SlotLeft => Self::Refresh,
                Cause::Connecting(cause, _) => Self::after(cause),
                _ => Self::Fail,
            };
        };
        match (error.kind(), error.redirect_node()) {
            (ErrorKind::Server(ServerErrorKind::Moved), Some((address, _))) => {
                Self::Moved(address.to_owned())
            }
            (ErrorKind::Server(ServerErrorKind::Ask), Some((address, _))) => Self::Ask(address.to_owned()),
            (
                ErrorKind::Io
                | ErrorKind::Server(
                    ServerErrorKind::ReadOnly | ServerErrorKind::ClusterDown | ServerErrorKind::MasterDown,
                ),
                _,
            ) => Self::Refresh,
            _ => Self::Fail,
        }
    }
}

impl Nodes {
    /// Finds the primaries and connects to them.
    ///
    /// # Errors
    /// If no node can be reached, or one of the primaries is permanently unusable.
    pub(crate) async fn connect(
        backend: &'static str,
        settings: Settings,
        client: StoreClient,
    ) -> Result<Arc<Self>> {
        let state = State {
            links: HashMap::new(),
            primaries_by_bucket: vec![None; Bucket::COUNT],
            refreshes: 0,
            refreshed: Ok(()),
        };
        let (state, refreshing) = (Mutex::new(state), tokio::sync::Mutex::default());
        let nodes = Arc::new(Self { backend, settings, client, state, refreshing });
        // Reports an unreadable certificate here, and not when a node is needed.
        for seed in &nodes.settings.servers {
            nodes.settings.client(seed, ProtocolVersion::RESP3)?;
        }
        nodes.refresh(None).await.map_err(|cause| nodes.failed(Operation::Connect, cause))?;
        let links = nodes.links();
        let connected = future::join_all(links.iter().map(|link| link.get_connection())).await;
        let (mut failed, mut reached) = (Vec::new(), false);
        for (link, connected) in links.iter().zip(connected) {
            match connected {
                Ok(_) => reached = true,
                Err(cause) => failed.push((link, link.failed(Operation::Connect, cause))),
            }
        }
        // Reports a permanent fault at once, and not when the node is needed.
        if let Some(at) = failed.iter().position(|(_, error)| !reached || !is_temporary(error)) {
            return Err(failed.swap_remove(at).1);
        }
        for (link, error) in failed {
            let reason =
                std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            tracing::warn!(server = link.address(), reason, "a primary of the cluster can't be reached");
        }
        Ok(nodes)
    }

    /// Returns the addresses of the nodes that the URL names, without secrets.
    pub(super) fn address(&self) -> String {
        self.settings.servers.iter().map(address).collect::<Vec<_>>().join(",")
    }

    /// Returns the error of `operation` with this cause.
    pub(crate) fn failed(&self, operation: Operation, cause: Cause) -> Error {
        self.failed_at(&self.address(), operation, cause)
    }

    pub(super) fn failed_at(&self, address: &str, operation: Operation, cause: Cause) -> Error {
        cause.at(self.backend, operation, address)
    }

    /// Returns the known primaries.
    pub(super) fn links(&self) -> Vec<Arc<Link>> {
        self.state().links.values().cloned().collect()
    }

    /// Returns the primary that serves `bucket`, as far as is known.
    pub(super) fn primary(&self, bucket: Bucket) -> Option<Arc<Link>> {
        self.state().primaries_by_bucket[bucket.index()].clone()
    }

    /// Sends a call about the lock `name` to the primary that serves its slot; see [`Link::call`]. If the request is `queued`, the client
    /// subscribes there first.
    ///
    /// # Cancel safety
    /// See [`Link::call`].
    pub(crate) async fn call(
        self: &Arc<Self>,
        name: &LockName,
        operation: Operation,
        timeout: Duration,
        call: Call<'_>,
        queued: bool,
    ) -> Reply {
        let channel = queued.then(|| self.channel(name));
        let Reply { outcome, was_sent, may_execute_late, peer } =
            self.attempt(Bucket::of(name), operation, timeout, call, channel.as_deref()).await;
        let outcome = outcome.map_err(|(address, cause)| self.failed_at(&address, operation, cause));
        Reply { outcome, was_sent, may_execute_late, peer }
    }

    /// Returns the channel of this client for messages about the lock `name`.
    pub(crate) fn channel(&self, name: &LockName) -> String {
        Bucket::of(name).channel(&self.settings.prefix, &self.client.id)
    }

    /// Sends a call about locks of `bucket`. On failure, returns the address of the server that failed and the cause.
    pub(super) async fn attempt(
        self: &Arc<Self>,
        bucket: Bucket,
        operation: Operation,
        timeout: Duration,
        call: Call<'_>,
        channel: Option<&str>,
    ) -> Reply<(String, Cause)> {
        let (mut was_sent, mut may_execute_late, mut refreshed) = (false, false, false);
        let mut asking: Option<Arc<Link>> = None;
        let fail = |address: String, cause, was_sent, may_execute_late| Reply {
            outcome: Err((address, cause)),
            was_sent,
            may_execute_late,
            peer: None,
        };
        for _ in 0..REDIRECTIONS {
            let target = asking.take();
            let routing = Routing { asking: target.is_some(), channel: channel.filter(|_| target.is_none()) };
            let Some(link) = target.or_else(|| self.primary(bucket)) else {
                if std::mem::replace(&mut refreshed, true) || self.refresh(None).await.is_err() {
                    let cause = Cause::Unusable(Fault::Temporary, UNSERVED.to_owned());
                    return fail(self.address(), cause, was_sent, may_execute_late);
                }
                continue;
            };
            let reply = link.attempt(operation, timeout, call, routing).await;
            was_sent |= reply.was_sent;
            may_execute_late |= reply.may_execute_late;
            let cause = match reply.outcome {
                Ok(value) => {
                    return Reply { outcome: Ok(value), was_sent, may_execute_late, peer: reply.peer };
                }
                Err(cause) => cause,
            };
            let address = link.address().to_owned();
            let is_followed = match Step::after(&cause) {
                Step::Moved(address) => self.apply_redirection(bucket, &address, &link),
                Step::Ask(address) => {
                    asking = Address::read(&address, link.host()).and_then(|address| self.link(address).ok());
                    asking.is_some()
                }
                Step::Refresh if !refreshed => {
                    refreshed = true;
                    let table_is_known = self.refresh(Some(&link)).await.is_ok();
                    let primary = self.primary(bucket);
                    table_is_known && primary.is_some_and(|primary| !Arc::ptr_eq(&primary, &link))
                }
                Step::Refresh | Step::Fail => false,
            };
            if !is_followed {
                return fail(address, cause, was_sent, may_execute_late);
            }
        }
        let cause = Cause::Unusable(Fault::Temporary, DISAGREE.to_owned());
        fail(self.address(), cause, was_sent, may_execute_late)
    }

    /// Applies the redirection of `bucket` to the node at `address`. Returns false if the address can't be used.
    fn apply_redirection(self: &Arc<Self>, bucket: Bucket, address: &str, replier: &Link) -> bool {
        let Some(address) = Address::read(address, replier.host()) else { return false };
        let Ok(link) = self.link(address) else { return false };
        let slot = bucket.slot(&self.settings.prefix);
        let mut is_changed = false;
        for bucket in Bucket::all().filter(|bucket| bucket.slot(&self.settings.prefix) == slot) {
            let before = self.state().primaries_by_bucket[bucket.index()].replace(link.clone());
            is_changed |= before.is_none_or(|before| !Arc::ptr_eq(&before, &link));
        }
        if is_changed {
            // Wakes all waiters: they are subscribed at the former owner.
            (self.client.on_push)(Push::Lost);
        }
        // If one slot has moved, others are likely to have moved, too.
        let nodes = self.clone();
        tokio::spawn(async move { nodes.refresh(None).await });
        true
    }

    /// Returns the connection to the node at this address. It is made with its first use.
    fn link(&self, address: Address) -> Result<Arc<Link>, ConfigError> {
        let mut state = self.state();
        if let Some(link) = state.links.get(&address) {
            return Ok(link.clone());
        }
        let link = self.new_link(&address)?;
        state.links.insert(address, link.clone());
        Ok(link)
    }

    fn new_link(&self, address: &Address) -> Result<Arc<Link>, ConfigError> {
        let server = with_host(&self.settings.servers[0], &address.host, address.port);
        let StoreClient { on_push, alerts, .. } = self.client.clone();
        let mut endpoint = Endpoint::new(&self.settings, self.backend, &server, None, on_push, alerts)?;
        endpoint.expected = Expected::ClusterNode;
        Ok(Link::new(endpoint))
    }

    /// Reads the slot table. Callers at the same time share one read. The node `suspect` is queried last: a node that was cut off from the
    /// others may still act as a primary.
    ///
    /// # Errors
    /// If no node returns the table.
    ///
    /// # Cancel safety
    /// Yes.
    pub(crate) async fn refresh(&self, suspect: Option<&Link>) -> Result<(), Cause> {
        let before = self.state().refreshes;
        let _one = self.refreshing.lock().await;
        {
            let state = self.state();
            if state.refreshes != before {
                return state.refreshed.clone();
            }
        }
        let found = self.fetch_table(suspect).await;
        let outcome = found.as_ref().map(|_| ()).map_err(Clone::clone);
        let is_changed = found.is_ok_and(|ranges| self.apply(&ranges));
        {
            let mut state = self.state();
            state.refreshes += 1;
            state.refreshed = outcome.clone();
        }
        if is_changed {
            // Wakes all waiters: they are subscribed at the former owners.
            (self.client.on_push)(Push::Lost);
        }
        outcome
    }

    /// Returns the table of the first node that replies with one. Primaries that are not silent are queried first, then the nodes of the
    /// URL.
    async fn fetch_table(&self, suspect: Option<&Link>) -> Result<Vec<Range>, Cause> {
        let mut primaries: Vec<(Address, Arc<Link>)> = {
            let state = self.state();
            state.links.iter().map(|(address, link)| (address.clone(), link.clone())).collect()
        };
        fastrand::shuffle(&mut primaries);
        primaries.sort_by_key(|(_, link)| link.is_unresponsive());
        let seeds = &self.settings.servers;
        let primaries = primaries.iter().map(|(at, _)| with_host(&seeds[0], &at.host, at.port)).collect();
        let mut failed = None;
        for group in query_order(primaries, seeds.clone(), suspect.map(Link::address)) {
            let mut replies: FuturesUnordered<_> = group.iter().map(|server| self.table_of(server)).collect();
            while let Some(reply) = replies.next().await {
                match reply {
                    Ok(ranges) => return Ok(ranges),
                    // A permanent cause is reported in preference to an unreachable node.
                    Err(cause) => {
                        failed = Some(match failed {
                            Some(Cause::Unusable(fault, why)) => Cause::Unusable(fault, why),
                            _ => cause,
                        });
                    }
                }
            }
        }
        Err(failed.unwrap_or(Cause::TimedOut(self.settings.connect_timeout)))
    }

    /// Reads the table of one node on a separate connection: the node may be a replica, or no longer known.
    async fn table_of(&self, server: &ConnectionInfo) -> Result<Vec<Range>, Cause> {
        let limit = self.settings.connect_timeout;
        let encrypted = matches!(server.addr(), ConnectionAddr::TcpTls { .. });
        let host = match server.addr() {
            ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host.clone(),
            _ => String::new(),
        };
        let client = self.settings.client(server, ProtocolVersion::RESP3);
        let client = client.map_err(|error| Cause::Unusable(Fault::Permanent, error.to_string()))?;
        let reply = tokio::time::timeout(limit, fetch_slots(client, self.settings.connection())).await;
        let reply =
            reply.unwrap_or(Err(Cause::TimedOut(limit))).map_err(|cause| cause.of_connecting(encrypted))?;
        topology::read(&reply, &host)
            .ok_or_else(|| Cause::Unusable(Fault::Permanent, "unexpected reply to CLUSTER SLOTS".to_owned()))
    }

    /// Installs the table. Returns true if the primary of any bucket has changed.
    fn apply(&self, ranges: &[Range]) -> bool {
        let mut primaries_by_bucket = vec![None; Bucket::COUNT];
        for bucket in Bucket::all() {
            let slot = bucket.slot(&self.settings.prefix);
            let range = ranges.iter().find(|range| (range.first..=range.last).contains(&slot));
            primaries_by_bucket[bucket.index()] =
                range.and_then(|range| self.link(range.primary.clone()).ok());
        }
        let mut state = self.state();
        // All primaries are kept, including those without a bucket. Connections to other nodes end with the calls that use them.
        let primaries: BTreeSet<&Address> = ranges.iter().map(|range| &range.primary).collect();
        state.links.retain(|address, _| primaries.contains(address));
        let is_same = |one: &Option<Arc<Link>>, other: &Option<Arc<Link>>| match (one, other) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        let is_changed = state
            .primaries_by_bucket
            .iter()
            .zip(&primaries_by_bucket)
            .any(|(before, now)| !is_same(before, now));
        state.primaries_by_bucket = primaries_by_bucket;
        is_changed
    }

    /// Returns the names that begin with `names`, of all locks in the cluster that have a key of these kinds.
    ///
    /// # Errors
    /// If one of the primaries is unavailable.
    pub(crate) async fn scan_names(
        &self,
        keys: &Keys,
        kinds: &str,
        names: &str,
    ) -> Result<BTreeSet<LockName>> {
        self.refresh(None).await.map_err(|cause| self.failed(Operation::Inspect, cause))?;
        let links = self.links();
        let found = links.iter().map(|link| keys.scan_names(link, kinds, names));
        Ok(future::try_join_all(found).await?.into_iter().flatten().collect())
    }

    /// Deletes all keys of these prefixes on all primaries.
    ///
    /// # Errors
    /// If one of the primaries is unavailable.
    pub(crate) async fn delete_all(&self, prefixes: &[String]) -> Result<()> {
        self.refresh(None).await.map_err(|cause| self.failed(Operation::Inspect, cause))?;
        let links = self.links();
        future::try_join_all(links.iter().map(|link| keys::delete_all(link, prefixes))).await.map(drop)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

async fn fetch_slots(client: Client, config: AsyncConnectionConfig) -> Result<Value, Cause> {
    let connection = client.get_multiplexed_async_connection_with_config(&config);
    let mut connection = connection.await.map_err(Cause::Driver)?;
    let reply = redis::cmd("CLUSTER").arg("SLOTS").query_async(&mut connection).await;
    reply.map_err(|error: redis::RedisError| {
        if error.to_string().contains("cluster support disabled") {
            return Cause::Unusable(Fault::Permanent, NO_CLUSTER.to_owned());
        }
        Cause::Driver(error)
    })
}

fn is_temporary(error: &Error) -> bool {
    matches!(error, Error::Unavailable(failure) if failure.fault == Fault::Temporary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_step_follows_from_the_reply() {
        let server = |text: &str| {
            Cause::Driver(
                redis::parse_redis_value(text.as_bytes())
                    .and_then(|value| value.extract_error())
                    .unwrap_err(),
            )
        };
        for (reply, step) in [
            ("-MOVED 5 10.0.0.1:7001\r\n", Step::Moved("10.0.0.1:7001".to_owned())),
            ("-ASK 5 10.0.0.1:7001\r\n", Step::Ask("10.0.0.1:7001".to_owned())),
            ("-CLUSTERDOWN Hash slot not served\r\n", Step::Refresh),
            ("-READONLY You can't write\r\n", Step::Refresh),
            ("-TRYAGAIN Multiple keys\r\n", Step::Fail),
            ("-LOADING Redis is loading\r\n", Step::Fail),
            ("-NOPERM no permissions\r\n", Step::Fail),
        ] {
            assert_eq!(Step::after(&server(reply)), step, "{reply}");
        }
        let limit = Duration::from_secs(1);
        assert_eq!(Step::after(&Cause::TimedOut(limit).of_connecting(false)), Step::Refresh);
        assert_eq!(Step::after(&Cause::Unusable(Fault::Permanent, String::new())), Step::Fail);
    }
}
