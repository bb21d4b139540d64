//! URL keys of other drivers and programs, so that a program and its locks can use one URL.
//!
//! Each store has a table of the keys that have no meaning for it. A key that tunes the other driver (pool, retries, decoding) has no effect. A
//! key that would make the connection unsafe, or that the store can't honour, is refused, and the error states what to write instead.
//!
//! ```
//! use polylock_core::url::{StoreUrl, driver_keys::{DriverKey, ignored, one_of, rejected}};
//!
//! const DRIVER_KEYS: &[DriverKey] = &[
//!     ignored(&["pool_size", "poolSize"]),
//!     one_of(&["verify"], &["full"], "the server's certificate is always verified: omit it"),
//!     rejected(&["readonly"], "locks need the primary: omit it"),
//! ];
//!
//! let mut keys = StoreUrl::parse("example://h?poolSize=3&verify=none").unwrap().keys();
//! assert_eq!(keys.take_driver_keys(DRIVER_KEYS).unwrap_err().key, "verify");
//! ```

use super::keys::Keys;
use crate::ConfigError;

/// A key of other drivers that has no use in a store, with all its spellings.
#[derive(Debug, Clone, Copy)]
pub struct DriverKey {
    names: &'static [&'static str],
    /// The values without an effect; if empty, every value is accepted.
    ignored_values: &'static [&'static str],
    /// The reason for refusing any other value, with a replacement.
    remedy: &'static str,
}

/// Returns a key that has no effect, with any value.
#[must_use]
pub const fn ignored(names: &'static [&'static str]) -> DriverKey {
    DriverKey { names, ignored_values: &[], remedy: "" }
}

/// Returns a key that has no effect with one of `ignored_values`, which are compared without case, and is refused with any other.
#[must_use]
pub const fn one_of(
    names: &'static [&'static str],
    ignored_values: &'static [&'static str],
    remedy: &'static str,
) -> DriverKey {
    DriverKey { names, ignored_values, remedy }
}

/// Returns a key that is refused with any value except an empty one.
#[must_use]
pub const fn rejected(names: &'static [&'static str], remedy: &'static str) -> DriverKey {
    one_of(names, &[""], remedy)
}

impl Keys {
    /// Takes the keys of `table` that are given.
    ///
    /// # Errors
    /// [`ConfigError`] on a key with a value that is not accepted.
    pub fn take_driver_keys(&mut self, table: &[DriverKey]) -> Result<(), ConfigError> {
        let mut ignored = Vec::new();
        for DriverKey { names, ignored_values, remedy } in table {
            while let Some((key, value)) = self.first(names) {
                let is_ignored = ignored_values.iter().any(|known| value.eq_ignore_ascii_case(known));
                if !ignored_values.is_empty() && !is_ignored {
                    return Err(ConfigError::new(key, *remedy));
                }
                ignored.push(key);
            }
        }
        if !ignored.is_empty() {
            tracing::debug!(
                keys = ignored.join(", "),
                "these keys of another driver have no effect on locks"
            );
        }
        Ok(())
    }

    /// Takes the key that states whether the connection is encrypted, which the scheme determines: `tls` or `plain`.
    ///
    /// # Errors
    /// [`ConfigError`] if the key contradicts the scheme.
    pub fn take_encryption_key(
        &mut self,
        names: &[&'static str],
        encrypted: bool,
        tls: &str,
        plain: &str,
    ) -> Result<(), ConfigError> {
        match self.first(names) {
            Some((key, value)) if matches!(value.as_str(), "true" | "True" | "1") != encrypted => {
                let problem = format!("contradicts the scheme: {tls}:// is encrypted, {plain}:// is not");
                Err(ConfigError::new(key, problem))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::url::StoreUrl;

    const TABLE: &[DriverKey] = &[
        ignored(&["pool", "pools"]),
        one_of(&["mode"], &["rw", "any"], "write rw"),
        rejected(&["ro"], "omit it"),
    ];

    fn take(query: &str) -> Result<(), ConfigError> {
        let mut keys = StoreUrl::parse(&format!("x:?{query}")).unwrap().keys();
        keys.take_driver_keys(TABLE)?;
        keys.finish()
    }

    #[test]
    fn keys_of_other_drivers_are_ignored_or_refused() {
        for query in ["", "pool=1&pools=2&mode=RW&ro=", "mode=any"] {
            assert_eq!(take(query), Ok(()), "{query}");
        }
        assert_eq!(take("mode=ro"), Err(ConfigError::new("mode", "write rw")));
        assert_eq!(take("ro=1"), Err(ConfigError::new("ro", "omit it")));
    }

    #[test]
    fn keys_of_other_drivers_are_not_suggested() {
        let error = take("modes=rw").unwrap_err();
        assert!(error.problem.contains("unknown key") && !error.problem.contains("did you mean"), "{error}");
    }

    #[test]
    fn a_key_may_not_contradict_the_scheme() {
        let take = |query: &str, encrypted| {
            let mut keys = StoreUrl::parse(&format!("x:?{query}")).unwrap().keys();
            keys.take_encryption_key(&["ssl", "tls"], encrypted, "xs", "x")
        };
        for (query, encrypted) in [("", true), ("", false), ("ssl=True", true), ("tls=false", false)] {
            assert_eq!(take(query, encrypted), Ok(()), "{query}");
        }
        for (query, encrypted) in [("tls=0", true), ("ssl=1", false)] {
            assert!(take(query, encrypted).unwrap_err().problem.contains("xs://"), "{query}");
        }
    }
}
