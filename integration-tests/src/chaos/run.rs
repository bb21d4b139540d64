//! A run: servers, processes and faults; then the history and its check.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use polylock::Locks;
use polylock_core::{Order, sync::lock};
use polylock_testkit::{Missing, Target};
use tokio::runtime::Handle;

use super::{
    check::check,
    client::{Work, has_recipes, names},
    configuration::Configuration,
    looks::Looks,
    observed::{Found, Observed},
    peers::{self, Peer},
    plan::{self, Density, Fault, Kind},
    planted::Bug,
    record::{self, Record},
    site::{self, Site},
};
use crate::{
    clock::{now, pause},
    simulation::network::nanos,
    targets::Namespace,
};

/// The number of clients of a process, unless another one is set.
pub const CLIENTS: usize = 6;

/// The time without faults at the end of a run.
const CALM: Duration = Duration::from_secs(3);

/// The time after which the history knows what has happened: the programs write the ends of holds and of crowds when they are over.
const WRITTEN: Duration = Duration::from_secs(5);

/// The time between two looks at the history, in a run that ends with its first violation.
const LOOK: Duration = Duration::from_secs(2);

/// The time between two looks at the store.
const LIST: Duration = Duration::from_millis(150);

/// The time between two times at which a store with that bug forgets its entries.
const FORGETS: Duration = Duration::from_secs(1);

/// A run.
#[derive(Debug, Clone)]
pub struct Run {
    /// The store.
    pub configuration: &'static Configuration,
    /// The seed of the schedule and of the clients.
    pub seed: u64,
    /// The length of the schedule.
    pub length: Duration,
    /// The kinds of faults.
    pub kinds: Vec<Kind>,
    /// The number of clients of each process.
    pub clients: usize,
    /// The processes with many short sections.
    pub density: Density,
    /// The library, in a run of a peer.
    pub peer: Option<&'static Peer>,
    /// The planted bug.
    pub planted: Option<Bug>,
    /// The program of the processes.
    pub worker: PathBuf,
}

/// The outcome of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The result.
    pub record: Record,
    /// The schedule.
    pub plan: Vec<Fault>,
    /// Everything that was seen.
    pub observed: Observed,
    /// The violations of promises, in the order of their times.
    pub broken: Vec<Found>,
    /// The violations of what is not promised.
    pub excused: Vec<Found>,
}

impl Run {
    /// Creates a run of this library with sections of all kinds, under all faults of the configuration.
    #[must_use]
    pub fn new(configuration: &'static Configuration, seed: u64, length: Duration, worker: PathBuf) -> Self {
        Self {
            configuration,
            seed,
            length,
            kinds: configuration.faults.to_vec(),
            clients: CLIENTS,
            density: Density::Mixed,
            peer: None,
            planted: None,
            worker,
        }
    }

    /// Runs it to its end. A run that is expected to fail ends with its first violation.
    ///
    /// # Errors
    /// [`Missing`] if the servers are not installed.
    ///
    /// # Panics
    /// If a program fails, or a history can't be read.
    pub async fn run(&self) -> Result<Outcome, Missing> {
        let configuration = self.configuration;
        // Before files can change.
        let commit = record::commit();
        let own = configuration.start()?;
        let url = configuration.url(&own);
        let admin = if self.is_foreign() { None } else { Some(open(&url).await) };
        if let Some(Bug::Routine(bug)) = self.planted {
            bug.plant(&url).await.unwrap_or_else(|error| panic!("can't plant the bug: {error}"));
        }
        if let Some(admin) = &admin {
            // The votes of new Redlock servers do not count at once, and a lock that is not granted until then is not idle.
            let first = admin.lock("first").acquire().await;
            first.unwrap_or_else(|error| panic!("the first lock: {}", error.chain())).release().await.ok();
        }
        let is_fifo = admin.as_ref().is_some_and(|admin| admin.capabilities().order == Order::Fifo);
        let directory = tempfile::tempdir().unwrap_or_else(|error| panic!("no directory: {error}"));
        let work = Work {
            url,
            directory: directory.path().to_owned(),
            name: String::new(),
            seed: self.seed,
            clients: self.clients,
            leases: configuration.leases,
            bug: if let Some(Bug::Client(bug)) = self.planted { Some(bug) } else { None },
            is_dense: false,
            hands_over: true,
            outlasts: configuration.outlasts,
        };
        let site = tokio::task::block_in_place(|| Site::start(own, work, self.density, &self.worker));
        let plan = self.plan(site.server_count());
        let began = now();
        let is_over = |looks: &Looks| {
            if !self.is_expected_to_fail() {
                return false;
            }
            // The end of a hold may be written after its file was read: then the next hold of its lock must not count, too.
            let at = now().as_nanos();
            let mut observed = observe(directory.path(), &site).with(looks);
            observed.sections.retain(|section| section.acquired < at);
            let written = at.saturating_sub(nanos(WRITTEN));
            // A planted bug has to break a promise.
            let counts = |found: &Found| {
                found.violation.at < written
                    && (self.planted.is_none() || !configuration.unpromised.contains(&found.violation.kind))
            };
            check(&observed, configuration, is_fifo).iter().any(counts)
        };
        let looks = tokio::task::block_in_place(|| self.apply(&site, admin.as_ref(), &plan, is_over));
        let seconds = now().since(began).as_secs_f64();
        pause(CALM).await;
        let observed = self.finish(admin.as_ref(), &site, directory.path()).await.with(&looks);
        let found = check(&observed, configuration, is_fifo);
        let (excused, broken): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|found| configuration.unpromised.contains(&found.violation.kind));
        let all = || broken.iter().chain(&excused);
        let mut violations = BTreeMap::new();
        for found in all() {
            *violations.entry(found.violation.kind.to_owned()).or_default() += 1;
        }
        let first = all().map(|found| found.violation.at).min();
        let record = Record {
            configuration: configuration.name.to_owned(),
            peer: self.peer.map(|peer| peer.name.to_owned()),
            planted: self.planted.map(|bug| bug.name().to_owned()),
            commit,
            date: record::today(),
            seed: self.seed,
            runs: 0,
            sections: observed.sections.len() as u64,
            faults: Kind::ALL
                .into_iter()
                .map(|kind| (kind.name().to_owned(), site::count(&observed.applied, kind) as u64))
                .filter(|(_, count)| *count > 0)
                .collect(),
            violations,
            freed: if self.peer.is_some() { peers::times_to_free(&observed) } else { Vec::new() },
            seconds,
            detected: first.map(|at| Duration::from_nanos(at.saturating_sub(began.as_nanos())).as_secs_f64()),
        };
        Ok(Outcome { record, plan, observed, broken, excused })
    }

    /// Returns true if it must find a violation.
    #[must_use]
    pub fn is_expected_to_fail(&self) -> bool {
        self.planted.is_some() || !self.configuration.is_promised()
    }

    /// Returns true if its processes use another library.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.peer.is_some_and(Peer::is_foreign)
    }

    fn plan(&self, servers: usize) -> Vec<Fault> {
        let (seed, length, kinds) = (self.seed, self.length, self.kinds());
        match self.configuration.every {
            Some(every) => plan::draw_every(every, seed, length, servers, kinds),
            None => plan::draw(seed, length, servers, kinds, self.configuration.large),
        }
    }

    fn kinds(&self) -> &[Kind] {
        // The servers are needed to make them forget.
        if self.planted == Some(Bug::Forgets) { &[Kind::ClientStop] } else { &self.kinds }
    }

    /// Applies the faults at their times, and returns when the schedule has ended, or when `is_over` returns true. Returns what
    /// the store has shown.
    fn apply(
        &self,
        site: &Site,
        admin: Option<&Locks>,
        plan: &[Fault],
        is_over: impl Fn(&Looks) -> bool,
    ) -> Looks {
        let began = now();
        let (mut looked, mut forgot) = (began, began);
        let runtime = Handle::current();
        let looks = Mutex::new(Looks::default());
        thread::scope(|scope| {
            // It is dropped at the end of the schedule, and by a panic.
            let (_schedule, end) = mpsc::channel::<()>();
            if let Some(admin) = admin {
                let (looks, runtime) = (&looks, &runtime);
                scope.spawn(move || {
                    while end.recv_timeout(LIST) == Err(RecvTimeoutError::Timeout) {
                        if let Ok(add) = runtime.block_on(Looks::look(admin)) {
                            add(&mut lock(looks));
                        }
                    }
                });
            }
            let mut faults = plan.iter().peekable();
            loop {
                let elapsed = now().since(began);
                while let Some(fault) = faults.next_if(|fault| fault.at <= elapsed) {
                    scope.spawn(|| site.apply(fault));
                }
                if elapsed >= self.length {
                    return;
                }
                if self.planted == Some(Bug::Forgets) && now().since(forgot) >= FORGETS {
                    let emptied = runtime.block_on(site.own.namespace.empty());
                    emptied.unwrap_or_else(|error| panic!("can't empty the store: {error}"));
                    forgot = now();
                }
                if now().since(looked) >= LOOK {
                    if is_over(&lock(&looks)) {
                        return;
                    }
                    looked = now();
                }
                thread::park_timeout(Duration::from_millis(2));
            }
        });
        looks.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the processes, waits until nothing is left in the store, and returns everything that was seen.
    async fn finish(&self, admin: Option<&Locks>, site: &Site, directory: &Path) -> Observed {
        let lease = self.configuration.longest_lease();
        let patience = 4 * lease + Duration::from_secs(30);
        let lines = tokio::task::block_in_place(|| site.stop(patience));
        let at = now().as_nanos();
        let left: Vec<Found> = match admin {
            Some(admin) => {
                let left = until_empty(admin, &site.own.namespace, 2 * lease + Duration::from_secs(5)).await;
                left.map(|what| Found::new(at, "leak", what)).into_iter().collect()
            }
            None => {
                let lines = tokio::task::block_in_place(|| site.sweep(patience)).into_iter();
                let what = |line| format!("a lock can't be acquired after the run: {line}");
                lines.filter(|line| line != "done").map(|line| Found::new(at, "orphan", what(line))).collect()
            }
        };
        let mut observed = observe(directory, site);
        let found = lines.into_iter().filter_map(|line| match &*line {
            "done" => None,
            "busy" => {
                Some(Found::new(at, "leak", "a process has background work that does not end".to_owned()))
            }
            _ => Some(Found::new(
                at,
                "stuck",
                format!("a request is not granted, or a process does not end: {line}"),
            )),
        });
        observed.found = found.chain(left).collect();
        observed
    }
}

async fn open(url: &str) -> Locks {
    Locks::connect(url).await.unwrap_or_else(|error| panic!("can't open the store: {}", error.chain()))
}

/// Waits until the store has no entry, after each lock was acquired once more: that removes rows of dead clients, which have no effect.
/// Returns the entries that are left after `limit`.
async fn until_empty(admin: &Locks, namespace: &Namespace, limit: Duration) -> Option<String> {
    let until = now() + limit;
    loop {
        for name in names() {
            // The entry that remains after a failure is found below.
            if let Ok(Some(guard)) = admin.lock(&name).try_acquire().await {
                guard.release().await.ok();
            }
            // A wait passes the turnstile.
            let slot = admin.semaphore(&name, 1).wait(Duration::from_secs(1));
            if has_recipes(&name)
                && let Ok(slot) = slot.acquire().await
            {
                slot.release().await.ok();
            }
        }
        let listed = admin.list("").await;
        let left = match &listed {
            Ok(locks) => {
                let used = locks.iter().filter(|lock| !lock.holders.is_empty() || !lock.waiters.is_empty());
                let used: Vec<_> = used.map(|lock| format!("{lock:?}")).collect();
                let entries = namespace.leftovers().await.ok().flatten().unwrap_or(0);
                (!used.is_empty() || entries > 0)
                    .then(|| format!("{entries} entries are left: {}", used.join("; ")))
            }
            Err(error) => Some(format!("the store can't be listed: {}", error.chain())),
        };
        if left.is_none() || now() >= until {
            return left;
        }
        pause(Duration::from_millis(100)).await;
    }
}

/// Reads the files of all processes.
fn observe(directory: &Path, site: &Site) -> Observed {
    let mut observed = Observed {
        applied: site.applied(),
        killed: site.killed(),
        processes: site.ids(),
        ..Observed::read(directory)
    };
    observed.end_at_kills();
    observed
}
