//! What really happened, and whether it kept the promises: a recorder of critical sections and a checker.
//!
//! A history is a list of [`Section`]s, each with the moments of one hold on one clock. The checks are pure functions
//! over it, each a sweep over the sorted sections, so a million sections take about a second:
//!
//! | check | what it proves broken |
//! |---|---|
//! | [`overlaps`] | two holds whose modes conflict were there at once |
//! | [`token_regressions`] | a later grant has a token that is not greater |
//! | [`repeated_tokens`] | two grants of one name have the same token |
//! | [`late_losses`] | a hold outlived its deadline unreported, or guarded work began after its end |
//! | [`inversions`] | a request was granted before one that was known to wait already |
//!
//! None gives a false alarm: a moment is always on the side where it can only hide a fault, never invent one. What was
//! asked for with an unknown outcome never opens a section, so nothing has to be searched.
//!
//! Moments are those of the machine's clock ([`SystemClock`](polylock_core::SystemClock)), which all processes of a
//! machine share; each can write its sections as lines of text, and the lines of all of them are one history.
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
mod recorder;
mod section;

pub use check::{
    Rules, Violation, check, inversions, late_losses, overlaps, repeated_tokens, token_regressions,
};
pub use recorder::{Attempt, Hold, Recorder};
pub use section::{BadLine, Section, read, write};
