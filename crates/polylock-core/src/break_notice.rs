//! The order to break a lock, and the notice that the former holder receives.

use std::fmt;

use crate::{FencingToken, Label, OwnerId};

/// The owner that broke a lock, and the reason.
///
/// It is part of [`LostReason::Broken`](crate::LostReason::Broken), so it appears in the former holder's error and log.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub struct BreakNotice {
    /// The owner that broke the lock; `None` if the store does not know it, for example because its own tools were used.
    pub by: Option<OwnerId>,
    /// The reason, if one was given.
    pub reason: Option<Label>,
}

impl BreakNotice {
    /// Creates a notice from `by`.
    #[must_use]
    pub const fn new(by: OwnerId, reason: Option<Label>) -> Self {
        Self { by: Some(by), reason }
    }

    /// Returns the notice as one text, for stores that keep it in one field. [`from_text`](Self::from_text) parses it.
    #[must_use]
    pub fn to_text(&self) -> String {
        // Neither part contains a line feed: owners and labels have no control characters.
        let by = self.by.as_ref().map_or("", OwnerId::as_str);
        format!("{by}\n{}", self.reason.as_ref().map_or("", Label::as_str))
    }

    /// Parses [`to_text`](Self::to_text). Never fails, because other programs can write to the store, too.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        let (by, reason) = text.split_once('\n').unwrap_or((text, ""));
        Self {
            by: (!by.is_empty()).then(|| OwnerId::sanitized(by)),
            reason: (!reason.is_empty()).then(|| Label::sanitized(reason)),
        }
    }
}

impl fmt::Display for BreakNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.by {
            Some(by) => write!(f, "broken by {by}")?,
            None => f.write_str("broken")?,
        }
        self.reason.as_ref().map_or(Ok(()), |reason| write!(f, ": {}", reason.as_str()))
    }
}

/// An order to break a lock, as a store receives it in [`Inspect::break_lock`](crate::Inspect::break_lock).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BreakOrder {
    /// The notice for the former holders.
    pub notice: BreakNotice,
    /// The holds to be broken, by the tokens that inspection shows; `None` is a hold whose token the store does not know yet. A token
    /// belongs to one hold for ever, so a copy of the order that arrives late never breaks the next holder.
    pub targets: Vec<Option<FencingToken>>,
    /// True to remove the holds at once instead of marking them.
    pub force: bool,
}

impl BreakOrder {
    /// Creates a cooperative order: these holds are marked, and end when their holders have released them or their leases have expired.
    #[must_use]
    pub fn new(notice: BreakNotice, targets: impl IntoIterator<Item = Option<FencingToken>>) -> Self {
        Self { notice, targets: targets.into_iter().collect(), force: false }
    }

    /// Returns true if the hold with this token is to be broken.
    #[must_use]
    pub fn is_target(&self, token: Option<FencingToken>) -> bool {
        self.targets.contains(&token)
    }

    /// Returns the same order with force, which removes the holds at once.
    #[must_use]
    pub const fn force(mut self) -> Self {
        self.force = true;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_survives_its_text_form() {
        let by = OwnerId::new("host:1").unwrap();
        for notice in [
            BreakNotice::new(by.clone(), Some(Label::new("it hangs").unwrap())),
            BreakNotice::new(by, None),
            BreakNotice::default(),
        ] {
            assert_eq!(BreakNotice::from_text(&notice.to_text()), notice);
        }
    }

    #[test]
    fn a_forged_text_stays_on_one_line() {
        let notice = BreakNotice::from_text("evil\nlost\nk2: free\u{2028}x");
        assert_eq!(notice.to_string(), "broken by evil: lost\u{fffd}k2: free\u{fffd}x");
        assert_eq!(BreakNotice::from_text("").to_string(), "broken");
    }
}
