//! The servers of the real Redis and Redlock clients. They execute the real scripts, and the driver talks to them byte by byte.
//!
//! | module | part |
//! |---|---|
//! | [`socket`] | the connections |
//! | [`node`], [`resp`] | a server; its protocol |
//! | [`database`], [`scripts`], [`packed`] | its data and commands; the interpreter of the scripts; the values that they pack |
//! | [`planted`] | planted bugs |

pub mod database;
pub mod node;
pub mod packed;
pub mod planted;
pub mod resp;
pub mod scripts;
pub mod socket;

use std::{
    collections::BTreeSet,
    io,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use polylock_core::{
    Clock, FencingToken, LockName, Store, SystemClock,
    simulation::{Connecting, Stream},
    sync::lock,
};
use polylock_redis::{redlock, single};

use self::{
    database::Database,
    node::Node,
    packed::Packed,
    socket::{Connection, Socket},
};
use super::{
    check::Violation,
    network::Network,
    plan::{PROCESSES, Plan, Planted, StoreKind, stream},
    process::LocalClock,
    servers::{Events, Life, LiveEntry, Opening, Servers},
    time::Time,
    timeline::Timeline,
};

/// The namespace of the locks.
const NAMESPACE: &str = "polylock";

/// The greatest difference between the clocks of independent servers, in nanoseconds.
const CLOCK_SPREAD: u64 = 2_000_000_000;

/// The pause between attempts to open the store.
const REOPEN: Duration = Duration::from_millis(50);

/// The servers of a run.
#[derive(Debug)]
pub struct RedisServers {
    store: StoreKind,
    planted: Option<Planted>,
    seed: u64,
    time: Arc<Time>,
    network: Arc<Network>,
    nodes: Vec<Arc<Node>>,
    /// The number of connections.
    connected: AtomicU64,
    connections: Mutex<Vec<Weak<Connection>>>,
}

impl RedisServers {
    /// Creates the servers of `plan`, which are up.
    #[must_use]
    pub fn new(
        plan: &Plan,
        (time, network, timeline): (Arc<Time>, Arc<Network>, Arc<Timeline>),
    ) -> Arc<Self> {
        let keeps_data = match plan.store {
            StoreKind::Redlock => stream(plan.seed, &[7]).u8(..3) == 0,
            _ => plan.planted != Some(Planted::RedisLostState),
        };
        let node = |number: usize| {
            let random = stream(plan.seed, &[8, number as u64]);
            let clock = &mut stream(plan.seed, &[9, number as u64]);
            let clock = LocalClock::draw_within(time.clone(), clock, CLOCK_SPREAD);
            let changes = planted::changes(plan.planted);
            let keeps_data = keeps_data && plan.planted != Some(Planted::RedlockNoDelay);
            let node = Node::new(number, clock, keeps_data, changes, timeline.clone(), random);
            node.admit(NAMESPACE);
            node
        };
        let nodes = (0..plan.servers).map(node).collect();
        Arc::new(Self {
            store: plan.store,
            planted: plan.planted,
            seed: plan.seed,
            time,
            network,
            nodes,
            connected: AtomicU64::new(0),
            connections: Mutex::default(),
        })
    }

    async fn connect_store(&self) -> polylock_core::Result<Store> {
        let hosts: Vec<String> = self.nodes.iter().map(|node| format!("n{}", node.number)).collect();
        match self.store {
            StoreKind::Redlock => {
                let restart = if self.planted == Some(Planted::RedlockNoDelay) { "trust" } else { "delay" };
                let keys = format!("polylock.max_ttl=2s&polylock.restart={restart}");
                redlock::connect(redlock::Config::new(&format!("redlock://{}?{keys}", hosts.join(",")))?)
                    .await
            }
            _ => single::connect(single::Config::new(&format!("redis://{}", hosts[0]))?).await,
        }
    }
}

/// Returns the locks with a key of this kind, and these keys.
fn locks(database: &mut Database, kind: &str) -> Vec<(LockName, String)> {
    let prefix = format!("{{{NAMESPACE}}}:{kind}:");
    let names = database.names(&prefix).into_iter();
    names.filter_map(|name| Some((LockName::new(&name).ok()?, format!("{prefix}{name}")))).collect()
}

/// Returns the entries of a hash, by field.
fn entries(database: &mut Database, key: &str) -> Vec<(Vec<u8>, Packed)> {
    let flat = database.read(&["HGETALL"], key);
    flat.chunks(2)
        .filter_map(|pair| Some((pair[0].clone(), Packed::unpack(&mut pair.get(1)?.as_slice())?)))
        .collect()
}

/// Returns the holds of a lock that are live: {token, mode, conflicts, since, expires, ...}.
fn holds(database: &mut Database, name: &str) -> Vec<Packed> {
    let now = database.now_us;
    let holds = entries(database, &format!("{{{NAMESPACE}}}:h:{name}"));
    holds.into_iter().map(|(_, hold)| hold).filter(|hold| hold.number(4) > Some(now)).collect()
}

/// Returns the live entries of a server with queues.
fn live_in_queues(database: &mut Database) -> Vec<LiveEntry> {
    let (now, mut live) = (database.now_us, Vec::new());
    for (name, _) in locks(database, "h") {
        let tokens = holds(database, name.as_str()).into_iter();
        let tokens = tokens.filter_map(|hold| hold.number(0)).map(i64::cast_unsigned);
        live.extend(tokens.map(|token| LiveEntry {
            name: name.clone(),
            token: Some(token),
            is_free_to_go: false,
        }));
    }
    for (name, key) in locks(database, "q") {
        let mut conflicts =
            holds(database, name.as_str()).iter().filter_map(|hold| hold.number(2)).fold(0, |a, b| a | b);
        let waiters = entries(database, &format!("{{{NAMESPACE}}}:w:{}", name.as_str()));
        for id in database.read(&["ZRANGE", "0", "-1"], &key) {
            // {mode, conflicts, since, expires, ...}
            let Some((_, waiter)) = waiters.iter().find(|(it, _)| *it == id) else { continue };
            if waiter.number(3) <= Some(now) {
                continue;
            }
            let is_free_to_go = waiter.number(0).unwrap_or(0) & conflicts == 0;
            conflicts |= waiter.number(1).unwrap_or(0);
            live.push(LiveEntry { name: name.clone(), token: None, is_free_to_go });
        }
    }
    live
}

/// Returns the numbers of the votes of a server.
fn votes(database: &mut Database) -> Vec<(LockName, u64)> {
    let locks = locks(database, "r").into_iter();
    let number = |database: &mut Database, key: &str| {
        let vote = database.read(&["GET"], key).pop()?;
        // The id of the request precedes {number, since, ...}.
        Packed::unpack(&mut vote.get(16..)?)?.number(0).map(i64::cast_unsigned)
    };
    locks.filter_map(|(name, key)| Some((name, number(database, &key)?))).collect()
}

impl Servers for RedisServers {
    fn open(self: Arc<Self>, _: Life) -> Opening {
        Box::pin(async move {
            loop {
                match self.connect_store().await {
                    Ok(store) => return store,
                    Err(error) => assert!(error.is_temporary(), "{}", error.chain()),
                }
                SystemClock.sleep_until(SystemClock.now() + REOPEN).await;
            }
        })
    }

    fn connect(&self, process: usize, address: &str) -> Connecting {
        let server = address.strip_prefix('n').and_then(|it| it.split(':').next()?.parse::<usize>().ok());
        let Some(node) = server.and_then(|server| self.nodes.get(server)) else {
            let error = io::Error::other(format!("no server at {address}"));
            return Box::pin(async { Err(error) });
        };
        let number = self.connected.fetch_add(1, Ordering::Relaxed);
        let parts = (self.time.clone(), self.network.clone());
        let link = node.number * PROCESSES + process;
        let socket = Connection::open(number, process, node, parts, link, stream(self.seed, &[10, number]));
        let connections = &mut lock(&self.connections);
        connections.retain(|connection| connection.strong_count() > 0);
        connections.push(Arc::downgrade(socket.connection()));
        Box::pin(async { Ok(Box::new(Socket::accepted(socket).await?) as Box<dyn Stream>) })
    }

    fn end_process(&self, process: usize) {
        let connections: Vec<_> = lock(&self.connections).iter().filter_map(Weak::upgrade).collect();
        connections
            .iter()
            .filter(|connection| connection.process == process)
            .for_each(Connection::end_process);
    }

    fn pause(&self, server: usize) {
        self.nodes[server].pause();
    }

    fn resume(&self, server: usize) {
        self.nodes[server].resume();
    }

    fn crash(&self, server: usize) {
        self.nodes[server].crash();
    }

    fn restart(&self, server: usize) {
        self.nodes[server].restart();
    }

    fn expires(&self, name: &LockName, token: FencingToken) -> Option<u64> {
        let [node] = &self.nodes[..] else { return None };
        let holds = node.inspect(|database| holds(database, name.as_str()));
        let hold = holds.iter().find(|hold| hold.number(0) == Some(token.as_i64()))?;
        Some(node.to_run(hold.number(4)?))
    }

    fn live(&self) -> Vec<LiveEntry> {
        if self.store != StoreKind::Redlock {
            return self.nodes[0].inspect(live_in_queues);
        }
        let votes: BTreeSet<_> = self.nodes.iter().flat_map(|node| node.inspect(votes)).collect();
        let entry = |(name, number)| LiveEntry { name, token: Some(number), is_free_to_go: false };
        votes.into_iter().map(entry).collect()
    }

    fn violations(&self, _: &Events<'_>) -> Vec<Violation> {
        let late = self.nodes.iter().flat_map(|node| node.late());
        late.map(|(at, holds)| {
            Violation::new(at, "late claim", format!("a claim after its release has an effect in {holds}"))
        })
        .collect()
    }
}
