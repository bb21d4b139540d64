//! The plan of a run, drawn from its seed before the run: the clients, the faults, and the rules of the store. A failing plan is
//! shrunk by removing parts of it.

use std::{fmt, ops::Range, time::Duration};

use fastrand::Rng;

pub use super::{planted::Planted, store_kind::StoreKind};

/// The number of simulated processes.
pub const PROCESSES: usize = 3;

/// The greatest number of locks.
pub const MOST_LOCKS: usize = 3;

/// The end of the last fault. From then on the network is reliable.
pub const FAULTS_END: Duration = Duration::from_secs(10);

/// The time from which clients begin no section, long after the leases of all former holders have expired.
pub const WORK_END: Duration = Duration::from_secs(17);

/// The time from which the last faults have no effect: the leases of former holders have expired, and late messages have arrived.
pub const SETTLED: Duration = Duration::from_secs(15);

/// The latest end of a run: all requests have been granted in turn.
pub const RUN_END: Duration = Duration::from_secs(60);

/// The longest lease of a calm run. It is longer than what any fault delays, so what is left behind can be seen.
pub const LONG_LEASE: Duration = Duration::from_secs(10);

/// The time after a fault in which late messages arrive and broken connections are replaced.
const AFTERMATH: Duration = Duration::from_millis(1500);

/// The kind of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Style {
    /// Short leases, and faults at any time, many of them at once
    Busy,
    /// Bursts of faults with quiet times in between, and clients that use all that there is: long leases, limits of holds, futures that
    /// are not polled, breaks. What a fault has left behind shows in the quiet
    Calm,
}

/// A fault of a plan.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// The time at which it begins.
    pub at: Duration,
    /// The time for which it lasts.
    pub lasts: Duration,
    /// The server or the server's links that it concerns, if it does not concern a process as a whole.
    pub server: usize,
    /// The fault.
    pub kind: FaultKind,
}

/// The kinds of faults. Processes and servers are numbered from 0.
#[derive(Debug, Clone, Copy)]
pub enum FaultKind {
    /// The process is stopped, and its clock continues.
    Pause(usize),
    /// The process ends, and is started again.
    Crash(usize),
    /// The server is stopped. It executes the requests that have arrived when it continues.
    PauseServer,
    /// The server ends, and is started again.
    RestartServer,
    /// The server has no contact with the other servers, or with the store behind it.
    CutServer,
    /// Requests of the process to the server do not arrive, or are late.
    CutRequests(usize),
    /// Messages of the server to the process do not arrive, or are late.
    CutReplies(usize),
    /// Messages between the process and the server are delayed by up to this time.
    Slow(usize, Duration),
    /// The connections that the process has to the server at this time stop working: some deliver late, the others nothing more. New ones
    /// work.
    Stick(usize),
    /// Many messages of all processes are late or lost.
    Noise,
    /// The server refuses some calls, as one that is overloaded does.
    Refuse,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, lasts, server, kind } = self;
        write!(f, "at {:.3} s for {:.3} s: ", at.as_secs_f64(), lasts.as_secs_f64())?;
        match kind {
            FaultKind::Pause(process) => write!(f, "p{process} is paused"),
            FaultKind::Crash(process) => write!(f, "p{process} is down after a crash"),
            FaultKind::PauseServer => write!(f, "n{server} is paused"),
            FaultKind::RestartServer => write!(f, "n{server} is down after a crash"),
            FaultKind::CutServer => write!(f, "n{server} is cut off from the servers behind it"),
            FaultKind::CutRequests(process) => write!(f, "messages from p{process} to n{server} are cut off"),
            FaultKind::CutReplies(process) => write!(f, "messages from n{server} to p{process} are cut off"),
            FaultKind::Slow(process, by) => {
                write!(f, "messages between p{process} and n{server} are late by up to {by:?}")
            }
            FaultKind::Stick(process) => write!(f, "the connections of p{process} to n{server} are stuck"),
            FaultKind::Noise => write!(f, "many messages are late or lost"),
            FaultKind::Refuse => write!(f, "n{server} refuses some calls"),
        }
    }
}

/// A client of a process: it acquires and releases locks in turn.
#[derive(Debug, Clone, Copy)]
pub struct Client {
    /// Its process.
    pub process: usize,
    /// Its number in the run.
    pub number: usize,
}

/// The plan of a run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The seed of all other random decisions.
    pub seed: u64,
    /// The store.
    pub store: StoreKind,
    /// The kind of the run.
    pub style: Style,
    /// The number of its servers.
    pub servers: usize,
    /// The clients.
    pub clients: Vec<Client>,
    /// The number of locks.
    pub locks: usize,
    /// The faults, in any order.
    pub faults: Vec<Fault>,
    /// True if single messages are late or lost until [`FAULTS_END`].
    pub is_noisy: bool,
    /// The bug in the store.
    pub planted: Option<Planted>,
}

/// Returns the random numbers of one part of a run, which do not depend on those of the other parts.
#[must_use]
pub fn stream(seed: u64, part: &[u64]) -> Rng {
    part.iter().fold(Rng::with_seed(seed), |mut random, number| {
        Rng::with_seed(random.u64(..) ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    })
}

/// Returns a random duration in milliseconds, and fractions of them.
pub fn between(random: &mut Rng, ms: Range<u64>) -> Duration {
    Duration::from_nanos(random.u64(ms.start * 1_000_000..ms.end * 1_000_000))
}

/// Returns the number of servers of `store` in the run of `seed`.
fn servers(store: StoreKind, seed: u64) -> usize {
    match store {
        StoreKind::Queue
        | StoreKind::Mysql
        | StoreKind::Postgres
        | StoreKind::Sqlite
        | StoreKind::Redis
        | StoreKind::Azure => 1,
        StoreKind::Both | StoreKind::Service => 2,
        StoreKind::Redlock => stream(seed, &[6]).choice([3, 5]).unwrap_or(3),
        StoreKind::Zookeeper => stream(seed, &[6]).choice([1, 3, 3]).unwrap_or(3),
    }
}

impl Style {
    /// Returns the style of the run of `seed`: every second one is calm.
    #[must_use]
    pub const fn of(seed: u64) -> Self {
        if seed.is_multiple_of(2) { Self::Busy } else { Self::Calm }
    }
}

impl Plan {
    /// Draws the plan of `seed`.
    #[must_use]
    pub fn draw(store: StoreKind, seed: u64, planted: Option<Planted>) -> Self {
        Self::draw_in(Style::of(seed), store, seed, planted)
    }

    /// Draws the plan of `seed` for a run of this style.
    #[must_use]
    pub fn draw_in(style: Style, store: StoreKind, seed: u64, planted: Option<Planted>) -> Self {
        let servers = servers(store, seed);
        let mut random = stream(seed, &[0]);
        let clients = (0..random.usize(3..10)).map(|number| Client { process: number % PROCESSES, number });
        let mut clients: Vec<Client> = clients.collect();
        let mut locks = MOST_LOCKS;
        let mut faults: Vec<Fault> = match style {
            Style::Busy => {
                let most = if servers == 1 { 16 } else { 32 };
                let kinds = if servers == 1 { 0..10 } else { 0..14 };
                let faults = Faults { processes: 0..PROCESSES, kinds, at_ms: 100..10_000 };
                let number = random.usize(0..most);
                (0..number).map(|_| faults.draw(&mut random, servers)).collect()
            }
            Style::Calm => {
                locks = random.usize(1..=MOST_LOCKS);
                // With few clients, the locks are often free.
                clients.truncate(random.usize(2..=clients.len()));
                if random.u8(..3) == 0 {
                    // Nearly all clients in one process: the others do not find out for it that a lock is free.
                    clients.iter_mut().skip(1).for_each(|client| client.process = 0);
                }
                let bursts = random.usize(0..8);
                (0..bursts).flat_map(|_| Faults::burst(&mut random, servers)).collect()
            }
        };
        if servers > 1 {
            let others: Vec<Fault> =
                faults.iter().filter_map(|fault| fault.at_another(&mut random, servers)).collect();
            faults.extend(others);
        }
        if store == StoreKind::Service {
            faults.iter_mut().for_each(|fault| fault.lengthen(&mut random));
        }
        if matches!(store, StoreKind::Zookeeper | StoreKind::Service) && servers > 1 {
            let pauses = faults.iter_mut().filter(|fault| matches!(fault.kind, FaultKind::PauseServer));
            pauses.filter(|_| random.bool()).for_each(|fault| fault.kind = FaultKind::CutServer);
        }
        faults.iter_mut().for_each(|fault| fault.scale(store.scale()));
        let is_noisy = style == Style::Busy && random.u8(..4) > 0;
        Self { seed, store, style, servers, clients, locks, faults, is_noisy, planted }
    }

    /// Returns true if clients acquire slots of semaphores, too. It depends on the seed alone, so that the plans of other seeds stay the same.
    #[must_use]
    pub const fn has_slots(&self) -> bool {
        self.seed.is_multiple_of(5)
    }

    /// Returns true if clients pass holds to other processes, and break holds by their tokens. Like slots, it depends on the seed alone.
    #[must_use]
    pub const fn has_handles(&self) -> bool {
        let has_some = matches!(self.style, Style::Calm) || self.seed % 5 < 2;
        // A hold ends with its session in ZooKeeper.
        has_some && !matches!(self.store, StoreKind::Zookeeper)
    }

    /// Returns true if a lease may last for [`LONG_LEASE`].
    #[must_use]
    pub const fn has_long_leases(&self) -> bool {
        // A fleet waits until such leases have expired, so it makes fewer moves.
        let is_too_long = matches!(self.store, StoreKind::Both) && self.seed.is_multiple_of(3);
        self.store.keeps_leases() && matches!(self.style, Style::Calm) && !is_too_long
    }

    /// Returns a time of a run of this store, such as [`FAULTS_END`].
    #[must_use]
    pub fn time(&self, time: Duration) -> Duration {
        time * self.store.scale()
    }

    /// Returns [`SETTLED`] or [`WORK_END`] of this run, before which all leases from the time of the faults have expired, and those of the
    /// processes that have moved.
    #[must_use]
    pub fn late_time(&self, time: Duration) -> Duration {
        let is_late = self.has_long_leases() || self.store == StoreKind::Both;
        self.time(time) + if is_late { LONG_LEASE } else { Duration::ZERO }
    }

    /// Returns the time until which faults that begin before `now` have an effect.
    #[must_use]
    pub fn disturbed_until(&self, now: Duration) -> Duration {
        let begun = self.faults.iter().filter(|fault| fault.at <= now);
        let ends = begun.map(|fault| fault.end() + self.time(AFTERMATH));
        ends.chain(self.is_noisy.then(|| self.time(FAULTS_END + AFTERMATH))).max().unwrap_or_default()
    }

    /// Returns true if a fault of the process or of a server begins before `until` and ends after `from`.
    #[must_use]
    pub fn is_disturbed(&self, process: usize, (from, until): (Duration, Duration)) -> bool {
        let concerns = |kind: &FaultKind| match kind {
            FaultKind::Pause(number)
            | FaultKind::Crash(number)
            | FaultKind::CutRequests(number)
            | FaultKind::CutReplies(number)
            | FaultKind::Slow(number, _)
            | FaultKind::Stick(number) => *number == process,
            FaultKind::PauseServer
            | FaultKind::RestartServer
            | FaultKind::CutServer
            | FaultKind::Noise
            | FaultKind::Refuse => true,
        };
        self.faults.iter().any(|fault| concerns(&fault.kind) && fault.at < until && fault.end() > from)
    }

    /// Returns true if connections that were opened before `at` may deliver nothing more, and never end.
    #[must_use]
    pub fn has_silent_ends(&self, at: Duration) -> bool {
        let is_silent = |kind: &FaultKind| matches!(kind, FaultKind::Stick(_) | FaultKind::RestartServer);
        self.faults.iter().any(|fault| is_silent(&fault.kind) && fault.at <= at)
    }

    /// Returns the plans with one part less.
    pub fn smaller(&self) -> impl Iterator<Item = Self> + '_ {
        let faults = (0..self.faults.len()).map(|at| {
            let mut plan = self.clone();
            plan.faults.remove(at);
            plan
        });
        let clients = (0..self.clients.len()).map(|at| {
            let mut plan = self.clone();
            plan.clients.remove(at);
            plan
        });
        let quiet = self.is_noisy.then(|| Self { is_noisy: false, ..self.clone() });
        quiet.into_iter().chain(faults).chain(clients)
    }
}

/// The faults from which some are drawn.
struct Faults {
    processes: Range<usize>,
    kinds: Range<u8>,
    /// The time at which they begin, in milliseconds.
    at_ms: Range<u64>,
}

impl Faults {
    fn draw(&self, random: &mut Rng, servers: usize) -> Fault {
        let process = random.usize(self.processes.clone());
        let kind = match random.u8(self.kinds.clone()) {
            0 | 1 => FaultKind::Pause(process),
            2 => FaultKind::Crash(process),
            3 | 10 | 11 => FaultKind::PauseServer,
            4 | 12 | 13 => FaultKind::RestartServer,
            5 | 6 => FaultKind::CutRequests(process),
            7 | 8 => FaultKind::CutReplies(process),
            9 | 14 | 15 => FaultKind::Slow(process, between(random, 5..1000)),
            16..=18 => FaultKind::Stick(process),
            19..=22 => FaultKind::Refuse,
            _ => FaultKind::Noise,
        };
        let lasts = match random.u8(..3) {
            0 => between(random, 1..20),
            1 => between(random, 20..200),
            _ => between(random, 200..2500),
        };
        let at = between(random, self.at_ms.clone()).min(FAULTS_END - lasts);
        // A single server needs no decision, and its runs have none.
        let server = if servers == 1 { 0 } else { random.usize(..servers) };
        Fault { at, lasts, server, kind }
    }

    /// Draws some faults at nearly the same time: of all kinds, or of the messages of one process.
    fn burst(random: &mut Rng, servers: usize) -> Vec<Fault> {
        let (process, begin) = (random.usize(..PROCESSES), random.u64(300..8000));
        let (number, at_ms) = (random.usize(1..6), begin..begin + 500);
        if random.u8(..3) == 0 {
            let faults = Self { processes: 0..PROCESSES, kinds: 0..24, at_ms };
            return (0..number).map(|_| faults.draw(random, servers)).collect();
        }
        // Several that overlap: a message is late, and what follows it fails.
        let faults = Self { processes: process..process + 1, kinds: 14..24, at_ms };
        let draw = |_| Fault { lasts: between(random, 200..1500), ..faults.draw(random, servers) };
        (0..number).map(draw).collect()
    }
}

impl Fault {
    /// Returns a fault of another server at nearly the same time; `None` for a fault of a process, and for half of the others.
    fn at_another(&self, random: &mut Rng, servers: usize) -> Option<Self> {
        let is_of_server = !matches!(self.kind, FaultKind::Pause(_) | FaultKind::Crash(_) | FaultKind::Noise);
        let at = (self.at + between(random, 0..300)).min(FAULTS_END - self.lasts);
        let server = (self.server + random.usize(1..servers)) % servers;
        (random.bool() && is_of_server).then_some(Self { at, server, ..*self })
    }

    /// Lengthens some faults of servers and requests: a release refuses claims for five seconds, and a message may be later than that.
    fn lengthen(&mut self, random: &mut Rng) {
        if matches!(self.kind, FaultKind::PauseServer | FaultKind::CutRequests(_)) && random.bool() {
            self.lasts = between(random, 3000..9000);
            self.at = self.at.min(FAULTS_END - self.lasts);
        }
    }

    /// Multiplies all times.
    fn scale(&mut self, by: u32) {
        (self.at, self.lasts) = (self.at * by, self.lasts * by);
        if let FaultKind::Slow(_, delay) = &mut self.kind {
            *delay *= by;
        }
    }

    fn end(&self) -> Duration {
        self.at + self.lasts
    }
}
