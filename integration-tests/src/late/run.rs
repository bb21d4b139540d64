//! A run: many schedules at a time on one store, and what was found.

use std::{
    collections::BTreeMap,
    fmt, io,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use polylock_core::sync::lock;

use super::{
    acts::ROLES,
    check::{Kind, Violation, check},
    conductor::conduct,
    excuses,
    history::History,
    planted::Plant,
    script::Script,
    site::{Servers, Site},
};
use crate::clock::{now, pause};

/// The number of runs of this process, so that each has other locks.
static RUNS: AtomicU32 = AtomicU32::new(0);

/// A run.
#[derive(Debug, Clone)]
pub struct Run {
    /// The program `worker`.
    pub worker: PathBuf,
    /// The seed of the schedules.
    pub seed: u64,
    /// The number of the first schedule.
    pub first: u32,
    /// The number of schedules.
    pub schedules: u32,
    /// The number of schedules at a time.
    pub lanes: usize,
    /// No schedule begins after this time.
    pub limit: Duration,
    /// The operations of every schedule; drawn from the seed if `None`.
    pub script: Option<Script>,
    /// True if no schedule takes much longer than ten seconds.
    pub is_short: bool,
    /// A planted bug.
    pub planted: Option<Plant>,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The number of schedules.
    pub schedules: u32,
    /// The number of schedules in which a message was withheld.
    pub withheld: u32,
    /// The number of copies in addition.
    pub copies: usize,
    /// The numbers of operations with each outcome.
    pub outcomes: BTreeMap<String, u64>,
    /// The violations, with the numbers of their schedules.
    pub found: Vec<(u32, Violation)>,
    /// The exceptions that a store documents, with the number of violations that each explains.
    pub excused: BTreeMap<&'static str, u32>,
    /// The first of these, with the numbers of their schedules.
    pub examples: Vec<(u32, Violation)>,
    /// The histories of the first schedules with a violation, or that of the only schedule.
    pub histories: Vec<(Script, History)>,
    /// The time of the first violation, since the begin.
    pub detected: Option<Duration>,
    /// The time that the run took.
    pub took: Duration,
}

impl Outcome {
    /// Returns the number of violations of this kind.
    #[must_use]
    pub fn count(&self, kind: Kind) -> usize {
        self.found.iter().filter(|(_, violation)| violation.kind == kind).count()
    }
}

/// The number of violations that are kept for each exception.
const EXAMPLES: u32 = 3;

/// The number of histories that are kept.
const KEPT: usize = 20;

impl Run {
    /// Carries out all schedules on the store.
    ///
    /// # Errors
    /// If a process does not start, or the store can't be opened.
    pub async fn on(&self, servers: Servers) -> io::Result<Outcome> {
        let site = Arc::new(Site::start(servers, &self.worker, self.lanes).await?);
        if let Some(Plant::Routine(bug)) = self.planted {
            bug.plant(&site.servers.namespace).await.map_err(io::Error::other)?;
        }
        let run = RUNS.fetch_add(1, Relaxed);
        let (began, next) = (now(), Arc::new(AtomicU32::new(self.first)));
        let (outcome, paused) = (Arc::<Mutex<Outcome>>::default(), Arc::<Mutex<Vec<_>>>::default());
        let lanes = (0..self.lanes).map(|lane| {
            let (site, next, outcome, run_of) = (site.clone(), next.clone(), outcome.clone(), self.clone());
            let paused = paused.clone();
            tokio::spawn(async move {
                // The schedules begin one after the other.
                pause(Duration::from_millis(20) * u32::try_from(lane).unwrap_or(0)).await;
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    if number >= run_of.first + run_of.schedules || now().since(began) >= run_of.limit {
                        return;
                    }
                    let drawn = || Script::draw(run_of.seed, number, &site.can);
                    let mut script = run_of.script.clone().unwrap_or_else(drawn);
                    script.number = number + run * 1_000_000;
                    if run_of.is_short {
                        script.shorten();
                    }
                    let mut history = conduct(&site, &script, lane, run_of.planted).await;
                    history.pauses.clone_from(&lock(&paused));
                    let found = check(&history, site.bounds);
                    let mut outcome = lock(&outcome);
                    outcome.add(&site, number, (script, history), found, run_of.schedules == 1);
                    if !outcome.found.is_empty() {
                        outcome.detected.get_or_insert(now().since(began));
                    }
                }
            })
        });
        let lanes: Vec<_> = lanes.collect();
        let pauses_processes = site.servers.upstreams.is_empty() && self.script.is_none();
        let pausing = pauses_processes.then(|| tokio::spawn(pauses(site.clone(), self.seed, paused.clone())));
        for lane in lanes {
            lane.await.map_err(io::Error::other)?;
        }
        if let Some(pausing) = pausing {
            pausing.abort();
        }
        let mut outcome = std::mem::take(&mut *lock(&outcome));
        outcome.took = now().since(began);
        Ok(outcome)
    }
}

/// Stops one process after the other for a while: a file has no messages, and an operation that is stopped is late.
async fn pauses(site: Arc<Site>, seed: u64, paused: Arc<Mutex<Vec<(u64, u64)>>>) {
    let mut random = fastrand::Rng::with_seed(seed);
    loop {
        pause(Duration::from_millis(random.u64(200..1500))).await;
        let role = ROLES[random.usize(..ROLES.len())];
        let (began, lasts) = (now(), Duration::from_millis(random.u64(500..3000)));
        lock(&paused).push((began.as_nanos(), (began + lasts).as_nanos()));
        site.remote(role).pause(lasts).await;
    }
}

impl Outcome {
    fn add(
        &mut self,
        site: &Site,
        number: u32,
        (script, history): (Script, History),
        found: Vec<Violation>,
        is_only: bool,
    ) {
        self.schedules += 1;
        self.withheld += u32::from(!history.deliveries.is_empty());
        self.copies += history.copies.len();
        for event in &history.events {
            let word = |text: String| text.split([' ', '(', '{']).next().unwrap_or_default().to_owned();
            let key = format!(
                "{} {}",
                word(format!("{:?}", event.action)),
                word(format!("{:?}", event.reply.outcome))
            );
            *self.outcomes.entry(key).or_default() += 1;
        }
        let mut is_new = false;
        for violation in found {
            match excuses::excuse(site.servers.store, &violation, &script) {
                Some(name) => {
                    let count = self.excused.entry(name).or_default();
                    *count += 1;
                    if *count <= EXAMPLES {
                        self.examples.push((number, violation));
                    }
                }
                None => {
                    is_new = true;
                    self.found.push((number, violation));
                }
            }
        }
        if is_new || is_only {
            self.histories.push((script, history));
            self.histories.truncate(KEPT);
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { schedules, withheld, copies, took, .. } = self;
        write!(
            f,
            "{schedules} schedules in {took:.0?}, {withheld} with a withheld message, {copies} further copies;"
        )?;
        for kind in super::check::KINDS {
            write!(f, " {kind:?} {}", self.count(kind))?;
        }
        for (name, count) in &self.excused {
            write!(f, "; {count} excused: {name}")?;
        }
        Ok(())
    }
}
