//! Clients in processes that are stopped and killed while they use locks, and the check of their histories.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use fastrand::Rng;
use polylock::{Clock, Error, Mode, Moment, Scope, SystemClock};
use polylock_bench::process::{Worker, print_line as print};
use polylock_testkit::history::{self, Recorder, Rules, Section, Violation};
use rustix::process::Signal;
use tokio::sync::mpsc::UnboundedReceiver;

use super::{
    process::{Client, Job, kill, start},
    report::{Outcome, Row},
    subject::Subject,
};
use crate::{exit::Failure, output::milliseconds};

const PART: &str = "faults";
const NAMES: [&str; 3] = ["orders", "jobs", "reports"];
/// The number of processes, each with one client.
const PROCESSES: usize = 6;
/// The lease, if the store grants one that is so short.
const LEASE: Duration = Duration::from_secs(1);
/// The longest time for which a lock is free although somebody waits for it, while no fault explains it. Some waiters check a lock only
/// every second.
const IDLE: Duration = Duration::from_secs(4);
/// The time after a deadline within which a process that runs reports a loss: the machine may be busy.
const TOLERANCE: Duration = Duration::from_millis(500);

/// Everything that was seen in a run.
#[derive(Default)]
struct Observed {
    sections: Vec<Section>,
    errors: Vec<String>,
    /// The releases that failed although the store may be available again later.
    failed_releases: Vec<FailedRelease>,
    /// The times at which a process was stopped, by its name.
    stops: BTreeMap<String, Vec<(u64, u64)>>,
    /// The processes that were killed, with the times.
    kills: Vec<(String, u64)>,
    /// The processes that did not end although nothing kept them: one of their requests was not served.
    stuck: Vec<String>,
}

impl Observed {
    /// Returns the errors that no stop of a process explains. If `is_file`, a process that is stopped in a write blocks the releases of all
    /// others.
    fn unexplained_errors(&self, is_file: bool) -> Vec<String> {
        let is_explained = |failed: &FailedRelease| {
            let stops = self.stops.iter().filter(|(process, _)| is_file || **process == failed.process);
            let (begin, end) = failed.span;
            stops.flat_map(|(_, spans)| spans).any(|(from, to)| *from < end && begin < *to)
        };
        let failed = self.failed_releases.iter().filter(|failed| !is_explained(failed));
        self.errors
            .iter()
            .cloned()
            .chain(failed.map(|failed| format!("{}: {}", failed.process, failed.error)))
            .collect()
    }
}

/// A release that failed with a temporary error.
struct FailedRelease {
    process: String,
    /// The times of the release and of the error.
    span: (u64, u64),
    error: String,
}

impl FailedRelease {
    /// Parses what a client has printed about a release of `process`.
    fn parse(process: &str, line: &str) -> Option<Self> {
        let (begin, rest) = line.strip_prefix("failed release ")?.split_once(' ')?;
        let (end, error) = rest.split_once(' ')?;
        let span = (begin.parse().ok()?, end.parse().ok()?);
        Some(Self { process: process.to_owned(), span, error: error.to_owned() })
    }
}

/// Runs the clients for about `time`, with faults in the first two thirds of it.
pub(super) async fn rows(subject: &Subject, time: Duration, seed: u64) -> Result<Vec<Row>, Failure> {
    let namespace = subject.namespaces.create();
    let locks = subject.open(&namespace).await?;
    if locks.capabilities().scope == Scope::Process {
        return Ok(vec![Row::skipped(PART, "processes", "the store is in the memory of one process")]);
    }
    let lease = locks.capabilities().nearest_ttl(LEASE);
    let observed = observe(&namespace, lease, time, seed).await?;
    Ok(judge(&observed, lease, locks.capabilities().scope == Scope::Host))
}

struct Process {
    name: String,
    worker: Worker,
    text: String,
}

impl Process {
    fn start(
        namespace: &str,
        number: usize,
        generation: usize,
        lease: Duration,
        rng: &mut Rng,
    ) -> Result<Self, Failure> {
        let name = format!("p{number}.{generation}");
        let client = Client {
            namespace: namespace.to_owned(),
            name: name.clone(),
            seed: rng.u64(..),
            lease_ms: milliseconds(lease),
        };
        Ok(Self { name, worker: start(&Job::Client(client))?, text: String::new() })
    }

    /// Reads the output until it ends; returns true if it has ended at `deadline`.
    async fn read_to_end(&mut self, deadline: Moment) -> bool {
        while let Some(line) = self.worker.next_line(deadline).await {
            writeln!(self.text, "{line}").ok();
        }
        SystemClock.now() < deadline
    }

    fn report_to(self, observed: &mut Observed) {
        for line in self.text.lines() {
            if let Some(error) = line.strip_prefix("error ") {
                observed.errors.push(format!("{}: {error}", self.name));
            }
            observed.failed_releases.extend(FailedRelease::parse(&self.name, line));
        }
        let sections: String = self
            .text
            .lines()
            .filter(|line| line.parse::<Section>().is_ok())
            .map(|line| format!("{line}\n"))
            .collect();
        observed.sections.extend(history::read(&sections).unwrap_or_default());
    }
}

/// Runs the processes, and stops and kills them as the seed determines.
async fn observe(namespace: &str, lease: Duration, time: Duration, seed: u64) -> Result<Observed, Failure> {
    let mut rng = Rng::with_seed(seed);
    let mut observed = Observed::default();
    let mut processes = Vec::new();
    for number in 0..PROCESSES {
        processes.push(Process::start(namespace, number, 0, lease, &mut rng)?);
    }
    let begin = SystemClock.now();
    let (storm_end, end) = (begin + time * 2 / 3, begin + time);
    let mut generation = 0;
    loop {
        let next = SystemClock.now() + Duration::from_millis(rng.u64(100..600));
        if next >= storm_end {
            break;
        }
        SystemClock.sleep_until(next).await;
        let victim = rng.usize(..PROCESSES);
        let process = &mut processes[victim];
        if rng.u8(..5) < 2 {
            let at = SystemClock.now().as_nanos();
            kill(process.worker.process(), Signal::KILL);
            generation += 1;
            let new = Process::start(namespace, victim, generation, lease, &mut rng)?;
            let mut old = std::mem::replace(process, new);
            old.read_to_end(SystemClock.now() + IDLE).await;
            observed.kills.push((old.name.clone(), at));
            old.report_to(&mut observed);
        } else {
            let from = SystemClock.now();
            kill(process.worker.process(), Signal::STOP);
            SystemClock.sleep_until(from + lease.mul_f64(1.1 + rng.f64() * 0.6)).await;
            kill(process.worker.process(), Signal::CONT);
            let span = (from.as_nanos(), SystemClock.now().as_nanos());
            observed.stops.entry(process.name.clone()).or_default().push(span);
        }
        for process in &mut processes {
            for line in process.worker.take_lines() {
                writeln!(process.text, "{line}").ok();
            }
        }
    }
    SystemClock.sleep_until(end).await;
    for process in &mut processes {
        process.worker.end_input();
    }
    let deadline = SystemClock.now() + 3 * lease + 2 * IDLE;
    for mut process in processes {
        if !process.read_to_end(deadline).await {
            observed.stuck.push(process.name.clone());
        }
        process.report_to(&mut observed);
    }
    let Observed { sections, kills, .. } = &mut observed;
    history::end_at_kills(sections, |section| {
        let kill = kills.iter().find(|(process, _)| process == process_of(&section.client));
        kill.map(|(_, at)| *at)
    });
    Ok(observed)
}

/// Compares the histories with the promises; `is_file` as for [`Observed::unexplained_errors`].
fn judge(observed: &Observed, lease: Duration, is_file: bool) -> Vec<Row> {
    let stops =
        |section: &Section| observed.stops.get(process_of(&section.client)).cloned().unwrap_or_default();
    let mut rules = Rules::default();
    rules.tolerance = TOLERANCE;
    let found = history::check_with_stops(&observed.sections, rules, stops);
    let count = |name: &str, is_one: fn(&Violation) -> bool, promise: &str| {
        let all: Vec<_> = found.iter().filter(|violation| is_one(violation)).collect();
        verdict(name, all.len(), all.first().map(ToString::to_string), promise)
    };
    let (unserved, worst) = idle(observed, lease);
    let errors = observed.unexplained_errors(is_file);
    let lost = observed.sections.iter().filter(|section| section.lost.is_some()).count();
    let value = format!(
        "{} holds, {} stops longer than a lease of {}, {} kills, {lost} losses reported",
        observed.sections.len(),
        observed.stops.values().map(Vec::len).sum::<usize>(),
        polylock::duration::format(lease),
        observed.kills.len()
    );
    let mut rows = vec![if observed.sections.is_empty() {
        Row::new(PART, "run", Outcome::Failure, format!("no lock was acquired: {value}"))
    } else {
        Row::ok(PART, "run", value)
    }];
    rows.extend([
        count(
            "exclusion",
            |found| matches!(found, Violation::Overlap { .. }),
            "no two holders at the same time",
        ),
        count(
            "fencing tokens",
            |found| matches!(found, Violation::TokenRegression { .. } | Violation::RepeatedToken { .. }),
            "every later holder had a greater token",
        ),
        count(
            "losses",
            |found| matches!(found, Violation::LateLoss { .. } | Violation::LatePoll { .. }),
            "each was reported by the deadline of its lease",
        ),
        verdict(
            "waiters",
            unserved.len() + observed.stuck.len(),
            unserved
                .first()
                .cloned()
                .or_else(|| Some(format!("{} waits at the end", observed.stuck.first()?))),
            &format!("each was served; the longest delay without a fault was {}", milliseconds_text(worst)),
        ),
        verdict("errors", errors.len(), errors.first().cloned(), "no operation failed"),
    ]);
    rows.extend(time_to_free(observed).map(|longest| {
        let value = format!("{} at most after a holder was killed", milliseconds_text(longest));
        Row::ok(PART, "time to free", value).warn_if(
            longest > lease + IDLE,
            "a dead holder kept a lock for longer than its lease: the processes that waited were stopped, or the machine is busy",
        )
    }));
    rows
}

fn verdict(name: &str, violations: usize, first: Option<String>, promise: &str) -> Row {
    match first {
        Some(first) => {
            Row::new(PART, name, Outcome::Failure, format!("{violations} violations; the first: {first}"))
        }
        None => Row::ok(PART, name, promise),
    }
}

fn milliseconds_text(time: Duration) -> String {
    format!("{:.0} ms", time.as_secs_f64() * 1000.0)
}

/// Returns the name of the process of a client.
fn process_of(client: &str) -> &str {
    client.rsplit_once('/').map_or(client, |(process, _)| process)
}

/// Returns the grants of locks that had been free for too long while somebody waited, and the longest of those times that no fault
/// explains.
fn idle(observed: &Observed, lease: Duration) -> (Vec<String>, Duration) {
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    // A request of a process that was stopped or killed may be at the head of a queue, or have been granted the lock, for a lease.
    let disturbed: Vec<(u64, u64)> = observed
        .kills
        .iter()
        .map(|(_, at)| (*at, *at))
        .chain(observed.stops.values().flatten().copied())
        .map(|(from, to)| (from, to.saturating_add(nanos(lease))))
        .collect();
    let mut sorted: Vec<&Section> = observed.sections.iter().collect();
    sorted.sort_by_key(|section| section.acquired);
    let mut free_from: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut found, mut worst) = (Vec::new(), 0);
    for section in sorted {
        let free = free_from.entry(&section.lock).or_default();
        let before = disturbed.iter().filter(|(from, _)| *from < section.acquired);
        let explained = before.map(|(_, to)| (*to).min(section.acquired)).max().unwrap_or(0);
        let idle = section.acquired.saturating_sub(section.invoked.max(*free).max(explained));
        worst = worst.max(idle);
        if idle > nanos(IDLE) {
            found.push(format!(
                "{} was free for {:?} before: {section}",
                section.lock,
                Duration::from_nanos(idle)
            ));
        }
        // A hold that was not released ends with its lease.
        let ended = section.released.filter(|_| !section.open);
        *free = (*free).max(ended.unwrap_or_else(|| section.deadline.saturating_add(nanos(lease))));
    }
    (found, Duration::from_nanos(worst))
}

/// Returns the longest time from the kill of a holder to the next hold of its lock.
fn time_to_free(observed: &Observed) -> Option<Duration> {
    let times = observed.kills.iter().flat_map(|(process, at)| {
        let held = observed
            .sections
            .iter()
            .filter(move |section| section.open && process_of(&section.client) == process);
        held.filter_map(move |held| {
            let later = observed
                .sections
                .iter()
                .filter(|section| section.lock == held.lock && section.acquired > *at);
            later.map(|section| section.acquired - at).min()
        })
    });
    times.max().map(Duration::from_nanos)
}

/// Uses locks until the input ends.
pub(super) async fn run(
    subject: &Subject,
    client: Client,
    mut input: UnboundedReceiver<String>,
) -> Result<(), Failure> {
    let locks = subject.open(&client.namespace).await?;
    let (mut rng, recorder) = (Rng::with_seed(client.seed), Recorder::new());
    let lease = Duration::from_millis(client.lease_ms);
    let name = format!("{}/0", client.name);
    while input.try_recv() != Err(tokio::sync::mpsc::error::TryRecvError::Disconnected) {
        let lock = NAMES[rng.usize(..NAMES.len())];
        let attempt = recorder.invoke(lock, &name, Mode::Exclusive);
        let guard = match locks.lock(lock).ttl(lease).acquire().await {
            Ok(guard) => guard,
            Err(error) => {
                print(format_args!("error {}", one_line(&error)));
                SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(100)).await;
                continue;
            }
        };
        let mut hold = attempt.acquired(&guard);
        print(hold.so_far());
        // Some holds are renewed.
        let work = if rng.u8(..20) == 0 { lease * 3 / 2 } else { Duration::from_millis(rng.u64(1..30)) };
        let until = SystemClock.now() + work;
        let is_lost = loop {
            hold.seen(&guard);
            let now = SystemClock.now();
            if now >= until {
                break false;
            }
            let look = until.min(now + Duration::from_millis(20));
            if SystemClock.before(look, guard.lost()).await.is_some() {
                break true;
            }
        };
        if is_lost {
            // The guard has no deadline any more.
            let deadline = Moment::from_nanos(hold.so_far().deadline);
            print(hold.lost(deadline));
            continue;
        }
        print(hold.releasing(&guard));
        let begin = SystemClock.now();
        match guard.release().await {
            Ok(()) | Err(Error::Lost { .. }) => {}
            Err(error) if error.is_temporary() => {
                let (begin, end) = (begin.as_nanos(), SystemClock.now().as_nanos());
                print(format_args!("failed release {begin} {end} {}", one_line(&error)));
            }
            Err(error) => print(format_args!("error {}", one_line(&error))),
        }
    }
    locks.close(Duration::from_secs(5)).await;
    Ok(())
}

fn one_line(error: &Error) -> String {
    error.chain().replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_release_is_an_error_unless_a_stop_explains_it() {
        let errors = |stopped: &str, stop, is_file| {
            let failed = FailedRelease::parse("p0.0", "failed release 10 20 no reply in time");
            let observed = Observed {
                failed_releases: failed.into_iter().collect(),
                stops: BTreeMap::from([(stopped.to_owned(), vec![stop])]),
                ..Observed::default()
            };
            observed.unexplained_errors(is_file)
        };
        let unexplained = ["p0.0: no reply in time"];
        assert_eq!(errors("p0.0", (5, 15), false), [""; 0]);
        assert_eq!(errors("p0.0", (2, 9), false), unexplained);
        assert_eq!(errors("p0.0", (20, 30), false), unexplained);
        assert_eq!(errors("p1.0", (5, 15), false), unexplained);
        assert_eq!(errors("p1.0", (5, 15), true), [""; 0]);
    }
}
