//! An ensemble of servers for the real ZooKeeper store. The driver opens sockets of its own, so a client with its rules replaces it.
//!
//! | module | part |
//! |---|---|
//! | [`client`] | the client of a session |
//! | [`connection`] | the connections, and the messages on them |
//! | [`ensemble`] | the servers: followers, elections, and their clients |
//! | [`leader`], [`tree`] | the order of changes, and the sessions; the nodes |

pub mod client;
pub mod connection;
pub mod ensemble;
pub mod leader;
pub mod tree;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use polylock_core::{Clock, FencingToken, LockName, Mode, Result, Store, SystemClock};
use polylock_zookeeper::Config;

use self::{client::Gate, ensemble::Ensemble, tree::Tree};
use super::{
    live_entry::LiveEntry,
    network::{Network, nanos},
    plan::{Plan, Planted, stream},
    servers::{Events, Life, Opening, Servers},
    time::Time,
    timeline::Timeline,
    violation::Violation,
};

/// The node of all locks.
const ROOT: &str = "/polylock";

/// The pause between attempts to open the store.
const REOPEN: Duration = Duration::from_millis(50);

/// Returns the session timeout in the run of `seed`, and the unit of the servers' timers.
fn timeouts(seed: u64) -> (Duration, Duration) {
    let mut random = stream(seed, &[11]);
    let timeout = Duration::from_millis([900, 1500, 2400][random.usize(..3)]);
    (timeout, timeout / [2, 5, 10][random.usize(..3)])
}

/// Returns the longest lease in the run of `seed`.
#[must_use]
pub fn longest_lease(seed: u64) -> Duration {
    timeouts(seed).0 / 2
}

/// The servers of a run.
#[derive(Debug)]
pub struct ZookeeperServers {
    seed: u64,
    planted: Option<Planted>,
    ensemble: Arc<Ensemble>,
}

impl ZookeeperServers {
    /// Creates the servers of `plan`, which are up.
    #[must_use]
    pub fn new(plan: &Plan, parts: (Arc<Time>, Arc<Network>, Arc<Timeline>)) -> Arc<Self> {
        let (seed, planted) = (plan.seed, plan.planted);
        let tick = nanos(timeouts(seed).1);
        Arc::new(Self { seed, planted, ensemble: Ensemble::new(plan, tick, parts) })
    }

    async fn connect_store(&self, (process, life): Life) -> Result<Store> {
        let random = Mutex::new(stream(self.seed, &[12, process as u64, life]));
        let gate = Gate { servers: self.ensemble.clone(), process, random, planted: self.planted };
        let config = Config::new(&format!("zookeeper://n0{ROOT}"))?
            .session_timeout(timeouts(self.seed).0)
            .simulated(Arc::new(gate));
        polylock_zookeeper::connect(config).await
    }
}

impl Servers for ZookeeperServers {
    fn open(self: Arc<Self>, life: Life) -> Opening {
        Box::pin(async move {
            loop {
                match self.connect_store(life).await {
                    Ok(store) => return store,
                    Err(error) => assert!(error.is_temporary(), "{}", error.chain()),
                }
                SystemClock.sleep_until(SystemClock.now() + REOPEN).await;
            }
        })
    }

    fn end_process(&self, process: usize) {
        self.ensemble.end_process(process);
    }

    fn pause(&self, server: usize) {
        self.ensemble.pause(server);
    }

    fn resume(&self, server: usize) {
        self.ensemble.resume(server);
    }

    fn crash(&self, server: usize) {
        self.ensemble.crash(server);
    }

    fn restart(&self, server: usize) {
        self.ensemble.restart(server);
    }

    fn cut(&self, server: usize, _: u64) {
        self.ensemble.cut(server);
    }

    fn heal(&self, server: usize) {
        self.ensemble.heal(server);
    }

    fn expires(&self, _: &LockName, token: FencingToken) -> Option<u64> {
        self.ensemble.expires(token.as_i64())
    }

    fn live(&self) -> Vec<LiveEntry> {
        self.ensemble.inspect(|leader| live(&leader.tree))
    }

    fn violations(&self, _: &Events<'_>) -> Vec<Violation> {
        Vec::new()
    }
}

/// Returns the lock of this node. The only character of the names of a run that is escaped is the NUL byte in those of a semaphore.
fn name_of(node: &str) -> Option<LockName> {
    LockName::from_store(node.replace("%00", "\0")).ok()
}

/// Returns the requests in all locks. The first ones that do not conflict hold their lock.
fn live(tree: &Tree) -> Vec<LiveEntry> {
    let mut live = Vec::new();
    for node in tree.children(ROOT).unwrap_or_default() {
        let Some(name) = name_of(&node) else { continue };
        let directory = format!("{ROOT}/{node}");
        let mut requests: Vec<_> = tree
            .children(&directory)
            .unwrap_or_default()
            .into_iter()
            .filter_map(|child| {
                let (_, mode_and_sequence) = child.split_once('_')?;
                let (mode, sequence) = mode_and_sequence.split_once('_')?;
                let mode = Mode::ALL.into_iter().find(|known| known.code() == mode)?;
                let sequence: i64 = sequence.parse().ok()?;
                let (data, state) = tree.data(&format!("{directory}/{child}")).ok()?;
                // The lease, the owner, and others.
                let owner = String::from_utf8_lossy(&data).lines().nth(1).map(str::to_owned);
                Some((sequence, mode, state.czxid.cast_unsigned(), owner))
            })
            .collect();
        requests.sort_by_key(|(sequence, ..)| *sequence);
        for (at, (_, mode, token, owner)) in requests.iter().enumerate() {
            let is_blocked = requests[..at].iter().any(|(_, other, ..)| mode.conflicts_with(*other));
            let (token, owner) = ((!is_blocked).then_some(*token), owner.clone());
            live.push(LiveEntry { name: name.clone(), token, is_free_to_go: false, owner });
        }
    }
    live
}
