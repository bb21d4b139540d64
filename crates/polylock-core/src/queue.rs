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

/// Another holder of a lock as input of the rule for conversions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OtherHolder {
    /// The mode of its hold.
    pub mode: Mode,
    /// The mode to which its hold is to be converted, if it waits for that.
    pub wanted: Option<Mode>,
}

impl OtherHolder {
    /// Returns the mode that other requests are checked against: the wanted one excludes all that the present one does.
    #[must_use]
    pub fn effective(self) -> Mode {
        self.wanted.unwrap_or(self.mode)
    }
}

/// The decision about the conversion of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConversionRule {
    /// It is carried out.
    Convert,
    /// It is not carried out, because of the mode of another holder. If it waits, its hold is marked, so that no new request overtakes it.
    Mark,
    /// It is not carried out, because another conversion is ahead. It gets no mark before that one has ended.
    Behind,
    /// It would never be carried out: another conversion waits for this holder, and this one would wait for that.
    Deadlock,
}

/// Returns the decision about the conversion of a hold from mode `held` to a stronger mode `to`, beside these other holders.
///
/// It is ahead of all waiters, as in the VMS lock manager, and behind a conversion of another holder that waits.
#[must_use]
pub fn conversion(others: &[OtherHolder], held: Mode, to: Mode) -> ConversionRule {
    let waits =
        |other: &OtherHolder, mode: Mode| other.wanted.is_some_and(|wanted| wanted.conflicts_with(mode));
    if !others.iter().any(|other| other.effective().conflicts_with(to)) {
        ConversionRule::Convert
    } else if others.iter().any(|other| waits(other, held)) {
        ConversionRule::Deadlock
    } else if others.iter().any(|other| waits(other, to)) {
        ConversionRule::Behind
    } else {
        ConversionRule::Mark
    }
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

    #[test]
    fn a_second_upgrader_of_two_readers_is_in_a_deadlock() {
        let reader = OtherHolder { mode: Mode::Shared, wanted: None };
        let upgrader = OtherHolder { wanted: Some(Mode::Exclusive), ..reader };
        let upgrade = |others: &[OtherHolder]| conversion(others, Mode::Shared, Mode::Exclusive);
        assert_eq!(upgrade(&[]), ConversionRule::Convert);
        assert_eq!(upgrade(&[reader]), ConversionRule::Mark);
        assert_eq!(upgrade(&[reader, upgrader]), ConversionRule::Deadlock);
        // An upgradeable reader beside readers, of which none can be upgraded.
        let protected = OtherHolder { mode: Mode::ProtectedWrite, wanted: None };
        assert_eq!(
            conversion(&[protected], Mode::ConcurrentRead, Mode::ProtectedWrite),
            ConversionRule::Mark
        );
        // The other conversion waits for a third holder, not for this one.
        let to_write = OtherHolder { mode: Mode::ConcurrentRead, wanted: Some(Mode::ConcurrentWrite) };
        assert_eq!(conversion(&[to_write], Mode::ConcurrentRead, Mode::Shared), ConversionRule::Behind);
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

        /// Conversions by the rule never leave conflicting holders, and of the conversions that wait none is in the way of another.
        #[test]
        fn converting_by_the_rule_keeps_the_invariants(
            steps in prop::collection::vec(
                (0_usize..4, prop::sample::select(&Mode::ALL[..]), any::<bool>()), 0..80),
        ) {
            let mut holders: Vec<OtherHolder> = vec![OtherHolder { mode: Mode::Null, wanted: None }; 4];
            for (at, to, leaves) in steps {
                let OtherHolder { mode, wanted } = holders[at];
                if leaves {
                    holders[at] = OtherHolder { mode: Mode::Null, wanted: None };
                } else if mode.covers(to) {
                    holders[at] = OtherHolder { mode: to, wanted: None };
                } else if to.covers(mode) && wanted.is_none_or(|wanted| wanted == to) {
                    let others: Vec<OtherHolder> =
                        holders.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, holder)| *holder).collect();
                    match conversion(&others, mode, to) {
                        ConversionRule::Convert => holders[at] = OtherHolder { mode: to, wanted: None },
                        ConversionRule::Mark => holders[at].wanted = Some(to),
                        ConversionRule::Behind | ConversionRule::Deadlock => {}
                    }
                }
                prop_assert!(invariant::holders_are_compatible(holders.iter().map(|holder| holder.mode)));
                for (one, holder) in holders.iter().enumerate() {
                    let ahead = holders.iter().enumerate().filter(|(other, _)| *other != one);
                    for wanted in ahead.filter_map(|(_, other)| other.wanted) {
                        let blocked = holder.wanted.is_some_and(|own| own.conflicts_with(wanted));
                        prop_assert!(!blocked, "{holders:?}");
                    }
                }
            }
        }
    }
}
