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

/// Checks the version of the tables named `prefix`, which is 0 if they have none.
///
/// # Errors
/// [`ConfigError`] on key `polylock.table` if the tables are not those that this program knows, with what to do.
pub(crate) fn check_version(prefix: &str, found: i64, known: i64) -> Result<(), ConfigError> {
    let problem = match found {
        _ if found == known => return Ok(()),
        _ if found > known => format!(
            "the tables named {prefix:?} were made by a later version of polylock (theirs is {found}, this program's {known}): \
             update the program, or choose another polylock.table"
        ),
        1.. => format!(
            "the tables named {prefix:?} were made by an earlier version of polylock (theirs is {found}, this program's \
             {known}): stop every program that uses them and drop them, or choose another polylock.table"
        ),
        _ => format!(
            "the tables named {prefix:?} have no version: they are not polylock's, or were emptied; choose another \
             polylock.table, or have the statements run that `polylock schema` prints"
        ),
    };
    Err(ConfigError::new("polylock.table", problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_another_version_are_refused_with_what_to_do() {
        assert!(check_version("t", 2, 2).is_ok());
        for (found, words) in [(3, "update the program"), (1, "drop them"), (0, "polylock schema")] {
            let refused = check_version("t", found, 2).unwrap_err().to_string();
            assert!(refused.starts_with("polylock.table") && refused.contains(words), "{refused}");
        }
    }
}
