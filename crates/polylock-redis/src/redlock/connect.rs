//! Opens the store, and checks that enough servers can be used and that their votes count.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::future;
use polylock_core::{
    Capabilities, Clock, ConfigError, Error, Fault, Fencing, FirstStep, HoldAlerts, Modes, Notifications,
    Operation, Order, PerRuntime, QueueLease, Result, Scope, Store, StoreConfig, SystemClock,
    waiter_queues::WaiterQueues,
};

use super::{
    NAME,
    backend::{Context, RedlockBackend, on_push},
    config::{Config, Restart},
    list::List,
    membership::Observed,
    node::Node,
    numbers::Numbers,
    poll::{no_majority, poll},
    scripts::Scripts,
    tally::quorum,
    withdrawals::ServerSet,
};
use crate::{
    checkup::Health,
    distinct::Distinct,
    endpoint::{self, Endpoint, Push},
    error::Cause,
    keys,
    link::Link,
};

/// The shortest lease: several times the duration of a majority decision.
const MIN_TTL: Duration = Duration::from_millis(100);
/// The time for which a connection is kept without a reply. The order of messages lasts as long as the connection.
const BROKEN_AFTER: Duration = Duration::from_secs(1);
/// The time by which the delay of a server exceeds the longest lease.
const DELAY_MARGIN: Duration = Duration::from_secs(1);

/// Opens the store.
///
/// # Errors
/// [`Error::Config`] if the configuration is invalid, [`Error::Unavailable`] if no majority of the servers can be reached, or one of them
/// refuses the user or has a setting that breaks locks.
///
/// # Cancel safety
/// Yes: nothing is left behind.
pub async fn connect(config: Config) -> Result<Store> {
    polylock_core::io::run(NAME, open(config)).await?
}

#[async_trait]
impl StoreConfig for Config {
    async fn open(&self) -> Result<Store> {
        connect(self.clone()).await
    }

    async fn admit(&self) -> Result<Option<Vec<String>>> {
        admit(self.clone()).await.map(Some)
    }

    /// No lock of a new namespace can be forgotten, so the votes of all servers count at once.
    fn in_namespace(&self, name: &str) -> Option<Arc<dyn StoreConfig>> {
        Some(Arc::new(self.clone().namespace(name).restart(Restart::Trust)))
    }

    async fn delete_namespaces(&self, names: &[String]) -> Result<()> {
        polylock_core::io::run(NAME, delete(self.clone(), names.to_vec())).await?
    }
}

async fn delete(config: Config, names: Vec<String>) -> Result<()> {
    let Servers { servers, .. } = Servers::connect(&config).await?;
    let deletions = servers.nodes.iter().map(|node| keys::delete_all(&node.link, &names));
    // One that can't be reached does not keep the others from being emptied.
    future::join_all(deletions).await.into_iter().collect()
}

/// Ends the delay of servers that are new (see the [module](super)), and returns the addresses of these servers.
///
/// It is meant for a set of servers that was never used for locks before: their votes then count at once, and not after the longest
/// possible lease. It is wrong for servers that have lost their data: they may have forgotten locks that are held. It is refused while any
/// of the servers has a vote for a lock, or does not reply.
///
/// # Errors
/// [`Error::Config`] if the configuration is invalid, [`Error::Unavailable`] if one of the servers can't be reached, refuses the user, which
/// needs `+scan`, or has a setting that breaks locks, or if a lock is held.
///
/// # Cancel safety
/// Once polled, it is completed even if it is dropped.
pub async fn admit(config: Config) -> Result<Vec<String>> {
    polylock_core::io::run(NAME, admit_servers(config)).await?
}

/// The servers of a configuration.
struct Servers {
    servers: ServerSet,
    waiters: Arc<WaiterQueues>,
    alerts: Arc<HoldAlerts>,
    channel: String,
    /// The states of the servers that have replied.
    healths: Vec<Health>,
}

impl Servers {
    /// Connects to the servers of `config`.
    ///
    /// # Errors
    /// If there are too few servers, or one of them can't be used.
    async fn connect(config: &Config) -> Result<Self> {
        config.check()?;
        let (waiters, alerts) = (Arc::<WaiterQueues>::default(), Arc::<HoldAlerts>::default());
        let channel = endpoint::client_channel(&config.settings.prefix, &endpoint::client_id());
        let delay = (config.restart == Restart::Delay).then(|| config.max_ttl + DELAY_MARGIN);
        let distinct = Arc::<Distinct>::default();
        let node = |server| {
            let waiters = waiters.clone();
            let handler = Arc::new(move |push: Push<'_>| on_push(&waiters, push));
            let mut endpoint = Endpoint::new(
                &config.settings,
                NAME,
                server,
                Some(channel.clone()),
                handler,
                alerts.clone(),
            )?;
            endpoint.broken_after = BROKEN_AFTER;
            endpoint.tolerates_data_loss = delay.is_some();
            endpoint.requires_run_id = delay.is_some();
            endpoint.distinct = Some(distinct.clone());
            Ok::<_, ConfigError>(Arc::new(Node::new(Link::new(endpoint), delay)))
        };
        let nodes = config.settings.servers.iter().map(node).collect::<Result<Vec<_>, _>>()?;
        let scripts = Scripts::new(&config.settings.prefix, config.max_ttl);
        let addresses = nodes.iter().map(|node| node.address().to_owned());
        let list = List::new(config, addresses, distinct);
        let servers = ServerSet::new(nodes, scripts, list, config.settings.operation_timeout);
        let healths = connect_all(&servers, config).await?;
        Ok(Self { servers, waiters, alerts, channel, healths })
    }
}

async fn open(config: Config) -> Result<Store> {
    let Servers { servers, waiters, alerts, channel, healths } = Servers::connect(&config).await?;
    let mut capabilities = Capabilities::new(NAME, MIN_TTL..=config.max_ttl);
    capabilities.modes = Modes::ExclusiveOnly;
    capabilities.order = Order::Unordered;
    capabilities.scope = Scope::Network;
    capabilities.notifications = Notifications::Pushed;
    capabilities.first_step = FirstStep::Thread;
    capabilities.queue_lease = QueueLease::Absent;
    if !healths.iter().all(|health| health.is_durable) {
        // A server that forgets its numbers continues from its clock.
        capabilities.fencing = Fencing::WhileRunning;
    }
    let break_channel = endpoint::break_channel(&config.settings.prefix);
    let context = Context { capabilities, numbers: Numbers::default(), waiters, channel, break_channel };
    let (context, servers) = (Arc::new(context), Arc::new(servers));
    let store = Arc::new(RedlockBackend { context, servers, callers: PerRuntime::default() });
    Ok(Store::inspectable(store.clone()).alerting(alerts).raising(store.clone()).parking(store))
}

async fn admit_servers(config: Config) -> Result<Vec<String>> {
    let Servers { servers, .. } = Servers::connect(&config).await?;
    let mut admitted = Vec::new();
    for node in &servers.nodes {
        if node.link.is_unresponsive() {
            let advice = "this server does not reply, and may have the vote for a lock that the others have forgotten: start it, or wait \
                          until the delay has ended";
            let cause = Cause::Unusable(Fault::Temporary, advice.to_owned());
            return Err(node.link.failed(Operation::Connect, cause));
        }
        let held = servers.scripts.keys.scan_names(&node.link, "r", "").await?;
        if let Some(name) = held.first() {
            let advice = format!(
                "lock {name} is held, so these servers are in use, and those whose votes do not count may have forgotten \
                 votes: wait until the delay has ended"
            );
            let cause = Cause::Unusable(Fault::Permanent, advice);
            return Err(node.link.failed(Operation::Connect, cause));
        }
    }
    for node in &servers.nodes {
        if node.admit(&servers.scripts, config.settings.connect_timeout).await? {
            admitted.push(node.address().to_owned());
        }
    }
    Ok(admitted)
}

/// Connects to the servers, and checks the state that they report.
///
/// # Errors
/// If there are too few servers, or one of them can't be used.
async fn connect_all(servers: &ServerSet, config: &Config) -> Result<Vec<Health>> {
    let nodes = &servers.nodes;
    let timeout = config.settings.connect_timeout;
    let connect = |index, node: Arc<Node>| {
        let (scripts, list) = (servers.scripts.clone(), servers.list.clone());
        Some(async move {
            let sent = SystemClock.now();
            let (health, observed, identity) = node.connect(&scripts, list.keep, timeout).await?;
            list.learned(index, &identity, sent);
            Ok((health, observed))
        })
    };
    // Working servers reply at once. Slow servers are waited for only if there is no majority without them.
    let mut replies =
        poll(Operation::Connect, nodes, config.settings.operation_timeout, connect, |_, _| false).await;
    let reached = |replies: &[Option<Result<(Health, Observed)>>]| {
        replies.iter().filter(|reply| matches!(reply, Some(Ok(_)))).count()
    };
    if reached(&replies) < quorum(nodes.len()) {
        replies = poll(Operation::Connect, nodes, timeout, connect, |_, _| false).await;
    }
    for reply in &mut replies {
        // A permanent fault is reported now, and not when the server is needed.
        let is_permanent = |error: &Error| !matches!(error, Error::Unavailable(failure) if failure.fault == Fault::Temporary);
        if let Some(Err(error)) = reply.take_if(|reply| reply.as_ref().is_err_and(is_permanent)) {
            return Err(error);
        }
    }
    if reached(&replies) < quorum(nodes.len()) {
        return Err(no_majority(Operation::Connect, nodes, &replies));
    }
    // The replies have shown which servers these are. A program that does not claim is not recorded.
    servers.compare_list(config.settings.operation_timeout).await;
    servers.check_list(Operation::Connect)?;
    let mut delayed = Vec::new();
    for (node, reply) in nodes.iter().zip(&replies) {
        match reply {
            Some(Ok((_, observed))) => {
                if matches!(observed, Observed::Delayed { .. }) {
                    delayed.push(node.address());
                }
            }
            Some(Err(error)) => {
                let reason =
                    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
                tracing::warn!(
                    server = node.address(),
                    reason,
                    "a server can't be reached: the other servers decide without it"
                );
            }
            None => {}
        }
    }
    if !delayed.is_empty() {
        let delay = nodes.iter().filter_map(|node| node.remaining_delay()).max().unwrap_or_default();
        tracing::warn!(
            server = delayed.join(", "),
            "new, or has lost its data: its votes count in {delay:.0?}, when every earlier lease has expired"
        );
    }
    Ok(replies.into_iter().flatten().flatten().map(|(health, _)| health).collect())
}
