//! The contract of conversions: the change of the mode of a hold.

use std::{fmt, time::Duration};

use async_trait::async_trait;

use crate::{FencingToken, LostReason, Mode, Request, Result};

/// A change of the mode of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Conversion {
    /// The token of the hold. The store changes nothing if the hold has another one.
    pub from: FencingToken,
    /// The mode of the hold, as far as core knows: the hold may have a stronger one in the store.
    pub held: Mode,
    /// The new mode: it covers `held`, or `held` covers it.
    pub to: Mode,
    /// True if new requests in a mode that conflicts with `to` are to wait until this conversion has ended.
    pub waits: bool,
}

impl Conversion {
    /// Creates a conversion of the hold with the token `from`.
    #[must_use]
    pub const fn new(from: FencingToken, held: Mode, to: Mode) -> Self {
        Self { from, held, to, waits: false }
    }

    /// Returns the same conversion with this value of [`waits`](#structfield.waits).
    #[must_use]
    pub const fn waits(self, waits: bool) -> Self {
        Self { waits, ..self }
    }

    /// Returns true if the new mode excludes more than the present one, so that other holders may be in its way.
    #[must_use]
    pub const fn is_upgrade(&self) -> bool {
        !self.held.covers(self.to)
    }

    /// Returns true if core sends such a conversion for a hold that was claimed in the mode `claimed`. A store that others call without core,
    /// such as a lock service, refuses any other one.
    ///
    /// A hold in [`Mode::Null`] excludes nobody, so no other hold is converted to it. Some stores rely on that: a hold that was claimed in
    /// [`Mode::Exclusive`] keeps a place that only one hold can have, and in NL it would be beside the next one.
    #[must_use]
    pub fn is_possible(&self, claimed: Mode) -> bool {
        let Self { held, to, .. } = *self;
        let is_change = to.covers(held) || held.covers(to);
        // From NL to NL: the end of an upgrade that has failed.
        is_change && (held != Mode::Null || claimed == Mode::Null) && (to != Mode::Null || held == Mode::Null)
    }

    /// Returns the bits of the modes of a hold that waits for this conversion: see [`Mode::from_bits`].
    #[must_use]
    pub const fn waiting_bits(&self) -> u8 {
        self.held.bit() | self.to.bit()
    }
}

/// The outcome of a conversion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConversionOutcome {
    /// The hold has the new mode, and this token.
    Converted(FencingToken),
    /// Another holder is in the way, and the hold keeps its mode and its token. The conversion is to be repeated, after this time at the
    /// latest.
    Blocked {
        /// The time until the lease of another holder ends.
        recheck_after: Duration,
    },
    /// Another holder waits for a conversion that this hold is in the way of, and this one would wait for that. The hold keeps its mode and
    /// its token.
    Deadlock,
    /// The hold has this token: an earlier conversion without a reply was carried out.
    OtherToken(FencingToken),
    /// There is no hold of the request, or it was marked as broken.
    Lost(LostReason),
}

/// The optional operation that changes the mode of a hold.
///
/// Each conversion that is carried out draws a new token, like a grant, and is as durable as one. It names the token before it, so a copy
/// that arrives late, after another conversion of the same hold, changes nothing.
///
/// Another process may adopt the hold with the token that it has. So a copy that arrives after its caller has given up has no effect, either:
/// it would change the mode of a hold that was confirmed since.
#[async_trait]
pub trait Convert: fmt::Debug + Send + Sync + 'static {
    /// Changes the mode of the hold of `request`, in one atomic step, by the rule of [`queue::conversion`](crate::queue::conversion).
    ///
    /// * A downgrade ([`Conversion::is_upgrade`] is false) is always carried out. It also ends a conversion of this hold that waits. The
    ///   waiters that can hold the lock then are granted it in turn.
    /// * An upgrade is carried out if no other holder is in its way. Waiters never are. Otherwise, if it [waits](Conversion::waits), the
    ///   store marks the hold: other requests are treated as if it had the new mode. A keep-alive extends the mark with the hold.
    /// * The identity of the hold, its lease and its place among the holders stay the same.
    ///
    /// Core sends one conversion of a hold at a time, and only while it holds the lock, and only [possible](Conversion::is_possible) ones.
    ///
    /// # Errors
    /// An error means *unknown*. Core repeats the conversion after a temporary one.
    async fn convert(&self, request: &Request, conversion: &Conversion) -> Result<ConversionOutcome>;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_hold_becomes_null_only_if_it_was_claimed_as_that() {
        let is_possible =
            |claimed, held, to| Conversion::new(FencingToken::new(1).unwrap(), held, to).is_possible(claimed);
        let (exclusive, shared, null) = (Mode::Exclusive, Mode::Shared, Mode::Null);
        for (claimed, held, to) in [
            (exclusive, exclusive, shared),
            (exclusive, shared, exclusive),
            (shared, shared, exclusive),
            (shared, shared, shared),
            (null, null, exclusive),
            (null, null, null),
        ] {
            assert!(is_possible(claimed, held, to), "{claimed}: {held} to {to}");
        }
        for (claimed, held, to) in [
            (exclusive, exclusive, null),
            (exclusive, null, null),
            (exclusive, null, exclusive),
            (shared, shared, null),
            (null, exclusive, null),
            (exclusive, shared, Mode::ConcurrentWrite),
        ] {
            assert!(!is_possible(claimed, held, to), "{claimed}: {held} to {to}");
        }
    }
}
