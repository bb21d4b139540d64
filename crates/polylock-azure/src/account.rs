//! The account, the container, and the credentials.

use std::{fmt, sync::Arc};

use azure_core::{credentials::TokenCredential, http::Url};
use polylock_core::{
    ConfigError,
    url::{Address, Keys, StoreUrl},
};

use crate::{driver_keys, signing::SharedKey};

/// The name of the emulator's one account, and its key, which is not secret:
/// <https://learn.microsoft.com/azure/storage/common/storage-use-azurite>.
const EMULATED: (&str, &str) = (
    "devstoreaccount1",
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
);
const EMULATOR: &str = "http://127.0.0.1:10000";
const SUFFIX: &str = "core.windows.net";

/// The parameters that a shared access signature may have.
pub(crate) const SAS: [&str; 20] = [
    "sv", "ss", "srt", "sr", "sp", "st", "se", "sip", "spr", "si", "ses", "sdd", "skoid", "sktid", "skt",
    "ske", "sks", "skv", "scid", "sig",
];

/// The credential for the container.
#[derive(Clone)]
pub(crate) enum Credential {
    Key(SharedKey),
    /// The query of a URL.
    Sas(String),
    Token(Arc<dyn TokenCredential>),
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Key(_) => "an account key",
            Self::Sas(_) => "a shared access signature",
            Self::Token(_) => "a token credential",
        })
    }
}

/// The parts of a URL that are not keys.
pub(crate) struct Location {
    pub(crate) container: String,
    pub(crate) account: Option<String>,
    /// The URL of an account that is named by its host.
    pub(crate) endpoint: Option<Url>,
    pub(crate) prefix: Option<String>,
}

/// Reads `//container@account/prefix`, also with the host of the account.
pub(crate) fn location(url: &StoreUrl) -> Result<Location, ConfigError> {
    let problem = |problem: &str| url.problem(problem, "container@account/prefix");
    let address = Address::parse(url).map_err(|_| problem("names no container"))?;
    let (container, account) = match address.user {
        Some(container) => (container, Some(address.servers)),
        None => (address.servers, None),
    };
    let (account, endpoint) = match account.and_then(|account| account.split_once('.')) {
        Some((_, host)) if host.starts_with("dfs.") => {
            return Err(problem(
                "names the Data Lake endpoint, but locks are blobs: write .blob. instead of .dfs.",
            ));
        }
        Some((name, rest)) => (Some(name), Some(self::url("store", &format!("https://{name}.{rest}/"))?)),
        None => (account, None),
    };
    let plain = |text: &str| text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    if container.is_empty() {
        return Err(problem("names no container"));
    }
    let is_valid = container.split('-').all(|part| !part.is_empty() && plain(part));
    if !is_valid || !(3..=63).contains(&container.len()) {
        return Err(problem(
            "a container's name is 3 to 63 lower-case letters, digits and single dashes between them",
        ));
    }
    if account.is_some_and(|account| !plain(account) || !(3..=24).contains(&account.len())) {
        return Err(problem("an account's name is 3 to 24 lower-case letters and digits"));
    }
    let prefix = address.path.trim_end_matches('/');
    Ok(Location {
        container: container.to_owned(),
        account: account.map(str::to_owned),
        endpoint,
        prefix: if prefix.is_empty() { None } else { Some(self::prefix(prefix)?) },
    })
}

/// Checks the prefix of the blobs' names. Text that is refused here is refused, changed or misinterpreted by the service.
pub(crate) fn prefix(prefix: &str) -> Result<String, ConfigError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_valid = |part: &str| !part.is_empty() && !part.ends_with('.') && part.chars().all(plain);
    if prefix.len() > 200 || !prefix.split('/').all(is_valid) {
        let problem = "the path must be up to 200 letters, digits, -, _ and . in parts such as app/locks, none of which \
                       ends with a dot";
        return Err(ConfigError::new("store", problem));
    }
    Ok(prefix.to_owned())
}

pub(crate) fn invalid_key() -> ConfigError {
    ConfigError::new("polylock.account_key", "is not base64: copy all of it, and write %2B for + in a URL")
}

/// An account, from the keys of a URL.
pub(crate) struct Account {
    pub(crate) endpoint: Url,
    pub(crate) credential: Option<Credential>,
}

impl Account {
    /// Returns the account `named`, at this `host`, or the account of the keys.
    pub(crate) fn from_keys(
        named: Option<String>,
        host: Option<Url>,
        keys: &mut Keys,
    ) -> Result<Self, ConfigError> {
        keys.take_driver_keys(driver_keys::DRIVER_KEYS)?;
        let emulator = read(driver_keys::text(keys, "emulator")?, emulator)?.flatten();
        let text = driver_keys::text(keys, "polylock.connection_string")?.map(|(_, text)| text);
        let own = driver_keys::text(keys, "polylock.account_key")?.map(|(_, key)| key);
        let endpoint = read(driver_keys::text(keys, "polylock.endpoint")?, endpoint)?.or(host);
        let named = match (named, keys.first(&driver_keys::ACCOUNT)) {
            (Some(named), Some((key, other))) if named != other => {
                return Err(ConfigError::new(key, "names another account than the URL does: keep one"));
            }
            (named, other) => named.or(other.map(|(_, name)| name)),
        };
        let mut parameters = Vec::new();
        for key in SAS {
            parameters.extend(keys.text(key).map(|value| (key, value)));
        }
        let sas = (!parameters.is_empty()).then(|| query(&parameters));
        let sas = match (sas, driver_keys::sas(keys)) {
            (Some(_), Some(_)) => {
                return Err(ConfigError::new("sig", "is one credential too many: keep one"));
            }
            (one, other) => one.or(other),
        };

        let given = [
            ("polylock.account_key", own.is_some()),
            ("polylock.connection_string", text.is_some()),
            ("sig", sas.is_some()),
        ];
        let mut given = given.into_iter().filter(|(_, given)| *given).skip(1);
        if let Some((key, _)) = given.next() {
            return Err(ConfigError::new(key, "is one credential too many: keep one"));
        }

        let mut account = match &text {
            Some(text) => Parts::parse(text).account(named.as_deref())?,
            None => match emulator {
                Some(at) => emulated(&at, named.as_deref())?,
                None => Self {
                    endpoint: account_endpoint(named.as_deref(), endpoint.as_ref())?,
                    credential: None,
                },
            },
        };
        if let Some(endpoint) = endpoint {
            account.endpoint = endpoint;
        }
        if let Some(key) = own {
            let named = named.ok_or_else(|| {
                ConfigError::new(
                    "store",
                    "an account key needs the account's name: write az://container@account",
                )
            })?;
            account.credential = Some(Credential::Key(SharedKey::new(&named, &key).ok_or_else(invalid_key)?));
        }
        if let Some(sas) = sas {
            account.credential = Some(Credential::Sas(sas));
        }
        Ok(account)
    }
}

/// Returns the endpoint of the account: `given` if there is one, otherwise that in the public cloud.
fn account_endpoint(account: Option<&str>, given: Option<&Url>) -> Result<Url, ConfigError> {
    match (account, given) {
        (_, Some(endpoint)) => Ok(endpoint.clone()),
        (Some(account), None) => url("store", &format!("https://{account}.blob.{SUFFIX}/")),
        (None, None) => {
            Err(ConfigError::new("store", "names no account: write az://container@account/prefix"))
        }
    }
}

/// Returns the value of a key, if it is given.
fn read<T>(
    given: Option<(&'static str, String)>,
    read: impl FnOnce(&str) -> Result<T, &'static str>,
) -> Result<Option<T>, ConfigError> {
    let Some((key, text)) = given else { return Ok(None) };
    read(&text).map(Some).map_err(|problem| ConfigError::new(key, problem))
}

fn emulated(at: &str, account: Option<&str>) -> Result<Account, ConfigError> {
    let account = account.unwrap_or(EMULATED.0);
    let endpoint = url("emulator", &format!("{at}/{account}"))?;
    let key = (account == EMULATED.0).then(|| SharedKey::new(EMULATED.0, EMULATED.1)).flatten();
    Ok(Account { endpoint, credential: key.map(Credential::Key) })
}

/// Returns the URL of an emulator, without a slash at its end; `None` if `text` disables it.
fn emulator(text: &str) -> Result<Option<String>, &'static str> {
    match text {
        "true" | "1" => return Ok(Some(EMULATOR.to_owned())),
        "false" | "0" => return Ok(None),
        _ => {}
    }
    let url: Url = text.parse().map_err(|_| "must be true, or a URL such as http://127.0.0.1:10000")?;
    let bare = matches!(url.scheme(), "http" | "https") && url.path() == "/" && url.query().is_none();
    if !bare {
        return Err("must be true, or a URL such as http://127.0.0.1:10000, without the account");
    }
    Ok(Some(text.trim_end_matches('/').to_owned()))
}

/// Parses the URL of an account.
fn endpoint(text: &str) -> Result<Url, &'static str> {
    let problem = "must be the account's URL, such as https://account.blob.core.windows.net";
    let url: Url = text.parse().map_err(|_| problem)?;
    let is_valid =
        matches!(url.scheme(), "http" | "https") && url.query().is_none() && url.fragment().is_none();
    if is_valid && url.username().is_empty() { Ok(url) } else { Err(problem) }
}

fn url(key: &str, text: &str) -> Result<Url, ConfigError> {
    text.parse().map_err(|error| ConfigError::new(key, format!("{error}")))
}

/// Encodes pairs as the query of a URL.
fn query(pairs: &[(&str, String)]) -> String {
    let mut url = Url::parse("http://h").unwrap_or_else(|_| unreachable!("a valid URL"));
    url.query_pairs_mut().extend_pairs(pairs);
    url.query().unwrap_or_default().to_owned()
}

/// A connection string: `AccountName=…;AccountKey=…;…`. See
/// <https://learn.microsoft.com/azure/storage/common/storage-configure-connection-string>.
struct Parts<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Parts<'a> {
    fn parse(text: &'a str) -> Self {
        Self(text.split(';').filter_map(|part| part.trim().split_once('=')).collect())
    }

    fn get(&self, wanted: &str) -> Option<&'a str> {
        self.0.iter().find(|(key, _)| key.eq_ignore_ascii_case(wanted)).map(|(_, value)| *value)
    }

    fn account(&self, named: Option<&str>) -> Result<Account, ConfigError> {
        const KEY: &str = "polylock.connection_string";
        let problem = |problem: &str| ConfigError::new(KEY, problem);
        if self.get("UseDevelopmentStorage").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return emulated(EMULATOR, None);
        }
        let name = self.get("AccountName");
        if let (Some(named), Some(name)) = (named, name)
            && named != name
        {
            return Err(problem("names another account than the URL does: keep one"));
        }
        let credential = match (self.get("SharedAccessSignature"), name, self.get("AccountKey")) {
            (Some(sas), ..) => Credential::Sas(sas.trim_start_matches('?').to_owned()),
            (None, Some(name), Some(key)) => Credential::Key(
                SharedKey::new(name, key)
                    .ok_or_else(|| problem("its AccountKey is not base64: copy all of it"))?,
            ),
            _ => {
                return Err(problem(
                    "has neither AccountName and AccountKey nor SharedAccessSignature: copy all of it, and \
                     percent-encode it in a URL",
                ));
            }
        };
        let endpoint = match (self.get("BlobEndpoint"), name.or(named)) {
            (Some(endpoint), _) => {
                self::endpoint(endpoint).map_err(|_| problem("its BlobEndpoint is not a URL"))?
            }
            (None, Some(name)) => {
                let scheme = self.get("DefaultEndpointsProtocol").unwrap_or("https");
                let suffix = self.get("EndpointSuffix").unwrap_or(SUFFIX);
                url(KEY, &format!("{scheme}://{name}.blob.{suffix}/"))?
            }
            (None, None) => return Err(problem("has neither AccountName nor BlobEndpoint")),
        };
        Ok(Account { endpoint, credential: Some(credential) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_strings() {
        let of = |text: &str| Parts::parse(text).account(None).map(|account| account.endpoint.to_string());
        for (text, endpoint) in [
            ("UseDevelopmentStorage=true", "http://127.0.0.1:10000/devstoreaccount1"),
            ("AccountName=a;AccountKey=a2V5==", ""),
            (
                "DefaultEndpointsProtocol=https;AccountName=abc;AccountKey=a2V5;EndpointSuffix=core.windows.net",
                "https://abc.blob.core.windows.net/",
            ),
            ("accountname=abc;accountkey=a2V5;EndpointSuffix=x.cn;", "https://abc.blob.x.cn/"),
            (
                "AccountName=devstoreaccount1;AccountKey=a2V5;BlobEndpoint=http://h:1/devstoreaccount1",
                "http://h:1/devstoreaccount1",
            ),
            ("BlobEndpoint=https://h/;SharedAccessSignature=sv=1&sig=x", "https://h/"),
            ("SharedAccessSignature=sv=1&sig=x", ""),
            ("AccountName=abc", ""),
            ("", ""),
        ] {
            assert_eq!(of(text).unwrap_or_default(), endpoint, "{text}");
        }
    }

    #[test]
    fn a_signature_is_written_as_it_was_read() {
        assert_eq!(
            query(&[("sv", "2021-06-08".to_owned()), ("sig", "a+b/c=".to_owned())]),
            "sv=2021-06-08&sig=a%2Bb%2Fc%3D"
        );
    }
}
