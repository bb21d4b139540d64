//! URL keys and settings of other drivers, so that a program and its locks can use one URL.

use polylock_core::{
    ConfigError,
    url::{
        Keys,
        driver_keys::{DriverKey, rejected},
    },
};

/// The names of the account, which the address of this store's URLs names.
pub(crate) const ACCOUNT: [&str; 3] = ["account_name", "azure_storage_account_name", "azure_storage_account"];

/// The keys of the store, each with its names in other drivers.
const NAMES: [(&str, &[&str]); 4] = [
    (
        "polylock.account_key",
        &["account_key", "azure_storage_account_key", "azure_storage_access_key", "access_key"],
    ),
    ("polylock.connection_string", &["connection_string", "azure_storage_connection_string"]),
    ("polylock.endpoint", &["endpoint", "azure_storage_endpoint", "azure_endpoint", "account_url"]),
    ("emulator", &["use_emulator", "azure_storage_use_emulator"]),
];

const SAS_TOKEN: [&str; 3] = ["sas_token", "azure_storage_sas_token", "azure_storage_sas_key"];

/// The keys without a meaning here.
pub(crate) const DRIVER_KEYS: &[DriverKey] = &[
    rejected(
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
    rejected(
        &["container", "container_name", "azure_container_name"],
        "write the container in the URL: az://container@account/prefix",
    ),
    rejected(&["polylock.namespace"], "write the path in the URL: az://container@account/path"),
    rejected(&["skip_signature", "anonymous"], "locks need write access: add credentials"),
];

/// Takes the store's key `name`. Returns its value, and the name that it is given under.
///
/// # Errors
/// [`ConfigError`] if it is given under two names.
pub(crate) fn text(
    keys: &mut Keys,
    name: &'static str,
) -> Result<Option<(&'static str, String)>, ConfigError> {
    let own = keys.text(name).map(|value| (name, value));
    let names = NAMES.iter().find(|(own, _)| *own == name).map_or(&[][..], |(_, names)| *names);
    match (own, keys.first(names)) {
        (Some(_), Some((key, _))) => {
            Err(ConfigError::new(key, format!("has the same meaning as {name}: keep one")))
        }
        (own, other) => Ok(own.or(other)),
    }
}

/// Takes a shared access signature, the query of a URL. Returns it without a leading question mark.
pub(crate) fn sas(keys: &mut Keys) -> Option<String> {
    keys.first(&SAS_TOKEN).map(|(_, sas)| sas.trim_start_matches('?').to_owned())
}
