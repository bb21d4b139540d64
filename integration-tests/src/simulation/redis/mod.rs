//! The servers of the real Redis and Redlock clients. They execute the real scripts, and the driver talks to them byte by byte.
//!
//! | module | part |
//! |---|---|
//! | [`node`], [`resp`] | a server; its protocol |
//! | [`database`], [`scripts`], [`packed`] | its data and commands; the interpreter of the scripts; the values that they pack |
//! | [`locks`] | the state of the locks at a server |
//! | [`planted`] | planted bugs |

pub mod database;
pub mod locks;
pub mod node;
pub mod packed;
pub mod planted;
pub mod resp;
pub mod scripts;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use polylock_core::{Clock, FencingToken, LockName, Store, SystemClock, simulation::Connecting};
use polylock_redis::{redlock, single};

use self::node::{Grant, Memory, Node};
use super::{
    check,
    clock::WallClock,
    live_entry::LiveEntry,
    network::{Network, nanos},
    plan::{Fault, FaultKind, Plan, Planted, StoreKind, stream},
    quiet::LONGEST_ROUND_TRIP,
    servers::{Events, Life, Opening, Servers},
    socket::Wires,
    time::Time,
    timeline::Timeline,
    violation::Violation,
};

/// The greatest difference between the clocks of servers that keep their data, in nanoseconds; and of those that may lose some, which continue
/// with numbers from their clocks: less than the time for which their votes do not count.
const CLOCK_SPREAD: (u64, u64) = (200_000_000_000, 2_000_000_000);

/// The longest time after a grant in which its release is sent, at the latest, unless the process has no connection.
const LONGEST_UNSENT: Duration = Duration::from_secs(3);

/// The longest time after which a holder notices a break, in addition to round trips: the server pushes the notice, and a renewal reads it.
const LONGEST_UNNOTICED: (Duration, u32) = (Duration::from_millis(30), 3);

/// The time after a fault in which a connection that receives notices is replaced.
const LONGEST_AFTERMATH: Duration = Duration::from_secs(5);

/// The pause between attempts to open the store.
const REOPEN: Duration = Duration::from_millis(50);

/// The servers of a run.
#[derive(Debug)]
pub struct RedisServers {
    plan: Plan,
    network: Arc<Network>,
    wires: Arc<Wires>,
    nodes: Vec<Arc<Node>>,
}

impl RedisServers {
    /// Creates the servers of `plan`, which are up.
    #[must_use]
    pub fn new(
        plan: &Plan,
        (time, network, timeline): (Arc<Time>, Arc<Network>, Arc<Timeline>),
    ) -> Arc<Self> {
        let memory = match plan.store {
            StoreKind::Redlock => {
                [Memory::Kept, Memory::Lost, Memory::Doubtful][stream(plan.seed, &[7]).usize(..3)]
            }
            _ if plan.planted == Some(Planted::RedisLostState) => Memory::Lost,
            _ => Memory::Kept,
        };
        let node = |number: usize| {
            let random = stream(plan.seed, &[8, number as u64]);
            let clock = &mut stream(plan.seed, &[9, number as u64]);
            let spread = if memory == Memory::Kept { CLOCK_SPREAD.0 } else { CLOCK_SPREAD.1 };
            let clock = WallClock::draw_within(time.clone(), clock, spread);
            let changes = planted::changes(plan.planted);
            let memory = if plan.planted == Some(Planted::RedlockNoDelay) { Memory::Lost } else { memory };
            let node = Node::new(number, clock, memory, changes, timeline.clone(), random);
            node.admit(locks::NAMESPACE);
            node
        };
        let nodes = (0..plan.servers).map(node).collect();
        Arc::new(Self {
            plan: plan.clone(),
            network: network.clone(),
            wires: Wires::new(plan.seed, time, network, u64::MAX),
            nodes,
        })
    }

    async fn connect_store(&self) -> polylock_core::Result<Store> {
        let hosts: Vec<String> = self.nodes.iter().map(|node| format!("n{}", node.number)).collect();
        match self.plan.store {
            StoreKind::Redlock => {
                let restart =
                    if self.plan.planted == Some(Planted::RedlockNoDelay) { "trust" } else { "delay" };
                let keys = format!("polylock.max_ttl=2s&polylock.restart={restart}");
                redlock::connect(redlock::Config::new(&format!("redlock://{}?{keys}", hosts.join(",")))?)
                    .await
            }
            _ => single::connect(single::Config::new(&format!("redis://{}", hosts[0]))?).await,
        }
    }
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

    fn connect(&self, process: Life, address: &str) -> Connecting {
        self.wires.connect(process, address, &self.nodes)
    }

    fn end_process(&self, process: usize) {
        self.wires.end_process(process);
    }

    fn stick(&self, process: usize, server: usize, until: u64) {
        self.wires.stick(process, server, until);
    }

    fn refuse(&self, server: usize, until: u64) {
        self.nodes[server].refuse(until);
    }

    fn pause(&self, server: usize) {
        self.nodes[server].pause();
    }

    fn resume(&self, server: usize) {
        self.nodes[server].resume();
    }

    fn crash(&self, server: usize) {
        let other = &self.nodes[(server + 1) % self.nodes.len()];
        self.nodes[server].crash(other.copy());
    }

    fn restart(&self, server: usize) {
        self.nodes[server].restart();
    }

    fn expires(&self, name: &LockName, token: FencingToken) -> Option<u64> {
        let [node] = &self.nodes[..] else { return None };
        let key = format!("{{{}}}:h:{}", locks::NAMESPACE, name.as_str());
        let holds = node.inspect(|database| locks::held(database, &key));
        holds.iter().find(|hold| hold.token == token.as_i64()).map(|hold| node.clock.to_run(hold.expires_us))
    }

    fn live(&self) -> Vec<LiveEntry> {
        let mut live = BTreeMap::<_, (usize, bool)>::new();
        for node in &self.nodes {
            for entry in node.inspect(locks::live) {
                let request = node.request_of(&entry);
                let is_old =
                    entry.token.is_some_and(|it| node.was_started_with(&entry.name, it.cast_signed()));
                let may_stay =
                    is_old || request.is_some_and(|id| self.nodes.iter().any(|node| node.may_keep(&id)));
                let (servers, all_may_stay) = live.entry(entry).or_insert((0, true));
                (*servers, *all_may_stay) = (*servers + 1, *all_may_stay && may_stay);
            }
        }
        // A release of a hold that other processes know, or a park, ends with a majority, and is not repeated at the other servers: one that was sent
        // on a connection which has broken without a sign, or could not be sent in time, leaves a vote there until its lease ends, and this vote alone keeps
        // nobody out.
        let is_majority = |servers: usize| 2 * servers > self.nodes.len();
        let held: BTreeSet<_> = live
            .iter()
            .filter(|(_, (servers, _))| is_majority(*servers))
            .map(|(entry, _)| (entry.name.clone(), entry.owner.clone()))
            .collect();
        // A server that has voted for an earlier number of the holder keeps that vote until the release, which removes it.
        let is_of_holder = |entry: &LiveEntry| held.contains(&(entry.name.clone(), entry.owner.clone()));
        let live = live.into_iter().filter(|(entry, (servers, all_may_stay))| {
            is_majority(*servers) || !all_may_stay && !is_of_holder(entry)
        });
        live.map(|(entry, _)| entry).collect()
    }

    fn violations(&self, events: &Events<'_>) -> Vec<Violation> {
        let late = self.nodes.iter().flat_map(|node| node.late());
        let late = late.map(|(at, holds)| {
            Violation::new(at, "late claim", format!("a claim after its release has an effect in {holds}"))
        });
        let longest = |process| {
            let round_trip = self.network.round_trip_of(process);
            (round_trip < LONGEST_ROUND_TRIP).then(|| LONGEST_UNNOTICED.0 + LONGEST_UNNOTICED.1 * round_trip)
        };
        let breaks = check::unnoticed_breaks(&self.plan, events, LONGEST_AFTERMATH, longest);
        late.chain(self.orphans(events)).chain(breaks).collect()
    }
}

impl RedisServers {
    /// Returns the holds and votes that no living process has had, or has tried to end although it was connected to the server.
    fn orphans(&self, events: &Events<'_>) -> Vec<Violation> {
        let grants: Vec<_> = self.nodes.iter().flat_map(|node| node.grants()).collect();
        let is_release = |script: &[u8]| self.nodes.iter().any(|node| node.is_release(script));
        let ended_at = |node: &Arc<Node>| {
            let calls = node.calls().into_iter().filter(|(script, _)| is_release(script));
            calls.map(|(_, argument)| (node.number, argument)).collect::<Vec<_>>()
        };
        let ended: BTreeSet<_> = self.nodes.iter().flat_map(ended_at).collect();
        let was_held = |((name, token), grant): &&((LockName, i64), Grant)| {
            let owner = String::from_utf8_lossy(&grant.owner);
            events.record.needs_no_release(name, token.cast_unsigned(), &owner)
        };
        let held: BTreeSet<_> = grants.iter().filter(was_held).map(|(_, grant)| &grant.request).collect();
        let living = |owner: &[u8]| events.living(std::str::from_utf8(owner).ok()?);
        let was_connected = |process: usize, grant: &Grant| {
            let window = grant.at..self.unsent_until(process, grant.at);
            !self.wires.has_connected(process, grant.server, &window)
        };
        let is_orphan = |((name, token), grant): &&((LockName, i64), Grant)| {
            !self.nodes[grant.server].was_started_with(name, *token)
                && living(&grant.owner).is_some_and(|process| was_connected(process, grant))
                && !held.contains(&grant.request)
                && !ended.contains(&(grant.server, grant.request.clone()))
        };
        let orphans = grants.iter().filter(is_orphan);
        orphans
            .map(|((name, token), Grant { at, server, .. })| {
                let what = format!("orphan: nobody has token {token} of {name} at n{server}, or releases it");
                Violation::new(*at, "orphan", what)
            })
            .collect()
    }

    /// Returns the latest time at which `process` sends the release of a grant of this time: it does nothing while it is paused.
    fn unsent_until(&self, process: usize, granted: u64) -> u64 {
        let is_pause = |fault: &&Fault| matches!(fault.kind, FaultKind::Pause(number) if number == process);
        let mut pauses: Vec<&Fault> = self.plan.faults.iter().filter(is_pause).collect();
        pauses.sort_by_key(|pause| pause.at);
        pauses.into_iter().fold(granted + nanos(LONGEST_UNSENT), |until, pause| {
            let (begin, end) = (nanos(pause.at), nanos(pause.at + pause.lasts));
            if begin < until && end > granted { until + nanos(pause.lasts) } else { until }
        })
    }
}
