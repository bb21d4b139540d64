//! The invariants as pure predicates, shared by the code, the history checker and the models.

use crate::{FencingToken, Mode};

/// Exclusion: returns true if no two holders conflict.
#[must_use]
pub fn holders_are_compatible(holders: impl IntoIterator<Item = Mode>) -> bool {
    let mut held = 0;
    holders.into_iter().all(|mode| {
        let is_compatible = mode.conflicts() & held == 0;
        held |= mode.bit();
        is_compatible
    })
}

/// Fencing: returns true if the later grant has a strictly greater token.
#[must_use]
pub fn token_grows(earlier: FencingToken, later: FencingToken) -> bool {
    later > earlier
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_are_compatible_by_mode() {
        use Mode::{Exclusive, Null, Shared};
        assert!(holders_are_compatible([Shared, Shared, Null]));
        assert!(!holders_are_compatible([Shared, Exclusive]));
        assert!(!holders_are_compatible([Exclusive, Exclusive]));
    }
}
