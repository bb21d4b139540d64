//! Checks of a store's configuration, for its unit tests.

use std::fmt::Debug;

use crate::ConfigError;

/// Checks that `new` reads the configuration `set` from `url`. Returns that configuration as `Debug` shows it.
#[track_caller]
pub fn gives<C: Debug>(new: impl Fn(&str) -> Result<C, ConfigError>, url: &str, set: &C) -> String {
    let shown = new(url).map_or_else(|error| error.to_string(), |config| format!("{config:?}"));
    assert_eq!(shown, format!("{set:?}"), "{url}");
    shown
}

/// Checks that `new` refuses each URL with an error on its key.
#[track_caller]
pub fn refuses<C: Debug>(new: impl Fn(&str) -> Result<C, ConfigError>, urls: &[(&str, &str)]) {
    for (url, key) in urls {
        match new(url) {
            Ok(config) => panic!("{url}: accepted as {config:?}"),
            Err(error) => assert_eq!(error.key, *key, "{url}: {error}"),
        }
    }
}

/// Checks that neither the configuration nor the error shows the password of any URL: `canary`, also in pieces.
#[track_caller]
pub fn hides_secrets<C: Debug>(new: impl Fn(&str) -> Result<C, ConfigError>, urls: &[&str]) {
    for url in urls {
        assert!(url.contains("canary") || url.contains("ary@"), "{url} has no secret");
        let shown = match new(url) {
            Ok(config) => format!("{config:?} {config:#?}"),
            Err(error) => format!("{error:?} {error}"),
        };
        assert!(!shown.contains("canary") && !shown.contains("ary@"), "{url}: {shown}");
    }
}

/// Checks that neither the configuration nor the error shows the password in a URL: a part of `text`, `canary`, and the rest of `text`.
#[track_caller]
pub fn hides_password<C: Debug>(
    new: impl Fn(&str) -> Result<C, ConfigError>,
    text: &str,
    url: impl Fn(&str) -> String,
) {
    let (middle, _) = text.char_indices().nth(text.chars().count() / 2).unwrap_or_default();
    let (before, after) = text.split_at(middle);
    hides_secrets(new, &[&url(&format!("{before}canary{after}"))]);
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    /// A configuration that shows its password.
    fn leaky(url: &str) -> Result<String, ConfigError> {
        if url.is_empty() { Err(ConfigError::new("store", "names no file")) } else { Ok(url.to_owned()) }
    }

    #[test]
    fn each_check_finds_what_is_wrong() {
        assert_eq!(gives(leaky, "x", &"x".to_owned()), "\"x\"");
        refuses(leaky, &[("", "store")]);
        hides_secrets(|_| Ok(()), &["x://canary@h", "x://can?ary@h"]);
        for wrong in [
            || drop(gives(leaky, "x", &"y".to_owned())),
            || refuses(leaky, &[("x", "store")]),
            || refuses(leaky, &[("", "polylock.namespace")]),
            || hides_secrets(leaky, &["x://canary@h"]),
            || hides_secrets(leaky, &["x://u:can?ary@h"]),
            || hides_secrets(|_| Err::<(), _>(ConfigError::new("store", "canary")), &["x://canary@h"]),
            || hides_password(leaky, "é", |password| format!("x://u:{password}@h")),
        ] as [fn(); 7]
        {
            assert!(catch_unwind(wrong).is_err());
        }
    }
}
