//! The grant rule as pure functions: the requests that may hold a lock, and the request that a waiter waits for.
//!
//! Stores, the history checker and the models share it. A store may implement it in SQL or Lua; the conformance suite checks that
//! the results agree.

use crate::Mode;

/// An entry of one lock as input of the rule, a holder or a waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueEntry {
    /// The number of the entry in order of arrival.
    pub seq: u64,
    /// The mode of the entry.
    pub mode: Mode,
    /// True if the entry holds the lock.
    pub held: bool,
}

/// Returns the entries that block one that arrived as `seq` with `mode`: every holder and every earlier waiter with a conflicting
/// mode.
///
/// The request is granted if and only if there is none. Holders and waiters count alike, so no request overtakes a waiter that it
/// conflicts with, and no writer starves behind a stream of readers.
pub fn blockers(entries: &[QueueEntry], seq: u64, mode: Mode) -> impl Iterator<Item = &QueueEntry> {
    entries.iter().filter(move |other| {
        other.seq != seq && (other.held || other.seq < seq) && mode.conflicts_with(other.mode)
    })
}

/// Returns the entry to wait for: the latest of the [`blockers`], so that one release wakes one waiter of a chain.
///
/// The waiter checks again when that entry has gone; `None` means that it is granted the lock.
#[must_use]
pub fn watched(entries: &[QueueEntry], seq: u64, mode: Mode) -> Option<&QueueEntry> {
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
            QueueEntry { seq: 1, mode: Mode::Shared, held: true },
            QueueEntry { seq: 2, mode: Mode::Exclusive, held: false },
            QueueEntry { seq: 3, mode: Mode::Shared, held: false },
        ];
        assert_eq!(watched(&entries, 2, Mode::Exclusive).map(|e| e.seq), Some(1));
        assert_eq!(watched(&entries, 3, Mode::Shared).map(|e| e.seq), Some(2));
        assert_eq!(watched(&entries, 4, Mode::Null), None);
    }

    proptest! {
        /// Grants by the rule, in any order of arrivals and steps, never leave conflicting holders or a free lock with waiters.
        #[test]
        fn granting_by_the_rule_keeps_the_invariants(
            modes in prop::collection::vec(prop::sample::select(&Mode::ALL[..]), 1..12),
            steps in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 0..60),
        ) {
            let mut entries: Vec<QueueEntry> = modes.iter().zip(1..)
                .map(|(&mode, seq)| QueueEntry { seq, mode, held: false }).collect();
            for (index, leave) in steps {
                if entries.is_empty() { break; }
                let at = index.index(entries.len());
                let entry = entries[at];
                if leave {
                    entries.remove(at);
                } else if watched(&entries, entry.seq, entry.mode).is_none() {
                    entries[at].held = true;
                }
                prop_assert!(invariant::holders_are_compatible(
                    entries.iter().filter(|e| e.held).map(|e| e.mode)));
                if let Some(first) = entries.first() {
                    let blocking = blockers(&entries, first.seq, first.mode).collect::<Vec<_>>();
                    prop_assert!(first.held || blocking.iter().all(|e| e.held), "the first waits for holders only");
                }
            }
        }
    }
}
