//! The store of a nested run that does not name one: the outer run's store, or an error.
//!
//! The outer run hides the variable with its URL, because of the password. Without another reference, a nested run would use the default
//! store, in which the same lock is free.

use std::path::{Path, PathBuf};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use polylock::{StoreUrl, core::url::PUBLIC_KEYS};

use super::paths::absolute_path;
use crate::{
    exit::{CONFIG, Failure},
    outer_run::is_nested,
};

/// The characters of a path or a value that are not encoded.
const PLAIN: AsciiSet = NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The store of the outer run.
pub(super) enum OuterStore {
    Named(String),
    InConfig { file: PathBuf, profile: Option<String> },
}

/// Returns the store of the outer run, if there is one, from the reference in [`STORE`](crate::outer_run::STORE).
///
/// # Errors
/// If that store is unknown here, because its URL contains a password.
pub(super) fn outer_store(reference: Option<String>) -> Result<Option<OuterStore>, Failure> {
    let text = match reference {
        Some(text) if !text.contains("***") => text,
        None if !is_nested() => return Ok(None),
        redacted => {
            let suffix = redacted.map_or_else(String::new, |shown| format!(" of the store {shown}"));
            let problem = format!(
                "store: this command runs under a lock{suffix} and names no store: name one with -S, or start the outer \
                 run with --keep-store-env"
            );
            return Err(Failure::new(CONFIG, problem));
        }
    };
    let Some(reference) = text.strip_prefix("config:") else { return Ok(Some(OuterStore::Named(text))) };
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let (file, profile) =
        reference.split_once('#').map_or((reference, None), |(file, name)| (file, Some(name)));
    Ok(Some(OuterStore::InConfig { file: decoded(file).into(), profile: profile.map(decoded) }))
}

/// Returns the reference to a section of the config file, for a nested run.
pub(super) fn config_reference(file: &Path, profile: Option<&str>) -> Option<String> {
    let file = std::path::absolute(file).ok()?;
    let encoded = |text: &str| utf8_percent_encode(text, &PLAIN).to_string();
    let profile = profile.map_or_else(String::new, |profile| format!("#{}", encoded(profile)));
    Some(format!("config:{}{profile}", encoded(file.to_str()?)))
}

/// Returns the URL as text, with the absolute path of a relative file; `None` if it may contain a secret.
pub(super) fn without_secrets(url: &StoreUrl, absolute: Option<&Path>) -> Option<String> {
    // A URL of Azure has a container in the position of a user and a password.
    let may_have_user = url.rest().contains('@') && !matches!(url.scheme(), "az" | "azblob");
    if may_have_user || url.rest().contains("***") {
        return None;
    }
    let mut keys = url.keys();
    // A URL with other keys, which may be secrets, is not passed on.
    let public: Vec<_> = PUBLIC_KEYS.into_iter().filter_map(|key| Some((key, keys.text(key)?))).collect();
    keys.finish().ok()?;
    let mut text = match (url.stores(), absolute) {
        ([old, new], _) => {
            let [old, new] = [old, new].map(|store| without_secrets(store, absolute_path(store).as_deref()));
            format!("{}:{};{}", url.scheme(), old?, new?)
        }
        (_, Some(path)) => format!("{}://{}", url.scheme(), utf8_percent_encode(path.to_str()?, &PLAIN)),
        (_, None) => format!("{}:{}", url.scheme(), url.rest()),
    };
    for (key, value) in &public {
        let has_keys = text.rsplit(';').next().is_some_and(|last| last.contains('?'));
        let mark = if has_keys { '&' } else { '?' };
        text += &format!("{mark}{key}={}", utf8_percent_encode(value, &PLAIN));
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed_on(url: &str) -> Option<String> {
        without_secrets(&StoreUrl::parse(url).unwrap(), None)
    }

    #[test]
    fn a_url_is_passed_on_unless_it_contains_a_secret() {
        for url in [
            "sqlite:///a%20b/locks.db",
            "redis://host:1/0?polylock.ttl=5s&polylock.namespace=a%2Fb",
            "az://locks@account/path",
            "zookeeper://a,b:1,c/path",
            "both:sqlite:///a%20b/locks.db?polylock.durability=normal;redis://host:1/0?polylock.ttl=5s",
            "both:redis://host:1/0?polylock.wait=1s;zookeeper://a,b:1,c/path",
        ] {
            let text = passed_on(url).unwrap();
            assert_eq!(StoreUrl::parse(&text).unwrap(), StoreUrl::parse(url).unwrap(), "{text}");
        }
        for url in [
            "redis://:secret@host/0",
            "postgres://me@host/x",
            "postgres://host/x?password=secret",
            "az://locks@account/path?polylock.account_key=secret",
            "redis://host/0?pass=secret",
            "both:sqlite:///l.db;redis://:secret@host/0",
            "both:postgres://host/x?password=secret;sqlite:///l.db",
        ] {
            assert_eq!(passed_on(url), None, "{url}");
        }
    }

    #[test]
    fn a_relative_file_is_passed_on_by_its_absolute_path() {
        let url = StoreUrl::parse("sqlite:l.db?polylock.ttl=5s").unwrap();
        let text = without_secrets(&url, Some(Path::new("/a b/l.db"))).unwrap();
        assert_eq!(text, "sqlite:///a%20b/l.db?polylock.ttl=5s");
        assert_eq!(StoreUrl::parse(&text).unwrap().file().unwrap(), "/a b/l.db");
        let text = passed_on("both:sqlite:l.db;sqlite:///new.db").unwrap();
        let expected = std::path::absolute("l.db").unwrap();
        assert_eq!(text, format!("both:sqlite://{};sqlite:///new.db", expected.display()));
    }
}
