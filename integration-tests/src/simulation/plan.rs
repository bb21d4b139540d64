//! The plan of a run, drawn from its seed before the run: the clients, the faults, and the rules of the store. A failing plan is
//! shrunk by removing parts of it.

use std::{fmt, time::Duration};

use fastrand::Rng;

/// The number of simulated processes.
pub const PROCESSES: usize = 3;

/// The end of the last fault. From then on the network is reliable.
pub const FAULTS_END: Duration = Duration::from_secs(10);

/// The time from which clients begin no section, long after the leases of all former holders have expired.
pub const WORK_END: Duration = Duration::from_secs(17);

/// The latest end of a run: all requests have been granted in turn.
pub const RUN_END: Duration = Duration::from_secs(60);

/// The store of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum StoreKind {
    /// The model of a server with queues
    Queue,
    /// The real MySQL store with its engine, on a model of the server's tables and routines
    Mysql,
    /// The real client of Redis, on a server that executes its scripts
    Redis,
    /// The real client of Redlock, on three or five servers that execute its scripts
    Redlock,
    /// The real ZooKeeper store, on one server or an ensemble of three
    Zookeeper,
    /// The real client of Azure Blob Storage, on a model of the service
    Azure,
}

impl StoreKind {
    /// Returns the number of servers in the run of `seed`.
    fn servers(self, seed: u64) -> usize {
        match self {
            Self::Queue | Self::Mysql | Self::Redis | Self::Azure => 1,
            Self::Redlock => stream(seed, &[6]).choice([3, 5]).unwrap_or(3),
            Self::Zookeeper => stream(seed, &[6]).choice([1, 3, 3]).unwrap_or(3),
        }
    }

    /// Returns the factor of all times of a run: the shortest lease of Azure is one of 15 s.
    #[must_use]
    pub const fn scale(self) -> u32 {
        match self {
            Self::Azure => 10,
            _ => 1,
        }
    }
}

/// A bug that is planted in the model of a store, or in its client, or in the scripts or the settings of a real one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Planted {
    /// The server executes a claim that its client has given up long ago.
    LateClaim,
    /// A release removes the hold of any request.
    ForeignRelease,
    /// The deadline of a hold counts from the reply.
    ReplyDeadline,
    /// A waiter relies on its notification: neither its claims nor its keep-alives find a grant.
    NoRecheck,
    /// The token is drawn before the claim.
    EarlyToken,
    /// A keep-alive revives a hold that has expired.
    RevivedHold,
    /// A restart of the server loses its locks.
    LostState,
    /// The server hands a lock over before its holder has left.
    EarlyHandover,
    /// The client does not report that a copy of a refused claim may still be executed.
    UnreportedCopy,
    /// The server does not notify the waiter that it grants the lock to.
    LostNotification,
    /// MySQL: a claim does not expire.
    MysqlLateClaim,
    /// MySQL: a release ends the hold of any request.
    MysqlForeignRelease,
    /// MySQL: a release hands the lock over without a check of the holders.
    MysqlUncheckedHandover,
    /// MySQL: a renewal is acknowledged, and does not extend the hold.
    MysqlFalseRenewal,
    /// MySQL: a hand-over reports a longer lease than the hold has.
    MysqlLongHandover,
    /// MySQL: a hand-over does not record the tokens that it draws.
    MysqlRepeatedToken,
    /// MySQL: a restart of the server loses its locks.
    MysqlLostState,
    /// Redis: a claim does not expire, and finds no record of its release.
    RedisLateClaim,
    /// Redis: a claim does not check the holders.
    RedisUncheckedClaim,
    /// Redis: a release hands the lock over without a check of the holders.
    RedisUncheckedHandover,
    /// Redis: a release ends the holds of all requests.
    RedisForeignRelease,
    /// Redis: the lock is granted to waiters by releases alone, and not by claims.
    RedisNoFallback,
    /// Redis: a renewal is acknowledged, and does not extend the hold.
    RedisFalseRenewal,
    /// Redis: the token of a waiter is drawn when it enters the queue.
    RedisEarlyToken,
    /// Redis: a restart of the server loses its locks.
    RedisLostState,
    /// Redis: the notification of a waiter counts as delivered, and is not sent.
    RedisLostNotification,
    /// Redlock: a withdrawal removes the vote for a later number.
    RedlockLiveVote,
    /// Redlock: a server that has lost its votes votes at once.
    RedlockNoDelay,
    /// Redlock: a server gives some votes and refuses them.
    RedlockUnmarkedVote,
    /// Redlock: a proposal that was withdrawn is accepted.
    RedlockLateProposal,
    /// Redlock: a withdrawal removes the vote for any request.
    RedlockForeignRelease,
    /// Redlock: a server votes though another request has its vote.
    RedlockSecondVote,
    /// Redlock: a withdrawal is acknowledged and not executed.
    RedlockFalseAcknowledgement,
    /// ZooKeeper: a node whose create was not answered is not found again.
    ZookeeperHiddenNode,
    /// ZooKeeper: a waiter watches another node than the one that it waits for.
    ZookeeperWrongPredecessor,
    /// ZooKeeper: only the first watch of a session on a node is set.
    ZookeeperSecondWatch,
    /// ZooKeeper: the servers end a session after half of its timeout.
    ZookeeperEarlyExpiry,
    /// ZooKeeper: a change on an abandoned connection, or of a session that has ended, has an effect.
    ZookeeperLateCreate,
    /// ZooKeeper: a sequence is given twice.
    ZookeeperRepeatedSequence,
    /// ZooKeeper: a server answers a sync, and a transaction that changes nothing, without its leader.
    ZookeeperLocalProof,
    /// Azure: a release ends the lease of any request.
    AzureForeignRelease,
    /// Azure: a lease that was granted after its release is not released again.
    AzureLateLease,
    /// Azure: a renewal is acknowledged, and does not extend the lease.
    AzureFalseRenewal,
    /// Azure: the deadline of a hold counts from the reply.
    AzureReplyDeadline,
    /// Azure: the record of a grant is acknowledged, and not written.
    AzureLostRecord,
    /// Azure: the record of a grant does not change the `ETag`.
    AzureStaleEtag,
    /// Azure: a break ends the lease at once.
    AzureEarlyBreak,
    /// Azure: a broken lease is renewed.
    AzureUnnoticedBreak,
    /// Azure: a restart of the service loses the leases.
    AzureLostState,
}

impl Planted {
    /// Returns the store that has the bug.
    #[must_use]
    pub const fn store(self) -> StoreKind {
        use Planted as P;
        match self {
            P::LateClaim
            | P::ForeignRelease
            | P::ReplyDeadline
            | P::NoRecheck
            | P::EarlyToken
            | P::RevivedHold
            | P::LostState
            | P::EarlyHandover
            | P::UnreportedCopy
            | P::LostNotification => StoreKind::Queue,
            P::MysqlLateClaim
            | P::MysqlForeignRelease
            | P::MysqlUncheckedHandover
            | P::MysqlFalseRenewal
            | P::MysqlLongHandover
            | P::MysqlRepeatedToken
            | P::MysqlLostState => StoreKind::Mysql,
            P::RedisLateClaim
            | P::RedisUncheckedClaim
            | P::RedisUncheckedHandover
            | P::RedisForeignRelease
            | P::RedisNoFallback
            | P::RedisFalseRenewal
            | P::RedisEarlyToken
            | P::RedisLostState
            | P::RedisLostNotification => StoreKind::Redis,
            P::RedlockLiveVote
            | P::RedlockNoDelay
            | P::RedlockUnmarkedVote
            | P::RedlockLateProposal
            | P::RedlockForeignRelease
            | P::RedlockSecondVote
            | P::RedlockFalseAcknowledgement => StoreKind::Redlock,
            P::ZookeeperHiddenNode
            | P::ZookeeperWrongPredecessor
            | P::ZookeeperSecondWatch
            | P::ZookeeperEarlyExpiry
            | P::ZookeeperLateCreate
            | P::ZookeeperRepeatedSequence
            | P::ZookeeperLocalProof => StoreKind::Zookeeper,
            P::AzureForeignRelease
            | P::AzureLateLease
            | P::AzureFalseRenewal
            | P::AzureReplyDeadline
            | P::AzureLostRecord
            | P::AzureStaleEtag
            | P::AzureEarlyBreak
            | P::AzureUnnoticedBreak
            | P::AzureLostState => StoreKind::Azure,
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
    /// The server has no contact with the other servers.
    CutServer,
    /// Requests of the process to the server do not arrive, or are late.
    CutRequests(usize),
    /// Messages of the server to the process do not arrive, or are late.
    CutReplies(usize),
    /// Messages between the process and the server are delayed by up to this time.
    Slow(usize, Duration),
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
            FaultKind::CutServer => write!(f, "n{server} is cut off from the other servers"),
            FaultKind::CutRequests(process) => write!(f, "messages from p{process} to n{server} are cut off"),
            FaultKind::CutReplies(process) => write!(f, "messages from n{server} to p{process} are cut off"),
            FaultKind::Slow(process, by) => {
                write!(f, "messages between p{process} and n{server} are late by up to {by:?}")
            }
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
    /// The number of its servers.
    pub servers: usize,
    /// The clients.
    pub clients: Vec<Client>,
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
pub fn between(random: &mut Rng, ms: std::ops::Range<u64>) -> Duration {
    Duration::from_nanos(random.u64(ms.start * 1_000_000..ms.end * 1_000_000))
}

impl Plan {
    /// Draws the plan of `seed`.
    #[must_use]
    pub fn draw(store: StoreKind, seed: u64, planted: Option<Planted>) -> Self {
        let servers = store.servers(seed);
        let mut random = stream(seed, &[0]);
        let clients = (0..random.usize(3..10)).map(|number| Client { process: number % PROCESSES, number });
        let clients = clients.collect();
        let most = if servers == 1 { 16 } else { 32 };
        let mut faults: Vec<Fault> =
            (0..random.usize(0..most)).map(|_| Fault::draw(&mut random, servers, store.scale())).collect();
        if servers > 1 {
            let others: Vec<Fault> =
                faults.iter().filter_map(|fault| fault.at_another(&mut random, servers)).collect();
            faults.extend(others);
        }
        if store == StoreKind::Zookeeper && servers > 1 {
            let pauses = faults.iter_mut().filter(|fault| matches!(fault.kind, FaultKind::PauseServer));
            pauses.filter(|_| random.bool()).for_each(|fault| fault.kind = FaultKind::CutServer);
        }
        Self { seed, store, servers, clients, faults, is_noisy: random.u8(..4) > 0, planted }
    }

    /// Returns true if clients acquire slots of semaphores, too. It depends on the seed alone, so that the plans of other seeds stay the same.
    #[must_use]
    pub const fn has_slots(&self) -> bool {
        self.seed.is_multiple_of(5)
    }

    /// Returns a time of a run of this store, such as [`FAULTS_END`].
    #[must_use]
    pub fn time(&self, time: Duration) -> Duration {
        time * self.store.scale()
    }

    /// Returns true if a fault of the process or of a server begins before `until` and ends after `from`.
    #[must_use]
    pub fn is_disturbed(&self, process: usize, (from, until): (Duration, Duration)) -> bool {
        let concerns = |kind: &FaultKind| match kind {
            FaultKind::Pause(number)
            | FaultKind::Crash(number)
            | FaultKind::CutRequests(number)
            | FaultKind::CutReplies(number)
            | FaultKind::Slow(number, _) => *number == process,
            FaultKind::PauseServer | FaultKind::RestartServer | FaultKind::CutServer => true,
        };
        self.faults
            .iter()
            .any(|fault| concerns(&fault.kind) && fault.at < until && fault.at + fault.lasts > from)
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

impl Fault {
    fn draw(random: &mut Rng, servers: usize, scale: u32) -> Self {
        let process = random.usize(..PROCESSES);
        let kind = match random.u8(..if servers == 1 { 10 } else { 14 }) {
            0 | 1 => FaultKind::Pause(process),
            2 => FaultKind::Crash(process),
            3 | 10 | 11 => FaultKind::PauseServer,
            4 | 12 | 13 => FaultKind::RestartServer,
            5 | 6 => FaultKind::CutRequests(process),
            7 | 8 => FaultKind::CutReplies(process),
            _ => FaultKind::Slow(process, between(random, 5..1000) * scale),
        };
        let lasts = match random.u8(..3) {
            0 => between(random, 1..20),
            1 => between(random, 20..200),
            _ => between(random, 200..2500),
        };
        let at = between(random, 100..10_000).min(FAULTS_END - lasts);
        // A single server needs no decision, and its runs have none.
        let server = if servers == 1 { 0 } else { random.usize(..servers) };
        Self { at: at * scale, lasts: lasts * scale, server, kind }
    }

    /// Returns a fault of another server at nearly the same time; `None` for a fault of a process, and for half of the others.
    fn at_another(&self, random: &mut Rng, servers: usize) -> Option<Self> {
        let is_of_server = !matches!(self.kind, FaultKind::Pause(_) | FaultKind::Crash(_));
        let at = (self.at + between(random, 0..300)).min(FAULTS_END - self.lasts);
        let server = (self.server + random.usize(1..servers)) % servers;
        (random.bool() && is_of_server).then_some(Self { at, server, ..*self })
    }
}
