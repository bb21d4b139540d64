//! The URL schemes: those of the stores that are compiled in, and those that a program has registered.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock, PoisonError, RwLock},
};

use async_trait::async_trait;
use polylock_core::{
    ConfigError, Options, Result, Store, StoreConfig, memory, transition,
    url::{Keys, StoreUrl, nearest},
};

use crate::{
    fence_schema::{self, FenceSchema},
    transition::Transition,
};

/// Reads the configuration of a store from its URL.
type Read = fn(&StoreUrl, &mut Keys) -> Result<Arc<dyn StoreConfig>, ConfigError>;
/// The same for a registered scheme.
type Registered =
    Arc<dyn Fn(&StoreUrl, &mut Keys) -> Result<Arc<dyn StoreConfig>, ConfigError> + Send + Sync>;

/// A store of this workspace.
struct BuiltIn {
    schemes: &'static [&'static str],
    /// The feature that compiles it in.
    feature: &'static str,
    /// `None` without the feature.
    read: Option<Read>,
    /// The text of a fence for data in such a server; `None` if there is none, or without the feature.
    fence: Option<fence_schema::Write>,
}

/// The entry of a store with the feature `$feature` and the configuration `$config`, and perhaps the function that writes a fence.
macro_rules! built_in {
    ($feature:literal, [$($scheme:literal),*], $config:path $(, fence: $fence:expr)?) => {
        BuiltIn {
            schemes: &[$($scheme),*],
            feature: $feature,
            #[cfg(feature = $feature)]
            read: Some(|url, keys| Ok(Arc::new(<$config>::from_url(url, keys)?))),
            #[cfg(not(feature = $feature))]
            read: None,
            #[cfg(feature = $feature)]
            fence: built_in!(@fence $($fence)?),
            #[cfg(not(feature = $feature))]
            fence: None,
        }
    };
    (@fence $fence:expr) => { Some($fence) };
    (@fence) => { None };
}

static BUILT_IN: [BuiltIn; 12] = [
    BuiltIn {
        schemes: &["memory"],
        feature: "",
        read: Some(|url, _| Ok(Arc::new(Memory { name: url.rest().to_owned() }))),
        fence: None,
    },
    built_in!("sqlite", ["sqlite"], polylock_sql::sqlite::Config, fence: |url, keys, fence| {
        fence_schema::sql(polylock_sql::sqlite::Config::from_url(url, keys)?.fence_script()?, fence)
    }),
    built_in!("postgres", ["postgres", "postgresql"], polylock_sql::postgres::Config, fence: |url, keys, fence| {
        fence_schema::sql(polylock_sql::postgres::Config::from_url(url, keys)?.fence_script()?, fence)
    }),
    built_in!("mysql", ["mysql", "mariadb"], polylock_sql::mysql::Config, fence: |url, keys, fence| {
        fence_schema::sql(polylock_sql::mysql::Config::from_url(url, keys)?.fence_script()?, fence)
    }),
    built_in!(
        "redis",
        ["redis", "rediss", "valkey", "valkeys", "unix", "redis+unix", "valkey+unix"],
        polylock_redis::single::Config,
        fence: |_, _, fence| fence_schema::redis(fence)
    ),
    built_in!(
        "redis",
        ["redis-cluster", "rediss-cluster", "valkey-cluster", "valkeys-cluster"],
        polylock_redis::cluster::Config,
        fence: |_, _, fence| fence_schema::redis(fence)
    ),
    built_in!(
        "redis",
        [
            "redis+sentinel",
            "rediss+sentinel",
            "redis-sentinel",
            "rediss-sentinel",
            "valkey+sentinel",
            "valkeys+sentinel"
        ],
        polylock_redis::sentinel::Config,
        fence: |_, _, fence| fence_schema::redis(fence)
    ),
    built_in!("redis", ["redlock"], polylock_redis::redlock::Config),
    built_in!("zookeeper", ["zookeeper", "zk", "zookeeper+tls", "zk+tls"], polylock_zookeeper::Config),
    built_in!("azure", ["az", "azblob"], polylock_azure::Config),
    built_in!("http", ["polylock+http", "polylock+https"], polylock_http::Config),
    BuiltIn {
        schemes: &[transition::NAME],
        feature: "",
        read: Some(|url, _| Ok(Arc::new(Transition::from_url(url, |store| Ok(read_url(store)?.1))?))),
        fence: None,
    },
];

static REGISTERED: LazyLock<RwLock<BTreeMap<String, Registered>>> = LazyLock::new(RwLock::default);

/// The in-memory store, shared by its name unless that is empty.
struct Memory {
    name: String,
}

#[async_trait]
impl StoreConfig for Memory {
    async fn open(&self) -> Result<Store> {
        Ok(if self.name.is_empty() { memory::connect() } else { memory::named(&self.name) })
    }

    fn in_namespace(&self, name: &str) -> Option<Arc<dyn StoreConfig>> {
        Some(Arc::new(Self { name: name.to_owned() }))
    }
}

fn built_in(scheme: &str) -> Option<&'static BuiltIn> {
    BUILT_IN.iter().find(|store| store.schemes.contains(&scheme))
}

fn registered(scheme: &str) -> Option<Registered> {
    REGISTERED.read().unwrap_or_else(PoisonError::into_inner).get(scheme).cloned()
}

/// Registers the URL scheme of a store that is not part of polylock, for the whole process: from now on [`Locks::connect`](crate::Locks::connect),
/// [`LocksConfig`](crate::LocksConfig) and all other functions that take a URL accept it. `read` reads the store's configuration from the URL, and takes
/// its keys from [`Keys`]; the keys of all stores are taken already, and an unknown key is refused afterwards.
///
/// # Errors
/// [`ConfigError`] on key `store` if the scheme is not a valid one in lower case, belongs to a store of polylock, or is registered already.
///
/// ```
/// use polylock::{ConfigError, Locks, Result, Store, StoreConfig, core::memory};
///
/// struct Config(String);
///
/// #[async_trait::async_trait]
/// impl StoreConfig for Config {
///     async fn open(&self) -> Result<Store> {
///         Ok(memory::named(&self.0))
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> polylock::Result<()> {
/// polylock::register("example", |url, _keys| Ok(Config(url.rest().to_owned())))?;
/// let locks = Locks::connect("example:orders?polylock.ttl=10s").await?;
/// assert!(locks.lock("orders/42").try_acquire().await?.is_some());
/// # Ok(()) }
/// ```
pub fn register<C: StoreConfig>(
    scheme: &str,
    read: impl Fn(&StoreUrl, &mut Keys) -> Result<C, ConfigError> + Send + Sync + 'static,
) -> Result<(), ConfigError> {
    let refused = |problem: String| Err(ConfigError::new("store", problem));
    let is_valid = StoreUrl::parse(&format!("{scheme}:")).is_ok_and(|url| url.scheme() == scheme);
    if !is_valid {
        return refused(format!(
            "{scheme:?} is not a URL scheme: use lower-case letters, digits, `+`, `-` and `.`, a letter first"
        ));
    }
    if built_in(scheme).is_some() {
        return refused(format!("{scheme:?} belongs to a store of polylock: choose another one"));
    }
    let read: Registered = Arc::new(move |url, keys| Ok(Arc::new(read(url, keys)?)));
    let mut all = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
    if all.contains_key(scheme) {
        return refused(format!("{scheme:?} is registered already: register a scheme once in a process"));
    }
    all.insert(scheme.to_owned(), read);
    Ok(())
}

/// Returns the URL schemes of the stores that are compiled in, and then the [registered](register) ones.
pub fn schemes() -> impl Iterator<Item = String> {
    let built_in = BUILT_IN.iter().filter(|store| store.read.is_some()).flat_map(|store| store.schemes);
    let registered: Vec<_> =
        REGISTERED.read().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect();
    built_in.map(|scheme| (*scheme).to_owned()).chain(registered)
}

/// Returns the settings of the URL that are common to all stores, and the configuration of its store.
///
/// # Errors
/// As [`Locks::connect`](crate::Locks::connect), for an invalid URL.
///
/// ```
/// use polylock::{StoreUrl, read_url};
///
/// let (options, config) = read_url(&StoreUrl::parse("memory:orders?polylock.ttl=10s")?)?;
/// assert_eq!(options.ttl.as_secs(), 10);
/// assert!(config.in_namespace("test_1").is_some());
/// # Ok::<_, polylock::ConfigError>(())
/// ```
pub fn read_url(url: &StoreUrl) -> Result<(Options, Arc<dyn StoreConfig>), ConfigError> {
    let mut keys = url.keys();
    let options = Options::from_keys(&mut keys)?;
    let config = match (built_in(url.scheme()), registered(url.scheme())) {
        (Some(BuiltIn { read: Some(read), .. }), _) => read(url, &mut keys)?,
        (None, Some(read)) => read(url, &mut keys)?,
        (known, _) => return Err(unavailable(url, known)),
    };
    keys.finish()?;
    Ok((options, config))
}

/// Returns the name of the store of a URL, for errors.
pub(crate) fn name(url: &StoreUrl) -> &'static str {
    built_in(url.scheme()).map_or("store", |store| store.schemes[0])
}

/// Returns the text of a fence in the server of a URL.
///
/// # Errors
/// [`ConfigError`] if the URL or `fence` is not valid, or such a server has no fence.
pub(crate) fn fence(url: &StoreUrl, fence: &FenceSchema) -> Result<String, ConfigError> {
    // Also refuses unknown keys.
    read_url(url)?;
    let write = built_in(url.scheme()).and_then(|store| store.fence);
    write.ok_or_else(|| fence_schema::unsupported(url.scheme()))?(url, &mut url.keys(), fence)
}

/// Returns the error for a scheme that can't be used: it is unknown, or its `known` store is not compiled in.
fn unavailable(url: &StoreUrl, known: Option<&BuiltIn>) -> ConfigError {
    let scheme = url.scheme();
    let usable: Vec<String> = schemes().collect();
    let available = usable.join(", ");
    if let Some(BuiltIn { feature, .. }) = known {
        let problem =
            format!("{scheme:?} is not compiled in: enable feature {feature:?}; available: {available}");
        return ConfigError::new("store", problem);
    }
    // Texts of other tools that are nearly URLs. Only the scheme is repeated: the rest may have a password.
    let foreign = match scheme {
        "jdbc" => Some("remove \"jdbc:\", and write the user and the password before the host"),
        "http" => Some("write polylock+http for a lock service"),
        "https" => Some("write polylock+https for a lock service"),
        _ if url.rest().starts_with(|c: char| c.is_ascii_digit()) => {
            Some("write a scheme before the host, such as redis://host:port or postgres://user@host/database")
        }
        _ => None,
    };
    if let Some(advice) = foreign {
        return ConfigError::new("store", format!("unknown scheme {scheme:?}: {advice}"));
    }
    let all = BUILT_IN.iter().flat_map(|store| store.schemes.iter().copied());
    let nearest = nearest(scheme, all.chain(usable.iter().map(String::as_str)));
    let hint = nearest.map_or_else(|| ";".to_owned(), |nearest| format!("; did you mean {nearest:?}?"));
    ConfigError::new("store", format!("unknown scheme {scheme:?}{hint} available: {available}"))
}
