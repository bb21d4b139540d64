//! Which store: from the command line, the environment, the config file, or the default in the state directory.

use std::{
    collections::BTreeMap,
    env, fs,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use etcetera::BaseStrategy;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use polylock::LocksConfig;
use serde::Deserialize;

use crate::{
    args::Global,
    exit::{CANT_CREATE, CONFIG, Failure},
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
}

/// Finds out which store is meant.
pub(crate) fn choose(global: &Global) -> Result<Choice, Failure> {
    let from_environment = || env::var(STORE_VARIABLE).ok().filter(|url| !url.is_empty());
    if let Some(text) = &global.store {
        Choice::new(text, BTreeMap::new())
    } else if let Some(variable) = &global.store_env {
        Choice::new(&format!("env:{variable}"), BTreeMap::new())
    } else if let Some(profile) = &global.profile {
        let settings = Settings::read(global)?.profile(profile)?;
        settings.choice()
    } else if let Some(text) = from_environment() {
        Choice::new(&text, BTreeMap::new())
    } else {
        Settings::read(global)?.top.choice()
    }
}

impl Choice {
    fn new(text: &str, keys: BTreeMap<String, String>) -> Result<Self, Failure> {
        let mut variables = vec![STORE_VARIABLE.to_owned()];
        let url = match text.split_once(':') {
            Some(("env", variable)) => {
                variables.push(variable.to_owned());
                env::var(variable).map_err(|_| {
                    Failure::new(
                        CONFIG,
                        format!("store: the variable {variable} is not set; set it to the store's URL"),
                    )
                })?
            }
            Some(("file", path)) => {
                let text = fs::read_to_string(path).map_err(|error| {
                    Failure::new(
                        CONFIG,
                        format!("store: {path} can't be read: {error}; it should hold the store's URL"),
                    )
                })?;
                text.trim().to_owned()
            }
            _ => text.to_owned(),
        };
        let config =
            keys.into_iter().fold(LocksConfig::new(url), |config, (key, value)| config.set(key, value));
        Ok(Self { config, variables })
    }
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
    fn read(global: &Global) -> Result<Self, Failure> {
        let default = || Some(base_directories().ok()?.config_dir().join("polylock/config.toml"));
        let Some(path) = global.config.clone().or_else(default) else { return Ok(Self::default()) };
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if global.config.is_none() && error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self::default());
            }
            Err(error) => return Err(Failure::new(CONFIG, format!("config: {}: {error}", path.display()))),
        };
        toml::from_str(&text).map_err(|error| {
            // Not the whole text of the error: it quotes the line, which may hold a password, and so may a value.
            let line = error.span().map_or(1, |span| text[..span.start].lines().count().max(1));
            let problem = error.message().split('"').next().unwrap_or_default().trim_end();
            Failure::new(CONFIG, format!("config: {}, near line {line}: {problem}", path.display()))
        })
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
    fn choice(self) -> Result<Choice, Failure> {
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
        let keys = keys.collect::<Result<_, _>>()?;
        match self.store {
            Some(store) => Choice::new(&store, keys),
            None => Choice::new(&default_store()?, keys),
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
        let night = settings(text).profile("night").unwrap().choice().unwrap().config;
        assert_eq!(night, LocksConfig::new("memory:").set("ttl", "60"));
        let far = settings(text).profile("far").unwrap().choice().unwrap().config;
        assert_eq!(far, LocksConfig::new("memory:far").set("ttl", "20s"));
        let error = settings(text).profile("nigth").unwrap_err().message;
        assert!(error.contains("there are far, night"), "{error}");
    }

    #[test]
    fn odd_paths_survive_the_url() {
        let url = sqlite_url(Path::new("/a b/ü%?#/locks.db")).unwrap();
        assert_eq!(url, "sqlite:///a%20b/%C3%BC%25%3F%23/locks.db");
        assert_eq!(polylock::StoreUrl::parse(&url).unwrap().file().unwrap(), "/a b/ü%?#/locks.db");
    }

    #[test]
    fn a_missing_variable_or_file_is_named() {
        for text in ["env:POLYLOCK_SURELY_NOT_SET", "file:/surely/not/there"] {
            let failure = Choice::new(text, BTreeMap::new()).unwrap_err();
            assert_eq!(failure.code, CONFIG);
            assert!(failure.message.contains(text.split_once(':').unwrap().1), "{}", failure.message);
        }
    }
}
