//! The keys of a URL.

use std::{collections::BTreeMap, fmt, time::Duration};

use crate::{ConfigError, duration};

/// The keys of a URL or a config file, from which a store takes its own.
///
/// The keys left at [`finish`](Self::finish) are rejected, with the nearest known key as a suggestion: a misspelt setting must not
/// be ignored.
///
/// ```
/// use polylock_core::url::StoreUrl;
///
/// let mut keys = StoreUrl::parse("example://h?polylock.ttl=30s&mode=fast&polylock.namspace=x").unwrap().keys();
/// assert_eq!(keys.duration("polylock.ttl").unwrap().unwrap().as_secs(), 30);
/// assert_eq!(keys.choice("mode", &[("fast", true), ("safe", false)]), Ok(Some(true)));
/// assert_eq!(keys.text("polylock.namespace"), None);
/// let error = keys.finish().unwrap_err().to_string();
/// assert_eq!(error, "polylock.namspace: unknown key; did you mean polylock.namespace?");
/// ```
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

/// Former names of keys, and their present ones.
const RENAMED: [(&str, &str); 6] = [
    ("polylock.busy_timeout", "polylock.operation_timeout"),
    ("polylock.command_timeout", "polylock.operation_timeout"),
    ("polylock.prefix", "polylock.namespace"),
    ("polylock.request_timeout", "polylock.operation_timeout"),
    ("polylock.table", "polylock.namespace"),
    ("polylock.timeout", "polylock.operation_timeout"),
];

impl Keys {
    pub(super) const fn new(given: BTreeMap<String, String>) -> Self {
        Self { left: given, known: Vec::new() }
    }

    /// Returns true if `key` is given and was not taken.
    #[must_use]
    pub fn contains(&self, key: &str) -> bool {
        self.left.contains_key(key)
    }

    /// Takes the text of `key`, if given.
    pub fn text(&mut self, key: &'static str) -> Option<String> {
        self.known.push(key);
        self.left.remove(key)
    }

    /// Takes the first of `names` that is given, and returns its name and its text. The names are other drivers' keys for one setting:
    /// they are never suggested for a misspelt key.
    pub fn first(&mut self, names: &[&'static str]) -> Option<(&'static str, String)> {
        names.iter().find_map(|name| self.left.remove(*name).map(|text| (*name, text)))
    }

    /// Takes the [`first`](Self::first) of `names` and parses it with `read`, which returns an error that states the accepted values.
    ///
    /// # Errors
    /// [`ConfigError`] on the key if it can't be parsed.
    pub fn read_first<T, E: fmt::Display>(
        &mut self,
        names: &[&'static str],
        read: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<Option<T>, ConfigError> {
        let Some((key, text)) = self.first(names) else { return Ok(None) };
        read(&text).map(Some).map_err(|problem| ConfigError::new(key, problem.to_string()))
    }

    /// Takes `key` and parses it with `read`, which returns an error that states the accepted values.
    ///
    /// # Errors
    /// [`ConfigError`] on `key` if it can't be parsed.
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
    /// [`ConfigError`] on `key` if the value is not a valid duration.
    pub fn duration(&mut self, key: &'static str) -> Result<Option<Duration>, ConfigError> {
        self.read(key, duration::parse)
    }

    /// Takes `key` as one of `choices`, pairs of a name and its value.
    ///
    /// # Errors
    /// [`ConfigError`] on `key`, with a list of the names, if it is none of them.
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

    /// Takes two keys that are only valid together.
    ///
    /// # Errors
    /// [`ConfigError`] on `first` if only one of them is given.
    pub fn pair(
        &mut self,
        first: &'static str,
        second: &'static str,
    ) -> Result<Option<(String, String)>, ConfigError> {
        match (self.text(first), self.text(second)) {
            (Some(one), Some(other)) => Ok(Some((one, other))),
            (None, None) => Ok(None),
            _ => Err(ConfigError::new(first, format!("requires {second}, and {second} requires it"))),
        }
    }

    /// Rejects the keys that were not taken.
    ///
    /// # Errors
    /// [`ConfigError`] on the first key left, with the known key that is nearest to it.
    pub fn finish(self) -> Result<(), ConfigError> {
        let Some(unknown) = self.left.into_keys().next() else { return Ok(()) };
        let renamed = RENAMED.iter().find(|(former, now)| *former == unknown && self.known.contains(now));
        if let Some((_, now)) = renamed {
            return Err(ConfigError::new(unknown, format!("is called {now} in every store: write that")));
        }
        // The part that nearly all keys share says nothing about their likeness.
        const SHARED: &str = "polylock.";
        let short = |key: &'static str| key.strip_prefix(SHARED).unwrap_or(key);
        let name = unknown.strip_prefix(SHARED).unwrap_or(&unknown);
        let nearest = nearest(name, self.known.iter().map(|key| short(key)));
        let hint = match self.known.iter().find(|key| Some(short(key)) == nearest) {
            Some(nearest) => format!("did you mean {nearest}?"),
            None => format!("known keys: {}", self.known.join(", ")),
        };
        Err(ConfigError::new(unknown, format!("unknown key; {hint}")))
    }
}

/// Returns the candidate that `text` most likely misspells, if one is near.
#[must_use]
pub fn nearest<'a>(text: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        // The likeness of short texts is small after one mistake, so one mistake counts for more: `rn` is `run`, and not `renew`.
        .map(|candidate| {
            let has_one_mistake = strsim::osa_distance(text, candidate) == 1;
            ((has_one_mistake, strsim::jaro_winkler(text, candidate)), candidate)
        })
        .filter(|((has_one_mistake, likeness), _)| *has_one_mistake || *likeness > 0.8)
        .max_by(|((one, a), _), ((other, b), _)| one.cmp(other).then(a.total_cmp(b)))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use crate::url::StoreUrl;

    #[test]
    fn a_misspelt_key_is_refused_with_a_suggestion() {
        let mut keys = StoreUrl::parse("memory:?polylock.tll=1").unwrap().keys();
        assert_eq!(keys.duration("polylock.ttl"), Ok(None));
        let error = keys.finish().unwrap_err();
        assert_eq!(error.to_string(), "polylock.tll: unknown key; did you mean polylock.ttl?");
    }

    #[test]
    fn one_mistake_counts_for_more_than_a_likeness() {
        use super::nearest;

        let commands = ["renew", "run", "release"];
        for (text, expected) in
            [("rn", Some("run")), ("rene", Some("renew")), ("releas", Some("release")), ("xyz", None)]
        {
            assert_eq!(nearest(text, commands), expected, "{text}");
        }
    }

    #[test]
    fn a_former_name_of_a_key_is_refused_with_the_present_one() {
        for (former, now) in super::RENAMED {
            let mut keys = StoreUrl::parse(&format!("redis://h?{former}=1s")).unwrap().keys();
            assert_eq!(keys.text(now), None);
            let error = keys.finish().unwrap_err().to_string();
            assert_eq!(error, format!("{former}: is called {now} in every store: write that"));
        }
        // A store without this setting does not suggest it.
        let keys = StoreUrl::parse("memory:?polylock.timeout=1s").unwrap().keys();
        let error = keys.finish().unwrap_err().to_string();
        assert!(error.starts_with("polylock.timeout: unknown key; "), "{error}");
    }
}
