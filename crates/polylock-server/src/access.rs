//! The callers of a service, and their rights.

use std::{
    collections::HashMap,
    num::{NonZeroU32, NonZeroUsize},
    sync::{Arc, Mutex, PoisonError},
};

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use polylock_core::{ConfigError, Mode, sync::lock};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use crate::readers::Readers;

/// The key of the errors.
const KEY: &str = "access";
/// The requests of one caller at the same time, unless the file states another number.
const REQUESTS: usize = 2_000;
/// The requests of all callers at the same time without a file.
const OPEN_REQUESTS: usize = 20_000;

/// The callers of a service: all clients with all rights, or those of a file.
///
/// The file is TOML. It contains hashes alone, so a reader of the file can't become a caller:
///
/// ```
/// let access = polylock_server::Access::parse(r#"
/// [[caller]]
/// name = "billing"
/// token_sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
/// allow = [{ prefix = "billing/", rights = ["exclusive"] }]
///
/// [[caller]]
/// name = "dashboard"
/// certificate_sha256 = "5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8"
/// requests = 10
/// rate = 20
/// allow = [{ prefix = "", rights = ["inspect"] }]
/// "#)?;
/// # Ok::<_, polylock_core::ConfigError>(())
/// ```
///
/// | field | meaning |
/// |---|---|
/// | `name` | the name of the caller in messages |
/// | `token_sha256` | the SHA-256 of its bearer token, as 64 hexadecimal digits. The token is a random one: `openssl rand -hex 32` |
/// | `certificate_sha256` | the SHA-256 fingerprint of its client certificate. One of the two is needed. |
/// | `allow` | its rights, for names with a prefix. The empty prefix is that of all names. |
/// | `requests` | the number of its requests at the same time, of which each stream and each waiter is one: 2,000 by default |
/// | `rate` | the number of its requests per second: unlimited by default |
///
/// | right | allows |
/// |---|---|
/// | `shared` | to hold locks in the shared modes, and `inspect` |
/// | `exclusive` | to hold locks in all modes, and `inspect` |
/// | `inspect` | to read holders, waiters, records of jobs, and notices of breaks |
/// | `break` | to break locks, and `inspect` |
/// | `raise` | to raise the fencing tokens, as `both:` does. Most stores have one counter for all locks, so the prefix does not limit the effect. |
#[derive(Debug)]
pub struct Access {
    callers: Mutex<HashMap<Sha256Hash, Arc<Account>>>,
    /// The account of all clients.
    anyone: Option<Arc<Account>>,
    /// True if the service is reached by addresses and the name `localhost` alone.
    pub(crate) is_local: bool,
}

/// A SHA-256.
pub(crate) type Sha256Hash = [u8; 32];

/// The client certificate of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) Option<Sha256Hash>);

/// Returns the SHA-256 of `bytes`.
pub(crate) fn hash(bytes: &[u8]) -> Sha256Hash {
    Sha256::digest(bytes).into()
}

/// A caller, and the requests that it may send.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) name: String,
    /// True for a caller of a file.
    pub(crate) is_known: bool,
    pub(crate) rules: Vec<Rule>,
    pub(crate) requests: Arc<Semaphore>,
    /// Separate places for requests that keep or end a hold, so that a caller at its limit can still release its locks.
    pub(crate) upkeep: Arc<Semaphore>,
    pub(crate) readers: Arc<Readers>,
    /// The number of its requests at the same time.
    limit: usize,
    rate: Option<Arc<DefaultDirectRateLimiter>>,
}

/// A right of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Right {
    Shared,
    Exclusive,
    Inspect,
    Break,
    Raise,
}

/// Rights for the names with a prefix.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    prefix: String,
    rights: Vec<Right>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CallerTable {
    name: String,
    token_sha256: Option<String>,
    certificate_sha256: Option<String>,
    requests: Option<NonZeroUsize>,
    rate: Option<NonZeroU32>,
    allow: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AccessFile {
    caller: Vec<CallerTable>,
}

impl Right {
    /// Returns the right that a hold in `mode` needs.
    pub(crate) fn to_hold(mode: Mode) -> Self {
        if Mode::Shared.covers(mode) { Self::Shared } else { Self::Exclusive }
    }

    /// Returns true if this right contains `wanted`.
    const fn contains(self, wanted: Self) -> bool {
        matches!(
            (self, wanted),
            (Self::Exclusive, Self::Exclusive | Self::Shared | Self::Inspect)
                | (Self::Shared, Self::Shared | Self::Inspect)
                | (Self::Break, Self::Break | Self::Inspect)
                | (Self::Inspect, Self::Inspect)
                | (Self::Raise, Self::Raise)
        )
    }

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Exclusive => "exclusive",
            Self::Inspect => "inspect",
            Self::Break => "break",
            Self::Raise => "raise",
        }
    }
}

impl Access {
    /// Returns that of all clients of this machine, with all rights. Requests to another host than an address or `localhost` are refused: a page of
    /// the web can make a name of its own lead to this machine.
    #[must_use]
    pub fn open() -> Self {
        let rights = vec![Right::Exclusive, Right::Break, Right::Raise];
        let rules = vec![Rule { prefix: String::new(), rights }];
        let anyone = Account {
            is_known: false,
            readers: Arc::new(Readers::of_all()),
            ..Account::new("anyone".to_owned(), rules, OPEN_REQUESTS, None)
        };
        Self { callers: Mutex::default(), anyone: Some(Arc::new(anyone)), is_local: true }
    }

    /// Returns that of all clients of all machines, with all rights.
    #[must_use]
    pub fn open_to_all_machines() -> Self {
        Self { is_local: false, ..Self::open() }
    }

    /// Parses a file.
    ///
    /// # Errors
    /// [`ConfigError`] if it is no valid file, or if two callers have the same token or certificate.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let file: AccessFile =
            toml::from_str(text).map_err(|error| ConfigError::new(KEY, error.to_string()))?;
        let mut callers = HashMap::new();
        for caller in file.caller {
            let CallerTable { name, token_sha256, certificate_sha256, requests, rate, allow } = caller;
            let problem = |problem: &str| ConfigError::new(KEY, format!("caller {name}: {problem}"));
            let hashes: Vec<_> = token_sha256.into_iter().chain(certificate_sha256).collect();
            if hashes.is_empty() {
                return Err(problem("it has neither token_sha256 nor certificate_sha256"));
            }
            let limit = requests.map_or(REQUESTS, NonZeroUsize::get).min(Semaphore::MAX_PERMITS);
            let rate = rate.map(|rate| Arc::new(RateLimiter::direct(Quota::per_second(rate))));
            let account = Arc::new(Account::new(name.clone(), allow, limit, rate));
            for text in hashes {
                let hash =
                    hash_of(&text).ok_or_else(|| problem("a SHA-256 is written as 64 hexadecimal digits"))?;
                if callers.insert(hash, account.clone()).is_some() {
                    return Err(problem("another caller has the same token or certificate"));
                }
            }
        }
        Ok(Self { callers: Mutex::new(callers), anyone: None, is_local: false })
    }

    /// Returns the account of a client with this token and this certificate; `None` if it has none.
    pub(crate) fn account(
        &self,
        token: Option<&str>,
        certificate: Option<Sha256Hash>,
    ) -> Option<Arc<Account>> {
        // The time of the search depends on the hash alone, from which no token can be found.
        let token = token.map(|token| hash(token.as_bytes()));
        let callers = lock(&self.callers);
        let known = |hash: Option<Sha256Hash>| hash.and_then(|hash| callers.get(&hash)).cloned();
        self.anyone.clone().or_else(|| known(token)).or_else(|| known(certificate))
    }

    /// Replaces the callers of a file by those of another one. It applies to the requests from now on: a stream or a request that has begun
    /// stays, and one of a caller that stays, by its name, is one of its requests.
    pub fn replace(&self, with: Self) {
        let mut present = lock(&self.callers);
        let named: HashMap<_, _> = present.values().map(|account| (&*account.name, account)).collect();
        let mut callers = with.callers.into_inner().unwrap_or_else(PoisonError::into_inner);
        for account in callers.values_mut() {
            if let Some(former) = named.get(&*account.name).filter(|former| former.limit == account.limit) {
                // Of a caller with a token and a certificate, too: the two have the same requests.
                *account = Arc::new(Account {
                    name: account.name.clone(),
                    is_known: true,
                    rules: account.rules.clone(),
                    requests: former.requests.clone(),
                    upkeep: former.upkeep.clone(),
                    readers: former.readers.clone(),
                    limit: account.limit,
                    rate: account.rate.clone(),
                });
            }
        }
        *present = callers;
    }
}

impl Account {
    fn new(
        name: String,
        rules: Vec<Rule>,
        limit: usize,
        rate: Option<Arc<DefaultDirectRateLimiter>>,
    ) -> Self {
        let places = || Arc::new(Semaphore::new(limit));
        Self {
            name,
            is_known: true,
            rules,
            requests: places(),
            upkeep: places(),
            readers: Arc::new(Readers::of_one()),
            limit,
            rate,
        }
    }

    /// Returns true if it has this right for the lock `name`.
    pub(crate) fn may(&self, right: Right, name: &str) -> bool {
        let applies = |rule: &&Rule| name.starts_with(&rule.prefix);
        self.rules.iter().filter(applies).any(|rule| rule.rights.iter().any(|own| own.contains(right)))
    }

    /// Returns true if it may have this right for a name that begins with `prefix`.
    pub(crate) fn may_below(&self, right: Right, prefix: &str) -> bool {
        let meets = |rule: &&Rule| rule.prefix.starts_with(prefix) || prefix.starts_with(&rule.prefix);
        self.rules.iter().filter(meets).any(|rule| rule.rights.iter().any(|own| own.contains(right)))
    }

    /// Returns true if another request is within its rate.
    pub(crate) fn is_within_rate(&self) -> bool {
        self.rate.as_ref().is_none_or(|rate| rate.check().is_ok())
    }
}

fn hash_of(text: &str) -> Option<Sha256Hash> {
    let text = text.replace(':', "");
    let mut hash = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (at, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn file(fields: &str) -> String {
        format!("[[caller]]\nname = \"c\"\n{fields}\n")
    }

    fn token(token: &str) -> String {
        let hex: String = hash(token.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        format!("token_sha256 = \"{hex}\"")
    }

    #[test]
    fn a_caller_has_the_rights_of_its_rules_alone() {
        let rules = r#"allow = [{ prefix = "a/", rights = ["exclusive"] }, { prefix = "", rights = ["inspect"] },
            { prefix = "s/", rights = ["shared", "break"] }]"#;
        let access = Access::parse(&file(&format!("{}\n{rules}", token("t")))).unwrap();
        assert!(access.account(None, None).is_none());
        assert!(access.account(Some("u"), None).is_none());
        let caller = access.account(Some("t"), None).unwrap();
        for (right, name, allowed) in [
            (Right::Exclusive, "a/1", true),
            (Right::Shared, "a/1", true),
            (Right::Break, "a/1", false),
            (Right::Exclusive, "a", false),
            (Right::Inspect, "b", true),
            (Right::Shared, "b", false),
            (Right::Shared, "s/1", true),
            (Right::Exclusive, "s/1", false),
            (Right::Break, "s/1", true),
            (Right::Raise, "a/1", false),
            (Right::Raise, "s/1", false),
        ] {
            assert_eq!(caller.may(right, name), allowed, "{right:?} {name}");
        }
        assert_eq!(Right::to_hold(Mode::Shared), Right::Shared);
        assert_eq!(Right::to_hold(Mode::ConcurrentRead), Right::Shared);
        assert_eq!(Right::to_hold(Mode::ConcurrentWrite), Right::Exclusive);
        assert_eq!(Right::to_hold(Mode::Exclusive), Right::Exclusive);
    }

    #[test]
    fn a_certificate_is_a_caller() {
        let hash = hash(b"der");
        let hex: Vec<String> = hash.iter().map(|byte| format!("{byte:02X}")).collect();
        let text = file(&format!("certificate_sha256 = \"{}\"\nallow = []", hex.join(":")));
        let access = Access::parse(&text).unwrap();
        assert!(access.account(None, Some(hash)).is_some());
        assert!(access.account(Some("der"), None).is_some(), "a hash is a hash");
        assert!(access.account(None, Some([0; 32])).is_none());
    }

    #[test]
    fn callers_are_replaced_and_keep_their_requests() {
        let of = |text: &str, fields: &str| {
            Access::parse(&file(&format!("{}\nallow = []\n{fields}", token(text)))).unwrap()
        };
        let access = of("old", "requests = 2");
        let held = access.account(Some("old"), None).unwrap().requests.clone().try_acquire_owned().unwrap();
        access.replace(of("new", "requests = 2"));
        assert!(access.account(Some("old"), None).is_none(), "its token is not valid any more");
        assert_eq!(access.account(Some("new"), None).unwrap().requests.available_permits(), 1);
        drop(held);
        assert_eq!(access.account(Some("new"), None).unwrap().requests.available_permits(), 2);
        access.replace(of("new", "requests = 5"));
        assert_eq!(access.account(Some("new"), None).unwrap().requests.available_permits(), 5);
    }

    #[test]
    fn invalid_files_are_refused_with_the_caller() {
        let twice = file(&format!("{}\nallow = []", token("t"))).repeat(2);
        for (text, problem) in [
            ("x = 1", "unknown field"),
            (&file("allow = []"), "caller c: it has neither"),
            (&file("token_sha256 = \"ab\"\nallow = []"), "64 hexadecimal digits"),
            (&file("token_sha256 = \"ab\""), "allow"),
            (
                &file(&format!("{}\nallow = [{{ prefix = \"\", rights = [\"all\"] }}]", token("t"))),
                "unknown variant",
            ),
            (&file(&format!("{}\nrequests = 0\nallow = []", token("t"))), "zero"),
            (&twice, "another caller"),
        ] {
            let error = Access::parse(text).unwrap_err().to_string();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }

    #[test]
    fn a_rate_limits_the_requests_of_a_second() {
        let access = Access::parse(&file(&format!("{}\nrate = 3\nallow = []", token("t")))).unwrap();
        let caller = access.account(Some("t"), None).unwrap();
        assert_eq!((0..10).filter(|_| caller.is_within_rate()).count(), 3);
    }
}
