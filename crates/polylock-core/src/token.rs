//! The fencing token: the number by which a protected resource distinguishes a late writer from the current holder.

use std::fmt;

/// A number that grows with every grant of a lock name, for the protected resource to check.
///
/// A lease alone can't stop a holder that was paused past its deadline in the middle of a write. The resource can: it stores the
/// greatest token it has seen and rejects a smaller one ([Kleppmann 2016]). Tokens of one name grow strictly, across release,
/// expiry and a crash of the holder, and also across a restart of the store if it has
/// [`Fencing::Durable`](crate::Fencing::Durable). Gaps have no meaning, and tokens of different names or stores are not comparable.
///
/// It fits a signed 64-bit column: [`as_i64`](Self::as_i64) is never negative.
///
/// [Kleppmann 2016]: https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FencingToken(i64);

impl FencingToken {
    /// Creates a token from `value`; `None` if it is negative or over `i64::MAX`, which no store may issue.
    #[must_use]
    pub fn new(value: impl TryInto<i64>) -> Option<Self> {
        value.try_into().ok().filter(|value| *value >= 0).map(Self)
    }

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.unsigned_abs()
    }

    /// Returns the number for a signed column; it is never negative.
    #[must_use]
    pub const fn as_i64(self) -> i64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> Self {
        token.get()
    }
}

impl From<FencingToken> for i64 {
    fn from(token: FencingToken) -> Self {
        token.0
    }
}
