//! A config file: a store with its settings, and profiles that override some of them.

use std::{collections::BTreeMap, fmt};

use polylock_core::ConfigError;

use crate::LocksConfig;

/// A config file in any format that serde reads: the settings of a store, and profiles that override some of them. The command line
/// reads its config file in the same way.
///
/// ```
/// use polylock::{ConfigFile, Locks};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let file: ConfigFile = toml::from_str(
///     r#"
///     store = "memory:"
///     ttl = "30s"
///
///     [profiles.nightly]
///     ttl = "5m"
///     "#,
/// )?;
/// let locks = Locks::from_config(file.config(Some("nightly"))?).await?;
/// assert_eq!(locks.options().ttl.as_secs(), 300);
/// # Ok(()) }
/// ```
#[derive(Debug, Default, Clone, PartialEq, Eq, serde::Deserialize)]
pub struct ConfigFile {
    #[serde(default)]
    profiles: BTreeMap<String, Settings>,
    #[serde(flatten)]
    top: Settings,
}

/// The settings of a [`ConfigFile`] for one profile. `Debug` shows no secret.
#[derive(Default, Clone, PartialEq, Eq, serde::Deserialize)]
pub struct Settings {
    /// The URL of the store.
    pub store: Option<String>,
    /// The other settings, whose keys are those of the URL without the prefix `polylock.`.
    #[serde(flatten, deserialize_with = "crate::config::values")]
    pub keys: BTreeMap<String, String>,
}

impl ConfigFile {
    /// Returns the names of the profiles, sorted.
    pub fn profiles(&self) -> impl Iterator<Item = &str> {
        self.profiles.keys().map(String::as_str)
    }

    /// Returns the settings at the top of the file, overridden by those of `profile`.
    ///
    /// # Errors
    /// [`ConfigError`] on key `profile` if the file has no such profile; the message names those that it has.
    pub fn settings(&self, profile: Option<&str>) -> Result<Settings, ConfigError> {
        let mut settings = self.top.clone();
        let Some(profile) = profile else { return Ok(settings) };
        let Some(own) = self.profiles.get(profile) else {
            let names = self.profiles().collect::<Vec<_>>().join(", ");
            let remedy = if names.is_empty() {
                format!("add a section [profiles.{profile}]")
            } else {
                format!("available: {names}")
            };
            let problem = format!("there is no {profile:?} in the config file; {remedy}");
            return Err(ConfigError::new("profile", problem));
        };
        settings.store = own.store.clone().or(settings.store);
        settings.keys.extend(own.keys.clone());
        Ok(settings)
    }

    /// Returns the configuration of the store with [these settings](Self::settings).
    ///
    /// # Errors
    /// [`ConfigError`] on key `profile` if the file has no such profile, and on key `store` if no store is set. Other keys are checked
    /// when the store is opened.
    pub fn config(&self, profile: Option<&str>) -> Result<LocksConfig, ConfigError> {
        let Settings { store, keys } = self.settings(profile)?;
        let store =
            store.ok_or_else(|| ConfigError::new("store", "is missing: set it to the store's URL"))?;
        Ok(keys.into_iter().fold(LocksConfig::new(store), |config, (key, value)| config.set(key, value)))
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let store = self.store.as_deref().map(crate::config::without_secrets);
        f.debug_struct("Settings").field("store", &store).field("keys", &self.keys.keys()).finish()
    }
}
