//! The primaries of a cluster, and the way of a call to the one that serves its slot.
//!
//! The table of the slots is corrected by the nodes themselves: by each redirection, and by a look at the whole table when a node
//! moves a slot, does not reply, or is no primary any more. All clients of the table wait for the same look.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::{StreamExt, future, stream::FuturesUnordered};
use polylock_core::{ConfigError, Error, Fault, LockName, Operation, Result};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind, ProtocolVersion,
    ServerErrorKind, Value,
};

use super::topology::{self, Address, Range};
use crate::{
    call::{Call, Via},
    config::{Settings, address, moved_to},
    error::Cause,
    keys::{Bucket, Keys},
    link::{Expected, Link, Push, Reply},
    queue::Client as Own,
};

/// How often a call is redirected: more than a slot moves while it is under way.
const REDIRECTIONS: u32 = 5;
/// How many nodes are asked for the table at a time.
const ASKED_AT_ONCE: usize = 3;
/// How many nodes are asked for the table at most.
const ASKED: usize = 9;

const DISAGREE: &str = "the nodes of the cluster disagree about which of them serves the slot of this lock: a failover or a \
    migration is under way";
const UNSERVED: &str = "no node of the cluster serves the slot of this lock: see CLUSTER INFO, and CLUSTER SLOTS for the missing \
    slots";

/// The primaries of a cluster.
pub(crate) struct Nodes {
    backend: &'static str,
    settings: Settings,
    own: Own,
    state: Mutex<State>,
    /// Held while the table is looked at.
    refreshing: tokio::sync::Mutex<()>,
}

struct State {
    links: HashMap<Address, Arc<Link>>,
    /// The primary that serves each bucket.
    owners: Vec<Option<Arc<Link>>>,
    /// How often the table was looked at, and whether the last look has found it.
    refreshes: u64,
    refreshed: Result<(), Cause>,
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nodes").field("links", &self.links()).finish_non_exhaustive()
    }
}

/// What to do after a call has failed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The slot is served at this address.
    Moved(String),
    /// The slot is about to be served at this address, which is to be asked once.
    Ask(String),
    /// Another node may serve the slot now.
    LookAgain,
    Fail,
}

impl Step {
    pub(super) fn after(cause: &Cause) -> Self {
        let Cause::Driver(error) = cause else {
            return match cause {
                Cause::Unusable(Fault::Temporary, _) | Cause::TimedOut(_) | Cause::SlotLeft => {
                    Self::LookAgain
                }
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
            ) => Self::LookAgain,
            _ => Self::Fail,
        }
    }
}

impl Nodes {
    /// Finds the primaries and connects to them.
    ///
    /// # Errors
    /// If no node can be reached, or one of the primaries can't be used for good.
    pub(crate) async fn connect(backend: &'static str, settings: Settings, own: Own) -> Result<Arc<Self>> {
        let state = State {
            links: HashMap::new(),
            owners: vec![None; Bucket::COUNT],
            refreshes: 0,
            refreshed: Ok(()),
        };
        let (state, refreshing) = (Mutex::new(state), tokio::sync::Mutex::default());
        let nodes = Arc::new(Self { backend, settings, own, state, refreshing });
        // A certificate that can't be read is to be found now.
        for seed in &nodes.settings.servers {
            nodes.settings.client(seed, ProtocolVersion::RESP3)?;
        }
        nodes.refresh(None).await.map_err(|cause| nodes.failed(Operation::Connect, cause))?;
        let links = nodes.links();
        let connected = future::join_all(links.iter().map(|link| link.live())).await;
        let (mut failed, mut reached) = (Vec::new(), false);
        for (link, connected) in links.iter().zip(connected) {
            match connected {
                Ok(_) => reached = true,
                Err(cause) => failed.push((link, link.failed(Operation::Connect, cause))),
            }
        }
        // A fault that does not pass by itself is to be found now, and not when the node is needed.
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

    /// The nodes that the URL names, without secrets.
    pub(super) fn place(&self) -> String {
        self.settings.servers.iter().map(address).collect::<Vec<_>>().join(",")
    }

    /// `operation` failed for this reason.
    pub(crate) fn failed(&self, operation: Operation, cause: Cause) -> Error {
        self.failed_at(&self.place(), operation, cause)
    }

    pub(super) fn failed_at(&self, place: &str, operation: Operation, cause: Cause) -> Error {
        cause.at(self.backend, operation, place)
    }

    /// The known primaries.
    pub(super) fn links(&self) -> Vec<Arc<Link>> {
        self.state().links.values().cloned().collect()
    }

    /// The primary that serves `bucket`, as far as is known.
    pub(super) fn owner(&self, bucket: Bucket) -> Option<Arc<Link>> {
        self.state().owners[bucket.index()].clone()
    }

    /// Sends a call about the lock `name` to the primary that serves its slot; see [`Link::call`]. If the request is `queued`, the
    /// client is subscribed there before.
    ///
    /// # Cancel safety
    /// As [`Link::call`].
    pub(crate) async fn call(
        self: &Arc<Self>,
        name: &LockName,
        operation: Operation,
        timeout: Duration,
        call: Call<'_>,
        queued: bool,
    ) -> Reply {
        let channel = queued.then(|| self.channel(name));
        let Reply { outcome, was_sent, may_come_late, peer } =
            self.attempt(Bucket::of(name), operation, timeout, call, channel.as_deref()).await;
        let outcome = outcome.map_err(|(place, cause)| self.failed_at(&place, operation, cause));
        Reply { outcome, was_sent, may_come_late, peer }
    }

    /// The channel of this client for messages about the lock `name`.
    pub(crate) fn channel(&self, name: &LockName) -> String {
        Bucket::of(name).channel(&self.settings.prefix, &self.own.id)
    }

    /// Sends a call about locks of `bucket`, and returns where it has failed with the cause of that.
    pub(super) async fn attempt(
        self: &Arc<Self>,
        bucket: Bucket,
        operation: Operation,
        timeout: Duration,
        call: Call<'_>,
        channel: Option<&str>,
    ) -> Reply<(String, Cause)> {
        let (mut was_sent, mut may_come_late, mut looked) = (false, false, false);
        let mut asking: Option<Arc<Link>> = None;
        let fail = |place: String, cause, was_sent, may_come_late| Reply {
            outcome: Err((place, cause)),
            was_sent,
            may_come_late,
            peer: None,
        };
        for _ in 0..REDIRECTIONS {
            let asked = asking.take();
            let via = Via { asking: asked.is_some(), channel: channel.filter(|_| asked.is_none()) };
            let Some(link) = asked.or_else(|| self.owner(bucket)) else {
                if std::mem::replace(&mut looked, true) || self.refresh(None).await.is_err() {
                    let cause = Cause::Unusable(Fault::Temporary, UNSERVED.to_owned());
                    return fail(self.place(), cause, was_sent, may_come_late);
                }
                continue;
            };
            let reply = link.attempt(operation, timeout, call, via).await;
            was_sent |= reply.was_sent;
            may_come_late |= reply.may_come_late;
            let cause = match reply.outcome {
                Ok(value) => return Reply { outcome: Ok(value), was_sent, may_come_late, peer: reply.peer },
                Err(cause) => cause,
            };
            let place = link.address().to_owned();
            let is_followed = match Step::after(&cause) {
                Step::Moved(address) => self.moved(bucket, &address, &link),
                Step::Ask(address) => {
                    asking = Address::read(&address, link.host()).and_then(|address| self.link(address).ok());
                    asking.is_some()
                }
                Step::LookAgain if !looked => {
                    looked = true;
                    let is_known = self.refresh(Some(&link)).await.is_ok();
                    let owner = self.owner(bucket);
                    is_known && owner.is_some_and(|owner| !Arc::ptr_eq(&owner, &link))
                }
                Step::LookAgain | Step::Fail => false,
            };
            if !is_followed {
                return fail(place, cause, was_sent, may_come_late);
            }
        }
        let cause = Cause::Unusable(Fault::Temporary, DISAGREE.to_owned());
        fail(self.place(), cause, was_sent, may_come_late)
    }

    /// A node has replied that another one serves the slot of `bucket`. Returns whether that can be reached at all.
    fn moved(self: &Arc<Self>, bucket: Bucket, address: &str, by: &Link) -> bool {
        let Some(address) = Address::read(address, by.host()) else { return false };
        let Ok(link) = self.link(address) else { return false };
        let slot = bucket.slot(&self.settings.prefix);
        let mut is_changed = false;
        for bucket in Bucket::all().filter(|bucket| bucket.slot(&self.settings.prefix) == slot) {
            let before = self.state().owners[bucket.index()].replace(link.clone());
            is_changed |= before.is_none_or(|before| !Arc::ptr_eq(&before, &link));
        }
        if is_changed {
            // Waiters are subscribed at the former owner.
            (self.own.on_push)(Push::Lost);
        }
        // Slots seldom move alone.
        let nodes = self.clone();
        tokio::spawn(async move { nodes.refresh(None).await });
        true
    }

    /// The connection to the node at this address, made with its first use.
    fn link(&self, address: Address) -> Result<Arc<Link>, ConfigError> {
        let mut state = self.state();
        if let Some(link) = state.links.get(&address) {
            return Ok(link.clone());
        }
        let link = Arc::new(self.new_link(&address)?);
        state.links.insert(address, link.clone());
        Ok(link)
    }

    fn new_link(&self, address: &Address) -> Result<Link, ConfigError> {
        let server = moved_to(&self.settings.servers[0], &address.host, address.port);
        let Own { on_push, alerts, .. } = self.own.clone();
        let mut endpoint = self.settings.endpoint(self.backend, &server, None, on_push, alerts)?;
        endpoint.expected = Expected::ClusterNode;
        Ok(Link::new(endpoint))
    }

    /// Looks at the table of the slots. All who call it at the same time wait for the same look. The node `suspect` is asked last: one
    /// that was cut off from the others may still have itself for a primary.
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
        let found = self.find(suspect).await;
        let outcome = found.as_ref().map(|_| ()).map_err(Clone::clone);
        let is_changed = found.is_ok_and(|ranges| self.apply(&ranges));
        {
            let mut state = self.state();
            state.refreshes += 1;
            state.refreshed = outcome.clone();
        }
        if is_changed {
            // Waiters are subscribed at the former owners.
            (self.own.on_push)(Push::Lost);
        }
        outcome
    }

    /// The table of the first node that returns one: of the primaries, those that reply first, and then of the nodes of the URL.
    async fn find(&self, suspect: Option<&Link>) -> Result<Vec<Range>, Cause> {
        let mut primaries: Vec<(Address, Arc<Link>)> = {
            let state = self.state();
            state.links.iter().map(|(address, link)| (address.clone(), link.clone())).collect()
        };
        fastrand::shuffle(&mut primaries);
        primaries.sort_by_key(|(_, link)| link.is_silent());
        let seeds = &self.settings.servers;
        let primaries = primaries.iter().map(|(it, _)| moved_to(&seeds[0], &it.host, it.port)).collect();
        let mut failed = None;
        for some in asked(primaries, seeds.clone(), suspect.map(Link::address)) {
            let mut replies: FuturesUnordered<_> = some.iter().map(|server| self.table_of(server)).collect();
            while let Some(reply) = replies.next().await {
                match reply {
                    Ok(ranges) => return Ok(ranges),
                    // What does not pass by itself is worth more than a node that can't be reached.
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

    /// The table of one node, on a connection of its own: it may be a replica, or a node that is known no more.
    async fn table_of(&self, server: &ConnectionInfo) -> Result<Vec<Range>, Cause> {
        let limit = self.settings.connect_timeout;
        let encrypted = matches!(server.addr(), ConnectionAddr::TcpTls { .. });
        let host = match server.addr() {
            ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host.clone(),
            _ => String::new(),
        };
        let client = self.settings.client(server, ProtocolVersion::RESP3);
        let client = client.map_err(|error| Cause::Unusable(Fault::Permanent, error.to_string()))?;
        let reply = tokio::time::timeout(limit, slots(client, self.settings.connection())).await;
        let reply =
            reply.unwrap_or(Err(Cause::TimedOut(limit))).map_err(|cause| cause.of_connecting(encrypted))?;
        topology::read(&reply, &host)
            .ok_or_else(|| Cause::Unusable(Fault::Permanent, "unexpected reply to CLUSTER SLOTS".to_owned()))
    }

    /// Makes this the table. Returns whether another primary than before serves a bucket.
    fn apply(&self, ranges: &[Range]) -> bool {
        let mut owners = vec![None; Bucket::COUNT];
        for bucket in Bucket::all() {
            let slot = bucket.slot(&self.settings.prefix);
            let range = ranges.iter().find(|range| (range.first..=range.last).contains(&slot));
            owners[bucket.index()] = range.and_then(|range| self.link(range.primary.clone()).ok());
        }
        let mut state = self.state();
        // All primaries are kept, also those without a bucket now. Connections to other nodes end with the calls that use them.
        let primaries: BTreeSet<&Address> = ranges.iter().map(|range| &range.primary).collect();
        state.links.retain(|address, _| primaries.contains(address));
        let same = |one: &Option<Arc<Link>>, other: &Option<Arc<Link>>| match (one, other) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        let is_changed = state.owners.iter().zip(&owners).any(|(before, now)| !same(before, now));
        state.owners = owners;
        is_changed
    }

    /// The names that begin with `names`, of all locks in the cluster that have a key of these kinds.
    ///
    /// # Errors
    /// If one of the primaries is unavailable.
    pub(crate) async fn in_use(&self, keys: &Keys, kinds: &str, names: &str) -> Result<BTreeSet<LockName>> {
        self.refresh(None).await.map_err(|cause| self.failed(Operation::Inspect, cause))?;
        let links = self.links();
        let found = links.iter().map(|link| keys.in_use(link, kinds, names));
        Ok(future::try_join_all(found).await?.into_iter().flatten().collect())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The nodes to ask for the table, some at a time: `primaries` in this order, then `seeds` in any order, each once, and `suspect` last
/// and alone.
fn asked(
    mut primaries: Vec<ConnectionInfo>,
    mut seeds: Vec<ConnectionInfo>,
    suspect: Option<&str>,
) -> Vec<Vec<ConnectionInfo>> {
    primaries.truncate(ASKED - ASKED_AT_ONCE);
    fastrand::shuffle(&mut seeds);
    let known: BTreeSet<String> = primaries.iter().map(address).collect();
    seeds.retain(|seed| !known.contains(&address(seed)));
    let all = primaries.into_iter().chain(seeds).take(ASKED);
    let (last, first): (Vec<_>, Vec<_>) = all.partition(|server| suspect == Some(&address(server)));
    first.chunks(ASKED_AT_ONCE).map(<[_]>::to_vec).chain([last]).collect()
}

async fn slots(client: Client, config: AsyncConnectionConfig) -> Result<Value, Cause> {
    let connection = client.get_multiplexed_async_connection_with_config(&config);
    let mut connection = connection.await.map_err(Cause::Driver)?;
    let reply = redis::cmd("CLUSTER").arg("SLOTS").query_async(&mut connection).await;
    reply.map_err(|error: redis::RedisError| {
        if error.to_string().contains("cluster support disabled") {
            let why = "this server is not part of a Redis Cluster (cluster-enabled is no): write redis://";
            return Cause::Unusable(Fault::Permanent, why.to_owned());
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
    use redis::IntoConnectionInfo;

    #[test]
    fn every_node_is_asked_once_and_the_suspect_last() {
        let nodes = |hosts: &[&str]| -> Vec<ConnectionInfo> {
            hosts.iter().map(|host| format!("redis://{host}").into_connection_info().unwrap()).collect()
        };
        let rounds = asked(nodes(&["a:1", "b:2", "c:3"]), nodes(&["b:2", "d:4", "e:5"]), Some("b:2"));
        let rounds: Vec<Vec<String>> = rounds.iter().map(|some| some.iter().map(address).collect()).collect();
        assert_eq!(rounds.len(), 3, "{rounds:?}");
        assert_eq!(rounds[0][..2], ["a:1", "c:3"]);
        let seeds: BTreeSet<&str> = [&*rounds[0][2], &*rounds[1][0]].into();
        assert_eq!(seeds, ["d:4", "e:5"].into());
        assert_eq!(rounds[2], ["b:2"]);
        let many: Vec<String> = (1..100).map(|port| format!("h:{port}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let rounds = asked(nodes(&many), nodes(&["seed:1"]), None);
        assert!(rounds.iter().flatten().any(|server| address(server) == "seed:1"), "a seed is asked, too");
        assert_eq!(rounds.iter().flatten().count(), ASKED - ASKED_AT_ONCE + 1);
    }

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
            ("-CLUSTERDOWN Hash slot not served\r\n", Step::LookAgain),
            ("-READONLY You can't write\r\n", Step::LookAgain),
            ("-TRYAGAIN Multiple keys\r\n", Step::Fail),
            ("-LOADING Redis is loading\r\n", Step::Fail),
            ("-NOPERM no permissions\r\n", Step::Fail),
        ] {
            assert_eq!(Step::after(&server(reply)), step, "{reply}");
        }
        let limit = Duration::from_secs(1);
        assert_eq!(Step::after(&Cause::TimedOut(limit).of_connecting(false)), Step::LookAgain);
        assert_eq!(Step::after(&Cause::Unusable(Fault::Permanent, String::new())), Step::Fail);
    }
}
