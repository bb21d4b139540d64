//! The fencing token: the number by which a protected resource tells a late writer from the present holder.

use std::fmt;

/// A number that grows with every grant of a lock name, for the protected resource to check.
///
/// A lease alone can't stop a holder that was paused past its deadline in the middle of a write. The resource
/// can: it keeps the highest token it has seen and refuses a smaller one ([Kleppmann 2016]). Tokens of one name
/// grow strictly, over release, expiry, a crash of the holder and a restart of the store; the gaps mean nothing,
/// and tokens of different names or stores do not compare.
///
/// It fits a signed 64-bit column: [`as_i64`](Self::as_i64) is never negative.
///
/// [Kleppmann 2016]: https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FencingToken(i64);

impl FencingToken {
    /// The token `value`; `None` if it is negative or over `i64::MAX`, which no store may hand out.
    #[must_use]
    pub fn new(value: impl TryInto<i64>) -> Option<Self> {
        value.try_into().ok().filter(|value| *value >= 0).map(Self)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.unsigned_abs()
    }

    /// The number for a signed column; never negative.
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
