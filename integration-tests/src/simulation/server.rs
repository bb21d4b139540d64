//! The model of a server with queues, behind the network: it executes calls while it is up, and sends replies and notifications.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use polylock_core::{FencingToken, LockName, RequestId, Store, sync::lock, wakeups::Wakeups};

use super::{
    check::Violation,
    network::{Network, Way},
    plan::Planted,
    queue_client::{Endpoint, QueueClient, ReplySender},
    queue_server::{Call, GrantRecord, QueueServer},
    servers::{Events, Life, LiveEntry, Opening, Servers},
    time::Time,
    timeline::Timeline,
};

/// The server's clock at the begin of a run, in microseconds.
const EPOCH_US: i64 = 1_700_000_000_000_000;

/// The server, and its state.
#[derive(Debug)]
pub struct Server {
    time: Arc<Time>,
    network: Arc<Network>,
    timeline: Arc<Timeline>,
    locks: QueueServer,
    planted: Option<Planted>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    is_down: bool,
    is_paused: bool,
    /// The calls that have arrived during a pause.
    arrived: Vec<(usize, Call, ReplySender)>,
    /// The requests for which a release was sent.
    releases: BTreeSet<RequestId>,
    /// The waiters of each process in its present life.
    wakeups: BTreeMap<usize, Arc<Wakeups>>,
}

impl Server {
    /// Creates a server that is up.
    #[must_use]
    pub fn new(
        time: Arc<Time>,
        network: Arc<Network>,
        timeline: Arc<Timeline>,
        planted: Option<Planted>,
    ) -> Arc<Self> {
        let locks = QueueServer::new(planted);
        Arc::new(Self { time, network, timeline, locks, planted, state: Mutex::default() })
    }

    /// Returns the time of the server's clock, in microseconds.
    fn now_us(&self) -> i64 {
        EPOCH_US + (self.time.now() / 1000).cast_signed()
    }

    /// Returns the time of the run at which the server's clock shows `us`.
    const fn to_run(us: i64) -> u64 {
        (us - EPOCH_US).cast_unsigned() * 1000
    }

    fn receive(&self, link: usize, call: Call, sender: ReplySender) {
        let mut state = lock(&self.state);
        if state.is_down {
            return;
        }
        if state.is_paused {
            return state.arrived.push((link, call, sender));
        }
        drop(state);
        let now = self.now_us();
        let sent = self.timeline.is_recorded().then(|| call.to_string());
        let (reply, notifications) = self.locks.execute(now, call);
        if let Some(call) = sent {
            self.timeline.note("server", || format!("p{link} {call}: {reply}"));
        }
        self.network.send(link, Way::Back, move || drop(sender.send((now, reply))));
        for (subscriber, handover) in notifications {
            self.timeline.note("server", || {
                format!("grants token {} to a waiter of p{}", handover.grant.token, subscriber.link)
            });
            self.network.send(subscriber.link, Way::Back, move || subscriber.wakeups.deliver(handover));
        }
    }
}

impl Endpoint for Server {
    fn call(self: Arc<Self>, link: usize, call: Call, reply: ReplySender) {
        if let Call::Release(request, _) = &call {
            lock(&self.state).releases.insert(request.id);
        }
        let server = self.clone();
        self.network.send(link, Way::There, move || server.receive(link, call, reply));
    }
}

impl Servers for Server {
    fn open(self: Arc<Self>, (process, life): Life) -> Opening {
        Box::pin(async move {
            let client = QueueClient::open(self.clone(), (process, life), self.planted);
            lock(&self.state).wakeups.insert(process, client.wakeups());
            client.connect().await;
            Store::new(Arc::new(client))
        })
    }

    fn pause(&self, _: usize) {
        lock(&self.state).is_paused = true;
    }

    fn resume(&self, _: usize) {
        let mut state = lock(&self.state);
        state.is_paused = false;
        let arrived = std::mem::take(&mut state.arrived);
        drop(state);
        for (link, call, sender) in arrived {
            self.receive(link, call, sender);
        }
    }

    fn crash(&self, _: usize) {
        let mut state = lock(&self.state);
        state.is_down = true;
        state.arrived.clear();
    }

    fn restart(&self, _: usize) {
        self.locks.restart();
        lock(&self.state).is_down = false;
    }

    fn expires(&self, name: &LockName, token: FencingToken) -> Option<u64> {
        self.locks.expires(name, token).map(Self::to_run)
    }

    fn live(&self) -> Vec<LiveEntry> {
        self.locks.live(self.now_us())
    }

    fn violations(&self, events: &Events<'_>) -> Vec<Violation> {
        let (state, mut violations) = (lock(&self.state), Vec::new());
        let mut found = |at, kind, what| violations.push(Violation::new(at, kind, what));
        let grants = self.locks.grants();
        let was_held = |grant: &&GrantRecord| events.record.had_hold(&grant.request.name, grant.token);
        // A grant may expire before the process receives it, and the request is granted the lock again.
        let held: BTreeSet<_> = grants.iter().filter(was_held).map(|grant| grant.request.id).collect();
        for GrantRecord { request, process: (number, life), token, at } in &grants {
            let is_alive = events.lives[*number] == *life;
            if is_alive && !held.contains(&request.id) && !state.releases.contains(&request.id) {
                let what = format!("orphan: no client has token {token} of {}, or releases it", request.name);
                found(Self::to_run(*at), "orphan", what);
            }
        }
        for (at, name) in self.locks.late() {
            let what = format!("a claim of {name} after its release has an effect");
            found(Self::to_run(at), "late claim", what);
        }
        for (process, wakeups) in &state.wakeups {
            if !wakeups.is_empty() {
                found(self.time.now(), "leak", format!("leak: p{process} has registered waiters"));
            }
        }
        violations
    }
}
