//! Which store: from the command line, the environment, the config file, or the default in the state directory.

mod nested;

use std::{
    collections::BTreeMap,
    env, fs,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use etcetera::BaseStrategy;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use polylock::{LocksConfig, StoreUrl, core::url::nearest};
use serde::Deserialize;

pub(crate) use self::nested::OUTER_STORE;
use crate::{
    args::Global,
    exit::{CANT_CREATE, CONFIG, Failure},
    output::Output,
};

/// The variable that names the store, unless the command line does.
pub(crate) const STORE_VARIABLE: &str = "POLYLOCK_STORE";

/// The store that was chosen.
#[derive(Debug)]
pub(crate) struct Choice {
    /// Its URL and settings.
    pub(crate) config: LocksConfig,
    /// The variables that hold its URL, which may hold a password: not for the command.
    pub(crate) variables: Vec<String>,
    /// The store without secrets, for people.
    pub(crate) shown: String,
    /// What a run inside this one finds the same store by.
    pub(crate) outer: String,
    /// What the user should know about it.
    caution: Option<String>,
}

/// Finds out which store is meant.
///
/// # Errors
/// If none is, or a variable that should name it does not.
pub(crate) fn choose(global: &Global, output: &Output) -> Result<Choice, Failure> {
    let choice = if let Some(text) = &global.store {
        Choice::new(text, BTreeMap::new(), None)
    } else if let Some(variable) = &global.store_env {
        Choice::new(&format!("env:{variable}"), BTreeMap::new(), None)
    } else if let Some(profile) = &global.profile {
        let (settings, file) = Settings::read(global)?;
        settings.profile(profile)?.choice(file.as_deref(), Some(profile))
    } else if let Some(text) = variable(STORE_VARIABLE)? {
        Choice::new(&text, BTreeMap::new(), None)
    } else if let Some(outer) = nested::outer_store()? {
        outer.choice(global)
    } else {
        let (settings, file) = Settings::read(global)?;
        settings.top.choice(file.as_deref(), None)
    }?;
    if let Some(caution) = &choice.caution {
        output.warning(caution);
    }
    Ok(choice)
}

/// The text of a variable, if it is set.
///
/// # Errors
/// If it is empty or no UTF-8: a secret that was not filled in, for instance, must not lead to another store.
fn variable(name: &str) -> Result<Option<String>, Failure> {
    let problem = match env::var(name) {
        Ok(text) if text.is_empty() => "empty",
        Ok(text) => return Ok(Some(text)),
        Err(env::VarError::NotPresent) => return Ok(None),
        Err(env::VarError::NotUnicode(_)) => "no UTF-8",
    };
    let problem = format!("store: the variable {name} is {problem}; set it to the store's URL, or unset it");
    Err(Failure::new(CONFIG, problem))
}

impl Choice {
    /// The store that `text` names, with these keys, found by its `reference` again.
    fn new(text: &str, keys: BTreeMap<String, String>, reference: Option<String>) -> Result<Self, Failure> {
        let mut variables = vec![STORE_VARIABLE.to_owned()];
        let mut reference = reference;
        let url = match text.split_once(':') {
            Some(("env", name)) => {
                variables.push(name.to_owned());
                variable(name)?.ok_or_else(|| {
                    let problem = format!("store: the variable {name} is not set; set it to the store's URL");
                    Failure::new(CONFIG, problem)
                })?
            }
            Some(("file", path)) => {
                let text = fs::read_to_string(path).map_err(|error| {
                    Failure::new(
                        CONFIG,
                        format!("store: {path} can't be read: {error}; it should hold the store's URL"),
                    )
                })?;
                let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
                reference = reference.or_else(|| Some(format!("file:{}", path.to_str()?)));
                text.trim().to_owned()
            }
            _ => text.to_owned(),
        };
        let config =
            keys.into_iter().fold(LocksConfig::new(url), |config, (key, value)| config.set(key, value));
        let url = config.clone().into_url()?;
        let absolute = relative_file(&url);
        let shown =
            absolute.as_ref().map_or_else(|| url.to_string(), |path| format!("sqlite://{}", path.display()));
        let caution = names_relative_file(&url).then(|| {
            format!(
                "the path of the store is relative to the working directory, so processes that run elsewhere use another store; \
                 write its absolute path: {shown}"
            )
        });
        let outer = nested::without_secrets(&url, absolute.as_deref());
        let outer = outer.or(reference).unwrap_or_else(|| shown.clone());
        Ok(Self { config, variables, shown, outer, caution })
    }
}

fn names_relative_file(url: &StoreUrl) -> bool {
    url.scheme() == "sqlite" && url.file().is_ok_and(|file| Path::new(&file).is_relative())
}

/// The absolute path of a SQLite file that the URL names by a relative one; none of a path that looks like a user and a password.
fn relative_file(url: &StoreUrl) -> Option<PathBuf> {
    let is_shown = names_relative_file(url) && !url.rest().contains('@');
    if is_shown { std::path::absolute(url.file().ok()?).ok() } else { None }
}

/// The config file: settings, and profiles that change some of them.
#[derive(Debug, Default, Deserialize)]
struct Settings {
    #[serde(default)]
    profiles: BTreeMap<String, Section>,
    #[serde(flatten)]
    top: Section,
}

#[derive(Debug, Default, Clone, Deserialize)]
struct Section {
    store: Option<String>,
    #[serde(flatten)]
    keys: BTreeMap<String, toml::Value>,
}

impl Settings {
    /// With the file that they come from, if there is one.
    fn read(global: &Global) -> Result<(Self, Option<PathBuf>), Failure> {
        let default = || Some(base_directories().ok()?.config_dir().join("polylock/config.toml"));
        let Some(path) = global.config.clone().or_else(default) else { return Ok((Self::default(), None)) };
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if global.config.is_none() && error.kind() == std::io::ErrorKind::NotFound => {
                return Ok((Self::default(), None));
            }
            Err(error) => return Err(Failure::new(CONFIG, format!("config: {}: {error}", path.display()))),
        };
        let settings = toml::from_str(&text).map_err(|error| {
            // Not the whole text of the error: it quotes the line, which may hold a password, and so may a value.
            let line = error.span().map_or(1, |span| text[..span.start].lines().count().max(1));
            let problem = error.message().split('"').next().unwrap_or_default().trim_end();
            Failure::new(CONFIG, format!("config: {}, near line {line}: {problem}", path.display()))
        })?;
        Ok((settings, Some(path)))
    }

    /// The settings with those of `profile` on top.
    fn profile(self, profile: &str) -> Result<Section, Failure> {
        let names = self.profiles.keys().cloned().collect::<Vec<_>>().join(", ");
        let Some(chosen) = self.profiles.get(profile) else {
            let there = if names.is_empty() {
                "the config file has none".to_owned()
            } else {
                format!("there are {names}")
            };
            return Err(Failure::new(CONFIG, format!("profile: there is no {profile:?}; {there}")));
        };
        let mut section = self.top;
        section.store = chosen.store.clone().or(section.store);
        section.keys.extend(chosen.keys.clone());
        Ok(section)
    }
}

impl Section {
    /// The store of this section, which is that of `profile` in `file`.
    fn choice(self, file: Option<&Path>, profile: Option<&str>) -> Result<Choice, Failure> {
        let keys = self.keys.into_iter().map(|(key, value)| {
            let text = match value {
                toml::Value::String(text) => text,
                toml::Value::Integer(number) => number.to_string(),
                toml::Value::Float(number) => number.to_string(),
                toml::Value::Boolean(truth) => truth.to_string(),
                _ => return Err(Failure::new(CONFIG, format!("config: {key} must be a text or a number"))),
            };
            Ok((key, text))
        });
        let keys: BTreeMap<String, String> = keys.collect::<Result<_, _>>()?;
        let in_file = |key: &str, problem: &str| {
            let file = file.map_or_else(String::new, |file| format!("{}: ", file.display()));
            Failure::new(CONFIG, format!("config: {file}{key}: {}", problem.replace("polylock.", "")))
        };
        if let (None, Some(key)) = (&self.store, keys.keys().find(|key| nearest(key, ["store"]).is_some())) {
            return Err(in_file(key, "unknown key; did you mean store?"));
        }
        match self.store {
            Some(store) => {
                let names: Vec<String> = keys.keys().cloned().collect();
                let choice =
                    Choice::new(&store, keys, file.and_then(|file| nested::in_config(file, profile)))?;
                let Err(error) = choice.config.clone().schema() else { return Ok(choice) };
                let key = error.key.strip_prefix("polylock.");
                match key.filter(|key| names.iter().any(|name| name == key)) {
                    Some(key) => Err(in_file(key, &error.problem)),
                    None => Err(error.into()),
                }
            }
            None => Choice::new(&default_store()?, keys, None),
        }
    }
}

/// A SQLite file in the user's state directory, which is made if it is missing, for the user alone.
fn default_store() -> Result<String, Failure> {
    let base = base_directories()?;
    let directory = base.state_dir().unwrap_or_else(|| base.data_dir()).join("polylock");
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(|error| {
        let place = directory.display();
        Failure::new(
            CANT_CREATE,
            format!("{place} can't be made: {error}; choose a store with -S or {STORE_VARIABLE}"),
        )
    })?;
    sqlite_url(&directory.join("locks.db"))
}

fn sqlite_url(file: &Path) -> Result<String, Failure> {
    const PLAIN: AsciiSet = NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'~');
    let path: PathBuf = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let text = path.to_str().ok_or_else(|| {
        Failure::new(
            CONFIG,
            format!("the state directory {} is no UTF-8; choose a store with -S", path.display()),
        )
    })?;
    Ok(format!("sqlite://{}", utf8_percent_encode(text, &PLAIN)))
}

fn base_directories() -> Result<impl BaseStrategy, Failure> {
    etcetera::choose_base_strategy().map_err(|_| {
        Failure::new(
            CONFIG,
            format!("there is no home directory; choose a store with -S or {STORE_VARIABLE}"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Settings {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn a_profile_changes_what_it_names_and_inherits_the_rest() {
        let text = "store = 'memory:'\nttl = '20s'\n[profiles.night]\nttl = 60\n[profiles.far]\nstore = 'memory:far'";
        let night = settings(text).profile("night").unwrap().choice(None, None).unwrap().config;
        assert_eq!(night, LocksConfig::new("memory:").set("ttl", "60"));
        let far = settings(text).profile("far").unwrap().choice(None, None).unwrap().config;
        assert_eq!(far, LocksConfig::new("memory:far").set("ttl", "20s"));
        let error = settings(text).profile("nigth").unwrap_err().message;
        assert!(error.contains("there are far, night"), "{error}");
    }

    #[test]
    fn odd_paths_survive_the_url() {
        let url = sqlite_url(Path::new("/a b/ü%?#/locks.db")).unwrap();
        assert_eq!(url, "sqlite:///a%20b/%C3%BC%25%3F%23/locks.db");
        assert_eq!(StoreUrl::parse(&url).unwrap().file().unwrap(), "/a b/ü%?#/locks.db");
    }

    #[test]
    fn a_missing_variable_or_file_is_named() {
        for text in ["env:POLYLOCK_SURELY_NOT_SET", "file:/surely/not/there"] {
            let failure = Choice::new(text, BTreeMap::new(), None).unwrap_err();
            assert_eq!(failure.code, CONFIG);
            assert!(failure.message.contains(text.split_once(':').unwrap().1), "{}", failure.message);
        }
    }
}
