//! The choice of the store: from the command line, the environment, the config file, or the default in the state directory.

#[cfg(test)]
mod fuzz;
mod nested;
mod origin;
mod paths;

use std::{
    collections::BTreeMap,
    env, fs,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use etcetera::BaseStrategy;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use polylock::{ConfigError, ConfigFile, LocksConfig, Settings, core::url::nearest};

pub(crate) use self::origin::Origin;
use self::{
    nested::OuterStore,
    paths::{absolute_path, displayed, has_relative_path},
};
use crate::{
    args::Global,
    exit::{CANT_CREATE, CONFIG, Failure, USAGE},
    outer_run,
    output::Output,
};

/// The variable with the store's URL, unless the command line names a store.
pub(crate) const STORE_VARIABLE: &str = "POLYLOCK_STORE";

/// The store that was chosen.
#[derive(Debug)]
pub(crate) struct ChosenStore {
    /// Its URL and settings.
    pub(crate) config: LocksConfig,
    /// The variables that contain its URL, and perhaps a password. They are hidden from the command.
    pub(crate) variables: Vec<String>,
    /// The store without secrets, for display.
    pub(crate) display_name: String,
    /// The reference by which a nested run finds the same store.
    pub(crate) reference: String,
    /// The place from which its URL comes.
    #[cfg_attr(not(feature = "check"), allow(dead_code, reason = "a check reports it"))]
    pub(crate) origin: Origin,
    /// A warning for the user about the store.
    warning: Option<String>,
    /// The directory of the default store, which may be missing.
    directory: Option<PathBuf>,
}

/// Determines the store, and creates the directory of the default store, accessible only to the user, if it is missing.
///
/// # Errors
/// If no store is named, the variable that should name it is invalid, or the directory can't be created.
pub(crate) fn choose(global: &Global, output: &Output) -> Result<ChosenStore, Failure> {
    let chosen = find(global, output)?;
    if let Some(directory) = &chosen.directory {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(|error| {
            let directory = directory.display();
            Failure::new(
                CANT_CREATE,
                format!("{directory} can't be created: {error}; choose a store with -S or {STORE_VARIABLE}"),
            )
        })?;
    }
    Ok(chosen)
}

/// Determines the store, and changes nothing.
///
/// # Errors
/// As [`choose`].
pub(crate) fn find(global: &Global, output: &Output) -> Result<ChosenStore, Failure> {
    if global.store.len() > 1 {
        return Err(Failure::new(USAGE, "several stores: only polylock bench uses more than one -S"));
    }
    let (chosen, origin) = if let Some(text) = global.store.first() {
        (ChosenStore::new(text, BTreeMap::new(), None), Origin::of_flag(text))
    } else if let Some(variable) = &global.store_env {
        (
            ChosenStore::new(&format!("env:{variable}"), BTreeMap::new(), None),
            Origin::Variable(variable.clone()),
        )
    } else if let Some(profile) = &global.profile {
        let (config, file) = read_config(global)?;
        let settings = config.settings(Some(profile))?;
        let origin = Origin::of_section(settings.store.is_some(), file.as_deref(), Some(profile));
        (store_of(settings, file.as_deref(), Some(profile)), origin)
    } else if let Some(text) = variable(STORE_VARIABLE)? {
        (ChosenStore::new(&text, BTreeMap::new(), None), Origin::of_variable(STORE_VARIABLE, &text))
    } else if let Some(outer) = nested::outer_store(variable(outer_run::STORE)?)? {
        (ChosenStore::of_outer_run(outer, global), Origin::OuterRun)
    } else {
        let (config, file) = read_config(global)?;
        let settings = config.settings(None)?;
        let origin = Origin::of_section(settings.store.is_some(), file.as_deref(), None);
        (store_of(settings, file.as_deref(), None), origin)
    };
    let chosen = ChosenStore { origin, ..chosen? };
    if let Some(warning) = &chosen.warning {
        output.warning(warning);
    }
    Ok(chosen)
}

/// Determines all stores of the command line, or the one that [`choose`] returns.
///
/// # Errors
/// As [`choose`].
#[cfg(feature = "check")]
pub(crate) fn choose_all(global: &Global, output: &Output) -> Result<Vec<ChosenStore>, Failure> {
    if global.store.len() < 2 {
        return Ok(vec![choose(global, output)?]);
    }
    let each = global.store.iter().map(|store| Global { store: vec![store.clone()], ..global.clone() });
    each.map(|global| choose(&global, output)).collect()
}

/// Returns the text of a variable, if it is set.
///
/// # Errors
/// If it is empty or not UTF-8: an unset secret, for instance, must not lead to another store.
fn variable(name: &str) -> Result<Option<String>, Failure> {
    let problem = match env::var(name) {
        Ok(text) if text.is_empty() => "empty",
        Ok(text) => return Ok(Some(text)),
        Err(env::VarError::NotPresent) => return Ok(None),
        Err(env::VarError::NotUnicode(_)) => "not valid UTF-8",
    };
    let problem = format!("store: the variable {name} is {problem}; set it to the store's URL, or unset it");
    Err(Failure::new(CONFIG, problem))
}

impl ChosenStore {
    /// Creates the choice of the store `text` with these keys. A nested run finds it by `reference`.
    fn new(text: &str, keys: BTreeMap<String, String>, reference: Option<String>) -> Result<Self, Failure> {
        let mut variables = vec![STORE_VARIABLE.to_owned()];
        let (mut reference, mut place) = (reference, None);
        let url = match text.split_once(':') {
            Some(("env", name)) => {
                variables.push(name.to_owned());
                place = Some(format!("variable {name}"));
                variable(name)?.ok_or_else(|| {
                    let problem = format!("store: the variable {name} is not set; set it to the store's URL");
                    Failure::new(CONFIG, problem)
                })?
            }
            Some(("file", path)) => {
                let text = fs::read_to_string(path).map_err(|error| {
                    Failure::new(
                        CONFIG,
                        format!(
                            "store: {path} can't be read: {error}; the file must contain the store's URL"
                        ),
                    )
                })?;
                place = Some(format!("file {path}"));
                let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
                reference = reference.or_else(|| Some(format!("file:{}", path.to_str()?)));
                text.trim().to_owned()
            }
            _ => text.to_owned(),
        };
        let config =
            keys.into_iter().fold(LocksConfig::new(url), |config, (key, value)| config.set(key, value));
        let url = config.clone().into_url().map_err(|error| match place {
            Some(place) => ConfigError::new(&error.key, format!("{} (in {place})", error.problem)),
            None => error,
        })?;
        let absolute = absolute_path(&url);
        let display_name = displayed(&url);
        let warning = has_relative_path(&url).then(|| {
            format!(
                "the path of the store is relative to the working directory, so processes that run elsewhere use another store; \
                 write its absolute path: {display_name}"
            )
        });
        let reference = nested::without_secrets(&url, absolute.as_deref())
            .or(reference)
            .unwrap_or_else(|| display_name.clone());
        let origin = Origin::Default;
        Ok(Self { config, variables, display_name, reference, origin, warning, directory: None })
    }

    /// Returns the store of the outer run.
    fn of_outer_run(outer: OuterStore, global: &Global) -> Result<Self, Failure> {
        match outer {
            OuterStore::Named(text) => Self::new(&text, Default::default(), None),
            OuterStore::InConfig { file, profile } => {
                let global = Global { config: Some(file), ..global.clone() };
                let (config, file) = read_config(&global)?;
                store_of(config.settings(profile.as_deref())?, file.as_deref(), profile.as_deref())
            }
        }
    }
}

/// Reads the config file, and returns it with its path, if there is one.
fn read_config(global: &Global) -> Result<(ConfigFile, Option<PathBuf>), Failure> {
    let default = || Some(base_directories().ok()?.config_dir().join("polylock/config.toml"));
    let Some(path) = global.config.clone().or_else(default) else { return Ok((ConfigFile::default(), None)) };
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if global.config.is_none() && error.kind() == std::io::ErrorKind::NotFound => {
            return Ok((ConfigFile::default(), None));
        }
        Err(error) => {
            return Err(Failure::new(
                CONFIG,
                format!(
                    "config: {} can't be read: {error}; correct the path or its permissions",
                    path.display()
                ),
            ));
        }
    };
    Ok((parse_config(&text, &path)?, Some(path)))
}

/// Parses the `text` of the config file `path`.
fn parse_config(text: &str, path: &Path) -> Result<ConfigFile, Failure> {
    toml::from_str(text).map_err(|error| {
        // The full text of the error is omitted: it quotes the line, which may contain a password, and so may a value.
        let line = error.span().map_or(1, |span| text[..span.start].lines().count().max(1));
        let problem = error.message().split('"').next().unwrap_or_default().trim_end();
        Failure::new(CONFIG, format!("config: {}, near line {line}: {problem}", path.display()))
    })
}

/// Returns the store of these settings, which are those of `profile` in `file`.
fn store_of(
    Settings { store, keys }: Settings,
    file: Option<&Path>,
    profile: Option<&str>,
) -> Result<ChosenStore, Failure> {
    let key_error = |key: &str, problem: &str| {
        let file = file.map_or_else(String::new, |file| format!("{}: ", file.display()));
        Failure::new(CONFIG, format!("config: {file}{key}: {}", problem.replace("polylock.", "")))
    };
    if let (None, Some(key)) = (&store, keys.keys().find(|key| nearest(key, ["store"]).is_some())) {
        return Err(key_error(key, "unknown key; did you mean store?"));
    }
    match store {
        Some(store) => {
            let names: Vec<String> = keys.keys().cloned().collect();
            let chosen = ChosenStore::new(
                &store,
                keys,
                file.and_then(|file| nested::config_reference(file, profile)),
            )?;
            let Err(error) = chosen.config.clone().schema() else { return Ok(chosen) };
            let key = error.key.strip_prefix("polylock.");
            match key.filter(|key| names.iter().any(|name| name == key)) {
                Some(key) => Err(key_error(key, &error.problem)),
                None => Err(error.into()),
            }
        }
        None => {
            let directory = state_directory()?;
            let chosen = ChosenStore::new(&sqlite_url(&directory.join("locks.db"))?, keys, None)?;
            Ok(ChosenStore { directory: Some(directory), ..chosen })
        }
    }
}

/// Returns the directory of the default store, in the user's state directory.
fn state_directory() -> Result<PathBuf, Failure> {
    if cfg!(not(feature = "sqlite")) {
        let problem = format!(
            "store: no store is named, and the default, SQLite, is not compiled in: name one with -S or {STORE_VARIABLE}"
        );
        return Err(Failure::new(CONFIG, problem));
    }
    let base = base_directories()?;
    Ok(base.state_dir().unwrap_or_else(|| base.data_dir()).join("polylock"))
}

fn sqlite_url(file: &Path) -> Result<String, Failure> {
    const PLAIN: AsciiSet = NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'~');
    let path: PathBuf = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let text = path.to_str().ok_or_else(|| {
        Failure::new(
            CONFIG,
            format!("the state directory {} is not valid UTF-8; choose a store with -S", path.display()),
        )
    })?;
    Ok(format!("sqlite://{}", utf8_percent_encode(text, &PLAIN)))
}

fn base_directories() -> Result<impl BaseStrategy, Failure> {
    etcetera::choose_base_strategy().map_err(|_| {
        Failure::new(
            CONFIG,
            format!("no home directory is known; choose a store with -S or {STORE_VARIABLE}"),
        )
    })
}

#[cfg(test)]
mod tests {
    use polylock::StoreUrl;

    use super::*;

    #[test]
    fn special_characters_of_a_path_are_encoded_in_the_url() {
        let url = sqlite_url(Path::new("/a b/ü%?#/locks.db")).unwrap();
        assert_eq!(url, "sqlite:///a%20b/%C3%BC%25%3F%23/locks.db");
        assert_eq!(StoreUrl::parse(&url).unwrap().file().unwrap(), "/a b/ü%?#/locks.db");
    }

    #[test]
    fn the_error_names_a_missing_variable_or_file() {
        for text in ["env:POLYLOCK_SURELY_NOT_SET", "file:/surely/not/there"] {
            let failure = ChosenStore::new(text, BTreeMap::new(), None).unwrap_err();
            assert_eq!(failure.code, CONFIG);
            assert!(failure.message.contains(text.split_once(':').unwrap().1), "{}", failure.message);
        }
    }
}
