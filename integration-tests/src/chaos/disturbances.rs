//! The times in which faults and load explain that a lock is granted late.

use std::time::Duration;

use polylock_testkit::history;

use super::{
    client::LOAD,
    configuration::Configuration,
    observed::{Observed, Span},
    plan::{Action, Kind, LONGEST_STEP},
    site::Applied,
};
use crate::{servers::pair::SwitchOver, simulation::network::nanos};

/// The least time for which many clients delay others. A killed process does not note the end of theirs.
const LOAD_LASTS: Duration = Duration::from_secs(5);

/// The times in which the store may grant late, or in another order: faults, and pauses of processes. They are sorted by their begin,
/// and each has the latest end of all up to it.
#[derive(Debug, Clone)]
pub(super) struct Disturbances(Vec<Span>);

impl Disturbances {
    /// The locks of killed clients are disturbed for `of_dead` after the kill.
    pub(super) fn of(observed: &Observed, configuration: &Configuration, of_dead: Duration) -> Self {
        let (lease, of_dead) = (nanos(configuration.longest_lease()), nanos(of_dead));
        let is_load = |fault: &&Applied| matches!(fault.action.kind(), Kind::Crowd | Kind::Rush);
        let faults = observed.applied.iter().filter(|fault| !is_load(fault));
        let faults = faults.map(|fault| match fault.action {
            // Its locks, and those that it is granted by its last messages, expire.
            Action::KillClient(_) => (fault.from, fault.to.saturating_add(of_dead)),
            Action::KillServer(_)
            | Action::RestoreServer(_)
            | Action::FillDisk(_)
            | Action::SwitchOver(SwitchOver { kills: true, .. })
                if configuration.restores =>
            {
                (fault.from, fault.to.saturating_add(lease))
            }
            // A lease may last longer by the step, after the clock is set back.
            Action::StepClock { .. } => (fault.from, fault.to.saturating_add(lease + nanos(LONGEST_STEP))),
            Action::StopServers { .. }
            | Action::KillServer(_)
            | Action::StartOtherwise { .. }
            | Action::RestoreServer(_)
            | Action::FillDisk(_)
            | Action::SwitchOver(_) => (fault.from, fault.to.saturating_add(nanos(configuration.election))),
            _ => (fault.from, fault.to),
        });
        Self::sorted(faults.chain(observed.stalls.values().flatten().copied()).collect())
    }

    /// Returns the faults that may cost this process a hold, and its pauses.
    pub(super) fn of_process(observed: &Observed, configuration: &Configuration, process: &str) -> Self {
        let number = process.split('.').next().and_then(|name| name.strip_prefix('p')?.parse().ok());
        let is_own = |other: usize| Some(other) == number;
        let concerns = |fault: &&Applied| match fault.action {
            // A process that is stopped in a write blocks the file.
            Action::StopClient(other) | Action::KillClient(other) => is_own(other) || configuration.is_file(),
            Action::Flow(route, ..) | Action::Cut(route, _) | Action::One(route, ..) => is_own(route.process),
            Action::Late(process, ..) => process.is_none_or(is_own),
            Action::Crowd(..) | Action::Rush(..) => false,
            _ => true,
        };
        let faults = observed.applied.iter().filter(concerns).copied().collect();
        let stalls = observed.stalls.get(process).map(|stalls| (process.to_owned(), stalls.clone()));
        let concerning =
            Observed { applied: faults, stalls: stalls.into_iter().collect(), ..Observed::default() };
        Self::of(&concerning, configuration, Duration::ZERO)
    }

    /// Returns these, each longer by `time`.
    pub(super) fn settling_for(&self, time: Duration) -> Self {
        Self::sorted(self.0.iter().map(|(from, to)| (*from, to.saturating_add(nanos(time)))).collect())
    }

    /// Returns these, and the times in which thousands of clients use the machine: a lock may be granted late, but none may be lost.
    pub(super) fn and_loads(&self, observed: &Observed) -> Self {
        let loads = observed.applied.iter().filter_map(|fault| match fault.action {
            Action::Crowd(_, count) | Action::Rush(_, count) if count >= LOAD => {
                Some((fault.from, fault.from + nanos(LOAD_LASTS)))
            }
            _ => None,
        });
        Self::sorted(self.0.iter().chain(&observed.loads).copied().chain(loads).collect())
    }

    fn sorted(mut spans: Vec<Span>) -> Self {
        spans.sort_unstable();
        let mut latest = 0;
        for (_, to) in &mut spans {
            latest = latest.max(*to);
            *to = latest;
        }
        Self(spans)
    }

    /// Returns the latest end of those that began before `at`, but no later time than `at`.
    pub(super) fn last_before(&self, at: u64) -> u64 {
        let begun = self.0.partition_point(|(from, _)| *from < at);
        self.0[..begun].last().map_or(0, |(_, to)| (*to).min(at))
    }

    /// Returns true if no part of this time has a disturbance.
    pub(super) fn are_absent(&self, (from, to): Span) -> bool {
        self.last_before(to) <= from
    }

    /// Returns true if no disturbance explains the violation: in one, an entry in the queue may have expired.
    pub(super) fn do_not_explain(&self, violation: &&history::Violation) -> bool {
        let history::Violation::Inversion { waited, overtook } = violation else { return true };
        self.are_absent((waited.invoked.min(overtook.invoked), waited.acquired.max(overtook.acquired)))
    }
}
