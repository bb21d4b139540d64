//! The schedule of faults of a run, drawn from its seed before the run.

use std::{fmt, time::Duration};

use fastrand::Rng;

use crate::{
    proxy::{Direction, End, Flow},
    servers::pair::{Gap, SwitchOver},
    simulation::plan::{between, stream},
};

/// The number of processes that use the store.
pub const PROCESSES: usize = 4;

/// The length of a period, in which the same kinds of faults happen.
const PERIOD: Duration = Duration::from_secs(10);

/// The last part of a period has no faults, so that a lock that stays blocked is found.
const QUIET: Duration = Duration::from_secs(4);

/// The longest step of a clock, in milliseconds.
const LONGEST_STEP_MS: u64 = 30_000;

/// The longest step of a clock.
pub const LONGEST_STEP: Duration = Duration::from_millis(LONGEST_STEP_MS);

/// The longest time by which the clock of a server is ahead from its start, in milliseconds: longer than every lease of such a store. Tokens
/// that a majority has forgotten continue to grow, because the delay of its servers is longer.
const LONGEST_AHEAD_MS: u64 = 3500;

/// The number of clients of a crowd in every store.
const CROWD: std::ops::Range<usize> = 10..60;

/// The numbers of clients that use the store for a moment.
#[derive(Debug, Clone, Copy, Default)]
pub struct Large {
    /// The greatest number of clients of a crowd, which are granted a lock one after the other in a few seconds.
    pub crowd: usize,
    /// The number of clients of a rush, which try locks at the same time.
    pub rush: usize,
}

/// The most kinds of faults in a period: the fewer there are, the more often each happens.
const KINDS: usize = 3;

/// The processes with many short sections, on many locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Density {
    /// No process.
    Sparse,
    /// Every second one.
    Mixed,
    /// All processes.
    Dense,
}

impl Density {
    /// Returns true if it concerns this process.
    #[must_use]
    pub const fn concerns(self, process: usize) -> bool {
        match self {
            Self::Sparse => false,
            Self::Mixed => process % 2 == 1,
            Self::Dense => true,
        }
    }
}

/// A fault of a plan.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// The time at which it begins.
    pub at: Duration,
    /// The time for which it lasts.
    pub lasts: Duration,
    /// The fault.
    pub action: Action,
}

/// The kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A process of clients is stopped, and continues.
    ClientStop,
    /// A process of clients is killed, and started again.
    ClientKill,
    /// Servers are stopped, and continue. They execute the requests that have arrived when they continue.
    ServerStop,
    /// A server is killed, and started again with its data.
    ServerKill,
    /// Bytes between a process and a server are late.
    Delay,
    /// Bytes between a process and a server are lost in one direction, and no end of a connection is reported.
    BlackHole,
    /// Connections of a process with a server are reset, and refused for a time.
    Cut,
    /// Bytes of existing connections are held back, and delivered although the client may have given them up.
    LateDelivery,
    /// One of the connections of a process with a server is late, stalled, or delivered late.
    OneConnection,
    /// Many clients of a process wait for one lock.
    Crowd,
    /// Thousands of clients of a process try locks, which are free or held for a moment.
    Rush,
    /// The wall clock of a server is stepped, and stepped back.
    ClockStep,
    /// The disk of a server has no room for a time.
    FullDisk,
    /// A server is killed, and started again with its data of some time before.
    OldSnapshot,
    /// A server is started again with another clock, after a time without durability, or with a copy of another one's data.
    ChangedStart,
    /// Another server takes over the role of the one that accepts the writes, and none accepts them in between.
    SwitchOver,
}

impl Kind {
    /// The kinds for which a store needs no configuration of its own.
    pub const COMMON: &[Self] = Self::ALL.split_at(10).0;

    /// These, for a store that serves thousands of requests a second.
    pub const RUSHED: &[Self] = Self::ALL.split_at(11).0;

    /// All kinds.
    pub const ALL: [Self; 16] = [
        Self::ClientStop,
        Self::ClientKill,
        Self::ServerStop,
        Self::ServerKill,
        Self::Delay,
        Self::BlackHole,
        Self::Cut,
        Self::LateDelivery,
        Self::OneConnection,
        Self::Crowd,
        Self::Rush,
        Self::ClockStep,
        Self::FullDisk,
        Self::OldSnapshot,
        Self::ChangedStart,
        Self::SwitchOver,
    ];

    /// Returns its name in the record.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ClientStop => "client stopped",
            Self::ClientKill => "client killed",
            Self::ServerStop => "servers stopped",
            Self::ServerKill => "server killed",
            Self::Delay => "delay",
            Self::BlackHole => "black hole",
            Self::Cut => "cut",
            Self::LateDelivery => "late delivery",
            Self::OneConnection => "one connection",
            Self::Crowd => "crowd",
            Self::Rush => "rush",
            Self::ClockStep => "clock step",
            Self::FullDisk => "full disk",
            Self::OldSnapshot => "old snapshot",
            Self::ChangedStart => "changed start",
            Self::SwitchOver => "switch-over",
        }
    }

    /// Returns true if it happens on the way to a server, or in one.
    #[must_use]
    pub const fn needs_servers(self) -> bool {
        !matches!(self, Self::ClientStop | Self::ClientKill | Self::Crowd | Self::Rush)
    }
}

/// A fault of a certain process or server. Both are numbered from 0.
#[derive(Debug, Clone, Copy)]
pub enum Action {
    /// The process is stopped.
    StopClient(usize),
    /// The process is killed, and started again at the end.
    KillClient(usize),
    /// This number of servers is stopped, from the first one on.
    StopServers {
        /// The first server.
        first: usize,
        /// The number of servers.
        count: usize,
    },
    /// The server is killed, and started again at the end.
    KillServer(usize),
    /// Bytes in this direction are treated in this way.
    Flow(Route, Direction, Flow),
    /// Connections are ended, and refused until the end.
    Cut(Route, End),
    /// Bytes of existing connections of this process, or of all, with the server are held in this direction until the end.
    Late(Option<usize>, usize, Direction),
    /// Bytes of one connection are treated in this way, counted from the newest one.
    One(Route, u64, Direction, Flow),
    /// This number of clients of the process waits for one lock.
    Crowd(usize, usize),
    /// This number of clients of the process try locks.
    Rush(usize, usize),
    /// The disk of the server has no room.
    FillDisk(usize),
    /// The server is killed at the end, and started again with its data of the begin.
    RestoreServer(usize),
    /// The server is started again at the end, and is another one than before.
    StartOtherwise {
        /// The server.
        server: usize,
        /// What is different.
        change: Change,
    },
    /// The primary changes in this way.
    SwitchOver(SwitchOver),
    /// The wall clock of the server is set ahead by this time, or back.
    StepClock {
        /// The server.
        server: usize,
        /// True if it is set ahead.
        is_ahead: bool,
        /// The time.
        by: Duration,
    },
}

/// The difference between a server and the one that was killed.
#[derive(Debug, Clone, Copy)]
pub enum Change {
    /// Its clock is ahead by this time, until its next start.
    Clock(Duration),
    /// It has the data of the begin, because it was not durable since.
    OldFile,
    /// It has the data of this server.
    CopyOf(usize),
}

/// The way between a process and a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The process.
    pub process: usize,
    /// The server.
    pub server: usize,
}

impl Action {
    /// Returns its kind.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::StopClient(_) => Kind::ClientStop,
            Self::KillClient(_) => Kind::ClientKill,
            Self::StopServers { .. } => Kind::ServerStop,
            Self::KillServer(_) => Kind::ServerKill,
            Self::Flow(_, _, Flow::Drop) => Kind::BlackHole,
            Self::Flow(..) => Kind::Delay,
            Self::Cut(..) => Kind::Cut,
            Self::Late(..) => Kind::LateDelivery,
            Self::One(..) => Kind::OneConnection,
            Self::Crowd(..) => Kind::Crowd,
            Self::Rush(..) => Kind::Rush,
            Self::FillDisk(_) => Kind::FullDisk,
            Self::RestoreServer(_) => Kind::OldSnapshot,
            Self::StartOtherwise { .. } => Kind::ChangedStart,
            Self::SwitchOver(_) => Kind::SwitchOver,
            Self::StepClock { .. } => Kind::ClockStep,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {:.3} s for {:.3} s: {}", self.at.as_secs_f64(), self.lasts.as_secs_f64(), self.action)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StopClient(process) => write!(f, "p{process} is stopped"),
            Self::KillClient(process) => write!(f, "p{process} is killed"),
            Self::StopServers { first, count: 1 } => write!(f, "server {first} is stopped"),
            Self::StopServers { first, count } => write!(f, "{count} servers from {first} are stopped"),
            Self::KillServer(server) => write!(f, "server {server} is killed"),
            Self::Flow(route, way, flow) => write!(f, "{route} {}: {flow:?}", name(*way)),
            Self::Cut(route, end) => write!(f, "{route}: cut by {end:?}"),
            Self::Late(process, server, way) => {
                let process = process.map_or("all processes".to_owned(), |process| format!("p{process}"));
                let way = name(*way);
                write!(f, "between {process} and server {server} {way}: existing connections are held")
            }
            Self::One(route, back, way, flow) => {
                write!(f, "{route} {}: connection {back} from the newest: {flow:?}", name(*way))
            }
            Self::Crowd(process, count) => write!(f, "{count} clients of p{process} wait for one lock"),
            Self::Rush(process, count) => write!(f, "{count} clients of p{process} try locks"),
            Self::FillDisk(server) => write!(f, "the disk of server {server} is full"),
            Self::RestoreServer(server) => write!(f, "server {server} returns to its data of the begin"),
            Self::StartOtherwise { server, change: Change::Clock(ahead) } => {
                write!(f, "server {server} is started with its clock ahead by {ahead:?}")
            }
            Self::StartOtherwise { server, change: Change::OldFile } => {
                write!(f, "server {server} is not durable, and is started again")
            }
            Self::StartOtherwise { server, change: Change::CopyOf(other) } => {
                write!(f, "server {server} is started with the data of server {other}")
            }
            Self::SwitchOver(how) => write!(f, "{how}"),
            Self::StepClock { server, is_ahead, by } => {
                let way = if *is_ahead { "ahead" } else { "back" };
                write!(f, "the clock of server {server} is set {way} by {by:?}")
            }
        }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "between p{} and server {}", self.process, self.server)
    }
}

const fn name(way: Direction) -> &'static str {
    match way {
        Direction::ToServer => "to the server",
        Direction::ToClient => "to the client",
    }
}

/// Draws the faults of a run of this length, of these kinds, sorted by time. Each period has its own selection of kinds, because some
/// bugs show only where other faults are absent.
#[must_use]
pub fn draw(seed: u64, length: Duration, servers: usize, kinds: &[Kind], large: Large) -> Vec<Fault> {
    let mut random = stream(seed, &[0]);
    let kinds: Vec<Kind> =
        kinds.iter().copied().filter(|kind| servers > 0 || !kind.needs_servers()).collect();
    // Each kind is in one of the first periods.
    let (mut faults, mut deck) = (Vec::new(), Vec::new());
    let mut begin = Duration::from_millis(300);
    while begin < length {
        let end = (begin + PERIOD).min(length);
        let chosen: Vec<Kind> = (0..random.usize(1..=KINDS))
            .filter_map(|_| {
                if deck.is_empty() {
                    deck.extend(&kinds);
                    // Few of these deliver a claim that still has an effect.
                    deck.extend(kinds.iter().filter(|kind| **kind == Kind::LateDelivery));
                    random.shuffle(&mut deck);
                }
                deck.pop()
            })
            .collect();
        let gap = [30..300, 100..1000, 500..2000][random.usize(..3)].clone();
        let mut at = begin + between(&mut random, gap.clone());
        // A period has one large crowd or rush at most, so that all of it is served before the end.
        let mut large = large;
        while at + QUIET < end && !chosen.is_empty() {
            let kind = chosen[random.usize(..chosen.len())];
            let lasts = draw_length(&mut random, kind).min(end.saturating_sub(QUIET + at));
            let action = draw_action(&mut random, kind, servers, large);
            if matches!(action, Action::Crowd(_, count) | Action::Rush(_, count) if count >= CROWD.end) {
                large = Large::default();
            }
            faults.push(Fault { at, lasts, action });
            at += between(&mut random, gap.clone());
        }
        begin = end;
    }
    faults
}

/// Draws one fault after the other, each of which has ended when the next one begins.
#[must_use]
pub fn draw_every(
    every: Duration,
    seed: u64,
    length: Duration,
    servers: usize,
    kinds: &[Kind],
) -> Vec<Fault> {
    let mut random = stream(seed, &[0]);
    let mut fault = |at| {
        let kind = kinds[random.usize(..kinds.len())];
        let lasts = match kind {
            Kind::SwitchOver => draw_length(&mut random, kind),
            _ => every.mul_f64(0.1 + 0.6 * random.f64()),
        };
        let action = match draw_action(&mut random, kind, servers, Large::default()) {
            Action::StopServers { first, .. } => Action::StopServers { first, count: 1 },
            action => action,
        };
        Fault { at, lasts, action }
    };
    (1..).map(|number| every * number).take_while(|at| *at + every < length).map(&mut fault).collect()
}

/// Most are short; some are longer than the short leases, or than the time after which a client gives a connection up.
fn draw_length(random: &mut Rng, kind: Kind) -> Duration {
    let is_late = matches!(kind, Kind::LateDelivery | Kind::OneConnection);
    match random.u8(..8) {
        // A claim has to be late for its request to have ended, which repeats it after its time limit.
        3.. if is_late => between(random, 2000..5000),
        _ if kind == Kind::SwitchOver => between(random, 2000..10_000),
        0 | 1 => between(random, 1..60),
        2..=5 => between(random, 60..900),
        _ => between(random, 900..3000),
    }
}

fn draw_action(random: &mut Rng, kind: Kind, servers: usize, large: Large) -> Action {
    let process = random.usize(..PROCESSES);
    let route = Route { process, server: random.usize(..servers.max(1)) };
    let way = if random.bool() { Direction::ToServer } else { Direction::ToClient };
    match kind {
        Kind::ClientStop => Action::StopClient(process),
        Kind::ClientKill => Action::KillClient(process),
        Kind::ServerStop => Action::StopServers { first: route.server, count: random.usize(1..=servers) },
        Kind::ServerKill => Action::KillServer(route.server),
        Kind::Delay => Action::Flow(route, way, Flow::Delay(draw_delay(random))),
        Kind::BlackHole => Action::Flow(route, way, Flow::Drop),
        Kind::Cut => Action::Cut(route, if random.bool() { End::Reset } else { End::Close }),
        Kind::LateDelivery => {
            let concerned = if random.bool() { Some(process) } else { None };
            // Late requests change the store, and late replies do not.
            let way = if random.u8(..4) > 0 { Direction::ToServer } else { Direction::ToClient };
            Action::Late(concerned, route.server, way)
        }
        Kind::OneConnection => {
            let flow = [Flow::Hold, Flow::Stall, Flow::Delay(draw_delay(random))][random.usize(..3)];
            Action::One(route, random.u64(..4), way, flow)
        }
        Kind::Crowd => {
            let is_large = large.crowd > 0 && random.u8(..4) == 0;
            Action::Crowd(process, random.usize(if is_large { CROWD.end..large.crowd } else { CROWD }))
        }
        Kind::Rush => Action::Rush(process, large.rush.max(CROWD.start)),
        Kind::FullDisk => Action::FillDisk(route.server),
        Kind::OldSnapshot => Action::RestoreServer(route.server),
        Kind::ChangedStart => {
            let change = match random.u8(..3) {
                0 => Change::Clock(between(random, 0..LONGEST_AHEAD_MS)),
                1 => Change::OldFile,
                _ => Change::CopyOf((route.server + random.usize(1..servers.max(2))) % servers.max(1)),
            };
            Action::StartOtherwise { server: route.server, change }
        }
        Kind::SwitchOver => {
            let gap = if random.bool() { Gap::ReadOnly } else { Gap::Silence };
            Action::SwitchOver(SwitchOver { gap, kills: random.bool() })
        }
        Kind::ClockStep => {
            let (is_ahead, by) = (random.bool(), between(random, 100..LONGEST_STEP_MS));
            Action::StepClock { server: route.server, is_ahead, by }
        }
    }
}

fn draw_delay(random: &mut Rng) -> Duration {
    if random.bool() { between(random, 1..60) } else { between(random, 60..1200) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: Large = Large { crowd: 100, rush: 100 };

    #[test]
    fn a_seed_determines_the_schedule_and_all_kinds_are_drawn() {
        let schedule = |seed| {
            let faults = draw(seed, Duration::from_secs(600), 3, &Kind::ALL, LARGE);
            faults.iter().map(|fault| format!("{fault}\n")).collect::<String>()
        };
        assert_eq!(schedule(7), schedule(7));
        assert_ne!(schedule(7), schedule(8));
        let faults = draw(1, Duration::from_secs(600), 3, &Kind::ALL, LARGE);
        assert!(Kind::ALL.iter().all(|kind| faults.iter().any(|fault| fault.action.kind() == *kind)));
        assert!(faults.is_sorted_by_key(|fault| fault.at));
        let (second, every) = (Duration::from_secs(1), [Kind::ServerKill, Kind::ServerStop]);
        let faults = draw_every(second, 1, Duration::from_secs(60), 2, &every);
        assert_eq!(faults.len(), 58);
        assert!(faults.array_windows().all(|[one, next]| one.at + one.lasts < next.at));
        assert!(every.iter().all(|kind| faults.iter().any(|fault| fault.action.kind() == *kind)));
        let local = draw(1, Duration::from_secs(600), 0, &Kind::ALL, LARGE);
        assert!(!local.is_empty() && local.iter().all(|fault| !fault.action.kind().needs_servers()));
    }
}
