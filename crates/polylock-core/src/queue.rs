//! The grant rule, pure: who may hold, and whom a waiter waits for.
//!
//! Stores, the history checker and the models share it. A store may put it into SQL or Lua; the conformance suite
//! holds it to the same answers.

use crate::Mode;

/// An entry of one lock as the rule sees it, holder or waiter alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standpoint {
    /// Its number in order of arrival.
    pub seq: u64,
    /// Its mode.
    pub mode: Mode,
    /// Whether it holds the lock.
    pub held: bool,
}

/// The entries that stand in the way of one that arrived as `seq` with `mode`: every holder, and every earlier
/// waiter, whose mode conflicts.
///
/// It is granted if and only if there is none. Holders and waiters count alike, so nobody overtakes a waiter that
/// it conflicts with, and no writer starves behind a stream of readers.
pub fn blockers(entries: &[Standpoint], seq: u64, mode: Mode) -> impl Iterator<Item = &Standpoint> {
    entries.iter().filter(move |other| {
        other.seq != seq && (other.held || other.seq < seq) && mode.conflicts_with(other.mode)
    })
}

/// Whom to wait for: the latest of the [`blockers`], so that one departure wakes one waiter of a chain.
///
/// It looks again when that one has gone; `None` means that the lock is its own.
#[must_use]
pub fn watched(entries: &[Standpoint], seq: u64, mode: Mode) -> Option<&Standpoint> {
    blockers(entries, seq, mode).max_by_key(|other| other.seq)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant;
    use proptest::prelude::*;

    #[test]
    fn a_reader_does_not_overtake_a_waiting_writer() {
        let entries = [
            Standpoint { seq: 1, mode: Mode::Shared, held: true },
            Standpoint { seq: 2, mode: Mode::Exclusive, held: false },
            Standpoint { seq: 3, mode: Mode::Shared, held: false },
        ];
        assert_eq!(watched(&entries, 2, Mode::Exclusive).map(|e| e.seq), Some(1));
        assert_eq!(watched(&entries, 3, Mode::Shared).map(|e| e.seq), Some(2));
        assert_eq!(watched(&entries, 4, Mode::Null), None);
    }

    proptest! {
        /// Any arrivals, granted by the rule in any order, never leave conflicting holders or a free lock unserved.
        #[test]
        fn granting_by_the_rule_keeps_the_invariants(
            modes in prop::collection::vec(prop::sample::select(&Mode::ALL[..]), 1..12),
            steps in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 0..60),
        ) {
            let mut entries: Vec<Standpoint> = modes.iter().zip(1..)
                .map(|(&mode, seq)| Standpoint { seq, mode, held: false }).collect();
            for (index, leave) in steps {
                if entries.is_empty() { break; }
                let at = index.index(entries.len());
                let me = entries[at];
                if leave {
                    entries.remove(at);
                } else if watched(&entries, me.seq, me.mode).is_none() {
                    entries[at].held = true;
                }
                prop_assert!(invariant::holders_are_compatible(
                    entries.iter().filter(|e| e.held).map(|e| e.mode)));
                if let Some(first) = entries.first() {
                    let in_the_way = blockers(&entries, first.seq, first.mode).collect::<Vec<_>>();
                    prop_assert!(first.held || in_the_way.iter().all(|e| e.held), "the first waits for holders only");
                }
            }
        }
    }
}
