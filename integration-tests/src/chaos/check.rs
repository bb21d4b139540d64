//! The promises that are checked after a run.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use polylock_core::Mode;
use polylock_testkit::history::{self, Section};

use super::{
    client::handover::merged,
    configuration::Configuration,
    disturbances::Disturbances,
    late_claims::late_claims,
    looks::Shown,
    observed::{Found, Observed, process_of},
};
use crate::simulation::{check, network::nanos, violation::Violation};

/// The time after a deadline within which a running process reports the loss: the machine may be busy.
const TOLERANCE: Duration = Duration::from_millis(500);

/// The longest time for which a lock without a holder is not granted to a request that waits for it, when nothing has disturbed the
/// store. Clients check a lock every second.
const IDLE: Duration = Duration::from_secs(3);

/// The time for which the store shows a hold that its client has released, or has not been notified of yet.
const ORPHAN: Duration = Duration::from_secs(1);

/// The time after a fault in which releases are repeated.
const SETTLED: Duration = Duration::from_millis(1500);

/// Four of five hand-overs to a waiting request take less time while no fault happens. A client whose notifications do not arrive checks
/// its lock from time to time.
const HANDOVER: Duration = Duration::from_millis(100);

/// The time after which a request is in the queue while no fault happens.
const QUEUED: Duration = Duration::from_millis(100);

/// The number of hand-overs from which their times count.
const HANDOVERS: usize = 50;

/// Returns all violations, in the order of their times.
#[must_use]
pub fn check(observed: &Observed, configuration: &Configuration, is_fifo: bool) -> Vec<Found> {
    let none = Vec::new();
    let stalls =
        |section: &Section| observed.stalls.get(process_of(&section.client)).unwrap_or(&none).clone();
    let whole = Observed { sections: merged(&observed.sections), ..observed.clone() };
    let found = check::shared_sections(&observed.sections, &whole.sections, TOLERANCE, stalls);
    let mut found: Vec<Found> = found.iter().map(Found::of).collect();
    found.extend(losses(observed, configuration));
    let observed = &whole;
    let faults = Disturbances::of(observed, configuration, configuration.longest_lease());
    let disturbances = faults.and_loads(observed);
    if is_fifo {
        let inversions = history::inversions(&observed.sections);
        found.extend(inversions.iter().filter(|violation| faults.do_not_explain(violation)).map(Found::of));
    }
    found.extend(idle(observed, &disturbances, configuration));
    found.extend(slow(observed, &disturbances, configuration));
    found.extend(orphans(observed, configuration));
    found.extend(late_claims(observed, configuration));
    let errors = observed.errors.iter().filter(|(at, what)| !observed.is_out_of_room(*at, what));
    found.extend(errors.map(|(at, what)| Found::new(*at, "error", what.clone())));
    found.extend(observed.found.iter().cloned());
    found.sort_by_key(|found| found.violation.at);
    found
}

/// Returns the sections by their locks and tokens.
fn by_token(observed: &Observed) -> HashMap<(&str, u64), &Section> {
    let sections = observed.sections.iter();
    sections.filter_map(|section| Some(((&*section.lock, section.token?), section))).collect()
}

/// Returns the holds that the store has shown for a while although no client had them, and no fault concerned their process. A client may die
/// before it has written its token, or a grant may not reach it: then no client has the hold until its lease ends.
fn orphans<'o>(observed: &'o Observed, configuration: &'o Configuration) -> impl Iterator<Item = Found> + 'o {
    let sections = by_token(observed);
    let mut by_process: HashMap<Option<&str>, Disturbances> = HashMap::new();
    observed.shown.iter().filter(|shown| !observed.is_killed(&shown.owner)).filter_map(move |shown| {
        let Shown { lock, token, owner, span: (from, to) } = shown;
        let process = observed.process_of_owner(owner);
        // In Azure, a client that has the lease replaces the record of the last holder by another message.
        let is_claimed = |section: &Section| section.lock == *lock && (section.invoked..section.acquired).contains(to);
        if configuration.polls && observed.sections.iter().any(is_claimed) {
            return None;
        }
        // A request that has not ended may not have received its grant yet.
        if process.is_some() && observed.ended(owner).is_none() {
            return None;
        }
        let disturbances = by_process.entry(process).or_insert_with(|| {
            let faults = match process {
                _ if configuration.loses_grants => {
                    Disturbances::of(observed, configuration, configuration.longest_lease())
                }
                Some(process) => Disturbances::of_process(observed, configuration, process),
                None => Disturbances::of(observed, configuration, Duration::ZERO),
            };
            faults.settling_for(SETTLED).and_loads(observed)
        });
        let section = sections.get(&(&**lock, *token));
        let from = disturbances.last_before(*to).max(*from);
        // A hold that is not released exists until its lease expires.
        let is_orphan = section.is_none_or(|section| !section.open && section.end() < from);
        let what = || {
            let (time, owner) = (Duration::from_nanos(to - shown.span.0), process.unwrap_or(owner));
            format!("the store shows {owner}'s hold of {lock} with token {token} for {time:.1?}, and no client has it")
        };
        // Nobody renews a grant of a lock service that its client has not received. The owner is the server, also while the client waits on
        // another one.
        let is_lost = configuration.loses_grants && section.is_none() && process.is_none();
        let is_orphan = is_orphan
            && if is_lost {
                to - shown.span.0 >= nanos(configuration.longest_lease() + ORPHAN)
            } else {
                to - from >= nanos(ORPHAN)
            };
        is_orphan.then(|| Found {
            violation: Violation::new(*to, "orphan", what()),
            lock: Some(lock.clone()),
            span: (section.map_or(from, |section| section.acquired), *to),
        })
    })
}

/// Returns the grants of locks that were free for too long before. The lock of a killed client is an orphan.
fn idle(observed: &Observed, disturbances: &Disturbances, configuration: &Configuration) -> Vec<Found> {
    let lease = nanos(configuration.longest_lease());
    let limit = nanos(if configuration.polls { 2 * IDLE } else { IDLE });
    let mut sorted: Vec<&Section> = observed.sections.iter().collect();
    sorted.sort_by_key(|section| section.acquired);
    let held = by_token(observed);
    let lost = |shown: &&Shown| !held.contains_key(&(&*shown.lock, shown.token));
    let lost: Vec<&Shown> =
        observed.shown.iter().filter(|_| configuration.loses_grants).filter(lost).collect();
    // A client may wait on a server that does not reply any more.
    let mut silences: HashMap<&str, Disturbances> = HashMap::new();
    let mut free_from: BTreeMap<&str, (u64, &str)> = BTreeMap::new();
    let mut found = Vec::new();
    for section in sorted {
        let free = free_from.entry(&section.lock).or_insert((0, "idle"));
        let reason = section.invoked.max(free.0).max(disturbances.last_before(section.acquired));
        // The lock was not free while the store showed a grant that its client has not received.
        let lost = lost.iter().filter(|shown| shown.lock == section.lock && shown.span.1 < section.acquired);
        let reason = lost.map(|shown| shown.span.1).fold(reason, u64::max);
        let silent = configuration.silence.map_or(0, |silence| {
            let process = process_of(&section.client);
            let of_process =
                || Disturbances::of_process(observed, configuration, process).settling_for(silence);
            silences.entry(process).or_insert_with(of_process).last_before(section.acquired)
        });
        let reason = reason.max(silent);
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

/// Returns the holds that were lost although no fault has concerned their process while they lasted, or while they were claimed: the lease
/// counts from the claim, and a fault may have delayed its reply.
fn losses<'o>(observed: &'o Observed, configuration: &'o Configuration) -> impl Iterator<Item = Found> + 'o {
    let mut by_process: HashMap<&str, Disturbances> = HashMap::new();
    let lease = nanos(Duration::from_millis(configuration.leases.0));
    observed.sections.iter().filter_map(move |section| {
        let (span, process) = ((section.acquired, section.lost?), process_of(&section.client));
        let disturbances = by_process
            .entry(process)
            .or_insert_with(|| Disturbances::of_process(observed, configuration, process));
        let claimed = section.invoked.max(section.acquired.saturating_sub(lease));
        disturbances.are_absent((claimed, span.1)).then(|| Found {
            violation: Violation::new(span.1, "loss", format!("lost without a fault: {section}")),
            lock: Some(section.lock.clone()),
            span,
        })
    })
}

/// Returns a violation if hand-overs are slow although no fault happens.
fn slow(observed: &Observed, disturbances: &Disturbances, configuration: &Configuration) -> Option<Found> {
    if configuration.polls {
        return None;
    }
    let mut by_lock: BTreeMap<&str, Vec<&Section>> = BTreeMap::new();
    for section in observed.sections.iter().filter(|section| section.mode == Mode::Exclusive) {
        by_lock.entry(&section.lock).or_default().push(section);
    }
    let mut times = Vec::new();
    for sections in by_lock.values_mut() {
        sections.sort_by_key(|section| section.acquired);
        times.extend(sections.array_windows().filter_map(|[one, next]| {
            let released = one.released.filter(|_| !one.open)?;
            let waits = next.invoked + nanos(QUEUED) < released;
            (waits && disturbances.are_absent((released, next.acquired)))
                .then(|| next.acquired.saturating_sub(released))
        }));
    }
    times.sort_unstable();
    let limit = *times.get(times.len() * 4 / 5).filter(|_| times.len() >= HANDOVERS)?;
    let what =
        format!("one of five of {} hand-overs took {:.0?} or more", times.len(), Duration::from_nanos(limit));
    let at = observed.sections.iter().map(|section| section.acquired).max().unwrap_or(0);
    (limit > nanos(HANDOVER)).then(|| Found::new(at, "slow", what))
}

#[cfg(test)]
mod tests {

    use super::{
        super::{configuration, plan::Action, site::Applied},
        *,
    };
    use crate::servers::pair::{Gap, SwitchOver};

    const S: u64 = 1_000_000_000;

    fn section(client: &str, acquiring: std::ops::Range<u64>, released: u64) -> Section {
        Section::new("n", client, Mode::Exclusive, acquiring).released(released).deadline(released + S)
    }

    fn kinds(observed: &Observed) -> Vec<&'static str> {
        kinds_on("redis", observed)
    }

    fn kinds_on(store: &str, observed: &Observed) -> Vec<&'static str> {
        let configuration = configuration::named(store).expect("it is in the list");
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
    fn a_lock_is_granted_after_a_switch_over_at_once_unless_releases_may_be_undone() {
        let sections = vec![section("p0.0.0", 0..S, 2 * S), section("p1.1.0", S..12 * S, 13 * S)];
        let kinds_after = |store, kills| {
            let action = Action::SwitchOver(SwitchOver { gap: Gap::ReadOnly, kills });
            let applied = vec![Applied { action, from: 3 * S, to: 5 * S }];
            kinds_on(store, &Observed { sections: sections.clone(), applied, ..Observed::default() })
        };
        assert_eq!(kinds_after("postgres_standby", false), ["idle"]);
        assert_eq!(kinds_after("postgres_standby", true), [""; 0]);
        assert_eq!(kinds_after("mariadb_replica", true), ["idle"]);
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
        observed.killed = vec![(7, S), (77, S)];
        assert_eq!(kinds(&observed), [""; 0], "it was granted to a client that was killed");
        observed.killed = vec![(7, S)];
        observed.applied =
            vec![Applied { action: Action::StopServers { first: 0, count: 1 }, from: S, to: 4 * S }];
        assert_eq!(kinds(&observed), [""; 0]);

        // Another process is killed.
        observed.sections[0].open = false;
        observed.processes = vec![(77, "p0.0".to_owned())];
        observed.applied = vec![Applied { action: Action::KillClient(1), from: S, to: 2 * S }];
        observed.shown.pop();
        assert_eq!(kinds(&observed), [""; 0], "the request has not ended");
        observed.ended.insert("host:77".to_owned(), 2 * S);
        assert_eq!(kinds(&observed), ["orphan"]);
        assert_eq!(kinds_on("azure", &observed), [""; 0], "it may have had the lease");
        observed.shown[0].span.1 = 20 * S;
        assert_eq!(kinds_on("azure", &observed), ["orphan"], "that lease has ended");
        observed.sections.push(section("p3.3.0", 19 * S..21 * S, 22 * S));
        assert_eq!(
            kinds_on("azure", &observed),
            [""; 0],
            "another client has the lease, and writes its record"
        );
        observed.sections.pop();
        // Nobody renews a grant that the network has lost, also while faults happen.
        observed.applied =
            vec![Applied { action: Action::StopServers { first: 0, count: 1 }, from: 0, to: 20 * S }];
        let of_server = |to| vec![Shown { owner: "host:99".to_owned(), ..shown(9, S, to) }];
        observed.shown = of_server(11 * S);
        assert_eq!(kinds_on("http_languages", &observed), [""; 0]);
        observed.shown = of_server(13 * S);
        assert_eq!(kinds_on("http_languages", &observed), ["orphan"], "it was renewed");
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
    fn a_loss_without_a_fault_is_found() {
        let mut lost = Section::new("n", "p0.0.3", Mode::Exclusive, 0..2 * S).deadline(4 * S);
        lost.lost = Some(3 * S);
        let mut observed = Observed { sections: vec![lost], ..Observed::default() };
        assert_eq!(kinds(&observed), ["loss"]);
        let fault = |from, to| Applied { action: Action::KillServer(0), from, to };
        observed.applied = vec![fault(0, S / 2), fault(3 * S, 4 * S)];
        assert_eq!(kinds(&observed), ["loss"], "these faults were before its claim, and after it");
        observed.applied = vec![fault(S, 2 * S + 1)];
        assert_eq!(kinds(&observed), [""; 0]);
        observed.applied = vec![fault(0, S)];
        assert_eq!(kinds(&observed), [""; 0], "the claim was delayed");
        observed.applied = vec![Applied { action: Action::Crowd(0, 9), from: S, to: 4 * S }];
        assert_eq!(kinds(&observed), ["loss"], "a crowd is no fault");
        observed.applied[0].action = Action::Rush(0, 9);
        assert_eq!(kinds(&observed), ["loss"], "nor is a rush");
        observed.applied[0].action = Action::StopClient(1);
        assert_eq!(kinds(&observed), ["loss"], "a fault of another process");
        observed.applied[0].action = Action::StopClient(0);
        assert_eq!(kinds(&observed), [""; 0]);
    }

    #[test]
    fn an_election_after_a_fault_of_a_server_explains_a_loss() {
        let mut lost = Section::new("n", "p0.0.3", Mode::Exclusive, 2 * S..3 * S).deadline(4 * S);
        lost.lost = Some(4 * S);
        lost.invoked = 2 * S - S / 4;
        let fault = Applied { action: Action::StopServers { first: 0, count: 3 }, from: S, to: S + S / 2 };
        let observed = Observed { sections: vec![lost], applied: vec![fault], ..Observed::default() };
        assert_eq!(kinds(&observed), ["loss"]);
        let found = check(&observed, &configuration::ZOOKEEPER, true);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn slow_hand_overs_are_found_unless_a_fault_explains_them() {
        let hold =
            |number: u64, gap: u64| section("p0.0.0", number * S..(number + 1) * S + gap, (number + 2) * S);
        let of_gap = |gap: u64| (0..60).map(|number| hold(number, gap)).collect();
        let mut observed = Observed { sections: of_gap(S / 12), ..Observed::default() };
        assert_eq!(kinds(&observed), [""; 0]);
        observed.sections = of_gap(S / 8);
        assert_eq!(kinds(&observed), ["slow"]);
        observed.sections.truncate(HANDOVERS);
        assert_eq!(kinds(&observed), [""; 0], "these are too few");
        observed.sections = of_gap(S / 8);
        observed.stalls.insert("p0.0".to_owned(), vec![(0, 60 * S)]);
        assert_eq!(kinds(&observed), [""; 0]);
    }

    #[test]
    fn a_late_loss_is_found_unless_its_process_was_stopped() {
        let mut late = Section::new("n", "p0.0.3", Mode::Exclusive, 0..S).deadline(2 * S);
        late.lost = Some(4 * S);
        let mut observed = Observed { sections: vec![late], ..Observed::default() };
        assert_eq!(kinds(&observed), ["late loss", "loss"]);
        observed.stalls.insert("p0.0".to_owned(), vec![(S, 4 * S - 1)]);
        assert_eq!(kinds(&observed), [""; 0]);
    }
}
