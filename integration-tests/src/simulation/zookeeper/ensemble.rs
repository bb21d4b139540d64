//! The servers of an ensemble: one leader orders all changes, which a majority commits; the others apply them later. A server that is cut
//! off from the others replies to reads until it notices, and so does a leader without followers.

mod clients;
mod faults;
mod order;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use fastrand::Rng;
use polylock_core::sync::lock;
use polylock_zookeeper::{
    simulation::{Change, Request},
    zookeeper_client::Error,
};
use tokio::sync::mpsc::UnboundedSender;

use super::{
    client::Servers,
    connection::{Acceptor, Answer, ClientEnd, Connection, Open, ToClient, ToServer},
    leader::{Leader, Sessions},
    tree::Tree,
};
use crate::simulation::{
    clock::LocalClock,
    network::{Network, nanos},
    plan::{FAULTS_END, PROCESSES, Plan, Planted, Style, stream},
    time::{MS, Time},
    timeline::Timeline,
};

/// The number of ticks after which a server notices that it is cut off. A leader waits for as long for replies that are late, and checks
/// that every tick.
const SYNC_LIMIT: u64 = 5;

/// The ensemble.
pub struct Ensemble {
    seed: u64,
    planted: Option<Planted>,
    time: Arc<Time>,
    network: Arc<Network>,
    timeline: Arc<Timeline>,
    /// The unit of the servers' timers, in nanoseconds.
    tick: u64,
    /// The time until which messages between servers are delayed.
    stalls_until: u64,
    connected: AtomicU64,
    connections: Mutex<Vec<Weak<Connection>>>,
    state: Mutex<State>,
    this: Weak<Self>,
}

impl std::fmt::Debug for Ensemble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ensemble").finish_non_exhaustive()
    }
}

struct State {
    random: Rng,
    leader: Leader,
    members: Vec<Member>,
    /// The messages that the leader carries out as soon as it has a majority.
    backlog: Vec<Forwarded>,
}

/// A server.
struct Member {
    clock: LocalClock,
    is_up: bool,
    /// True if a server that is down refuses connections; otherwise nothing replies.
    refuses: bool,
    paused_since: Option<u64>,
    /// The time from which it has no contact with the other servers.
    cut_since: Option<u64>,
    /// The time after which it notices that, in nanoseconds.
    unnoticed: u64,
    /// The term of the leader that it follows; `None` if it serves no clients.
    term: Option<u64>,
    /// True if it is the leader of that term.
    is_leader: bool,
    /// The number of times that it has begun to follow a leader.
    joined: u64,
    tree: Tree,
    /// The number of transactions that it has applied.
    applied: usize,
    /// The longest time until it receives a transaction.
    lag: u64,
    /// The arrival times of the last messages to the leader and from it.
    last: [u64; 2],
    /// The messages to the leader and from it that wait while it is cut off or paused.
    held: (Vec<Forwarded>, Vec<Commit>),
    /// The sessions with a packet since the last report to the leader.
    touched: BTreeSet<i64>,
    clients: BTreeMap<u64, Served>,
    /// The messages that have arrived during a pause.
    arrived: Vec<(Arc<Connection>, ToServer)>,
}

/// A connection of a client.
struct Served {
    connection: Arc<Connection>,
    session: Option<i64>,
    /// The requests without a reply, in order.
    queue: VecDeque<(u64, Pending)>,
    watches: BTreeSet<(String, bool)>,
}

enum Pending {
    /// A request that the leader answers.
    AtLeader,
    Answered(Result<Answer, Error>),
    Read(Request),
}

/// A message of a server to the leader.
#[derive(Debug, Clone)]
struct Forwarded {
    member: usize,
    term: u64,
    joined: u64,
    connection: u64,
    session: Option<i64>,
    what: What,
}

#[derive(Debug, Clone)]
enum What {
    Open(Open),
    Change(u64, Vec<Change>, bool),
    Sync(u64),
    Close,
    /// The reply to a ping: the sessions with a packet since the last one.
    Report(BTreeSet<i64>),
}

/// A message of the leader to a server.
#[derive(Debug, Clone)]
struct Commit {
    joined: u64,
    /// The number of transactions that are committed.
    end: usize,
    /// The answer for a client of the server.
    verdict: Option<(u64, Verdict)>,
    /// True if the server reports its sessions.
    is_ping: bool,
}

/// An answer of the leader for a client of a server.
#[derive(Debug, Clone)]
enum Verdict {
    Opened(Option<i64>, Open),
    Reply(u64, Result<Answer, Error>),
}

impl Ensemble {
    /// Creates an ensemble of `count` servers with this tick, in nanoseconds.
    #[must_use]
    pub fn new(
        plan: &Plan,
        tick: u64,
        (time, network, timeline): (Arc<Time>, Arc<Network>, Arc<Timeline>),
    ) -> Arc<Self> {
        let (seed, planted, count) = (plan.seed, plan.planted, plan.servers);
        let repeats = planted == Some(Planted::ZookeeperRepeatedSequence);
        let member = |number: usize| {
            let clock = LocalClock::draw(time.clone(), &mut stream(seed, &[9, number as u64]));
            let mut random = stream(seed, &[8, number as u64]);
            Member {
                clock,
                is_up: true,
                refuses: true,
                paused_since: None,
                cut_since: None,
                unnoticed: 0,
                term: Some(1),
                is_leader: number == 0,
                joined: 1,
                tree: Tree::new(repeats),
                applied: 0,
                lag: MS * [1, 5, 30][random.usize(..3)],
                last: [0; 2],
                held: <_>::default(),
                touched: BTreeSet::new(),
                clients: BTreeMap::new(),
                arrived: Vec::new(),
            }
        };
        let members = (0..count).map(member).collect();
        let sessions = Sessions::new(tick, planted == Some(Planted::ZookeeperEarlyExpiry));
        let leader = Leader::new(Tree::new(repeats), sessions);
        let state = Mutex::new(State { random: stream(seed, &[7]), leader, members, backlog: Vec::new() });
        let ensemble = Arc::new_cyclic(|this| Self {
            seed,
            planted,
            time,
            network,
            timeline,
            tick,
            stalls_until: if plan.style == Style::Busy { nanos(FAULTS_END) } else { 0 },
            connected: AtomicU64::new(0),
            connections: Mutex::default(),
            state,
            this: this.clone(),
        });
        ensemble.schedule_beat();
        ensemble
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Calls `call` at `at`.
    fn at(&self, at: u64, call: impl FnOnce(&Self) + Send + 'static) {
        let this = self.this.clone();
        self.time.at(at, move || {
            if let Some(this) = this.upgrade() {
                call(&this);
            }
        });
    }

    /// Calls `look` with the leader's state.
    pub fn inspect<T>(&self, look: impl FnOnce(&Leader) -> T) -> T {
        look(&self.lock().leader)
    }

    /// Returns the time of the run at which the session of the node with this token ends if it sends nothing, or has ended; `None` while there
    /// is no leader, because the next one begins all timeouts anew.
    pub fn expires(&self, token: i64) -> Option<u64> {
        let state = self.lock();
        let session = *state.leader.created.get(&token)?;
        let clock = &state.members[state.leader.member].clock;
        let expires = || state.leader.sessions.expires(session).filter(|_| state.leads());
        let ended = state.leader.ended.get(&session).copied();
        ended.or_else(|| expires().map(|expires| clock.to_run(expires)))
    }

    /// Ends the connections of a process that has crashed.
    pub fn end_process(&self, process: usize) {
        let connections: Vec<_> = lock(&self.connections).iter().filter_map(Weak::upgrade).collect();
        connections
            .iter()
            .filter(|connection| connection.process == process)
            .for_each(Connection::end_process);
    }

    // The leader and its followers.

    fn schedule_beat(&self) {
        self.at(self.time.now() + self.tick / 2, |this| {
            this.beat();
            this.schedule_beat();
        });
    }

    /// Every half tick: the leader pings its followers, sessions expire, and servers find or lose their leader.
    fn beat(&self) {
        let mut state = self.lock();
        let state = &mut *state;
        let now = self.time.now();
        for number in 0..state.members.len() {
            let member = &state.members[number];
            if member.cut_since.is_some_and(|since| now - since > member.unnoticed) {
                self.leave(state, number);
            }
        }
        if state.leads() {
            state.leader.lost_since = None;
            self.rejoin(state);
            self.expire(state);
            self.stall(state);
            self.ping(state);
            self.work_off(state);
        } else if state.follows(state.leader.member) && state.reachable().len() >= state.majority() {
            // Its followers have restarted before it has given up.
            self.rejoin(state);
        } else {
            let since = *state.leader.lost_since.get_or_insert(now);
            // Its pings arrive when it has contact again.
            self.expire(state);
            self.ping(state);
            let leader = &state.members[state.leader.member];
            // A connection that is reset is noticed earlier than silence.
            let limit =
                if leader.is_up && leader.term.is_some() { SYNC_LIMIT * self.tick } else { self.tick };
            if now - since >= limit {
                self.elect(state);
            }
        }
    }

    /// Ends the connections of a server that has no leader, which then accepts none.
    fn leave(&self, state: &mut State, number: usize) {
        let member = &mut state.members[number];
        if member.term.take().is_none() {
            return;
        }
        self.timeline.note(format_args!("n{number}"), || "has lost the other servers".to_owned());
        member.touched.clear();
        for served in std::mem::take(&mut member.clients).into_values() {
            served.connection.reply(ToClient::Closed);
        }
    }

    /// Makes a server with contact follow the leader.
    fn join(&self, state: &mut State, number: usize) {
        self.leave(state, number);
        let term = state.leader.term;
        let member = &mut state.members[number];
        (member.term, member.joined) = (Some(term), member.joined + 1);
        member.is_leader = number == state.leader.member;
        member.held.1.clear();
        let end = state.leader.log.len();
        self.apply(state, number, end);
    }

    fn rejoin(&self, state: &mut State) {
        for number in 0..state.members.len() {
            if state.members[number].is_reachable() && state.members[number].term != Some(state.leader.term) {
                self.join(state, number);
            }
        }
    }

    fn elect(&self, state: &mut State) {
        let candidates = state.reachable();
        if candidates.len() < state.majority() {
            return;
        }
        let leader = candidates[state.random.usize(..candidates.len())];
        self.timeline.note(format_args!("n{leader}"), || "is elected".to_owned());
        state.leader.begin_term(leader, state.members[leader].clock.now());
        state.backlog.clear();
        for number in candidates {
            self.join(state, number);
        }
    }

    /// Delays the messages of one follower to the leader, or those to it.
    fn stall(&self, state: &mut State) {
        let now = self.time.now();
        let number = state.random.usize(..state.members.len());
        if now >= self.stalls_until || number == state.leader.member || state.random.u8(..8) > 0 {
            return;
        }
        // A follower that gets no ping for that long has lost its leader.
        let until = now + state.random.u64(..(SYNC_LIMIT - 1) * self.tick);
        let last = &mut state.members[number].last[usize::from(state.random.bool())];
        *last = until.min(self.stalls_until).max(*last);
    }

    /// Ends the sessions that have expired by the leader's clock. A leader without a majority does not accept their packets any more, and
    /// ends them when it has one again.
    fn expire(&self, state: &mut State) {
        if !state.has_active_leader() {
            return;
        }
        let now = state.members[state.leader.member].clock.now();
        let expired = state.leader.sessions.expire(now);
        if !state.leads() {
            return;
        }
        for session in expired {
            self.timeline.note("leader", || format!("session {session} has expired"));
            self.end_session(state, session);
        }
    }

    fn end_session(&self, state: &mut State, session: i64) {
        state.leader.end_session(session, self.time.now());
        self.publish(state, None);
    }
}

impl Acceptor for Ensemble {
    fn receive(&self, connection: &Arc<Connection>, message: ToServer) {
        self.handle(&mut self.lock(), connection, message);
    }
}

impl Servers for Ensemble {
    fn count(&self) -> usize {
        self.lock().members.len()
    }

    fn connect(&self, process: usize, server: usize, inbox: UnboundedSender<ToClient>) -> ClientEnd {
        let number = self.connected.fetch_add(1, Ordering::Relaxed);
        let acceptor = self.this.clone() as Weak<dyn Acceptor>;
        let link = server * PROCESSES + process;
        let random = stream(self.seed, &[10, number]);
        let surroundings = (self.time.clone(), self.network.clone());
        let end = Connection::open((number, process, server, link), surroundings, acceptor, inbox, random);
        let connections = &mut lock(&self.connections);
        connections.retain(|connection| connection.strong_count() > 0);
        connections.push(Arc::downgrade(end.connection()));
        end
    }
}

impl State {
    const fn majority(&self) -> usize {
        self.members.len() / 2 + 1
    }

    /// Returns the servers that run and have contact with each other.
    fn reachable(&self) -> Vec<usize> {
        (0..self.members.len()).filter(|number| self.members[*number].is_reachable()).collect()
    }

    /// Returns true if the leader runs and has a majority.
    fn leads(&self) -> bool {
        let leader = self.leader.member;
        let following = (0..self.members.len()).filter(|number| self.follows(*number)).count();
        self.follows(leader) && following >= self.majority()
    }

    /// Returns true if the leader runs and does not know that it has no majority.
    fn has_active_leader(&self) -> bool {
        let leader = &self.members[self.leader.member];
        leader.term == Some(self.leader.term) && leader.is_running()
    }

    /// Returns true if the server is the leader or follows it, and has contact with it.
    fn follows(&self, number: usize) -> bool {
        let member = &self.members[number];
        let is_alone = number == self.leader.member && self.majority() == 1;
        member.term == Some(self.leader.term)
            && (is_alone || member.cut_since.is_none())
            && member.is_running()
    }
}
