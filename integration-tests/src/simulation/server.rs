//! The model of a server with queues, behind the network: it executes calls while it is up, and sends replies and notifications.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use fastrand::Rng;
use polylock_core::{FencingToken, LockName, Request, RequestId, Store, sync::lock, wakeups::Wakeups};

use super::{
    clock::WallClock,
    live_entry::LiveEntry,
    network::{Network, Way},
    plan::{PROCESSES, Plan, Planted, StoreKind, Style, stream},
    queue_call::{Call, Reply},
    queue_client::{Endpoint, QueueClient, ReplySender},
    queue_server::{Executed, GrantRecord, QueueServer},
    servers::{Events, Life, Opening, Servers},
    time::Time,
    timeline::Timeline,
    violation::Violation,
};

/// The greatest time on the server's clock at the begin of a calm run, in nanoseconds.
const CLOCK_SPREAD: u64 = 200_000_000_000;

/// The server, and its state.
#[derive(Debug)]
pub struct Server {
    /// Its number in the run, which has its links.
    number: usize,
    /// Its name in the timeline.
    name: &'static str,
    time: Arc<Time>,
    clock: WallClock,
    network: Arc<Network>,
    timeline: Arc<Timeline>,
    locks: QueueServer,
    /// The letter of its clients in the timeline: processes, or lock services.
    clients: char,
    planted: Option<Planted>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    random: Rng,
    /// The time until which some calls are refused.
    refuses_until: u64,
    is_down: bool,
    is_paused: bool,
    /// The calls that have arrived during a pause.
    arrived: Vec<(usize, Call, ReplySender)>,
    /// The requests for which a release was sent.
    releases: BTreeSet<RequestId>,
    /// The estimates of the clock that were later than it, with the times.
    late_estimates: Vec<(u64, String)>,
    /// The waiters of each process in its present life.
    wakeups: BTreeMap<usize, Arc<Wakeups>>,
}

impl Server {
    /// Creates the server of `plan` with this number and name, which is up.
    #[must_use]
    pub fn new(
        plan: &Plan,
        (number, name): (usize, &'static str),
        (time, network, timeline): (Arc<Time>, Arc<Network>, Arc<Timeline>),
    ) -> Arc<Self> {
        // Each server has random numbers of its own.
        let random = |part| stream(plan.seed, &[part + 10 * number as u64]);
        let clock = match plan.style {
            Style::Busy => WallClock::exact(time.clone()),
            Style::Calm => WallClock::draw_within(time.clone(), &mut random(9), CLOCK_SPREAD),
        };
        let (locks, planted) = (QueueServer::new(plan.planted), plan.planted);
        let clients = if plan.store == StoreKind::Service { 'n' } else { 'p' };
        let state = State {
            random: random(8),
            refuses_until: 0,
            is_down: false,
            is_paused: false,
            arrived: Vec::new(),
            releases: BTreeSet::new(),
            late_estimates: Vec::new(),
            wakeups: BTreeMap::new(),
        };
        Arc::new(Self {
            number,
            name,
            time,
            clock,
            network,
            timeline,
            locks,
            clients,
            planted,
            state: Mutex::new(state),
        })
    }

    /// Returns the claims and estimates of the clock that were too late.
    #[must_use]
    pub fn late(&self) -> Vec<Violation> {
        let claims = self.locks.late().into_iter().map(|(at, name)| {
            let what = format!("a claim of {name} after its release has an effect");
            Violation::new(self.clock.to_run(at), "late claim", what)
        });
        let estimates = lock(&self.state).late_estimates.clone().into_iter();
        claims.chain(estimates.map(|(at, what)| Violation::new(at, "clock", what))).collect()
    }

    /// Returns the claims, releases and ends at a later time that were carried out, with their times.
    #[must_use]
    pub fn executed(&self) -> Vec<(u64, RequestId, Executed)> {
        let executed = self.locks.executed().into_iter();
        executed.map(|(at, request, kind)| (self.clock.to_run(at), request, kind)).collect()
    }

    fn receive(&self, link: usize, call: Call, sender: ReplySender) {
        let mut state = lock(&self.state);
        if state.is_down {
            return;
        }
        if state.is_paused {
            return state.arrived.push((link, call, sender));
        }
        if self.time.now() < state.refuses_until && state.random.bool() {
            let now = self.clock.now_us();
            return self.network.send(link, Way::Back, move || drop(sender.send((now, Reply::Refused))));
        }
        drop(state);
        let now = self.clock.now_us();
        let sent = self.timeline.is_recorded().then(|| call.to_string());
        let (reply, notifications) = self.locks.execute(now, call);
        if let Some(call) = sent {
            self.timeline.note(self.name, || format!("{}{} {call}: {reply}", self.clients, link % PROCESSES));
        }
        self.network.send(link, Way::Back, move || drop(sender.send((now, reply))));
        for (subscriber, handover) in notifications {
            self.timeline.note(self.name, || {
                let (token, link) = (handover.grant.token, subscriber.link % PROCESSES);
                format!("grants token {token} to a waiter of {}{link}", self.clients)
            });
            self.network.send(subscriber.link, Way::Back, move || subscriber.wakeups.deliver(handover));
        }
    }
}

impl Endpoint for Server {
    fn call(self: Arc<Self>, link: usize, call: Call, reply: ReplySender) {
        if let Call::Release { request, .. } = &call {
            lock(&self.state).releases.insert(request.id);
        }
        if let Call::Claim { earliest_us, .. } = &call
            && *earliest_us > self.clock.now_us()
        {
            let what =
                format!("clock: a claim on link {link} counts from a time after that of the server's clock");
            lock(&self.state).late_estimates.push((self.time.now(), what));
        }
        let server = self.clone();
        self.network.send(link, Way::There, move || server.receive(link, call, reply));
    }
}

impl Server {
    /// Returns the live entries, with their requests.
    #[must_use]
    pub fn requests(&self) -> Vec<(Arc<Request>, LiveEntry)> {
        self.locks.live(self.clock.now_us())
    }

    /// Returns the time of the run at which the hold of `name` expires whose request and token are chosen by `is_it`, unless it was renewed
    /// later; `None` if it has ended.
    pub fn expires_of(&self, name: &LockName, is_it: impl Fn(RequestId, u64) -> bool) -> Option<u64> {
        self.locks.expires_of(name, is_it).map(|us| self.clock.to_run(us))
    }

    /// Returns the broken promises that the server knows of, at the end of a run. A grant for which `needs_no_release` returns true may have
    /// no release.
    #[must_use]
    pub fn violations_with(
        &self,
        events: &Events<'_>,
        needs_no_release: impl Fn(&GrantRecord) -> bool,
    ) -> Vec<Violation> {
        let mut violations = self.late();
        let state = lock(&self.state);
        let mut found = |at, kind, what| violations.push(Violation::new(at, kind, what));
        let grants = self.locks.grants();
        // A grant may expire before the process receives it, and the request is granted the lock again.
        let held = grants.iter().filter(|grant| needs_no_release(grant)).map(|grant| grant.request.id);
        let held: BTreeSet<_> = held.collect();
        for GrantRecord { request, process: (link, life), token, at } in &grants {
            let is_alive = events.lives[link % PROCESSES] == *life;
            if is_alive && !held.contains(&request.id) && !state.releases.contains(&request.id) {
                let what = format!("orphan: no client has token {token} of {}, or releases it", request.name);
                found(self.clock.to_run(*at), "orphan", what);
            }
        }
        for (process, wakeups) in &state.wakeups {
            if !wakeups.is_empty() {
                found(self.time.now(), "leak", format!("leak: p{process} has registered waiters"));
            }
        }
        violations
    }
}

impl Servers for Server {
    fn open(self: Arc<Self>, (process, life): Life) -> Opening {
        Box::pin(async move {
            let link = self.number * PROCESSES + process;
            let client = QueueClient::open(self.clone(), (link, life), self.planted);
            lock(&self.state).wakeups.insert(process, client.wakeups());
            client.connect().await;
            let client = Arc::new(client);
            Store::inspectable(client.clone())
                .parking(client.clone())
                .converting(client.clone())
                .raising(client)
        })
    }

    fn end_process(&self, process: usize) {
        lock(&self.state).wakeups.remove(&process);
    }

    fn refuse(&self, _: usize, until: u64) {
        lock(&self.state).refuses_until = until;
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
        self.locks.expires(name, token).map(|us| self.clock.to_run(us))
    }

    fn live(&self) -> Vec<LiveEntry> {
        self.requests().into_iter().map(|(_, entry)| entry).collect()
    }

    fn violations(&self, events: &Events<'_>) -> Vec<Violation> {
        self.violations_with(events, |GrantRecord { request, token, .. }| {
            events.record.needs_no_release(&request.name, *token, request.owner.as_str())
        })
    }
}
