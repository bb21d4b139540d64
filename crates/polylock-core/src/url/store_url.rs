//! A store URL. It is parsed by hand, because the `url` crate can't parse `h1,h2,h3` as hosts, and is shown without secrets.

use std::{collections::BTreeMap, fmt};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::keys::Keys;
use crate::{ConfigError, Options, transition};

/// The keys of a URL whose values are no secrets.
pub const PUBLIC_KEYS: [&str; 12] = [
    "polylock.ttl",
    "polylock.wait",
    "polylock.outage",
    "polylock.deadlock_check",
    "polylock.namespace",
    "polylock.schema",
    "polylock.strategy",
    "polylock.durability",
    "polylock.operation_timeout",
    "polylock.connect_timeout",
    "polylock.session_timeout",
    "polylock.max_ttl",
];

/// The characters of a value that are shown as they are.
const PLAIN: AsciiSet = NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The URL that selects a store: `scheme:rest?key=value&…`.
///
/// `Debug` and `Display` show the scheme, hosts, path and the values of [`PUBLIC_KEYS`], never the user, the password or the value of another
/// key.
///
/// ```
/// use polylock_core::url::StoreUrl;
///
/// let mut url = StoreUrl::parse("redis://app:secret@h1,h2?polylock.ttl=30s").unwrap();
/// url.set("polylock.tls_key", "/etc/key.pem").unwrap();
/// assert_eq!((url.scheme(), url.rest()), ("redis", "//app:secret@h1,h2"));
/// assert_eq!(url.to_string(), "redis://***@h1,h2?polylock.tls_key=***&polylock.ttl=30s");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl {
    scheme: String,
    rest: String,
    keys: BTreeMap<String, String>,
    /// The two stores of a transition; none for any other URL.
    stores: Vec<StoreUrl>,
}

impl StoreUrl {
    /// Parses `url`.
    ///
    /// # Errors
    /// [`ConfigError`] on key `store` if there is no scheme, or if a `?` that is not percent-encoded may belong to the password; on
    /// a key that is given twice.
    pub fn parse(url: &str) -> Result<Self, ConfigError> {
        let (scheme, rest) = url.split_once(':').ok_or_else(|| {
            ConfigError::new("store", "no scheme: write a URL such as sqlite:///var/lib/locks.db or memory:")
        })?;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
        if url.starts_with(['"', '\'', '\u{feff}']) {
            let problem = "begins with a quotation mark or a byte order mark, which is part of the text: remove it, as in a file for \
                           `docker run --env-file`";
            return Err(ConfigError::new("store", problem));
        }
        if scheme.is_empty() || !scheme.chars().all(plain) {
            return Err(ConfigError::new("store", "the text before the first colon is not a URL scheme"));
        }
        if scheme.eq_ignore_ascii_case(transition::NAME) {
            return Self::both(rest);
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        // `//me:pass?word@host` or `//me:p@ss?word@host`: the apparent host and key are the password, so neither may be shown.
        let address = rest.strip_prefix("//").filter(|address| !address.starts_with('/'));
        let may_end_in_password = |address: &str| {
            let user = address.rsplit_once('@');
            user.is_none_or(|(user, _)| user.contains(':'))
        };
        if address.is_some_and(may_end_in_password) && query.contains('@') {
            let problem = "has an @ after the first ?: write a ? in a user or password as %3F, and an @ in the value of a \
                key as %40";
            return Err(ConfigError::new("store", problem));
        }
        let mut url = Self {
            scheme: scheme.to_ascii_lowercase(),
            rest: rest.to_owned(),
            keys: BTreeMap::new(),
            stores: Vec::new(),
        };
        for (key, value) in form_urlencoded::parse(query.as_bytes()) {
            url.set(key, value)?;
        }
        Ok(url)
    }

    /// Parses the URLs of the two stores of a transition, `OLD;NEW`, each with keys of its own. The settings of the locks, such as the TTL,
    /// may be in either of the two.
    fn both(urls: &str) -> Result<Self, ConfigError> {
        let urls: Vec<&str> = urls.split(';').collect();
        let is_transition = |url: &&str| {
            url.split_once(':').is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case(transition::NAME))
        };
        if urls.iter().any(is_transition) {
            return Err(ConfigError::new("store", "a transition within a transition: name two stores"));
        }
        let [old, new] = urls[..] else {
            let problem = "does not name two stores: write both:OLD;NEW, the URL of the old store before that of the new one, and \
                each ; within one as %3B";
            return Err(ConfigError::new("store", problem));
        };
        let mut stores = vec![Self::parse(old)?, Self::parse(new)?];
        let mut keys = BTreeMap::new();
        for key in Options::KEYS {
            for value in stores.iter_mut().filter_map(|url| url.keys.remove(key)) {
                if keys.insert(key.to_owned(), value.clone()).is_some_and(|other| other != value) {
                    return Err(ConfigError::new(key, "differs between the two stores: give it once"));
                }
            }
        }
        Ok(Self { scheme: transition::NAME.to_owned(), rest: String::new(), keys, stores })
    }

    /// Returns the URLs of the old and the new store of a transition, without the settings of the locks, which are keys of this URL. Empty
    /// for any other URL.
    #[must_use]
    pub fn stores(&self) -> &[Self] {
        &self.stores
    }

    /// Adds a key as if it were in the query.
    ///
    /// # Errors
    /// [`ConfigError`] if the URL already has the key: neither value takes precedence.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<String>) -> Result<(), ConfigError> {
        let key = key.into();
        if self.keys.contains_key(&key) {
            return Err(ConfigError::new(key, "is given twice: remove one"));
        }
        self.keys.insert(key, value.into());
        Ok(())
    }

    /// Sets a key, and replaces its value if the URL has one.
    pub fn replace(&mut self, key: impl Into<String>, value: impl Into<String>) {
        self.keys.insert(key.into(), value.into());
    }

    /// Returns the scheme, in lower case.
    #[must_use]
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// Returns the text between the scheme's colon and the query, as written. It may contain a password.
    #[must_use]
    pub fn rest(&self) -> &str {
        &self.rest
    }

    /// Returns the file in the URL of an embedded store, percent-decoded: `scheme:path`, `scheme://path` (relative) or
    /// `scheme:///path` (absolute).
    ///
    /// # Errors
    /// [`ConfigError`] on key `store` if there is no file, or if it is not UTF-8.
    pub fn file(&self) -> Result<String, ConfigError> {
        let path = self.rest.strip_prefix("//").unwrap_or(&self.rest);
        if path.is_empty() {
            return Err(self.problem("names no file", "/absolute/path.db"));
        }
        let path = percent_decode_str(path).decode_utf8();
        path.map(Into::into).map_err(|_| ConfigError::new("store", "the path is not valid UTF-8"))
    }

    /// Returns the keys, to be taken one by one and then [`finish`](Keys::finish)ed.
    #[must_use]
    pub fn keys(&self) -> Keys {
        Keys::new(self.keys.clone())
    }

    /// Returns the error for an invalid address. Its message consists of `problem` and an example URL, which is `example` after
    /// `scheme://`.
    #[must_use]
    pub fn problem(&self, problem: &str, example: &str) -> ConfigError {
        ConfigError::new("store", format!("{problem}: write {}://{example}", self.scheme))
    }
}

/// Parses `url` with `from_url`, the parser of a store. A key that `from_url` does not take is rejected.
///
/// # Errors
/// [`ConfigError`] if the URL or a key is invalid.
pub fn read<T>(
    url: &str,
    from_url: impl FnOnce(&StoreUrl, &mut Keys) -> Result<T, ConfigError>,
) -> Result<T, ConfigError> {
    let url = StoreUrl::parse(url)?;
    let mut keys = url.keys();
    let config = from_url(&url, &mut keys)?;
    keys.finish()?;
    Ok(config)
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.scheme)?;
        for (index, store) in self.stores.iter().enumerate() {
            write!(f, "{}{store}", if index == 0 { "" } else { ";" })?;
        }
        // The *last* `@` counts: a password may contain one that was not encoded.
        match self.rest.rsplit_once('@') {
            Some((_, hosts)) => write!(f, "//***@{hosts}")?,
            None => f.write_str(&self.rest)?,
        }
        for (index, (key, value)) in self.keys.iter().enumerate() {
            write!(f, "{}{key}=", if index == 0 { '?' } else { '&' })?;
            match PUBLIC_KEYS.contains(&key.as_str()) {
                true => write!(f, "{}", utf8_percent_encode(value, &PLAIN))?,
                false => f.write_str("***")?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_parts_of_a_url_are_parsed() {
        let url = StoreUrl::parse("SQLite:///tmp/a%20b.db?polylock.ttl=1m30s").unwrap();
        assert_eq!((url.scheme(), url.file().as_deref()), ("sqlite", Ok("/tmp/a b.db")));
        let mut keys = url.keys();
        assert_eq!(keys.duration("polylock.ttl"), Ok(Some(Duration::from_secs(90))));
        assert_eq!(keys.finish(), Ok(()));
        assert_eq!(StoreUrl::parse("sqlite:x.db").unwrap().file().as_deref(), Ok("x.db"));
    }

    #[test]
    fn bad_urls_are_refused() {
        for url in ["", "locks.db", ":x", "a b:x", "memory:?a=1&a=2"] {
            assert!(StoreUrl::parse(url).is_err(), "{url:?}");
        }
        assert!(StoreUrl::parse("sqlite:").unwrap().file().is_err());
        for url in ["\"memory:\"", "'redis://:canary@h'", "\u{feff}memory:"] {
            let error = StoreUrl::parse(url).unwrap_err().to_string();
            assert!(error.contains("quotation mark") && !error.contains("canary"), "{error}");
        }
    }

    #[test]
    fn a_question_mark_in_a_password_is_refused_without_showing_it() {
        for url in [
            "postgres://me:can?ary@db/x",
            "redis://:1234?canary=1@h",
            "redis://can?ary@h:1/0?polylock.ttl=3s",
            "redis://:p@ss?canary@h",
        ] {
            let error = StoreUrl::parse(url).unwrap_err().to_string();
            assert!(error.contains("%3F") && !error.contains("can") && !error.contains("ary@"), "{error}");
        }
        for url in ["postgres://me:can%3Fary@db/x?polylock.ttl=3s", "sqlite:///a?b=x@y", "az://c@a?k=x@y"] {
            StoreUrl::parse(url).unwrap();
        }
    }

    #[test]
    fn the_two_stores_of_a_transition_have_keys_of_their_own() {
        let text = "both:sqlite:///a.db?polylock.ttl=9s&polylock.durability=normal;redis://:canary@h?polylock.namespace=n";
        let url = StoreUrl::parse(text).unwrap();
        let [old, new] = url.stores() else { panic!("two stores") };
        assert_eq!((url.scheme(), old.scheme(), new.scheme()), ("both", "sqlite", "redis"));
        let keys = |url: &StoreUrl| url.keys.keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&url), ["polylock.ttl"]);
        assert_eq!(
            (keys(old), keys(new)),
            (vec!["polylock.durability".into()], vec!["polylock.namespace".into()])
        );
        assert_eq!(
            url.to_string(),
            "both:sqlite:///a.db?polylock.durability=normal;redis://***@h?polylock.namespace=n?polylock.ttl=9s"
        );
    }

    #[test]
    fn bad_transitions_are_refused() {
        for (url, problem) in [
            ("both:", "write both:OLD;NEW"),
            ("both:memory:a", "write both:OLD;NEW"),
            ("both:memory:a;memory:b;memory:c", "write both:OLD;NEW"),
            ("both:memory:a;locks.db", "no scheme"),
            ("both:memory:a;both:memory:b", "a transition within"),
            ("both:memory:a?polylock.ttl=1s;memory:b?polylock.ttl=2s", "polylock.ttl: differs"),
        ] {
            let error = StoreUrl::parse(url).unwrap_err().to_string();
            assert!(error.contains(problem), "{url}: {error}");
        }
        StoreUrl::parse("both:memory:a?polylock.ttl=1s;memory:b?polylock.ttl=1s").unwrap();
    }

    #[test]
    fn no_secret_is_shown() {
        for url in [
            "both:redis://:canary@h;postgres://me:can@ary@h?password=canary",
            "postgres://me:canary@db:5432/x?password=canary",
            "redis://:can@ary@h?sig=canary",
            "az://c?k=canary",
            "redis://:canary@h?polylock.ttl=3s&polylock.tls_key=canary",
        ] {
            let url = StoreUrl::parse(url).unwrap();
            let shown = format!("{url} {url:?} {:?}", url.keys());
            assert!(!shown.contains("canary") && !shown.contains("ary@"), "{shown}");
        }
    }
}
