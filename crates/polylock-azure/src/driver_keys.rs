//! URL keys and settings of other drivers, so that a program and its locks can use one URL.

use polylock_core::{
    ConfigError,
    url::{Keys, StoreUrl},
};

/// The keys of the store, each with its names in other drivers.
const NAMES: [(&str, &[&str]); 5] = [
    ("account", &["account_name", "azure_storage_account_name", "azure_storage_account"]),
    (
        "polylock.account_key",
        &["account_key", "azure_storage_account_key", "azure_storage_access_key", "access_key"],
    ),
    ("polylock.connection_string", &["connection_string", "azure_storage_connection_string"]),
    ("polylock.endpoint", &["endpoint", "azure_storage_endpoint", "azure_endpoint", "account_url"]),
    ("emulator", &["use_emulator", "azure_storage_use_emulator"]),
];

const SAS_TOKEN: [&str; 3] = ["sas_token", "azure_storage_sas_token", "azure_storage_sas_key"];

/// Refused keys, and the text to write instead.
const REFUSED: [(&[&str], &str); 3] = [
    (
        &[
            "client_id",
            "azure_storage_client_id",
            "azure_client_id",
            "client_secret",
            "azure_storage_client_secret",
            "azure_client_secret",
            "tenant_id",
            "azure_storage_tenant_id",
            "azure_tenant_id",
            "authority_id",
            "bearer_token",
            "token",
            "federated_token_file",
            "azure_federated_token_file",
            "msi_endpoint",
            "use_azure_cli",
            "azure_use_azure_cli",
            "use_fabric_endpoint",
        ],
        "a URL can't name a token credential: pass one to Config::credential in a program, or use a shared access signature",
    ),
    (
        &["container", "container_name", "azure_container_name"],
        "write the container in the URL: az://container@account/prefix",
    ),
    (&["skip_signature", "anonymous"], "locks need write access: add credentials"),
];

/// The keys of a URL, in the names of this store or of another driver.
pub(crate) struct DriverKeys<'k> {
    given: Keys,
    keys: &'k mut Keys,
}

impl<'k> DriverKeys<'k> {
    /// # Errors
    /// [`ConfigError`] on a key that is refused.
    pub(crate) fn new(url: &StoreUrl, keys: &'k mut Keys) -> Result<Self, ConfigError> {
        let mut keys = Self { given: url.keys(), keys };
        for (names, problem) in REFUSED {
            if let Some((key, _)) = keys.first(names) {
                return Err(ConfigError::new(key, problem));
            }
        }
        Ok(keys)
    }

    /// Returns the value of the store's key `name`, and the name that it is given under.
    ///
    /// # Errors
    /// [`ConfigError`] if it is given under two names.
    pub(crate) fn text(&mut self, name: &'static str) -> Result<Option<(&'static str, String)>, ConfigError> {
        let own = if name == "account" { None } else { self.keys.text(name).map(|value| (name, value)) };
        let names = NAMES.iter().find(|(own, _)| *own == name).map_or(&[][..], |(_, names)| *names);
        match (own, self.first(names)) {
            (Some(_), Some((key, _))) => {
                Err(ConfigError::new(key, format!("has the same meaning as {name}: keep one")))
            }
            (own, other) => Ok(own.or(other)),
        }
    }

    /// Returns a shared access signature, the query of a URL, without a leading question mark.
    pub(crate) fn sas(&mut self) -> Option<String> {
        self.first(&SAS_TOKEN).map(|(_, sas)| sas.trim_start_matches('?').to_owned())
    }

    /// Returns the value of a key of this store: a parameter of a signature.
    pub(crate) fn own(&mut self, key: &'static str) -> Option<String> {
        self.keys.text(key)
    }

    /// Returns the first of `names` that is given, and its value. Only keys that are given are taken, so that no suggestion names a key of
    /// another driver.
    fn first(&mut self, names: &[&'static str]) -> Option<(&'static str, String)> {
        let name = names.iter().find(|name| self.given.text(name).is_some())?;
        self.keys.text(name).map(|value| (*name, value))
    }
}
