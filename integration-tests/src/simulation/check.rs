//! The promises that are checked after a run, and during its last part.

use std::time::Duration;

use polylock_testkit::history::{self, Rules, Section};

use super::{
    network::{Network, nanos},
    plan::{FAULTS_END, Plan, StoreKind},
    record::{Kept, Loss, Record},
    servers::Events,
    violation::Violation,
};

/// The shortest lease of which a renewal can be repeated, in round trips.
const ROUND_TRIPS: u32 = 10;

/// The shortest lease of any client.
const SHORTEST_DRAWN: Duration = Duration::from_millis(200);

/// The time in which a renewal is due, sent and applied besides the round trip.
const SCHEDULED: Duration = Duration::from_millis(50);

/// The time after a fault in which a connection is replaced.
const RECONNECTED: Duration = Duration::from_secs(2);

/// Checks the sections of a run. A running process reports a loss within `tolerance`. `stops` contains the times in which a client's
/// process was paused: it reports a loss right after.
#[must_use]
pub fn sections(
    sections: &[Section],
    tolerance: Duration,
    stops: impl Fn(&Section) -> Vec<(u64, u64)>,
) -> Vec<history::Violation> {
    let mut rules = Rules::default();
    rules.tolerance = tolerance;
    history::check_with_stops(sections, rules, stops)
}

/// The same for holds that processes share: each reports its losses, and the hold excludes others as one. `merged` has one section for each
/// hold.
#[must_use]
pub fn shared_sections(
    each: &[Section],
    merged: &[Section],
    tolerance: Duration,
    stops: impl Fn(&Section) -> Vec<(u64, u64)>,
) -> Vec<history::Violation> {
    let of_one = |violation: &history::Violation| {
        matches!(violation, history::Violation::LateLoss { .. } | history::Violation::LatePoll { .. })
    };
    let mut found = sections(each, tolerance, &stops);
    found.retain(of_one);
    let merged = sections(merged, tolerance, &stops);
    found.extend(merged.into_iter().filter(|violation| !of_one(violation)));
    found
}

/// Returns the broken promises that the records of the clients show.
#[must_use]
pub fn records(record: &Record, plan: &Plan, network: &Network) -> Vec<Violation> {
    // A hold that its process renews in the background is lost without a word, if a fault prevents that. In ZooKeeper its lease counts from an
    // earlier packet of the session.
    let may_be_lost = |at: u64, Kept { renewed_by: (process, lease), time, .. }: &Kept| {
        let (at, since) = (Duration::from_nanos(at), Duration::from_nanos(time.start).saturating_sub(*lease));
        plan.is_disturbed(*process, (since, at))
            || plan.is_noisy && since < plan.time(FAULTS_END)
            || plan.store == StoreKind::Zookeeper && at < plan.disturbed_until(at)
    };
    let early = record.taken_early().into_iter().filter(|(at, kept, _)| !may_be_lost(*at, kept));
    let early = early.map(|(at, _, what)| Violation::new(at, "early end", format!("early end: {what}")));
    early.chain(record.losses.iter().filter_map(|loss| unexplained(loss, plan, network))).collect()
}

/// Returns a violation if no fault of the run explains `loss`: its renewals had the time for another attempt.
fn unexplained(
    Loss { at, process, lease, what }: &Loss,
    plan: &Plan,
    network: &Network,
) -> Option<Violation> {
    let one_server = plan.servers == 1;
    let round_trip = if one_server { network.round_trip_of(*process) } else { network.round_trip() };
    let needed = match plan.store {
        // The keeper repeats a renewal after a sixth of the lease, whatever has become of the one before.
        StoreKind::Queue | StoreKind::Both => *lease / 6 + round_trip + SCHEDULED,
        // The lease of a hold counts from an earlier packet of its session.
        StoreKind::Zookeeper => return None,
        // A broken connection has to be noticed and replaced.
        _ => *lease * 2 / 3 + plan.time(RECONNECTED),
    };
    // A request that a connection answers too late for its lease replaces the connection, which others share.
    let is_queue = matches!(plan.store, StoreKind::Queue | StoreKind::Both);
    let shortest = if is_queue { *lease } else { *lease.min(&SHORTEST_DRAWN) };
    if shortest < ROUND_TRIPS * round_trip {
        return None;
    }
    let at_time = Duration::from_nanos(*at);
    let since = at_time.saturating_sub(needed);
    let is_explained = plan.is_disturbed(*process, (since, at_time))
        || plan.is_noisy && since < plan.time(FAULTS_END) + SCHEDULED;
    let what = format!("loss: {what}, and there was no fault since {since:?}");
    (!is_explained).then(|| Violation::new(*at, "loss", what))
}

/// Returns the holds that were broken, and went on although nothing prevented their holders from noticing: no fault, whose effects end after
/// `aftermath`. The longest time depends on the process; `None` if it is not known.
#[must_use]
pub fn unnoticed_breaks(
    plan: &Plan,
    events: &Events<'_>,
    aftermath: Duration,
    longest: impl Fn(usize) -> Option<Duration>,
) -> Vec<Violation> {
    // A release that overtakes the break at a majority of the servers ends the hold before a majority has marked it, and other processes that
    // share the hold are told of a release at their next renewal only.
    let is_overtaken = |(name, token, at): &&(String, u64, u64)| {
        let ended = events.record.holds.get(&(name.clone(), *token)).and_then(|hold| hold.ended);
        plan.store == StoreKind::Redlock && ended.is_some_and(|ended| ended < *at)
    };
    let marked = events.record.broken.iter().filter(|broken| !is_overtaken(broken));
    let holds = marked.flat_map(|(name, token, at)| {
        events.record.sections_of(name, *token).map(move |section| (name, section, at))
    });
    let unnoticed = holds.filter_map(|(name, section, at)| {
        let process = section.client[1..].split('.').next()?.parse::<usize>().ok()?;
        // The notice may precede the hold.
        let broken = Duration::from_nanos(section.acquired.max(*at));
        let (since, until) = (broken.saturating_sub(aftermath), broken + longest(process)?);
        let is_disturbed =
            plan.is_disturbed(process, (since, until)) || plan.is_noisy && since < plan.time(FAULTS_END);
        (section.end() > nanos(until) && !is_disturbed).then(|| {
            let what = format!("unnoticed break: {} holds {name} although it was broken", section.client);
            Violation::new(*at, "break", what)
        })
    });
    unnoticed.collect()
}

impl From<&history::Violation> for Violation {
    fn from(violation: &history::Violation) -> Self {
        Self::new(time_of(violation), kind(violation), violation.to_string())
    }
}

fn time_of(violation: &history::Violation) -> u64 {
    use history::Violation as V;
    match violation {
        V::Overlap { second, .. } | V::TokenRegression { second, .. } | V::RepeatedToken { second, .. } => {
            second.acquired
        }
        V::LateLoss { section } | V::LatePoll { section } => section.deadline,
        V::Inversion { overtook, .. } => overtook.acquired,
        _ => 0,
    }
}

const fn kind(violation: &history::Violation) -> &'static str {
    use history::Violation as V;
    match violation {
        V::Overlap { .. } => "overlap",
        V::TokenRegression { .. } | V::RepeatedToken { .. } => "token",
        V::LateLoss { .. } | V::LatePoll { .. } => "late loss",
        _ => "order",
    }
}
