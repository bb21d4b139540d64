//! The measurements. Each returns an object of JSON; a measurement that a library has no interface for returns the reason as `not_offered`.

use std::time::Duration;

use clap::ValueEnum;
use polylock_bench::{Summary, Times, held::resident_bytes};
use polylock_testkit::history::{self, Rules, Section};
use serde_json::{Value, json};
use tokio::runtime::Handle;

use super::{
    processes::{ThreadTimes, shared_memory},
    program::{Pair, Program},
    subject::Subject,
};
use crate::{
    chaos::run::Run,
    clock::{now, pause},
    counter::{Counter, Monitor},
    proxy::Flow,
    targets::{Own, Servers, route},
};

/// A measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// One client acquires and releases a lock that no other client uses
    Alone,
    /// A process releases a lock, and another one that waits is granted it
    HandOver,
    /// Clients of several processes use one lock again and again
    Contended,
    /// The commands that servers receive, alone and contended
    Commands,
    /// Holders are killed
    Kill,
    /// Holders lose the network
    Notification,
    /// One process holds many locks
    Held,
    /// Locks with different names are used once
    Residue,
    /// The servers, and their memory
    Servers,
    /// The servers are killed one after the other
    Failures,
    /// The clients of `chaos` run under a fixed list of faults
    Faults,
}

impl Part {
    /// All parts. Nothing has expired before the residue is counted; the servers do not run after the failures, and are new for the faults.
    pub const ALL: [Self; 11] = [
        Self::Alone,
        Self::Residue,
        Self::Servers,
        Self::HandOver,
        Self::Contended,
        Self::Commands,
        Self::Kill,
        Self::Notification,
        Self::Held,
        Self::Failures,
        Self::Faults,
    ];

    /// Returns its name, as an argument and in the file.
    #[must_use]
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// The time of a client that is alone.
const ALONE: Duration = Duration::from_secs(3);

/// The time at the start that does not count.
const WARM_UP: Duration = Duration::from_millis(500);

/// The longest time of all hand-overs.
const HAND_OVERS: Duration = Duration::from_secs(9);

/// The pause after which a waiter of a hand-over waits, in milliseconds. It is random, because some libraries poll.
const WAITS: std::ops::Range<u64> = 5..205;

/// The processes that contend for a lock, and the clients of each.
pub(super) const CONTENDERS: (usize, usize) = (4, 16);

/// The time of contention.
pub(super) const CONTENTION: Duration = Duration::from_secs(5);

/// The times in which commands are counted, alone and contended.
const COUNTED: Duration = Duration::from_secs(2);

/// The holders that are killed, or lose the network.
const HOLDERS: u32 = 3;

/// The pause after which a waiter waits.
const QUEUED_AFTER: Duration = Duration::from_millis(300);

/// The number of locks that one process holds.
pub(super) const MANY: u32 = 1000;

/// The lease of these locks; a store may have a longer one.
const MANY_LEASE: Duration = Duration::from_secs(10);

/// The time in which the processor time of the process is measured.
const WATCHED: Duration = Duration::from_secs(10);

/// The number of names that are used once.
pub(super) const NAMES: u32 = 500;

/// The longest time after which ZooKeeper removes empty containers: it looks for them once a minute.
const CONTAINERS: Duration = Duration::from_secs(75);

/// The time in which a lock is granted after the failure of a server, if it is at all.
pub(super) const RECOVERY: Duration = Duration::from_secs(10);

/// The seed of the faults; its schedule of this length has nine of the ten kinds of faults.
pub(super) const SEED: u64 = 21;

/// The length of the schedule of faults.
const FAULTS: Duration = Duration::from_secs(31);

/// A subject with its servers.
#[derive(Debug)]
pub(super) struct Place<'a> {
    pub(super) subject: &'static Subject,
    pub(super) own: &'a Own,
    pub(super) url: &'a str,
}

type Outcome = Result<Value, String>;

impl Place<'_> {
    /// Runs a part.
    pub(super) fn run(&self, part: Part) -> Outcome {
        match part {
            Part::Alone => self.alone(),
            Part::HandOver => self.hand_over(),
            Part::Contended => self.contended(),
            Part::Commands => self.commands(),
            Part::Kill => self.kill(),
            Part::Notification => self.notification(),
            Part::Held => self.held(),
            Part::Residue => self.residue(),
            Part::Servers => Ok(self.servers()),
            Part::Failures => self.failures(),
            Part::Faults => self.faults(),
        }
    }

    fn lease(&self) -> Duration {
        self.subject.configuration.longest_lease()
    }

    /// Returns the longest time until a lock is free after the death of its holder.
    fn patience(&self) -> Duration {
        3 * self.lease() + Duration::from_secs(10)
    }

    fn start(&self) -> Result<Program, String> {
        self.start_at(self.url)
    }

    fn start_at(&self, url: &str) -> Result<Program, String> {
        Program::start(self.subject, url, self.lease())
    }

    fn alone(&self) -> Outcome {
        let mut program = self.start()?;
        warmed_up(&mut program, "alone")?;
        program.begin_loop("alone", 1, ALONE);
        let pairs: Times = program.end_loop()?.iter().map(Pair::time).collect();
        Ok(json!({ "pairs": pairs.count(), "p50_us": micros(pairs.p50()), "p99_us": micros(pairs.p99()) }))
    }

    fn hand_over(&self) -> Outcome {
        let (mut holder, mut waiter) = (self.start()?, self.start()?);
        let (until, lock) = (now() + HAND_OVERS, "handed-over");
        let mut times = Times::new();
        let mut is_first = true;
        while is_first || now() < until {
            holder.take(lock);
            holder.held(lock, self.patience())?;
            waiter.take(lock);
            rest(Duration::from_millis(fastrand::u64(WAITS)));
            let released = holder.drop_lock(lock)?;
            let granted = waiter.held(lock, self.patience())?;
            waiter.drop_lock(lock)?;
            // The first one opens connections.
            if !is_first {
                times.record(Duration::from_nanos(granted.saturating_sub(released)));
            }
            is_first = false;
        }
        Ok(
            json!({ "hand_overs": times.count(), "p50_us": micros(times.p50()), "p99_us": micros(times.p99()) }),
        )
    }

    fn contended(&self) -> Outcome {
        let sections = self.contend(self.url, CONTENTION)?;
        let violations = history::check(&sections, Rules::default()).len();
        let summary = Summary::of(&sections);
        let (fewest, most) = summary.share_range();
        Ok(json!({
            "clients": summary.shares.len(),
            "grants_per_s": tenths(summary.rate()),
            "fewest": fewest,
            "most": most,
            "longest_wait_us": micros(summary.wait.max()),
            "violations": violations,
        }))
    }

    /// Lets all contenders use one lock for this time.
    fn contend(&self, url: &str, lasts: Duration) -> Result<Vec<Section>, String> {
        let (processes, clients) = CONTENDERS;
        let programs = (0..processes).map(|_| self.start_at(url)).collect::<Result<Vec<_>, _>>();
        let mut programs = programs?;
        programs.iter_mut().for_each(|program| program.begin_loop("contended", clients, lasts));
        let mut sections = Vec::new();
        for (number, program) in programs.iter_mut().enumerate() {
            sections.extend(program.end_loop()?.iter().map(|pair| pair.section(number)));
        }
        Ok(sections)
    }

    fn commands(&self) -> Outcome {
        let Some((counter, url)) = self.counter()? else {
            return Ok(not_offered("no server"));
        };
        let sent = || wait(counter.sent()).map_err(|error| error.to_string());
        let mut program = self.start_at(&url)?;
        warmed_up(&mut program, "counted")?;
        let before = sent()?;
        program.begin_loop("counted", 1, COUNTED);
        let pairs = program.end_loop()?.len();
        let alone = sent()? - before;
        drop(program);
        let before = sent()?;
        let sections = self.contend(&url, COUNTED)?.len();
        let contended = sent()? - before;
        Ok(json!({ "alone": share(alone, pairs), "contended": share(contended, sections) }))
    }

    /// Returns a counter of the commands that the servers receive, and the URL that it needs; `None` if there is no server.
    fn counter(&self) -> Result<Option<(Counter<'_>, String)>, String> {
        if let Servers::Services { store, .. } = &self.own.servers
            && let Servers::One(store) = &**store
        {
            return Ok(Some((Counter::Postgres(store), self.url.to_owned())));
        }
        let servers = self.own.servers.all();
        let Some(first) = servers.first() else { return Ok(None) };
        let counter = match self.subject.configuration.scheme() {
            "postgres" => Counter::Postgres(first),
            "mysql" => Counter::MariaDb(first),
            "azure" => {
                let (mut proxies, url) = route(servers, self.url);
                return Ok(proxies.pop().map(|proxy| (Counter::Azure(proxy), url)));
            }
            "zookeeper_ensemble" => Counter::ZooKeeper(servers.iter().map(|server| &**server).collect()),
            _ => {
                let monitors = servers.iter().map(|server| Monitor::start(server.port()));
                Counter::Commands(monitors.collect::<Result<_, _>>().map_err(|error| error.to_string())?)
            }
        };
        Ok(Some((counter, self.url.to_owned())))
    }

    fn kill(&self) -> Outcome {
        let locks: Vec<String> = (0..HOLDERS).map(|number| format!("killed/{number}")).collect();
        let mut holders = locks.iter().map(|_| self.start()).collect::<Result<Vec<_>, _>>()?;
        let mut waiter = self.start()?;
        self.hold(&mut holders, &locks, &mut waiter)?;
        let mut kills = Vec::new();
        for holder in &mut holders {
            // The remaining lease depends on the time since the last renewal.
            rest(self.lease() / (3 * HOLDERS));
            kills.push(now().as_nanos());
            holder.kill();
        }
        let mut times = Vec::new();
        for (lock, kill) in locks.iter().zip(kills) {
            let granted = waiter.held(lock, self.patience())?;
            if granted < kill {
                return Err(format!("{lock} was granted before the kill"));
            }
            times.push(Duration::from_nanos(granted - kill));
        }
        times.sort();
        let lease = self.lease().as_secs_f64();
        Ok(json!({ "lease_s": lease, "free_after_us": times.into_iter().map(micros).collect::<Vec<_>>() }))
    }

    /// Lets each holder acquire its lock, and the waiter wait for all.
    fn hold(&self, holders: &mut [Program], locks: &[String], waiter: &mut Program) -> Result<(), String> {
        for (holder, lock) in holders.iter_mut().zip(locks) {
            holder.take(lock);
        }
        for (holder, lock) in holders.iter_mut().zip(locks) {
            holder.held(lock, self.patience())?;
        }
        locks.iter().for_each(|lock| waiter.take(lock));
        rest(QUEUED_AFTER);
        Ok(())
    }

    fn notification(&self) -> Outcome {
        let servers = self.own.servers.all();
        if servers.is_empty() {
            return Ok(not_offered("no network"));
        }
        if !self.subject.notifies() {
            return Ok(not_offered("no notification"));
        }
        let locks: Vec<String> = (0..HOLDERS).map(|number| format!("notified/{number}")).collect();
        let routes: Vec<_> = locks.iter().map(|_| route(servers, self.url)).collect();
        let mut holders = routes.iter().map(|(_, url)| self.start_at(url)).collect::<Result<Vec<_>, _>>()?;
        let mut waiter = self.start()?;
        self.hold(&mut holders, &locks, &mut waiter)?;
        for (proxies, _) in &routes {
            rest(self.lease() / (3 * HOLDERS));
            proxies.iter().for_each(|proxy| proxy.set_both(Flow::Drop));
        }
        let mut leads = Vec::new();
        for (holder, lock) in holders.iter_mut().zip(&locks) {
            let granted = waiter.held(lock, self.patience())?;
            // A notification that is later than this does not arrive, as far as a user can see.
            let lost = holder.lost(lock, self.patience()).ok();
            let lead = lost.map(|lost| {
                let lead = micros(Duration::from_nanos(granted.abs_diff(lost)));
                if lost <= granted { lead } else { -lead }
            });
            leads.push(lead);
        }
        Ok(json!({ "leads_us": leads }))
    }

    fn held(&self) -> Outcome {
        if !self.subject.renews() {
            return Ok(not_offered("no renewal"));
        }
        let lease = self.lease().max(MANY_LEASE);
        let url = self.own.namespace.url_with_lease(lease);
        let mut program = Program::start(self.subject, &url, lease)?;
        warmed_up(&mut program, "held")?;
        let no_proc = || "the system does not show its processes".to_owned();
        let before = resident_bytes(program.id()).ok_or_else(no_proc)?;
        let locks = self.locks_held();
        program.many(locks)?;
        let after = resident_bytes(program.id()).ok_or_else(no_proc)?;
        let times = || ThreadTimes::of(program.id()).ok_or_else(no_proc);
        let (began, before_watch) = (now(), times()?);
        rest(WATCHED);
        let (elapsed, used) = (now().since(began), times()?.since(&before_watch));
        let of_core = used.as_secs_f64() / elapsed.as_secs_f64();
        Ok(json!({
            "locks": locks,
            "lease_s": lease.as_secs_f64(),
            "core_percent": (100_000.0 * of_core).round() / 1000.0,
            "at_5_percent": (of_core > 0.0).then(|| (f64::from(locks) * 0.05 / of_core).round()),
            "bytes_each": after.saturating_sub(before) / u64::from(locks),
        }))
    }

    /// Returns the number of locks that one process holds. The emulator of Azure does not serve the renewals of more.
    fn locks_held(&self) -> u32 {
        if self.url.starts_with("az") { MANY / 10 } else { MANY }
    }

    fn residue(&self) -> Outcome {
        let mut program = self.start()?;
        let entries = || wait(self.own.counted().entries()).ok_or_else(|| "it can't be counted".to_owned());
        let before = entries()?;
        program.sweep(NAMES)?;
        let left = || Ok::<_, String>(entries()?.saturating_sub(before));
        let at_once = left()?;
        let (began, mut later) = (now(), at_once);
        let limit = if self.url.starts_with("zookeeper") { CONTAINERS } else { 2 * self.lease() };
        while later > 1 && now().since(began) < limit {
            rest(Duration::from_secs(1));
            later = left()?;
        }
        Ok(
            json!({ "names": NAMES, "at_once": at_once, "later": later, "after_s": now().since(began).as_secs() }),
        )
    }

    fn servers(&self) -> Value {
        let servers = self.own.servers.all();
        let memory = servers.iter().map(|server| shared_memory(server.id()?)).sum::<Option<u64>>();
        json!({ "servers": servers.len(), "memory_mib": memory.map(|bytes| bytes.div_ceil(1 << 20)) })
    }

    fn failures(&self) -> Outcome {
        let servers = self.own.servers.all();
        if servers.is_empty() {
            return Ok(not_offered("no server"));
        }
        let mut program = self.start()?;
        warmed_up(&mut program, "failed")?;
        let (mut survived, mut pauses) = (0, Vec::new());
        for server in servers {
            server.kill();
            let killed = now().as_nanos();
            let lock = format!("failed/{survived}");
            program.take(&lock);
            let Ok(granted) = program.held(&lock, RECOVERY) else { break };
            survived += 1;
            pauses.push(micros(Duration::from_nanos(granted.saturating_sub(killed))));
        }
        Ok(json!({ "servers": servers.len(), "survived": survived, "granted_after_us": pauses }))
    }

    fn faults(&self) -> Outcome {
        let configuration = &self.subject.configuration;
        let run = Run::new(configuration, SEED, FAULTS, self.subject.program());
        let run = Run { peer: self.subject.peer, ..run };
        let record = wait(run.run()).map_err(|missing| format!("{missing:?}"))?.record;
        Ok(json!({
            "seed": SEED,
            "seconds": tenths(record.seconds),
            "sections": record.sections,
            "faults": record.faults,
            "violations": record.violations,
        }))
    }
}

/// Opens the connections of a program, and warms it up.
fn warmed_up(program: &mut Program, lock: &str) -> Result<(), String> {
    program.begin_loop(lock, 1, WARM_UP);
    program.end_loop().map(drop)
}

/// Waits for this time.
fn rest(time: Duration) {
    wait(pause(time));
}

fn not_offered(reason: &str) -> Value {
    json!({ "not_offered": reason })
}

/// Runs a future to its end on the runtime of the program.
fn wait<T>(future: impl Future<Output = T>) -> T {
    Handle::current().block_on(future)
}

/// Returns microseconds, to a tenth.
fn micros(time: Duration) -> f64 {
    tenths(time.as_secs_f64() * 1e6)
}

fn tenths(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

/// Returns the number for each, to a hundredth.
fn share(number: u64, of: usize) -> f64 {
    (100.0 * number as f64 / of.max(1) as f64).round() / 100.0
}
