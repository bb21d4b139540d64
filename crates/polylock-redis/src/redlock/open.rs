//! Opening the store: whether enough servers are there, and whether their votes count.

use std::{collections::HashMap, sync::Arc, time::Duration};

use polylock_core::{
    Capabilities, ConfigError, Error, Fault, Fencing, FirstStep, HoldAlerts, Modes, Operation, Order,
    QueueLease, Reach, Result, Store, WakeUp,
};

use super::{
    NAME,
    backend::{Redlock, on_push},
    config::{Config, Restart},
    membership::Observed,
    node::Node,
    poll::{poll, too_few},
    scripts::Scripts,
    tally::quorum,
    waiters::Waiters,
    withdrawals::Cluster,
};
use crate::{
    checkup::Health,
    error::Cause,
    link::{self, Link, Push},
};

/// The shortest lease: several times the time that a majority takes.
const SHORTEST: Duration = Duration::from_millis(100);
/// For how long a connection is kept without a reply: the order of what was sent lasts as long as it does.
const SILENCE: Duration = Duration::from_secs(1);
/// By how much the delay of a server exceeds the longest lease.
const DELAY_MARGIN: Duration = Duration::from_secs(1);

/// Opens the store.
///
/// # Errors
/// [`Error::Config`] if the configuration makes no sense, [`Error::Unavailable`] if no majority of the servers can be
/// reached, or one of them refuses the user or has a setting that breaks locks.
///
/// # Cancel safety
/// Yes: nothing is left behind.
pub async fn connect(config: Config) -> Result<Store> {
    polylock_core::io::run(NAME, open(config)).await?
}

/// Ends the delay of servers that are new (see the [module](super)), and returns those whose delay it has ended.
///
/// For a set of servers that was never used for locks before: their votes count at once then, and not after the longest lease that
/// there can be. For servers that have lost their data it is wrong: locks may be held that they have forgotten. It is refused while
/// any of the servers has a vote for a lock.
///
/// # Errors
/// [`Error::Config`] if the configuration makes no sense, [`Error::Unavailable`] if no majority of the servers can be reached, if
/// a lock is held, or if one of the servers refuses the user (who needs `+scan`) or has a setting that breaks locks.
///
/// # Cancel safety
/// Once polled, it is carried out even if it is dropped.
pub async fn admit(config: Config) -> Result<Vec<String>> {
    polylock_core::io::run(NAME, admit_servers(config)).await?
}

/// The servers of a configuration.
struct Servers {
    cluster: Cluster,
    waiters: Arc<Waiters>,
    alerts: Arc<HoldAlerts>,
    channel: String,
    /// Of those that have replied.
    healths: Vec<Health>,
}

impl Servers {
    /// Connects to them.
    ///
    /// # Errors
    /// If there are too few, or one of them can't be used.
    async fn meet(config: &Config) -> Result<Self> {
        config.check()?;
        let (waiters, alerts) = (Arc::<Waiters>::default(), Arc::<HoldAlerts>::default());
        let channel = link::own_channel(&config.settings.prefix, &link::client_id());
        let delay = (config.restart == Restart::Delay).then(|| config.max_ttl + DELAY_MARGIN);
        let node = |server| {
            let waiters = waiters.clone();
            let handler = Arc::new(move |push: Push<'_>| on_push(&waiters, push));
            let mut endpoint =
                config.settings.endpoint(NAME, server, Some(channel.clone()), handler, alerts.clone())?;
            endpoint.silence = SILENCE;
            endpoint.may_forget = delay.is_some();
            endpoint.needs_run = delay.is_some();
            Ok::<_, ConfigError>(Arc::new(Node::new(Link::new(endpoint), delay)))
        };
        let nodes = config.settings.servers.iter().map(node).collect::<Result<Vec<_>, _>>()?;
        let scripts = Scripts::new(&config.settings.prefix, config.max_ttl);
        let cluster = Cluster::new(nodes, scripts, config.settings.command_timeout);
        let healths = meet(&cluster, config).await?;
        Ok(Self { cluster, waiters, alerts, channel, healths })
    }
}

async fn open(config: Config) -> Result<Store> {
    let Servers { cluster, waiters, alerts, channel, healths } = Servers::meet(&config).await?;
    let mut capabilities = Capabilities::new(NAME, SHORTEST..=config.max_ttl);
    capabilities.modes = Modes::ExclusiveOnly;
    capabilities.order = Order::Unordered;
    capabilities.reach = Reach::Machines;
    capabilities.wake = WakeUp::Pushed;
    capabilities.first_step = FirstStep::Thread;
    capabilities.queue_lease = QueueLease::Absent;
    if !healths.iter().all(|health| health.is_durable) {
        // A server that forgets its numbers continues from its clock.
        capabilities.fencing = Fencing::WhileRunning;
    }
    let store = Redlock {
        capabilities,
        cluster: Arc::new(cluster),
        numbers: Default::default(),
        waiters,
        channel,
        break_channel: link::break_channel(&config.settings.prefix),
    };
    Ok(Store::inspectable(Arc::new(store)).alerting(alerts))
}

async fn admit_servers(config: Config) -> Result<Vec<String>> {
    let Servers { cluster, .. } = Servers::meet(&config).await?;
    let mut admitted = Vec::new();
    for node in &cluster.nodes {
        if node.link.is_silent() {
            continue;
        }
        let held = cluster.scripts.keys.in_use(&node.link, "r", "").await?;
        if let Some(name) = held.first() {
            let advice = format!(
                "lock {name} is held, so these servers are in use, and one whose votes do not count may have forgotten \
                 some: wait until its delay has ended"
            );
            let cause = Cause::Unusable(Fault::Permanent, advice);
            return Err(node.link.failed(Operation::Connect, cause));
        }
    }
    for node in &cluster.nodes {
        if !node.link.is_silent() && node.admit(&cluster.scripts, config.settings.connect_timeout).await? {
            admitted.push(node.address().to_owned());
        }
    }
    Ok(admitted)
}

/// Connects to the servers, and judges them by what they state.
///
/// # Errors
/// If there are too few, or one of them can't be used.
async fn meet(cluster: &Cluster, config: &Config) -> Result<Vec<Health>> {
    let nodes = &cluster.nodes;
    let timeout = config.settings.connect_timeout;
    let live = |_, node: Arc<Node>| {
        let scripts = cluster.scripts.clone();
        Some(async move { node.meet(&scripts, timeout).await })
    };
    // Servers that work reply at once. For a majority, it is worth waiting for the slow ones.
    let mut replies =
        poll(Operation::Connect, nodes, config.settings.command_timeout, live, |_, _| false).await;
    let there = |replies: &[Option<Result<(Health, Observed)>>]| {
        replies.iter().filter(|reply| matches!(reply, Some(Ok(_)))).count()
    };
    if there(&replies) < quorum(nodes.len()) {
        replies = poll(Operation::Connect, nodes, timeout, live, |_, _| false).await;
    }
    for reply in &mut replies {
        // A fault that does not pass by itself is to be found now, and not when the server is needed.
        let lasting = |error: &Error| !matches!(error, Error::Unavailable(failure) if failure.fault == Fault::Temporary);
        if let Some(Err(error)) = reply.take_if(|reply| reply.as_ref().is_err_and(lasting)) {
            return Err(error);
        }
    }
    if there(&replies) < quorum(nodes.len()) {
        return Err(too_few(Operation::Connect, nodes, &replies));
    }
    let (mut runs, mut delayed) = (HashMap::new(), Vec::new());
    for (node, reply) in nodes.iter().zip(&replies) {
        match reply {
            Some(Ok((health, observed))) => {
                if let Some(run) = &health.run
                    && let Some(other) = runs.insert(run.clone(), node.address())
                {
                    let problem =
                        format!("{other} and {} are the same server: its vote counts once", node.address());
                    return Err(ConfigError::new("store", problem).into());
                }
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
                    "a server can't be reached: the others decide without it"
                );
            }
            None => {}
        }
    }
    if !delayed.is_empty() {
        let delay = nodes.iter().filter_map(|node| node.remaining_delay()).max().unwrap_or_default();
        tracing::warn!(
            server = delayed.join(", "),
            "new, or has lost its data: its votes count in {delay:.0?}, when every lease of before has expired"
        );
    }
    Ok(replies.into_iter().flatten().flatten().map(|(health, _)| health).collect())
}
