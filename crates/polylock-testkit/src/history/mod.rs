//! A recorder of critical sections, and a checker that verifies the promises on the recorded history.
//!
//! A history is a list of [`Section`]s. Each contains the times of one hold on one clock. The checks are pure functions over it, each a
//! sweep over the sorted sections, so a million sections take about a second:
//!
//! | check | violation |
//! |---|---|
//! | [`overlaps`] | two holds with conflicting modes overlapped |
//! | [`token_regressions`] | a later grant has a token that is not greater |
//! | [`repeated_tokens`] | two grants of one name have the same token |
//! | [`late_losses`] | a hold outlived its deadline unreported, or guarded work was polled after its end |
//! | [`inversions`] | a request was granted before a conflicting one that was already known to wait |
//!
//! There are no false positives: every time is recorded on the side on which it can only hide a fault, never cause one. A request with an
//! unknown outcome never opens a section, so the checks need no search over possible outcomes.
//!
//! Times are those of the machine's clock ([`SystemClock`](polylock_core::SystemClock)), which all processes of a machine share. Each
//! process can write its sections as lines of text, and the lines of all of them are one history.
//!
//! ```
//! use polylock_core::Mode;
//! use polylock_testkit::history::{self, Section};
//!
//! let first = Section::new("orders", "worker-1", Mode::Exclusive, 0..5).token(7).released(20).deadline(99);
//! let second = Section::new("orders", "worker-2", Mode::Exclusive, 8..12).token(8).released(30).deadline(99);
//! let found = history::check(&[first, second], history::Rules::default());
//! assert_eq!(found.len(), 1);
//! assert!(found[0].to_string().starts_with("overlap: "), "{}", found[0]);
//! ```

mod check;
#[cfg(test)]
mod fuzz;
mod recorder;
mod section;

pub use check::{
    Rules, Violation, check, check_with_stops, end_at_kills, inversions, late_losses, overlaps,
    repeated_tokens, token_regressions,
};
pub use recorder::{Attempt, Hold, Recorder};
pub use section::{BadLine, Section, read, write};
