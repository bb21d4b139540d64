//! The six modes of the VMS lock manager and their conflict table.

use std::{fmt, str::FromStr};

/// The mode in which a lock is held, after the [VMS distributed lock manager].
///
/// Most programs need two: [`Exclusive`](Mode::Exclusive) and [`Shared`](Mode::Shared). The table shows which modes of two holders
/// are compatible (`+`) and which conflict (`-`):
///
/// |    | NL | CR | CW | PR | PW | EX |
/// |----|----|----|----|----|----|----|
/// | NL | +  | +  | +  | +  | +  | +  |
/// | CR | +  | +  | +  | +  | +  | -  |
/// | CW | +  | +  | +  | -  | -  | -  |
/// | PR | +  | +  | -  | +  | -  | -  |
/// | PW | +  | +  | -  | -  | -  | -  |
/// | EX | +  | -  | -  | -  | -  | -  |
///
/// A store receives two numbers, [`bit`](Mode::bit) and [`conflicts`](Mode::conflicts), and evaluates `(bit & conflicts) != 0`; it
/// does not need the table.
///
/// [VMS distributed lock manager]: https://en.wikipedia.org/wiki/Distributed_lock_manager
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Mode {
    /// NL: interest only, conflicts with nothing.
    Null,
    /// CR: reads while others may write.
    ConcurrentRead,
    /// CW: writes while others may write.
    ConcurrentWrite,
    /// PR: reads while no other holder writes; the usual shared lock.
    Shared,
    /// PW: writes while other holders may only read without protection.
    ProtectedWrite,
    /// EX: reads and writes alone; the usual lock.
    #[default]
    Exclusive,
}

impl Mode {
    /// All six modes, weakest first.
    pub const ALL: [Self; 6] = [
        Self::Null,
        Self::ConcurrentRead,
        Self::ConcurrentWrite,
        Self::Shared,
        Self::ProtectedWrite,
        Self::Exclusive,
    ];

    /// Returns the bit of this mode in a store: NL 1, CR 2, CW 4, PR 8, PW 16, EX 32.
    #[must_use]
    pub const fn bit(self) -> u8 {
        1 << self as u8
    }

    /// Returns the bits of the modes that conflict with this one.
    #[must_use]
    pub const fn conflicts(self) -> u8 {
        const CR: u8 = Mode::ConcurrentRead.bit();
        const CW: u8 = Mode::ConcurrentWrite.bit();
        const PR: u8 = Mode::Shared.bit();
        const PW: u8 = Mode::ProtectedWrite.bit();
        const EX: u8 = Mode::Exclusive.bit();
        match self {
            Self::Null => 0,
            Self::ConcurrentRead => EX,
            Self::ConcurrentWrite => PR | PW | EX,
            Self::Shared => CW | PW | EX,
            Self::ProtectedWrite => CW | PR | PW | EX,
            Self::Exclusive => CR | CW | PR | PW | EX,
        }
    }

    /// Returns true if two holders in these modes exclude each other.
    #[must_use]
    pub const fn conflicts_with(self, other: Self) -> bool {
        self.conflicts() & other.bit() != 0
    }

    /// Returns true if `self` permits everything that `other` permits: it excludes at least the same modes.
    #[must_use]
    pub const fn covers(self, other: Self) -> bool {
        self.conflicts() & other.conflicts() == other.conflicts()
    }

    /// Returns the mode for the ancestors of a node of a [tree](crate::Locks::tree) that is held in this mode. There is none for a mode that
    /// conflicts with another one whose intention mode does not: PW, for example, conflicts with PR, but not with CR.
    pub(crate) const fn intention(self) -> Option<Self> {
        match self {
            Self::Shared => Some(Self::ConcurrentRead),
            Self::Exclusive => Some(Self::ConcurrentWrite),
            Self::Null | Self::ConcurrentRead | Self::ConcurrentWrite | Self::ProtectedWrite => None,
        }
    }

    /// Returns the mode with this [`bit`](Mode::bit), if there is one.
    #[must_use]
    pub fn from_bit(bit: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.bit() == bit)
    }

    /// Returns the mode of a hold from the bits that a store keeps for it, if they are valid. The least one is its mode. A second one is the
    /// mode to which it is to be converted, and which every request in a conflicting mode waits for: it covers the mode of the hold, so
    /// its bit is greater.
    #[must_use]
    pub fn from_bits(bits: u8) -> Option<Self> {
        let may_wait =
            |mode: Self| Self::ALL.into_iter().any(|to| to.covers(mode) && mode.bit() | to.bit() == bits);
        Self::ALL.into_iter().find(|mode| may_wait(*mode))
    }

    /// Returns the two letters of the VMS name.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Null => "NL",
            Self::ConcurrentRead => "CR",
            Self::ConcurrentWrite => "CW",
            Self::Shared => "PR",
            Self::ProtectedWrite => "PW",
            Self::Exclusive => "EX",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.code())
    }
}

impl FromStr for Mode {
    type Err = UnknownMode;

    /// Parses the two letters, or `exclusive` and `shared`, in either case.
    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        Self::ALL
            .into_iter()
            .find(|mode| mode.code().eq_ignore_ascii_case(text))
            .or_else(|| text.eq_ignore_ascii_case("exclusive").then_some(Self::Exclusive))
            .or_else(|| text.eq_ignore_ascii_case("shared").then_some(Self::Shared))
            .ok_or_else(|| UnknownMode(text.to_owned()))
    }
}

/// The error for a text that names no mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a lock mode: use NL, CR, CW, PR (shared), PW or EX (exclusive)")]
pub struct UnknownMode(String);

#[cfg(test)]
mod tests {
    use super::*;

    /// A transcript of the published table: `+` is compatible, `-` conflicts.
    const TABLE: [&str; 6] = ["++++++", "+++++-", "+++---", "++-+--", "++----", "+-----"];

    #[test]
    fn every_pair_is_as_published_and_symmetric() {
        for (row, a) in TABLE.iter().zip(Mode::ALL) {
            for (cell, b) in row.chars().zip(Mode::ALL) {
                assert_eq!(a.conflicts_with(b), cell == '-', "{a} and {b}");
                assert_eq!(a.conflicts_with(b), b.conflicts_with(a), "{a} and {b} both ways");
            }
        }
    }

    #[test]
    fn only_null_and_concurrent_read_can_overtake_a_waiter() {
        // `c` overtakes the waiter `b` behind the holder `a`: `a` conflicts with `b`, and `c` with neither.
        let overtakers: Vec<Mode> = Mode::ALL
            .into_iter()
            .filter(|&c| {
                Mode::ALL.into_iter().any(|b| {
                    !b.conflicts_with(c)
                        && Mode::ALL.into_iter().any(|a| a.conflicts_with(b) && !a.conflicts_with(c))
                })
            })
            .collect();
        assert_eq!(overtakers, [Mode::Null, Mode::ConcurrentRead]);
    }

    #[test]
    fn an_intention_mode_conflicts_with_the_same_modes_of_an_ancestor() {
        let nodes = || Mode::ALL.into_iter().filter_map(|mode| Some((mode, mode.intention()?)));
        for (ancestor, ancestor_intention) in nodes() {
            for (node, intention) in nodes() {
                assert_eq!(
                    intention.conflicts_with(ancestor),
                    node.conflicts_with(ancestor),
                    "{node} below {ancestor}"
                );
                assert!(
                    !intention.conflicts_with(ancestor_intention),
                    "{node} and {ancestor} in two branches"
                );
            }
        }
        assert_eq!(nodes().count(), 2);
    }

    #[test]
    fn bits_codes_and_names_convert_back() {
        for mode in Mode::ALL {
            assert_eq!(Mode::from_bit(mode.bit()), Some(mode));
            assert_eq!(mode.code().to_lowercase().parse(), Ok(mode));
            assert!(mode.covers(Mode::Null) && Mode::Exclusive.covers(mode) && mode.covers(mode));
            for stronger in Mode::ALL.into_iter().filter(|stronger| stronger.covers(mode)) {
                assert_eq!(Mode::from_bits(mode.bit() | stronger.bit()), Some(mode), "{mode} to {stronger}");
            }
            assert_eq!(Mode::from_bits(mode.bit() | 64), None);
        }
        assert!(!Mode::Shared.covers(Mode::ProtectedWrite));
        assert!("XX".parse::<Mode>().is_err());
    }
}
