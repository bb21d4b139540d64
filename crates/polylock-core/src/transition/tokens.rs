//! The token of a grant in both stores. The races are numbered in the [module](super).

use std::sync::Arc;

use crate::{
    Error, Fault, FencingToken, Operation, RaiseToken, Request, Result, Unavailable, bug::Bug,
    process::has_bug,
};

use super::capabilities::NAME;

/// The attempts to find a number that neither store has granted, before the store is reported as busy. Each is twice as far above the
/// last token as the one before, because others draw tokens in the meantime.
const ATTEMPTS: u32 = 16;

/// The greatest distance above the last token. Stores of which the tokens begin with the time draw fewer than one per microsecond.
const MAX_DISTANCE: u64 = 1024;

/// The tokens of the two stores.
#[derive(Debug, Clone)]
pub(super) struct Tokens {
    pub(super) old: Arc<dyn RaiseToken>,
    pub(super) new: Arc<dyn RaiseToken>,
}

impl Tokens {
    /// Returns the token of `request`, which holds the lock with the token `old` in the old store and `new` in the new one. Every later
    /// token of either store is greater, and every earlier one of the lock is smaller.
    ///
    /// # Errors
    /// The errors of a raise, and a temporary one if other requests are granted tokens too fast.
    pub(super) async fn of(
        &self,
        request: &Request,
        old: FencingToken,
        new: FencingToken,
    ) -> Result<FencingToken> {
        let mut token = old.max(new);
        let (mut raises_old, mut raises_new) = (old < token, new < token);
        if has_bug(Bug::UnraisedToken) {
            return Ok(token);
        }
        let may_repeat = !request.mode.conflicts_with(request.mode) && !has_bug(Bug::EqualTokens);
        for attempt in 0..ATTEMPTS {
            let mut last = None;
            if raises_old {
                last = last.max(Some(self.old.raise(request, token).await?));
            }
            if raises_new {
                last = last.max(Some(self.new.raise(request, token).await?));
            }
            match last.filter(|last| may_repeat && *last >= token) {
                None => return Ok(token),
                Some(last) => {
                    token = above(last, MAX_DISTANCE.min(1 << attempt))?;
                    (raises_old, raises_new) = (true, true);
                }
            }
        }
        Err(busy())
    }
}

fn above(last: FencingToken, distance: u64) -> Result<FencingToken> {
    last.get().checked_add(distance).and_then(FencingToken::new).ok_or_else(|| {
        let cause = "the fencing tokens of the two stores are used up";
        Unavailable::new(NAME, Operation::Claim, Fault::Permanent, cause).into()
    })
}

fn busy() -> Error {
    let cause = "other requests draw tokens too fast for one that both stores can continue after";
    Unavailable::new(NAME, Operation::Claim, Fault::Temporary, cause).into()
}
