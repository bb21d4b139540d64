//! The checks. See the [module above](super).

use std::{collections::HashMap, fmt, time::Duration};

use polylock_core::{FencingToken, Mode, clock::Moment, invariant};

use super::Section;

/// The tolerances of a history.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Rules {
    /// The time after a deadline within which a loss may be reported: a busy machine needs it to run the task that records the loss. 250
    /// ms by default.
    pub tolerance: Duration,
}

impl Default for Rules {
    fn default() -> Self {
        Self { tolerance: Duration::from_millis(250) }
    }
}

/// A broken promise, with the sections that prove it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// Two holds with conflicting modes at the same time.
    Overlap {
        /// The hold that began first.
        first: Box<Section>,
        /// The hold that began during it.
        second: Box<Section>,
    },
    /// A token that is not greater than one that was certainly granted before.
    TokenRegression {
        /// The earlier grant.
        first: Box<Section>,
        /// The later grant.
        second: Box<Section>,
    },
    /// Two grants with the same token.
    RepeatedToken {
        /// One grant.
        first: Box<Section>,
        /// The other grant.
        second: Box<Section>,
    },
    /// A hold that was neither released nor reported as lost by its deadline.
    LateLoss {
        /// The hold.
        section: Box<Section>,
    },
    /// Guarded work was polled after the end of its hold.
    LatePoll {
        /// The hold.
        section: Box<Section>,
    },
    /// A later request was served before an earlier one with a conflicting mode.
    Inversion {
        /// The request that was known to wait.
        waited: Box<Section>,
        /// The request that came later and was served first.
        overtook: Box<Section>,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overlap { first, second } => write!(f, "overlap: {first} and {second}"),
            Self::TokenRegression { first, second } => {
                write!(f, "token does not grow: {first}, then {second}")
            }
            Self::RepeatedToken { first, second } => write!(f, "token repeated: {first} and {second}"),
            Self::LateLoss { section } => write!(f, "loss not reported by the deadline: {section}"),
            Self::LatePoll { section } => write!(f, "work polled after the end of its hold: {section}"),
            Self::Inversion { waited, overtook } => {
                write!(f, "served out of order: {overtook} before {waited}")
            }
        }
    }
}

/// Returns all violations in a history except for [`inversions`], which count only if the store promises an order.
#[must_use]
pub fn check(sections: &[Section], rules: Rules) -> Vec<Violation> {
    let mut found = overlaps(sections);
    found.extend(token_regressions(sections));
    found.extend(repeated_tokens(sections));
    found.extend(late_losses(sections, rules));
    found
}

/// Returns the violations that [`check`] returns, for clients in processes that were stopped: a process that does not run can't report
/// a loss, so it reports it within the tolerance after the stop. `stops` returns the times in which the process of a section was stopped,
/// each with its begin and its end.
#[must_use]
pub fn check_with_stops(
    sections: &[Section],
    rules: Rules,
    stops: impl Fn(&Section) -> Vec<(u64, u64)>,
) -> Vec<Violation> {
    let mut excused = sections.to_vec();
    for section in &mut excused {
        let within = |time: u64| (Moment::from_nanos(time) + rules.tolerance).as_nanos();
        let reported = section.lost.unwrap_or(u64::MAX).min(section.released.unwrap_or(u64::MAX));
        let was_stopped = |(from, to): &(u64, u64)| {
            *from <= within(section.deadline) && *to >= section.deadline && reported <= within(*to)
        };
        if reported > section.deadline && stops(section).iter().any(was_stopped) {
            section.lost = Some(section.deadline);
        }
    }
    check(&excused, rules)
}

/// Ends the holds of processes that were killed: a store may grant their locks at once. `killed_at` returns a time right before the process
/// of a section was killed, if it was.
pub fn end_at_kills(sections: &mut [Section], killed_at: impl Fn(&Section) -> Option<u64>) {
    for section in sections.iter_mut().filter(|section| section.open && section.released.is_none()) {
        section.released = killed_at(section);
    }
}

/// Returns the holds of one lock that overlap although their modes conflict.
#[must_use]
pub fn overlaps(sections: &[Section]) -> Vec<Violation> {
    let mut found = Vec::new();
    for mut lock in by_lock(sections) {
        lock.retain(|section| was_held(section));
        lock.sort_by_key(|section| section.acquired);
        // The hold of each mode that ends last so far.
        let mut last: [Option<&Section>; 6] = [None; 6];
        for section in lock {
            let overlapping = conflicting(section.mode, &last).find(|held| section.acquired < held.end());
            if let Some(first) = overlapping {
                let (first, second) = (Box::new(first.clone()), Box::new(section.clone()));
                found.push(Violation::Overlap { first, second });
            }
            let slot = &mut last[section.mode as usize];
            if slot.is_none_or(|held| held.end() < section.end()) {
                *slot = Some(section);
            }
        }
    }
    found
}

/// Returns the grants with a token that is not greater than the token of an earlier grant. A grant is certainly earlier if
/// - its client had it strictly before the other was invoked: two equal times prove no order;
/// - or their modes conflict and its client had it first: conflicting holds follow each other. A later client whose lease had ended before
///   it received the lock proves nothing: its grant may have been the earlier one.
#[must_use]
pub fn token_regressions(sections: &[Section]) -> Vec<Violation> {
    let mut found = Vec::new();
    for mut lock in by_lock(sections) {
        lock.retain(|section| section.token.is_some());
        let mut granted = lock.clone();
        granted.sort_by_key(|section| section.acquired);
        // The greatest token of each mode so far.
        let mut greatest: [Option<&Section>; 6] = [None; 6];
        let mut by_conflict = HashMap::new();
        let mut earlier = granted.iter().copied().peekable();
        for section in &granted {
            // Equal times prove no order.
            while let Some(before) = earlier.next_if(|before| before.acquired < section.acquired) {
                let slot = &mut greatest[before.mode as usize];
                if slot.is_none_or(|greatest| greatest.token < before.token) {
                    *slot = Some(before);
                }
            }
            let first = conflicting(section.mode, &greatest)
                .find(|first| was_held(section) && !grows(first.token, section.token));
            by_conflict.extend(first.map(|first| (std::ptr::from_ref(*section), first)));
        }
        lock.sort_by_key(|section| section.invoked);
        let mut granted = granted.into_iter().peekable();
        let mut highest: Option<&Section> = None;
        for section in lock {
            while let Some(earlier) = granted.next_if(|earlier| earlier.acquired < section.invoked) {
                if highest.is_none_or(|highest| highest.token < earlier.token) {
                    highest = Some(earlier);
                }
            }
            let by_time = highest.filter(|first| !grows(first.token, section.token));
            if let Some(first) = by_time.or(by_conflict.get(&std::ptr::from_ref(section)).copied()) {
                let (first, second) = (Box::new(first.clone()), Box::new(section.clone()));
                found.push(Violation::TokenRegression { first, second });
            }
        }
    }
    found
}

/// Returns the grants of one lock with the same token.
#[must_use]
pub fn repeated_tokens(sections: &[Section]) -> Vec<Violation> {
    let mut found = Vec::new();
    for mut lock in by_lock(sections) {
        lock.retain(|section| section.token.is_some());
        lock.sort_by_key(|section| section.token);
        for pair in lock.windows(2).filter(|pair| pair[0].token == pair[1].token) {
            let (first, second) = (Box::new(pair[0].clone()), Box::new(pair[1].clone()));
            found.push(Violation::RepeatedToken { first, second });
        }
    }
    found
}

/// Returns the holds that outlived their deadline unreported, and guarded work that was polled after the end.
///
/// A section that is still [`open`](Section::open) belongs to a client that died, which can't report anything.
#[must_use]
pub fn late_losses(sections: &[Section], rules: Rules) -> Vec<Violation> {
    let mut found = Vec::new();
    for section in sections.iter().filter(|section| !section.open) {
        let latest = (Moment::from_nanos(section.deadline) + rules.tolerance).as_nanos();
        let reported = section.released.unwrap_or(u64::MAX).min(section.lost.unwrap_or(u64::MAX));
        if reported > latest {
            found.push(Violation::LateLoss { section: Box::new(section.clone()) });
        }
        if section.polled.is_some_and(|polled| polled >= section.end()) {
            found.push(Violation::LatePoll { section: Box::new(section.clone()) });
        }
    }
    found
}

/// Returns the requests that were served before a conflicting request that was [known to wait](Section::queued) when they came.
///
/// Since conflicting holds do not overlap, the first of them to hold the lock was granted first. A waiter whose lease had ended before it
/// received the lock may have been granted it before.
#[must_use]
pub fn inversions(sections: &[Section]) -> Vec<Violation> {
    let mut found = Vec::new();
    for mut lock in by_lock(sections) {
        let mut waiting: Vec<&Section> =
            lock.iter().copied().filter(|waiter| waiter.queued.is_some() && was_held(waiter)).collect();
        waiting.sort_by_key(|section| section.queued);
        lock.sort_by_key(|section| section.invoked);
        let mut waiting = waiting.into_iter().peekable();
        // The last request of each mode that was served so far.
        let mut last: [Option<&Section>; 6] = [None; 6];
        for section in lock {
            while let Some(waiter) = waiting.next_if(|waiter| waiter.queued < Some(section.invoked)) {
                let slot = &mut last[waiter.mode as usize];
                if slot.is_none_or(|served| served.acquired < waiter.acquired) {
                    *slot = Some(waiter);
                }
            }
            let passed = conflicting(section.mode, &last).find(|waiter| section.acquired < waiter.acquired);
            if let Some(waited) = passed {
                let (waited, overtook) = (Box::new(waited.clone()), Box::new(section.clone()));
                found.push(Violation::Inversion { waited, overtook });
            }
        }
    }
    found
}

/// Returns false if the hold had ended before its client received it.
fn was_held(section: &Section) -> bool {
    section.acquired < section.end()
}

fn by_lock(sections: &[Section]) -> Vec<Vec<&Section>> {
    let mut locks: HashMap<&str, Vec<&Section>> = HashMap::new();
    for section in sections {
        locks.entry(&section.lock).or_default().push(section);
    }
    let mut locks: Vec<_> = locks.into_iter().collect();
    locks.sort_by_key(|(name, _)| *name);
    locks.into_iter().map(|(_, sections)| sections).collect()
}

fn conflicting<'s>(mode: Mode, of_mode: &[Option<&'s Section>; 6]) -> impl Iterator<Item = &'s Section> {
    Mode::ALL
        .into_iter()
        .zip(of_mode)
        .filter_map(move |(other, section)| section.filter(|_| mode.conflicts_with(other)))
}

/// Applies the invariant of the library itself. A number that is not a valid token does not grow.
fn grows(earlier: Option<u64>, later: Option<u64>) -> bool {
    let token = |value: Option<u64>| value.and_then(FencingToken::new);
    token(earlier).zip(token(later)).is_some_and(|(earlier, later)| invariant::token_grows(earlier, later))
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
