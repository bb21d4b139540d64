//! The checks. See the [module above](super).

use std::{collections::HashMap, fmt, time::Duration};

use polylock_core::{FencingToken, Mode, clock::Moment, invariant};

use super::Section;

/// What a history may do.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Rules {
    /// How late after a deadline a loss may be reported: what a busy machine needs to run the task that writes it
    /// down. 250 ms by default.
    pub tolerance: Duration,
}

impl Default for Rules {
    fn default() -> Self {
        Self { tolerance: Duration::from_millis(250) }
    }
}

/// A promise that was broken, with the sections that prove it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// Two holds whose modes conflict, at the same time.
    Overlap {
        /// Who held it first.
        first: Box<Section>,
        /// Who held it, too.
        second: Box<Section>,
    },
    /// A token that is not greater than one that was certainly handed out before.
    TokenRegression {
        /// Who was granted first.
        first: Box<Section>,
        /// Who was granted after that.
        second: Box<Section>,
    },
    /// Two grants with the same token.
    RepeatedToken {
        /// One.
        first: Box<Section>,
        /// The other.
        second: Box<Section>,
    },
    /// Neither released nor reported as lost by its deadline.
    LateLoss {
        /// The hold.
        section: Box<Section>,
    },
    /// Guarded work was polled after the end of its hold.
    LatePoll {
        /// The hold.
        section: Box<Section>,
    },
    /// Who came later was served first, though their modes conflict.
    Inversion {
        /// Who was known to wait.
        waited: Box<Section>,
        /// Who asked after that and was served before.
        overtook: Box<Section>,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overlap { first, second } => write!(f, "overlap: {first} with {second}"),
            Self::TokenRegression { first, second } => write!(f, "token not greater: {first} then {second}"),
            Self::RepeatedToken { first, second } => write!(f, "token repeated: {first} and {second}"),
            Self::LateLoss { section } => write!(f, "loss not reported by the deadline: {section}"),
            Self::LatePoll { section } => write!(f, "guarded work polled after the end: {section}"),
            Self::Inversion { waited, overtook } => write!(f, "order: {overtook} overtook {waited}"),
        }
    }
}

/// All that is wrong with a history, [`inversions`] aside: those only count where the store promises an order.
#[must_use]
pub fn check(sections: &[Section], rules: Rules) -> Vec<Violation> {
    let mut found = overlaps(sections);
    found.extend(token_regressions(sections));
    found.extend(repeated_tokens(sections));
    found.extend(late_losses(sections, rules));
    found
}

/// Holds of one lock that overlap though their modes conflict.
#[must_use]
pub fn overlaps(sections: &[Section]) -> Vec<Violation> {
    let mut found = Vec::new();
    for mut lock in by_lock(sections) {
        lock.retain(|section| section.acquired < section.end());
        lock.sort_by_key(|section| section.acquired);
        // Of each mode, the hold that ends last so far.
        let mut last: [Option<&Section>; 6] = [None; 6];
        for section in lock {
            let overlapping = conflicting(section.mode, &last).find(|held| section.acquired < held.end());
            if let Some(first) = overlapping {
                let (first, second) = (Box::new(first.clone()), Box::new(section.clone()));
                found.push(Violation::Overlap { first, second });
            }
            let mine = &mut last[section.mode as usize];
            if mine.is_none_or(|held| held.end() < section.end()) {
                *mine = Some(section);
            }
        }
    }
    found
}

/// Grants whose token is not greater than that of an earlier grant. Which one was earlier is certain if
/// - its client had it before the other was asked for, strictly: two moments that are equal prove no order;
/// - or their modes conflict and its client had it first: holds that conflict follow each other.
#[must_use]
pub fn token_regressions(sections: &[Section]) -> Vec<Violation> {
    let mut found = Vec::new();
    for mut lock in by_lock(sections) {
        lock.retain(|section| section.token.is_some());
        let mut granted = lock.clone();
        granted.sort_by_key(|section| section.acquired);
        // Of each mode, the greatest token so far.
        let mut greatest: [Option<&Section>; 6] = [None; 6];
        let mut by_conflict = HashMap::new();
        for section in &granted {
            let first = conflicting(section.mode, &greatest)
                .find(|first| first.acquired < section.acquired && !grows(first.token, section.token));
            by_conflict.extend(first.map(|first| (std::ptr::from_ref(*section), first)));
            let mine = &mut greatest[section.mode as usize];
            if mine.is_none_or(|greatest| greatest.token < section.token) {
                *mine = Some(section);
            }
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

/// Grants of one lock with the same token.
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

/// Holds that outlived their deadline unreported, and guarded work that was polled after the end.
///
/// A section that is still [`open`](Section::open) belongs to a client that died, which can report nothing.
#[must_use]
pub fn late_losses(sections: &[Section], rules: Rules) -> Vec<Violation> {
    let mut found = Vec::new();
    for section in sections.iter().filter(|section| !section.open) {
        let latest = (Moment::from_nanos(section.deadline) + rules.tolerance).as_nanos();
        let told = section.released.unwrap_or(u64::MAX).min(section.lost.unwrap_or(u64::MAX));
        if told > latest {
            found.push(Violation::LateLoss { section: Box::new(section.clone()) });
        }
        if section.polled.is_some_and(|polled| polled >= section.end()) {
            found.push(Violation::LatePoll { section: Box::new(section.clone()) });
        }
    }
    found
}

/// Requests that were served before one that conflicts with them and was [known to wait](Section::queued) when they
/// came.
///
/// As holds that conflict do not overlap, who has the lock first was granted first.
#[must_use]
pub fn inversions(sections: &[Section]) -> Vec<Violation> {
    let mut found = Vec::new();
    for mut lock in by_lock(sections) {
        let mut waiting: Vec<&Section> = lock.iter().copied().filter(|s| s.queued.is_some()).collect();
        waiting.sort_by_key(|section| section.queued);
        lock.sort_by_key(|section| section.invoked);
        let mut waiting = waiting.into_iter().peekable();
        // Of each mode, the one that was served last so far.
        let mut last: [Option<&Section>; 6] = [None; 6];
        for section in lock {
            while let Some(waiter) = waiting.next_if(|waiter| waiter.queued < Some(section.invoked)) {
                let mine = &mut last[waiter.mode as usize];
                if mine.is_none_or(|served| served.acquired < waiter.acquired) {
                    *mine = Some(waiter);
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

/// As the code's own invariant has it. A number that is no token at all does not grow.
fn grows(earlier: Option<u64>, later: Option<u64>) -> bool {
    let token = |value: Option<u64>| value.and_then(FencingToken::new);
    token(earlier).zip(token(later)).is_some_and(|(earlier, later)| invariant::token_grows(earlier, later))
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
