//! Store URLs, read by hand because the `url` crate can't read `h1,h2,h3` as hosts, and shown without secrets.

use std::{collections::BTreeMap, fmt, time::Duration};

use percent_encoding::percent_decode_str;

use crate::{ConfigError, duration};

/// The URL that picks a store: `scheme:rest?key=value&…`.
///
/// `Debug` and `Display` show the scheme, hosts and path, never the user, the password or the value of a key.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl {
    scheme: String,
    rest: String,
    keys: BTreeMap<String, String>,
}

impl StoreUrl {
    /// Takes `url` apart.
    ///
    /// # Errors
    /// [`ConfigError`] on key `store` if there is no scheme, or if a `?` that is not percent-encoded may belong to the password;
    /// on a key that is given twice.
    pub fn parse(url: &str) -> Result<Self, ConfigError> {
        let (scheme, rest) = url.split_once(':').ok_or_else(|| {
            ConfigError::new("store", "no scheme: write a URL such as sqlite:///var/lib/locks.db or memory:")
        })?;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
        if scheme.is_empty() || !scheme.chars().all(plain) {
            return Err(ConfigError::new("store", "the text before the first colon is no URL scheme"));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        // `//me:pass?word@host`: what looks like a host and a key is the password, so nothing of it may be shown.
        let names_a_host = rest.strip_prefix("//").is_some_and(|host| !host.starts_with('/'));
        if names_a_host && !rest.contains('@') && query.contains('@') {
            let problem = "has an @ behind the first ?: write a ? in a user or password as %3F, and an @ in the value of a \
                key as %40";
            return Err(ConfigError::new("store", problem));
        }
        let mut url =
            Self { scheme: scheme.to_ascii_lowercase(), rest: rest.to_owned(), keys: BTreeMap::new() };
        for (key, value) in form_urlencoded::parse(query.as_bytes()) {
            url.set(key, value)?;
        }
        Ok(url)
    }

    /// Adds a key as if it stood in the query.
    ///
    /// # Errors
    /// [`ConfigError`] if the URL has it already: which of the two counts should not be a guess.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<String>) -> Result<(), ConfigError> {
        let key = key.into();
        if self.keys.contains_key(&key) {
            return Err(ConfigError::new(key, "given twice: keep one"));
        }
        self.keys.insert(key, value.into());
        Ok(())
    }

    /// Sets a key, in place of the value that the URL has for it.
    pub fn replace(&mut self, key: impl Into<String>, value: impl Into<String>) {
        self.keys.insert(key.into(), value.into());
    }

    /// The scheme, in lower case.
    #[must_use]
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// What stands between the scheme's colon and the query, as written. It may hold a password.
    #[must_use]
    pub fn rest(&self) -> &str {
        &self.rest
    }

    /// The file that a URL of an embedded store names, percent-decoded: `scheme:path`, `scheme://path` (relative) or
    /// `scheme:///path` (absolute).
    ///
    /// # Errors
    /// [`ConfigError`] on key `store` if there is none, or it is no UTF-8.
    pub fn file(&self) -> Result<String, ConfigError> {
        let path = self.rest.strip_prefix("//").unwrap_or(&self.rest);
        if path.is_empty() {
            let example = format!("names no file: write {}:///absolute/path.db", self.scheme);
            return Err(ConfigError::new("store", example));
        }
        let path = percent_decode_str(path).decode_utf8();
        path.map(Into::into).map_err(|_| ConfigError::new("store", "the path is no UTF-8"))
    }

    /// The keys, to be taken one by one and then [`finish`](Keys::finish)ed.
    #[must_use]
    pub fn keys(&self) -> Keys {
        Keys { left: self.keys.clone(), known: Vec::new() }
    }
}

/// What `from_url`, a store's own reader, makes of `url`. A key that it does not take is refused.
///
/// # Errors
/// [`ConfigError`] on what makes no sense.
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
        // Up to the *last* `@`: a password may hold one that was not encoded.
        match self.rest.rsplit_once('@') {
            Some((_, hosts)) => write!(f, "//***@{hosts}")?,
            None => f.write_str(&self.rest)?,
        }
        for (index, key) in self.keys.keys().enumerate() {
            write!(f, "{}{key}=***", if index == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

/// The keys of a URL or a config file while a store takes out those it knows.
///
/// What is left at [`finish`](Self::finish) is refused, with the nearest known key as a suggestion: a misspelt
/// setting must not be ignored.
#[derive(Clone)]
pub struct Keys {
    left: BTreeMap<String, String>,
    known: Vec<&'static str>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("left", &self.left.keys()).field("known", &self.known).finish()
    }
}

impl Keys {
    /// Takes the text of `key`, if given.
    pub fn text(&mut self, key: &'static str) -> Option<String> {
        self.known.push(key);
        self.left.remove(key)
    }

    /// Takes `key` and reads it with `read`, whose error says what to write instead.
    ///
    /// # Errors
    /// [`ConfigError`] on `key` if it can't be read.
    pub fn read<T, E: fmt::Display>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<Option<T>, ConfigError> {
        let text = self.text(key);
        text.map(|text| read(&text)).transpose().map_err(|problem| ConfigError::new(key, problem.to_string()))
    }

    /// Takes `key` as a duration (see [`duration::parse`]).
    ///
    /// # Errors
    /// [`ConfigError`] on `key` if it is none.
    pub fn duration(&mut self, key: &'static str) -> Result<Option<Duration>, ConfigError> {
        self.read(key, duration::parse)
    }

    /// Takes `key` as one of `choices`, given by name.
    ///
    /// # Errors
    /// [`ConfigError`] on `key`, listing the choices, if it is none of them.
    pub fn choice<T: Copy>(
        &mut self,
        key: &'static str,
        choices: &[(&str, T)],
    ) -> Result<Option<T>, ConfigError> {
        self.read(key, |text| {
            choices.iter().find(|(name, _)| *name == text).map(|(_, value)| *value).ok_or_else(|| {
                let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
                format!("must be one of {}", names.join(", "))
            })
        })
    }

    /// Takes two keys of which neither makes sense without the other.
    ///
    /// # Errors
    /// [`ConfigError`] on `first` if one of them is missing.
    pub fn pair(
        &mut self,
        first: &'static str,
        second: &'static str,
    ) -> Result<Option<(String, String)>, ConfigError> {
        match (self.text(first), self.text(second)) {
            (Some(one), Some(other)) => Ok(Some((one, other))),
            (None, None) => Ok(None),
            _ => Err(ConfigError::new(first, format!("needs {second}, and the other way round"))),
        }
    }

    /// Refuses what nobody took.
    ///
    /// # Errors
    /// [`ConfigError`] on the first key that is left, with the known key that is nearest to it.
    pub fn finish(self) -> Result<(), ConfigError> {
        let Some(unknown) = self.left.into_keys().next() else { return Ok(()) };
        let nearest = nearest(&unknown, self.known.iter().copied());
        let hint = match nearest {
            Some(nearest) => format!("did you mean {nearest}?"),
            None => format!("known are {}", self.known.join(", ")),
        };
        Err(ConfigError::new(unknown, format!("unknown key; {hint}")))
    }
}

/// The candidate that `text` is most likely a slip of, if any is near.
#[must_use]
pub fn nearest<'a>(text: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(text, candidate), candidate))
        .filter(|(likeness, _)| *likeness > 0.8)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts() {
        let url = StoreUrl::parse("SQLite:///tmp/a%20b.db?polylock.ttl=1m30s").unwrap();
        assert_eq!((url.scheme(), url.file().as_deref()), ("sqlite", Ok("/tmp/a b.db")));
        let mut keys = url.keys();
        assert_eq!(keys.duration("polylock.ttl"), Ok(Some(Duration::from_secs(90))));
        assert_eq!(keys.finish(), Ok(()));
        assert_eq!(StoreUrl::parse("sqlite:x.db").unwrap().file().as_deref(), Ok("x.db"));
    }

    #[test]
    fn a_misspelt_key_is_refused_with_a_suggestion() {
        let mut keys = StoreUrl::parse("memory:?polylock.tll=1").unwrap().keys();
        assert_eq!(keys.duration("polylock.ttl"), Ok(None));
        let error = keys.finish().unwrap_err();
        assert_eq!(error.to_string(), "polylock.tll: unknown key; did you mean polylock.ttl?");
    }

    #[test]
    fn bad_urls_are_refused() {
        for url in ["", "locks.db", ":x", "a b:x", "memory:?a=1&a=2"] {
            assert!(StoreUrl::parse(url).is_err(), "{url:?}");
        }
        assert!(StoreUrl::parse("sqlite:").unwrap().file().is_err());
    }

    #[test]
    fn a_question_mark_in_a_password_is_refused_and_nothing_of_it_is_shown() {
        for url in [
            "postgres://me:can?ary@db/x",
            "redis://:1234?canary=1@h",
            "redis://can?ary@h:1/0?polylock.ttl=3s",
        ] {
            let error = StoreUrl::parse(url).unwrap_err().to_string();
            assert!(error.contains("%3F") && !error.contains("can") && !error.contains("ary@"), "{error}");
        }
        for url in ["postgres://me:can%3Fary@db/x?polylock.ttl=3s", "sqlite:///a?b=x@y", "az://c@a?k=x@y"] {
            StoreUrl::parse(url).unwrap();
        }
    }

    #[test]
    fn no_secret_is_shown() {
        for url in [
            "postgres://me:canary@db:5432/x?password=canary",
            "redis://:can@ary@h?sig=canary",
            "az://c?k=canary",
        ] {
            let url = StoreUrl::parse(url).unwrap();
            let shown = format!("{url} {url:?} {:?}", url.keys());
            assert!(!shown.contains("canary") && !shown.contains("ary@"), "{shown}");
        }
    }
}
