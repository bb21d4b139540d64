//! One service: its process and its connections.

use std::{
    collections::BTreeMap,
    mem,
    pin::Pin,
    sync::{Arc, Mutex},
};

use fastrand::Rng;
use polylock_core::{
    simulation::{Environment, Process, Stream},
    sync::lock,
};
use polylock_protocol::{EXPIRES, paths};
use polylock_server::{Service, simulation};
use tokio::{
    runtime::Handle,
    sync::mpsc::{UnboundedSender, unbounded_channel},
};

use super::{
    end::{End, Inbox},
    given_up::GivenUp,
    message,
};
use crate::simulation::{
    clock::LocalClock,
    listener::Stop,
    network::Way,
    plan::{PROCESSES, Plan, Planted, stream},
    server::Server,
    servers::Servers,
    socket::{Acceptor, Connection, Segment},
    time::Time,
    timeline::Timeline,
};

/// The port of the first service.
const FIRST_PORT: usize = 7000;

/// One service, in one life after the other.
#[derive(Debug)]
pub struct Node {
    number: usize,
    seed: u64,
    clock: LocalClock,
    time: Arc<Time>,
    timeline: Arc<Timeline>,
    store: Arc<Server>,
    planted: Option<Planted>,
    given_up: Arc<GivenUp>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    random: Rng,
    life: u64,
    process: Arc<Process>,
    clients: UnboundedSender<Box<dyn Stream>>,
    connections: BTreeMap<u64, (Arc<Connection>, Arc<Inbox>)>,
    /// The way in which it is down.
    stop: Option<Stop>,
}

/// The surroundings of a service. It has no connections but those of its clients; its store is a model.
#[derive(Debug)]
struct Surroundings {
    clock: LocalClock,
    random: Mutex<Rng>,
}

impl Environment for Surroundings {
    fn nanos(&self) -> u64 {
        self.clock.now()
    }

    fn sleep_until(&self, nanos: u64) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.clock.sleep_until(nanos)
    }

    fn fill(&self, bytes: &mut [u8]) {
        lock(&self.random).fill(bytes);
    }
}

impl Node {
    /// Starts service `number` of `plan`.
    #[must_use]
    pub fn new(
        number: usize,
        plan: &Plan,
        (time, timeline, store, given_up): (Arc<Time>, Arc<Timeline>, Arc<Server>, Arc<GivenUp>),
    ) -> Arc<Self> {
        // The processes of the clients have the machines before it.
        let machine = (PROCESSES + number) as u64;
        let clock = LocalClock::draw(time.clone(), &mut stream(plan.seed, &[4, machine]));
        let (process, clients) = start((number, 0), plan.seed, &clock, &store);
        let state = State {
            random: stream(plan.seed, &[12, number as u64]),
            life: 0,
            process,
            clients,
            connections: BTreeMap::new(),
            stop: None,
        };
        let (seed, planted, state) = (plan.seed, plan.planted, Mutex::new(state));
        Arc::new(Self { number, seed, clock, time, timeline, store, planted, given_up, state })
    }

    /// Returns the port of the service.
    #[must_use]
    pub const fn port(&self) -> usize {
        FIRST_PORT + self.number
    }

    /// Stops the process. What arrives stays in the buffers of its connections.
    pub fn pause(&self) {
        lock(&self.state).process.pause();
    }

    /// Continues the process.
    pub fn resume(&self) {
        let process = lock(&self.state).process.clone();
        process.resume();
    }

    /// Ends the process.
    pub fn crash(&self) {
        let mut state = lock(&self.state);
        if state.stop.is_some() {
            return;
        }
        let stop = if state.random.bool() { Stop::Refuses } else { Stop::Silent };
        state.stop = Some(stop);
        state.process.crash();
        for (connection, _) in mem::take(&mut state.connections).into_values() {
            if stop == Stop::Refuses {
                connection.send(Way::Back, Segment::Close);
            }
        }
    }

    /// Starts the process again, unless it is up.
    pub fn restart(&self) {
        let mut state = lock(&self.state);
        if state.stop.take().is_some() {
            state.life += 1;
            let life = (self.number, state.life);
            (state.process, state.clients) = start(life, self.seed, &self.clock, &self.store);
        }
    }

    /// Returns what arrives at a service with the planted bug.
    fn planted(&self, bytes: &[u8]) -> Vec<u8> {
        let text = String::from_utf8_lossy(bytes);
        match self.planted {
            // Of the same length, and in the distant future.
            Some(Planted::ServiceLateClaim) if text.contains(paths::CLAIM) => {
                let Some((before, rest)) = text.split_once("\"expires\":\"") else { return bytes.to_vec() };
                let Some((time, after)) = rest.split_once('"') else { return bytes.to_vec() };
                let Some((server, us)) = time.split_once(';') else { return bytes.to_vec() };
                let us = "9".repeat(us.len());
                format!("{before}\"expires\":\"{server};{us}\"{after}").into_bytes()
            }
            Some(Planted::ServiceLateRelease) => text.replace(EXPIRES, "polylock-ignored").into_bytes(),
            _ => bytes.to_vec(),
        }
    }
}

/// Starts a service in a new process.
fn start(
    (number, life): (usize, u64),
    seed: u64,
    clock: &LocalClock,
    store: &Arc<Server>,
) -> (Arc<Process>, UnboundedSender<Box<dyn Stream>>) {
    let random = Mutex::new(stream(seed, &[2, (PROCESSES + number) as u64, life]));
    let process = Process::new(Handle::current(), Box::new(Surroundings { clock: clock.clone(), random }));
    let ((clients, arriving), store) = (unbounded_channel(), store.clone());
    drop(process.spawn(async move {
        let service = Service::new(store.open((number, life)).await);
        let service = service.unwrap_or_else(|error| unreachable!("{error}"));
        simulation::serve(service, arriving).await;
    }));
    (process, clients)
}

impl Acceptor for Node {
    fn number(&self) -> usize {
        self.number
    }

    fn receive(&self, connection: &Arc<Connection>, segment: &Segment) {
        let mut state = lock(&self.state);
        let number = connection.number;
        match (state.stop, segment) {
            (Some(Stop::Silent), _) => {}
            (Some(Stop::Refuses), _) => connection.send(Way::Back, Segment::Close),
            (None, Segment::Open) => {
                let (end, inbox) = End::open(connection.clone(), self.number, self.timeline.clone());
                state.connections.insert(number, (connection.clone(), inbox));
                // The service serves until the end of the run.
                state.clients.send(Box::new(end)).ok();
                connection.send(Way::Back, Segment::Open);
            }
            (None, Segment::Data(bytes)) => match state.connections.get(&number) {
                Some((_, inbox)) => {
                    self.timeline.note("service", || {
                        let message = message::take(&mut bytes.clone());
                        let shown = message.map(|message| message.shown()).unwrap_or_default();
                        format!("n{} receives from p{}: {shown}", self.number, connection.process.0)
                    });
                    inbox.push(&self.planted(bytes));
                }
                None => connection.send(Way::Back, Segment::Close),
            },
            (None, Segment::Close) => {
                if let Some((_, inbox)) = state.connections.remove(&number) {
                    inbox.end();
                }
            }
        }
    }

    fn record(&self, _: &Connection, sent: &mut Vec<u8>) {
        while let Some(message) = message::take(sent) {
            self.given_up.sent(&message, self.time.now());
        }
    }
}
