//! The values that several bodies contain, from their texts.

use std::time::Duration;

use polylock_core::{FencingToken, Label, LockName, Mode, OwnerId, RequestId, UnknownMode, duration};

use crate::InvalidBody;

/// Returns the id of a request from its 32 hexadecimal digits.
///
/// # Errors
/// [`InvalidBody`] for another text.
pub fn id_of(text: &str) -> Result<RequestId, InvalidBody> {
    let id = u128::from_str_radix(text, 16).ok().filter(|_| text.len() == 32);
    let id = id.ok_or_else(|| InvalidBody::new("id", "not 32 hexadecimal digits: choose a random one"))?;
    Ok(RequestId::from_bytes(id.to_be_bytes()))
}

/// Returns the mode with this name.
///
/// # Errors
/// [`InvalidBody`] for an unknown mode.
pub fn mode_of(text: &str) -> Result<Mode, InvalidBody> {
    text.parse().map_err(|error: UnknownMode| InvalidBody::new("mode", error.to_string()))
}

/// Returns the mode with this name; exclusive without one.
///
/// # Errors
/// [`InvalidBody`] for an unknown mode.
pub fn mode_or_exclusive(text: Option<&str>) -> Result<Mode, InvalidBody> {
    text.map_or(Ok(Mode::Exclusive), mode_of)
}

/// Returns the time in `field`, if it has one.
///
/// # Errors
/// [`InvalidBody`] for another text than a [duration](duration::parse).
pub fn time_of(field: &'static str, text: Option<&str>) -> Result<Option<Duration>, InvalidBody> {
    text.map(|text| duration::parse(text).map_err(|problem| InvalidBody::new(field, problem))).transpose()
}

/// Returns the owner with this name.
///
/// # Errors
/// [`InvalidBody`] for an invalid name.
pub fn owner_of(text: &str) -> Result<OwnerId, InvalidBody> {
    OwnerId::new(text).map_err(|error| InvalidBody::new("owner", error.to_string()))
}

/// Returns the label with this text.
///
/// # Errors
/// [`InvalidBody`] for an invalid text.
pub fn label_of(text: &str) -> Result<Label, InvalidBody> {
    Label::new(text).map_err(|error| InvalidBody::new("label", error.to_string()))
}

pub(crate) fn name_of(text: &str) -> Result<LockName, InvalidBody> {
    LockName::from_store(text).map_err(|error| InvalidBody::new("name", error.to_string()))
}

/// Returns the fencing token with this number.
///
/// # Errors
/// [`InvalidBody`] for zero, and for a number above that of any token.
pub fn token_of(token: u64) -> Result<FencingToken, InvalidBody> {
    let token = i64::try_from(token).ok().and_then(FencingToken::new);
    token.ok_or_else(|| InvalidBody::new("token", "not a fencing token"))
}
