//! The values that several bodies contain.

use polylock_core::{FencingToken, LockName, Mode, UnknownMode};

use crate::InvalidBody;

pub(crate) fn name_of(text: &str) -> Result<LockName, InvalidBody> {
    LockName::from_store(text).map_err(|error| InvalidBody::new("name", error.to_string()))
}

pub(crate) fn mode_of(text: &str) -> Result<Mode, InvalidBody> {
    text.parse().map_err(|error: UnknownMode| InvalidBody::new("mode", error.to_string()))
}

pub(crate) fn token_of(token: u64) -> Result<FencingToken, InvalidBody> {
    let token = i64::try_from(token).ok().and_then(FencingToken::new);
    token.ok_or_else(|| InvalidBody::new("token", "not a fencing token"))
}
