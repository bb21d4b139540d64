//! The steps of a move from one store to another.

/// The stores that a process uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// The old store alone.
    Old,
    /// Both, through the transitional store.
    Both,
    /// The new store alone.
    New,
}
