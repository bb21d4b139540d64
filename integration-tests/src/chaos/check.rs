//! The promises that are checked after a run.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use polylock_testkit::history::{self, Section};

use super::{
    configuration::Configuration,
    plan::{Action, Kind, LONGEST_STEP},
    site::Applied,
};
use crate::simulation::{
    check::{self, Violation},
    network::nanos,
};

/// The time after a deadline within which a running process reports the loss: the machine may be busy.
const TOLERANCE: Duration = Duration::from_millis(500);

/// The longest time for which a lock without a holder is not granted to a request that waits for it, when nothing has disturbed the
/// store. Clients check a lock every second.
const IDLE: Duration = Duration::from_secs(3);

/// The time for which the store shows a hold that its client has released, or has not been notified of yet.
const ORPHAN: Duration = Duration::from_secs(1);

/// From a time to another, in nanoseconds.
pub type Span = (u64, u64);

/// Everything that was seen in a run.
#[derive(Debug, Default)]
pub struct Observed {
    /// The sections of all processes.
    pub sections: Vec<Section>,
    /// The times at which a process did not run, by its name.
    pub stalls: BTreeMap<String, Vec<Span>>,
    /// The errors that only a bug explains, with their times.
    pub errors: Vec<(u64, String)>,
    /// The faults.
    pub applied: Vec<Applied>,
    /// The process ids of killed processes.
    pub killed: Vec<u32>,
    /// The holds that the store has shown while no fault happened.
    pub shown: Vec<Shown>,
    /// The violations that were found in another way than in the history.
    pub found: Vec<Found>,
}

impl Observed {
    /// Ends the holds of killed processes when these were killed: their clients hold nothing from then on.
    pub fn end_at_kills(&mut self) {
        for section in self.sections.iter_mut().filter(|section| section.open && section.released.is_none()) {
            let kills = self.applied.iter().filter(|fault| {
                matches!(fault.action, Action::KillClient(process) if section.client.starts_with(&format!("p{process}.")))
            });
            section.released = kills.map(|fault| fault.from).filter(|at| *at >= section.acquired).min();
        }
    }

    /// Returns true if this hold ended when its process was killed.
    #[must_use]
    pub fn ended_at_kill(&self, section: &Section) -> bool {
        let is_kill =
            |fault: &Applied| fault.action.kind() == Kind::ClientKill && section.released == Some(fault.from);
        section.open && self.applied.iter().any(is_kill)
    }

    /// Returns true if the error names a full disk, which a server had then.
    fn is_out_of_room(&self, at: u64, what: &str) -> bool {
        let mut full = self.applied.iter().filter(|fault| fault.action.kind() == Kind::FullDisk);
        what.contains("disk is full") && full.any(|fault| (fault.from..=fault.to).contains(&at))
    }
}

/// A hold that the store has shown.
#[derive(Debug, Clone)]
pub struct Shown {
    /// The name of the lock.
    pub lock: String,
    /// The token.
    pub token: u64,
    /// The owner, which ends with the process id.
    pub owner: String,
    /// The time of the first look at the store that has shown it, and of the last one.
    pub span: Span,
}

/// A violation, and the part of the history that shows it.
#[derive(Debug, Clone)]
pub struct Found {
    /// The violation.
    pub violation: Violation,
    /// The name of the lock, if it concerns one.
    pub lock: Option<String>,
    /// The time from the first request to the end.
    pub span: Span,
}

impl Found {
    /// Creates a violation that concerns no single lock.
    #[must_use]
    pub fn new(at: u64, kind: &'static str, what: String) -> Self {
        Self { violation: Violation::new(at, kind, what), lock: None, span: (at, at) }
    }

    fn of(violation: &history::Violation) -> Self {
        use history::Violation as V;
        let sections = match violation {
            V::Overlap { first, second }
            | V::TokenRegression { first, second }
            | V::RepeatedToken { first, second } => vec![first, second],
            V::Inversion { waited, overtook } => vec![waited, overtook],
            V::LateLoss { section } | V::LatePoll { section } => vec![section],
            _ => Vec::new(),
        };
        let violation = Violation::from(violation);
        let is_overlap = violation.kind == "overlap";
        let begin = |section: &Section| if is_overlap { section.acquired } else { section.invoked };
        let from = sections.iter().map(|section| begin(section)).min().unwrap_or(violation.at);
        let to = sections.iter().map(|section| section.end()).max().unwrap_or(violation.at);
        let lock = sections.first().map(|section| section.lock.clone());
        Self { violation, lock, span: (from, to) }
    }
}

/// Returns all violations, in the order of their times.
#[must_use]
pub fn check(observed: &Observed, configuration: &Configuration, is_fifo: bool) -> Vec<Found> {
    let none = Vec::new();
    let stalls =
        |section: &Section| observed.stalls.get(process_of(&section.client)).unwrap_or(&none).clone();
    let mut found: Vec<Found> =
        check::sections(&observed.sections, TOLERANCE, stalls).iter().map(Found::of).collect();
    let disturbances = Disturbances::of(observed, configuration, configuration.longest_lease());
    if is_fifo {
        let inversions = history::inversions(&observed.sections);
        found.extend(
            inversions.iter().filter(|violation| disturbances.do_not_explain(violation)).map(Found::of),
        );
    }
    found.extend(idle(observed, &disturbances, configuration));
    // The holds of killed clients are known by their owners.
    found.extend(orphans(observed, &Disturbances::of(observed, configuration, Duration::ZERO)));
    let errors = observed.errors.iter().filter(|(at, what)| !observed.is_out_of_room(*at, what));
    found.extend(errors.map(|(at, what)| Found::new(*at, "error", what.clone())));
    found.extend(observed.found.iter().cloned());
    found.sort_by_key(|found| found.violation.at);
    found
}

/// Returns the name of the process of a client.
#[must_use]
pub fn process_of(client: &str) -> &str {
    client.rsplit_once('.').map_or(client, |(process, _)| process)
}

/// The times in which the store may grant late, or in another order: faults, and pauses of processes. They are sorted by their begin,
/// and each has the latest end of all up to it.
struct Disturbances(Vec<Span>);

impl Disturbances {
    /// The locks of killed clients are disturbed for `of_dead` after the kill.
    fn of(observed: &Observed, configuration: &Configuration, of_dead: Duration) -> Self {
        let (lease, of_dead) = (nanos(configuration.longest_lease()), nanos(of_dead));
        let faults = observed.applied.iter().filter(|fault| fault.action.kind() != Kind::Crowd);
        let faults = faults.map(|fault| match fault.action {
            // Its locks, and those that it is granted by its last messages, expire.
            Action::KillClient(_) => (fault.from, fault.to.saturating_add(of_dead)),
            Action::KillServer(_) | Action::RestoreServer(_) | Action::FillDisk(_)
                if configuration.restores =>
            {
                (fault.from, fault.to.saturating_add(lease))
            }
            // A lease may last longer by the step, after the clock is set back.
            Action::StepClock { .. } => (fault.from, fault.to.saturating_add(lease + nanos(LONGEST_STEP))),
            _ => (fault.from, fault.to),
        });
        let mut spans: Vec<Span> = faults.chain(observed.stalls.values().flatten().copied()).collect();
        spans.sort_unstable();
        let mut latest = 0;
        for (_, to) in &mut spans {
            latest = latest.max(*to);
            *to = latest;
        }
        Self(spans)
    }

    /// Returns the latest end of those that began before `at`, but no later time than `at`.
    fn last_before(&self, at: u64) -> u64 {
        let begun = self.0.partition_point(|(from, _)| *from < at);
        self.0[..begun].last().map_or(0, |(_, to)| (*to).min(at))
    }

    /// Returns true if no disturbance explains the violation: in one, an entry in the queue may have expired.
    fn do_not_explain(&self, violation: &&history::Violation) -> bool {
        let history::Violation::Inversion { waited, overtook } = violation else { return true };
        let (from, to) = (waited.invoked.min(overtook.invoked), waited.acquired.max(overtook.acquired));
        self.last_before(to) <= from
    }
}

/// Returns the holds that the store has shown for a while although no client had them.
fn orphans<'o>(observed: &'o Observed, disturbances: &'o Disturbances) -> impl Iterator<Item = Found> + 'o {
    let mut sections: HashMap<(&str, u64), &Section> = HashMap::new();
    for section in &observed.sections {
        sections.extend(section.token.map(|token| ((&*section.lock, token), section)));
    }
    let is_alive = |owner: &str| !observed.killed.iter().any(|id| owner.ends_with(&format!(":{id}")));
    observed.shown.iter().filter(move |shown| is_alive(&shown.owner)).filter_map(move |shown| {
        let Shown { lock, token, span: (from, to), .. } = shown;
        let section = sections.get(&(&**lock, *token));
        let is_late = to - from >= nanos(ORPHAN) && disturbances.last_before(*to) <= *from;
        // A hold that is not released exists until its lease expires.
        let is_orphan = section.is_none_or(|section| !section.open && section.end() < *from);
        let what = || format!("the store shows a hold of {lock} with token {token} that no client has");
        (is_late && is_orphan).then(|| Found {
            violation: Violation::new(*to, "orphan", what()),
            lock: Some(lock.clone()),
            span: (section.map_or(*from, |section| section.acquired), *to),
        })
    })
}

/// Returns the grants of locks that were free for too long before. The lock of a killed client is an orphan.
fn idle(observed: &Observed, disturbances: &Disturbances, configuration: &Configuration) -> Vec<Found> {
    let lease = nanos(configuration.longest_lease());
    // A client in another process polls less often on a service that charges for requests.
    let limit = nanos(if configuration.name == "azure" { 2 * IDLE } else { IDLE });
    let mut sorted: Vec<&Section> = observed.sections.iter().collect();
    sorted.sort_by_key(|section| section.acquired);
    let mut free_from: BTreeMap<&str, (u64, &str)> = BTreeMap::new();
    let mut found = Vec::new();
    for section in sorted {
        let free = free_from.entry(&section.lock).or_insert((0, "idle"));
        let reason = section.invoked.max(free.0).max(disturbances.last_before(section.acquired));
        let idle = section.acquired.saturating_sub(reason);
        if idle > limit {
            let what = format!("free for {:.1?} before: {section}", Duration::from_nanos(idle));
            found.push(Found {
                violation: Violation::new(section.acquired, free.1, what),
                lock: Some(section.lock.clone()),
                span: (reason, section.acquired),
            });
        }
        // A lock that is not released is free when its lease has expired, which is not renewed after the hold.
        let deadline = section.deadline.min(section.end().saturating_add(lease));
        let ended = section.released.filter(|_| !section.open).unwrap_or(deadline.saturating_add(lease));
        *free = (*free).max((ended, if observed.ended_at_kill(section) { "orphan" } else { "idle" }));
    }
    found
}

#[cfg(test)]
mod tests {
    use polylock_core::Mode;

    use super::{super::configuration, *};

    const S: u64 = 1_000_000_000;

    fn section(client: &str, acquiring: std::ops::Range<u64>, released: u64) -> Section {
        Section::new("n", client, Mode::Exclusive, acquiring).released(released).deadline(released + S)
    }

    fn kinds(observed: &Observed) -> Vec<&'static str> {
        let configuration = configuration::named("redis").expect("it is in the list");
        check(observed, configuration, true).iter().map(|found| found.violation.kind).collect()
    }

    #[test]
    fn a_lock_that_stays_free_is_found_unless_a_fault_explains_it() {
        let sections = vec![section("p0.0.0", 0..S, 2 * S), section("p1.1.0", S..8 * S, 9 * S)];
        let mut observed = Observed { sections, ..Observed::default() };
        assert_eq!(kinds(&observed), ["idle"]);
        let fault = |action, from, to| Applied { action, from, to };
        observed.applied = vec![fault(Action::StopClient(0), 5 * S, 6 * S)];
        assert_eq!(kinds(&observed), [""; 0]);
        // A killed client explains its lease, too.
        observed.applied = vec![fault(Action::StopClient(0), S, 2 * S)];
        assert_eq!(kinds(&observed), ["idle"]);
        observed.applied = vec![fault(Action::KillClient(0), S, 2 * S)];
        assert_eq!(kinds(&observed), [""; 0]);
        observed.applied.clear();
        observed.stalls.insert("p1.1".to_owned(), vec![(5 * S, 7 * S)]);
        assert_eq!(kinds(&observed), [""; 0]);
    }

    #[test]
    fn a_client_that_was_killed_holds_nothing() {
        let mut dead = section("p1.0.0", 0..S, 9 * S);
        (dead.released, dead.open) = (None, true);
        let sections = vec![dead, section("p0.1.0", S..5 * S, 6 * S)];
        let mut observed = Observed { sections, ..Observed::default() };
        let kill = |process, from| Applied { action: Action::KillClient(process), from, to: from + S };
        observed.applied = vec![kill(1, S / 2), kill(0, 4 * S), kill(1, 6 * S)];
        observed.end_at_kills();
        assert_eq!(kinds(&observed), ["overlap"], "these kills were before, of another process, and after");
        observed.applied.push(kill(1, 4 * S));
        observed.sections[0].released = None;
        observed.end_at_kills();
        assert_eq!(kinds(&observed), [""; 0]);
        // A library that reports no deadline.
        observed.sections[0].deadline = u64::MAX;
        observed.sections[1] = section("p0.1.0", S..40 * S, 41 * S);
        observed.end_at_kills();
        assert_eq!(kinds(&observed), ["orphan"], "it is granted long after the lease");
    }

    #[test]
    fn a_hold_that_no_client_has_is_found_unless_a_fault_explains_it() {
        let shown = |token, from, to| Shown {
            lock: "n".to_owned(),
            token,
            owner: "host:77".to_owned(),
            span: (from, to),
        };
        let sections = vec![section("p0.0.0", 0..S, 2 * S).token(7)];
        let mut observed = Observed { sections, ..Observed::default() };
        observed.shown = vec![shown(7, S, 3 * S), shown(8, S, S + S / 2)];
        assert_eq!(kinds(&observed), [""; 0], "it was held, and the other one was shown for a moment");
        observed.shown = vec![shown(7, 3 * S, 5 * S), shown(8, 3 * S, 5 * S)];
        assert_eq!(kinds(&observed), ["orphan", "orphan"]);
        observed.sections[0].open = true;
        assert_eq!(kinds(&observed), ["orphan"], "the lease of the other one has not expired");
        observed.killed = vec![7, 77];
        assert_eq!(kinds(&observed), [""; 0], "it was granted to a client that was killed");
        observed.killed = vec![7];
        observed.applied =
            vec![Applied { action: Action::StopServers { first: 0, count: 1 }, from: S, to: 4 * S }];
        assert_eq!(kinds(&observed), [""; 0]);
    }

    #[test]
    fn an_error_is_found_unless_a_full_disk_explains_it() {
        let errors = vec![(2 * S, "p0.0.0 the server's disk is full".to_owned())];
        let mut observed = Observed { errors, ..Observed::default() };
        assert_eq!(kinds(&observed), ["error"]);
        let fault = |from| Applied { action: Action::FillDisk(0), from, to: 4 * S };
        observed.applied = vec![fault(3 * S)];
        assert_eq!(kinds(&observed), ["error"]);
        observed.applied = vec![fault(S)];
        assert_eq!(kinds(&observed), [""; 0]);
        observed.errors[0].1 = "p0.0.0 it is unknown".to_owned();
        assert_eq!(kinds(&observed), ["error"]);
    }

    #[test]
    fn an_inversion_is_found_unless_a_fault_explains_it() {
        let mut waited = section("p0.0.0", 0..6 * S, 7 * S);
        waited.queued = Some(S);
        let holder = section("p2.2.0", 0..S, 5 * S);
        let sections = vec![holder, waited, section("p1.1.0", 2 * S..5 * S + 1, 6 * S - 1)];
        let mut observed = Observed { sections, ..Observed::default() };
        assert_eq!(kinds(&observed), ["order"]);
        observed.stalls.insert("p0.0".to_owned(), vec![(2 * S, 3 * S)]);
        assert_eq!(kinds(&observed), [""; 0]);
    }

    #[test]
    fn a_late_loss_is_found_unless_its_process_was_stopped() {
        let mut late = Section::new("n", "p0.0.3", Mode::Exclusive, 0..S).deadline(2 * S);
        late.lost = Some(4 * S);
        let mut observed = Observed { sections: vec![late], ..Observed::default() };
        assert_eq!(kinds(&observed), ["late loss"]);
        observed.stalls.insert("p0.0".to_owned(), vec![(S, 4 * S - 1)]);
        assert_eq!(kinds(&observed), [""; 0]);
    }
}
