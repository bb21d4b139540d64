//! The servers that a URL names.

use percent_encoding::percent_decode_str;
use polylock_core::{
    ConfigError,
    url::{Address, Host, Keys, StoreUrl, tls_is_not_compiled_in},
};
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo, RedisError};

use crate::driver_keys::{DriverSettings, PRIMARY_KEYS};

/// The relation between the servers of a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deployment {
    Single,
    /// Independent servers.
    Redlock,
    /// Some nodes of a cluster.
    Cluster,
    /// Sentinels.
    Sentinel,
}

impl Deployment {
    /// Returns the name of the store in errors, metrics and URLs.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Single => "redis",
            Self::Redlock => "redlock",
            Self::Cluster => "redis-cluster",
            Self::Sentinel => "redis+sentinel",
        }
    }

    /// Returns the deployment of the store `name`.
    pub(crate) fn of(name: &str) -> Self {
        let others = [Self::Redlock, Self::Cluster, Self::Sentinel];
        others.into_iter().find(|other| other.name() == name).unwrap_or(Self::Single)
    }

    /// Returns the parts of a URL that select an encrypted connection and another one.
    pub(crate) const fn encryption(self) -> [&'static str; 2] {
        match self {
            Self::Single => ["rediss://", "redis://"],
            Self::Redlock => ["polylock.tls=on", "polylock.tls=off"],
            Self::Cluster => ["rediss-cluster://", "redis-cluster://"],
            Self::Sentinel => ["rediss+sentinel://", "redis+sentinel://"],
        }
    }

    /// Returns an example of the part of a URL after the user.
    const fn url_example(self) -> &'static str {
        match self {
            Self::Single => "host:port/0",
            Self::Redlock => "host1:port,host2:port,host3:port/0",
            Self::Cluster => "host1:port,host2:port,host3:port",
            Self::Sentinel => "sentinel1:port,sentinel2:port,sentinel3:port/primary/0",
        }
    }
}

/// The servers that a URL names.
pub(crate) struct Hosts {
    pub(crate) servers: Vec<ConnectionInfo>,
    pub(crate) driver: DriverSettings,
    /// The name of the primary that Sentinels watch.
    pub(crate) primary: Option<String>,
}

/// Reads the servers of a URL: `scheme://user:password@host1:port,host2:port/database`, with one host unless the form has several;
/// `scheme://…/primary/database` for Sentinels; or `unix:///path`, with the keys `db`, `user` and `pass`.
pub(crate) fn read(url: &StoreUrl, keys: &mut Keys, deployment: Deployment) -> Result<Hosts, ConfigError> {
    let problem = |problem: &str| {
        let example = format!(
            "user:password@{}, with characters such as @ : / # ? % in a user or password percent-encoded",
            deployment.url_example()
        );
        url.problem(problem, &example)
    };
    let scheme = match url.scheme() {
        "unix" | "redis+unix" | "valkey+unix" => return read_socket(url, keys),
        scheme if scheme.starts_with("rediss") || scheme.starts_with("valkeys") => "rediss",
        _ if deployment == Deployment::Redlock
            && keys.choice("polylock.tls", &[("on", true), ("off", false)])?.unwrap_or(false) =>
        {
            "rediss"
        }
        _ => "redis",
    };
    if scheme == "rediss" && !cfg!(feature = "tls") {
        return Err(tls_is_not_compiled_in());
    }
    let address = Address::parse(url).map_err(problem)?;
    let hosts = address.servers().map_err(problem)?;
    if deployment == Deployment::Single && hosts.len() > 1 {
        return Err(problem(
            "names several servers, and redis:// is for one (use redlock://, redis-cluster:// or redis+sentinel:// for several)",
        ));
    }
    let (primary, database) = match deployment {
        Deployment::Sentinel => primary_and_database(address.path, keys)?,
        _ => (None, address.path),
    };
    let driver = DriverSettings::read(scheme == "rediss", keys)?;
    let database = match (driver.database.map(|database| database.to_string()), database) {
        (Some(named), "") => named,
        (Some(named), other) if named != other => {
            return Err(ConfigError::new("db", "contradicts the database in the path: keep one"));
        }
        (_, other) => other.to_owned(),
    };
    if deployment == Deployment::Cluster && !matches!(database.as_str(), "" | "0") {
        return Err(problem("names a database, and a cluster has only number 0"));
    }
    let user = address.user.filter(|user| !user.is_empty()).map_or(String::new(), |user| format!("{user}@"));
    let default_port = if deployment == Deployment::Sentinel { "26379" } else { "6379" };
    let server = |Host { name, port }: &Host<'_>| {
        let port = port.unwrap_or(default_port);
        let text = format!("{scheme}://{user}{name}:{port}/{database}");
        text.as_str().into_connection_info().map_err(|error| problem(&invalid_url(&error).problem))
    };
    Ok(Hosts { servers: hosts.iter().map(server).collect::<Result<_, _>>()?, driver, primary })
}

/// Returns the error for a URL that the driver rejects. The driver's text describes the form, and contains no part of the URL.
pub(crate) fn invalid_url(error: &RedisError) -> ConfigError {
    ConfigError::new("store", format!("is not a valid URL ({error})"))
}

/// Returns the name of the primary and the database, from the `path` of a URL of Sentinels. If one of the keys of other drivers contains
/// the name, the path is the database.
fn primary_and_database<'p>(
    path: &'p str,
    keys: &mut Keys,
) -> Result<(Option<String>, &'p str), ConfigError> {
    let named = PRIMARY_KEYS.into_iter().filter_map(|key| keys.text(key).map(|name| (key, name)));
    let named: Vec<_> = named.collect();
    let (primary, database) = path.split_once('/').unwrap_or((path, ""));
    match &named[..] {
        [] => {
            let primary = percent_decode_str(primary).decode_utf8_lossy().into_owned();
            Ok(((!primary.is_empty()).then_some(primary), database))
        }
        [(key, name)] if database.is_empty() && primary.chars().all(|digit| digit.is_ascii_digit()) => {
            if name.is_empty() {
                return Err(ConfigError::new(*key, "names no primary"));
            }
            Ok((Some(name.clone()), primary))
        }
        [(_, name), ..] if name == primary => Ok((Some(name.clone()), database)),
        [(key, _), ..] => {
            Err(ConfigError::new(*key, "the path or another key names a primary, too: keep one"))
        }
    }
}

fn read_socket(url: &StoreUrl, keys: &mut Keys) -> Result<Hosts, ConfigError> {
    let driver = DriverSettings::read(false, keys)?;
    let mut redis = RedisConnectionInfo::default().set_db(driver.database.unwrap_or(0));
    if let Some(user) = keys.text("user") {
        redis = redis.set_username(user);
    }
    if let Some(password) = keys.text("pass") {
        redis = redis.set_password(password);
    }
    let server = ConnectionAddr::Unix(url.file()?.into()).into_connection_info();
    let servers = vec![server.map_err(|error| invalid_url(&error))?.set_redis_settings(redis)];
    Ok(Hosts { servers, driver, primary: None })
}
