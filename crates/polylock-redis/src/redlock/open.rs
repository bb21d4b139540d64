//! Opening the store: the servers, and whether enough of them are there.

use std::{collections::HashMap, sync::Arc, time::Duration};

use polylock_core::{
    Capabilities, ConfigError, Error, Fault, Fencing, FirstStep, Modes, Operation, Order, Reach, Result,
    Store, WakeUp, line::Line,
};

use super::{
    NAME,
    backend::{Redlock, hear},
    config::{Config, Restart},
    node::Node,
    poll::{poll, quorum, too_few},
    scripts::Scripts,
};
use crate::{
    checkup::Health,
    error::Trouble,
    link::{self, Link, News},
};

/// The shortest lease: several times what a majority takes.
const SHORTEST: Duration = Duration::from_millis(100);
/// For how long a node may be silent until its connection is given up: as long as it lasts, the order of what was sent does.
const SILENCE: Duration = Duration::from_secs(1);
/// By how much longer than the longest lease a node must have run: its clock shows whole seconds.
const GROWN_UP: Duration = Duration::from_secs(1);

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

async fn open(config: Config) -> Result<Store> {
    config.check()?;
    let waiters: Arc<Line> = Arc::default();
    let channel = link::channel();
    let youth = match config.restart {
        Restart::Delay => config.max_ttl + GROWN_UP,
        Restart::Trust => Duration::ZERO,
    };
    let node = |index| {
        let waiters = waiters.clone();
        let ear = Arc::new(move |news: News<'_>| hear(&waiters, news));
        let mut dial = config.settings.dial(NAME, index, channel.clone(), ear)?;
        dial.silence = SILENCE;
        dial.may_forget = config.restart == Restart::Delay;
        Ok::<_, ConfigError>(Arc::new(Node::new(Link::new(dial), youth)))
    };
    let nodes = (0..config.settings.servers.len()).map(node).collect::<Result<Vec<_>, _>>()?;
    let healths = meet(&nodes, &config).await?;
    let mut capabilities = Capabilities::new(NAME, SHORTEST..=config.max_ttl);
    capabilities.modes = Modes::ExclusiveOnly;
    capabilities.order = Order::Unordered;
    capabilities.reach = Reach::Machines;
    capabilities.wake = WakeUp::Pushed;
    capabilities.first_step = FirstStep::Thread;
    if !healths.iter().all(|health| health.is_durable) {
        // A node that forgets its numbers goes on from its clock.
        capabilities.fencing = Fencing::WhileRunning;
    }
    Ok(Store::inspectable(Arc::new(Redlock {
        capabilities,
        nodes,
        scripts: Arc::new(Scripts::new(&config.settings.prefix, config.max_ttl)),
        numbers: Default::default(),
        attempts: Default::default(),
        waiters,
        channel,
        patience: config.settings.command_timeout,
    })))
}

/// Connects to the nodes, and judges what they say of themselves.
///
/// # Errors
/// If there are too few, or one of them can't be used.
async fn meet(nodes: &[Arc<Node>], config: &Config) -> Result<Vec<Health>> {
    let live = |_, node: Arc<Node>| {
        let trusts = config.restart == Restart::Trust;
        async move {
            let failed = |trouble| node.link.failed(Operation::Connect, trouble);
            let (live, _) = node.link.live().await.map_err(failed)?;
            if !trusts && live.uptime().is_none() {
                let advice = "this user may not use INFO, so nobody knows when the server has restarted: grant +info, or \
                    set polylock.restart=trust if every server keeps what it acknowledges";
                return Err(failed(Trouble::Unfit(Fault::Denied, advice.to_owned())));
            }
            node.says(live.health.clock_us);
            node.told(live.uptime());
            Ok(live.health)
        }
    };
    // Those that are well answer at once. For a majority, the slow ones are worth waiting for.
    let mut answers = poll(Operation::Connect, nodes, config.settings.command_timeout, live, |_| false).await;
    let there =
        |answers: &[Option<Result<Health>>]| answers.iter().filter(|one| matches!(one, Some(Ok(_)))).count();
    if there(&answers) < quorum(nodes.len()) {
        answers = poll(Operation::Connect, nodes, config.settings.connect_timeout, live, |_| false).await;
    }
    for answer in &mut answers {
        // What will not get better by itself is not to be found out when it is needed.
        let unfit =
            |error: &Error| matches!(error, Error::Unavailable(failure) if failure.fault != Fault::Temporary);
        if let Some(Err(error)) = answer.take_if(|answer| answer.as_ref().is_err_and(unfit)) {
            return Err(error);
        }
    }
    if there(&answers) < quorum(nodes.len()) {
        return Err(too_few(Operation::Connect, nodes, answers));
    }
    let mut runs = HashMap::new();
    for (node, answer) in nodes.iter().zip(&answers) {
        match answer {
            Some(Ok(Health { run: Some(run), .. })) => {
                if let Some(other) = runs.insert(run.clone(), node.place()) {
                    let problem =
                        format!("{other} and {} are the same server: its vote counts once", node.place());
                    return Err(ConfigError::new("store", problem).into());
                }
            }
            Some(Err(error)) => {
                let reason =
                    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
                tracing::warn!(
                    server = node.place(),
                    reason,
                    "a server is away: the others decide without it"
                );
            }
            _ => {}
        }
    }
    Ok(answers.into_iter().flatten().flatten().collect())
}
