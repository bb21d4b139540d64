//! A run of a plan: servers, a network, and processes with the real core, on one thread in virtual time.

use std::{
    collections::BTreeSet,
    future::poll_fn,
    io,
    sync::{Arc, Mutex},
    task::Waker,
    time::Duration,
};

use polylock_core::{FencingToken, LockName, Locks, OwnerId, simulation::Process, sync::lock};
use polylock_testkit::history::Section;
use tokio::{
    runtime::{Builder, Handle},
    task::JoinHandle,
};

use super::{
    azure::AzureServers,
    both::{BothServers, fleet::Fleet},
    check,
    clock::LocalClock,
    live_entry::LiveEntry,
    network::{Late, Network, Way, nanos},
    plan::{
        FAULTS_END, Fault, FaultKind, PROCESSES, Plan, RUN_END, SETTLED, StoreKind, Style, WORK_END, stream,
    },
    process::Surroundings,
    quiet::Quiet,
    record::{AttemptState, Record},
    redis::RedisServers,
    server::Server,
    servers::{Events, Servers},
    service::ServiceServers,
    sql::SqlServers,
    sqlite::SqliteServers,
    time::{MS, Time},
    timeline::{Line, Timeline},
    violation::Violation,
    workload::Client,
    zookeeper::{self, ZookeeperServers},
};

mod moves;

/// The time after a deadline within which a running process reports the loss.
const TOLERANCE: Duration = Duration::from_millis(1);

/// The number of the client of process 0 that adopts and breaks holds; the next processes have the next numbers.
const OPERATOR: usize = 100;

/// The longest time for which work goes on in the background after a release.
const LONGEST_BACKGROUND: Duration = Duration::from_millis(300);

/// The longest time for which a process tries to write to a disk that hangs.
const LONGEST_UNWRITTEN: Duration = Duration::from_secs(2);

/// The outcome of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The number of sections.
    pub sections: usize,
    /// The broken promises, in order of time.
    pub violations: Vec<Violation>,
    /// The events, if they were recorded.
    pub timeline: Vec<Line>,
}

/// Executes `plan`.
///
/// # Errors
/// If the runtime can't be created.
pub fn run(plan: &Plan, is_recorded: bool) -> io::Result<Outcome> {
    // The jitter of core's retries comes from the thread's generator.
    fastrand::seed(plan.seed);
    let time = Time::new(stream(plan.seed, &[3]));
    let (idle, driver): (_, Arc<Mutex<Option<Waker>>>) = (time.clone(), Arc::default());
    let wake = driver.clone();
    let runtime = Builder::new_current_thread()
        .on_thread_park(move || {
            idle.advance();
            // Otherwise the thread would wait although there are further events.
            if let Some(waker) = &*lock(&wake) {
                waker.wake_by_ref();
            }
        })
        .build()?;
    let outcome = runtime.block_on(async {
        let world = World::new(plan, time.clone(), is_recorded)?;
        let mut main = tokio::spawn(world.run());
        poll_fn(|context| {
            *lock(&driver) = Some(context.waker().clone());
            std::pin::Pin::new(&mut main).poll(context)
        })
        .await
        .map_err(io::Error::other)
    });
    // These refer to the runtime, which ends with them.
    time.end();
    *lock(&driver) = None;
    outcome
}

#[derive(Debug)]
struct World {
    plan: Plan,
    time: Arc<Time>,
    network: Arc<Network>,
    servers: Arc<dyn Servers>,
    record: Arc<Mutex<Record>>,
    timeline: Arc<Timeline>,
    machines: Vec<LocalClock>,
    nodes: Mutex<Vec<Node>>,
    /// The processes as a fleet, if they move from one store to another.
    fleet: Option<Arc<Fleet>>,
}

/// A process in its present life.
#[derive(Debug)]
struct Node {
    process: Arc<Process>,
    /// True at the end if all background work ended in time.
    work: JoinHandle<bool>,
    life: u64,
    /// The number of pauses and crashes in progress.
    stops: u32,
    is_down: bool,
    /// The times in which it was stopped.
    stopped: Vec<(u64, u64)>,
}

impl Node {
    /// Begins a pause or a crash, possibly during others.
    fn stop(&mut self, now: u64) {
        if self.stops == 0 {
            self.stopped.push((now, u64::MAX));
        }
        self.stops += 1;
    }

    /// Ends a pause or a crash. Returns true if it was the last one in progress.
    fn stop_ends(&mut self, now: u64) -> bool {
        self.stops -= 1;
        if let (0, Some((_, until))) = (self.stops, self.stopped.last_mut()) {
            *until = now;
        }
        self.stops == 0
    }
}

impl World {
    fn new(plan: &Plan, time: Arc<Time>, is_recorded: bool) -> io::Result<Arc<Self>> {
        let noisy_until = if plan.is_noisy { nanos(plan.time(FAULTS_END)) } else { 0 };
        let latencies = match plan.style {
            // An operation has several statements.
            _ if plan.store == StoreKind::Sqlite => [1, 3, 15],
            _ if plan.servers > 1 => [1, 5, 20],
            Style::Busy => [1, 5, 50],
            // Nearly all replies arrive before an operation is taken over from its caller.
            Style::Calm => [1, 8, 40],
        };
        let late = match plan.store {
            // Many requests that arrive after their time limit, when their release has overtaken them.
            StoreKind::Azure => Late { per_mille: 25, ms: 2000..9500 },
            // Many that arrive on connections that were given up, behind later ones.
            StoreKind::Redlock | StoreKind::Service => Late { per_mille: 15, ms: 100..3000 },
            _ => Late { per_mille: 5, ms: 100..1500 },
        };
        let links = plan.servers * PROCESSES;
        let network = Network::new(time.clone(), plan.seed, noisy_until, links, latencies, late);
        let timeline = Timeline::new(time.clone(), is_recorded);
        let parts = (time.clone(), network.clone(), timeline.clone());
        let machine = |number| LocalClock::draw(time.clone(), &mut stream(plan.seed, &[4, number as u64]));
        let machines: Vec<LocalClock> = match plan.store {
            StoreKind::Sqlite => vec![machine(0); PROCESSES],
            _ => (0..PROCESSES).map(machine).collect(),
        };
        let fleet = Fleet::draw(plan);
        let servers: Arc<dyn Servers> = match plan.store {
            StoreKind::Queue => Server::new(plan, (0, "server"), parts),
            StoreKind::Both => BothServers::new(plan, fleet.clone(), parts),
            StoreKind::Mysql | StoreKind::Postgres => SqlServers::new(plan, parts),
            StoreKind::Sqlite => SqliteServers::new(plan, machines[0].clone(), parts)?,
            StoreKind::Redis | StoreKind::Redlock => RedisServers::new(plan, parts),
            StoreKind::Zookeeper => ZookeeperServers::new(plan, parts),
            StoreKind::Azure => AzureServers::new(plan, parts),
            StoreKind::Service => ServiceServers::new(plan, parts),
        };
        let world = Arc::new(Self {
            plan: plan.clone(),
            time,
            network,
            servers,
            record: Arc::default(),
            timeline,
            machines,
            nodes: Mutex::default(),
            fleet: (plan.store == StoreKind::Both).then_some(fleet),
        });
        *lock(&world.nodes) = (0..PROCESSES).map(|number| world.start(number, 0)).collect();
        for fault in &plan.faults {
            world.schedule(*fault);
        }
        Ok(world)
    }

    /// Starts process `number` in its life `life`.
    fn start(&self, number: usize, life: u64) -> Node {
        let place = self.fleet.as_ref().map(|fleet| fleet.begin((number, life))).unwrap_or_default();
        let clock = self.machines[number].clone();
        let surroundings = Surroundings::new(clock.clone(), &self.plan, (number, life), self.servers.clone());
        let process = Process::new(Handle::current(), Box::new(surroundings));
        let clients: Vec<_> =
            self.plan.clients.iter().filter(|client| client.process == number).copied().collect();
        let (plan, seed) = (self.plan.clone(), self.plan.seed);
        let ttl_ms = match plan.store {
            StoreKind::Queue
            | StoreKind::Mysql
            | StoreKind::Postgres
            | StoreKind::Sqlite
            | StoreKind::Redis
            | StoreKind::Both => 200..2000,
            StoreKind::Redlock | StoreKind::Service => 400..2000,
            StoreKind::Zookeeper => 200..nanos(zookeeper::longest_lease(seed)) / MS,
            StoreKind::Azure => 1500..2000,
        };
        let (time, record) = (self.time.clone(), self.record.clone());
        let (timeline, inside, servers) = (self.timeline.clone(), process.clone(), self.servers.clone());
        let work = process.spawn(async move {
            let store = servers.clone().open((number, life)).await;
            let locks =
                Locks::builder(store).owner(&OwnerId::sanitized(&format!("p{number}.{life}"))).build();
            let client = |number_of_client: usize| Client {
                name: format!("p{number}.{life}/c{number_of_client}"),
                process: number,
                place: place.clone(),
                attempts: 0,
                locks: locks.clone(),
                servers: servers.clone(),
                plan: plan.clone(),
                ttl_ms: ttl_ms.clone(),
                clock: clock.clone(),
                time: time.clone(),
                random: stream(seed, &[5, number_of_client as u64, life]),
                handles: stream(seed, &[10, number_of_client as u64, life]),
                record: record.clone(),
                timeline: timeline.clone(),
            };
            let mut clients: Vec<_> =
                clients.iter().map(|plan| inside.spawn(client(plan.number).run())).collect();
            if plan.has_handles() {
                clients.push(inside.spawn(client(OPERATOR + number).run_operator()));
            }
            for client in clients {
                if client.await.is_err() {
                    lock(&record).surprises.push(format!("a client of p{number} has panicked"));
                }
            }
            locks.close(Duration::from_secs(5)).await
        });
        Node { process, work, life, stops: 0, is_down: false, stopped: Vec::new() }
    }

    fn schedule(self: &Arc<Self>, fault: Fault) {
        let (begin, end) = (self.clone(), self.clone());
        self.time.at(nanos(fault.at), move || begin.begin(fault));
        self.time.at(nanos(fault.at + fault.lasts), move || end.end(fault));
    }

    fn begin(&self, fault: Fault) {
        self.timeline.note("fault", || format!("begins: {fault}"));
        let until = nanos(fault.at + fault.lasts);
        let link = |process| fault.server * PROCESSES + process;
        match fault.kind {
            FaultKind::Pause(number) | FaultKind::Crash(number) => {
                let now = self.time.now();
                let node = &mut lock(&self.nodes)[number];
                node.stop(now);
                if let FaultKind::Crash(_) = fault.kind {
                    node.process.crash();
                    node.is_down = true;
                    self.servers.end_process(number);
                    self.bury(number, now);
                } else {
                    node.process.pause();
                }
            }
            FaultKind::PauseServer => self.servers.pause(fault.server),
            FaultKind::RestartServer => self.servers.crash(fault.server),
            FaultKind::CutServer => self.servers.cut(fault.server, until),
            FaultKind::CutRequests(number) => self.network.cut(link(number), Way::There, until),
            FaultKind::CutReplies(number) => self.network.cut(link(number), Way::Back, until),
            FaultKind::Slow(number, by) => self.network.slow(link(number), by, until),
            FaultKind::Stick(number) => self.servers.stick(number, fault.server, until),
            FaultKind::Noise => self.network.make_noise(until),
            FaultKind::Refuse => self.servers.refuse(fault.server, until),
        }
    }

    fn end(&self, fault: Fault) {
        self.timeline.note("fault", || format!("ends: {fault}"));
        match fault.kind {
            FaultKind::Pause(number) | FaultKind::Crash(number) => {
                let nodes = &mut lock(&self.nodes);
                let node = &mut nodes[number];
                if !node.stop_ends(self.time.now()) {
                    return;
                }
                if node.is_down {
                    let stopped = std::mem::take(&mut node.stopped);
                    let new = self.start(number, node.life + 1);
                    nodes[number] = Node { stopped, ..new };
                } else {
                    node.process.resume();
                }
            }
            FaultKind::PauseServer => self.servers.resume(fault.server),
            FaultKind::RestartServer => self.servers.restart(fault.server),
            FaultKind::CutServer => self.servers.heal(fault.server),
            FaultKind::CutRequests(_)
            | FaultKind::CutReplies(_)
            | FaultKind::Slow(..)
            | FaultKind::Stick(_)
            | FaultKind::Noise
            | FaultKind::Refuse => {}
        }
    }

    /// Ends the sections and requests of a process that has crashed.
    fn bury(&self, number: usize, now: u64) {
        let prefix = format!("p{number}.");
        let mut record = lock(&self.record);
        for section in record.sections.iter_mut().filter(|section| section.client.starts_with(&prefix)) {
            if section.open && section.released.is_none() {
                section.released = Some(now);
            }
        }
        let is_unwritten = |start: u64| now - start <= nanos(LONGEST_UNWRITTEN);
        let Record { attempts, holds, .. } = &mut *record;
        for attempt in attempts.values_mut() {
            let users = std::mem::take(&mut attempt.users);
            let (dead, living): (BTreeSet<_>, _) =
                users.into_iter().partition(|user| user.starts_with(&prefix));
            attempt.users = living;
            let longest = attempt.longest;
            let was_ending = attempt.ended_by.as_ref().is_some_and(|client| client.starts_with(&prefix));
            if let (true, AttemptState::Over(keeps)) = (was_ending, &mut attempt.state) {
                *keeps = longest.max(*keeps);
            }
            match (self.plan.store, &attempt.state) {
                (StoreKind::Sqlite, AttemptState::Holding(lock, token)) if !dead.is_empty() => {
                    // It is freed, unless it was renewed since another process may have it.
                    holds.of(&(lock.clone(), *token)).end(now);
                }
                (StoreKind::Sqlite, AttemptState::Over(_))
                    if attempt.left(holds).is_some_and(is_unwritten) =>
                {
                    holds.end(&attempt.lock, &attempt.tokens, now);
                }
                _ => {}
            }
            dead.iter().for_each(|user| attempt.leave(user, longest, now));
        }
        if self.plan.store == StoreKind::Sqlite {
            // The end of its lease that a process has asked for right before may not have been written.
            let of_process = attempts.iter().filter(|(owner, _)| owner.starts_with(&prefix));
            let tokens: BTreeSet<u64> = of_process.flat_map(|(_, attempt)| attempt.tokens.clone()).collect();
            record.kept.retain(|kept| !is_unwritten(kept.time.start) || !tokens.contains(&kept.token));
        }
        record.waiting.retain(|(client, ..)| !client.starts_with(&prefix));
    }

    async fn run(self: Arc<Self>) -> Outcome {
        let (mut violations, mut quiet) = (Vec::new(), Quiet::default());
        let (settled, end) = (self.plan.late_time(SETTLED), self.plan.late_time(RUN_END));
        // Busy runs have no quiet before.
        let quiet_from = if self.plan.style == Style::Busy { nanos(settled) } else { 0 };
        let moving = self.fleet.clone().map(|fleet| tokio::spawn(self.clone().migrate(fleet)));
        let has_ended = || {
            moving.as_ref().is_none_or(JoinHandle::is_finished)
                && lock(&self.nodes).iter().all(|node| node.work.is_finished())
        };
        while self.time.now() < nanos(end) && !has_ended() {
            self.time.sleep_until(self.time.now() + 100 * MS).await;
            violations.extend(self.shortened());
            if self.time.now() < quiet_from {
                continue;
            }
            let (live, lives, record) = (self.servers.live(), self.lives(), lock(&self.record));
            let events = Events { record: &record, lives: &lives };
            violations.extend(quiet.look(
                self.time.now(),
                &self.plan,
                self.network.round_trip(),
                &live,
                &events,
            ));
        }
        // With several servers, a release ends with a majority of the replies, and notifies the others in the background. A release without a
        // reply is given up at the deadline of its hold; the lease may have begun later than that of the client, by the delay of a renewal.
        let background = if self.plan.servers > 1 { LONGEST_BACKGROUND } else { self.network.round_trip() };
        self.time.sleep_until(self.time.now() + nanos(background)).await;
        self.check_end(&mut violations).await;
        let stops = |section: &_| self.stops(section);
        let found = {
            let record = lock(&self.record);
            let merged = record.holds.merged(&record.sections);
            check::shared_sections(&record.sections, &merged, TOLERANCE, stops)
        };
        violations.extend(found.iter().map(Violation::from));
        violations.sort_by_key(|violation| violation.at);
        let sections = lock(&self.record).sections.len();
        // The tasks of all processes end here; none of them is to release anything.
        lock(&self.nodes).iter().for_each(|node| node.process.crash());
        Outcome { sections, violations, timeline: self.timeline.lines() }
    }

    /// Returns the holds that have less time in the store than it has confirmed.
    fn shortened(&self) -> Vec<Violation> {
        let (now, mut record) = (self.time.now(), lock(&self.record));
        if !self.plan.has_handles() || !self.plan.store.keeps_leases() {
            return Vec::new();
        }
        let expires = |lock: &str, token| {
            self.servers.expires(&LockName::from_store(lock).ok()?, FencingToken::new(token)?)
        };
        let shortened = record.holds.shortened(now, expires).into_iter();
        shortened.map(|what| Violation::new(now, "shortened", what)).collect()
    }

    fn stops(&self, section: &Section) -> Vec<(u64, u64)> {
        let number = section.client[1..].split('.').next().and_then(|number| number.parse::<usize>().ok());
        number.map(|number| lock(&self.nodes)[number].stopped.clone()).unwrap_or_default()
    }

    /// Returns the present life of each process.
    fn lives(&self) -> Vec<u64> {
        lock(&self.nodes).iter().map(|node| node.life).collect()
    }

    /// Checks that nothing is left: no request that waits, no entry in the store, no work in the background.
    async fn check_end(&self, violations: &mut Vec<Violation>) {
        let now = self.time.now();
        let mut found = |kind, what: String| violations.push(Violation::new(now, kind, what));
        {
            let record = lock(&self.record);
            for (client, _, since) in &record.waiting {
                let since = Duration::from_nanos(*since);
                found("lost wake-up", format!("lost wake-up: {client} still waits, since {since:?}"));
            }
            for surprise in &record.surprises {
                found("surprise", surprise.clone());
            }
        }
        if self.time.was_stuck() {
            violations.push(Violation::new(
                now,
                "endless loop",
                "code ran without end at one time".to_owned(),
            ));
        }
        {
            let (mut record, lives) = (lock(&self.record), self.lives());
            violations.extend(record.seen.drain(..).map(|(at, kind, what)| Violation::new(at, kind, what)));
            violations.extend(check::records(&record, &self.plan, &self.network));
            violations.extend(self.servers.violations(&Events { record: &record, lives: &lives }));
            // A lease that was left to expire may not have ended yet.
            let is_left = |entry: &LiveEntry| record.unused(entry).is_none_or(|(_, keeps)| keeps.is_zero());
            for entry in self.servers.live().into_iter().filter(is_left) {
                let what = if entry.token.is_some() { "hold" } else { "queue entry" };
                let what = format!("leak: the server has a {what} of {}", entry.name);
                violations.push(Violation::new(now, "leak", what));
            }
        }
        let mut found = |kind, what: String| violations.push(Violation::new(now, kind, what));
        let works: Vec<_> = {
            let nodes = &mut *lock(&self.nodes);
            nodes
                .iter_mut()
                .filter(|node| node.work.is_finished())
                .map(|node| std::mem::replace(&mut node.work, tokio::spawn(async { true })))
                .collect()
        };
        for work in works {
            if !work.await.unwrap_or(false) {
                found("leak", "leak: background work of a process has not ended".to_owned());
            }
        }
    }
}

/// A run is long enough for its phases.
const _: () = assert!(SETTLED.as_secs() < WORK_END.as_secs() && FAULTS_END.as_secs() < SETTLED.as_secs());
