//! The prefix of the tables' names, the same rule for every database.

use polylock_core::ConfigError;

/// The prefix if nothing is said.
pub(crate) const DEFAULT: &str = "polylock";
/// The longest prefix, in bytes: with what is put behind it, it is a name for every database.
pub(crate) const MAX_BYTES: usize = 41;

/// The names of the tables are put into statements as they are, so nothing but plain names may pass.
pub(crate) fn check(prefix: &str) -> Result<(), ConfigError> {
    if !is_plain(prefix) || prefix.to_ascii_lowercase().starts_with("sqlite_") {
        return Err(ConfigError::new(
            "polylock.table",
            "must be a letter or _ and then up to 40 letters, digits or _, and not begin with sqlite_",
        ));
    }
    Ok(())
}

/// Whether `name` is a letter or `_`, then up to 40 letters, digits or `_`.
pub(crate) fn is_plain(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && name.len() <= MAX_BYTES
}
