//! The servers that a URL names.

use percent_encoding::percent_decode_str;
use polylock_core::{
    ConfigError,
    url::{Keys, StoreUrl},
};
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo};

use crate::{
    config::invalid_url,
    driver_keys::{DriverKeys, PRIMARY_KEYS},
};

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
    pub(crate) driver: DriverKeys,
    /// The name of the primary that Sentinels watch.
    pub(crate) primary: Option<String>,
}

/// Reads the servers of a URL: `scheme://user:password@host1:port,host2:port/database`, with one host unless the form has several;
/// `scheme://…/primary/database` for Sentinels; or `unix:///path`, with the keys `db`, `user` and `pass`.
pub(crate) fn read(url: &StoreUrl, keys: &mut Keys, deployment: Deployment) -> Result<Hosts, ConfigError> {
    let problem = |problem: &str| {
        Err(ConfigError::new("store", format!("{problem}: write {}", url_example(url, deployment))))
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
        return Err(ConfigError::new(
            "store",
            "encrypted connections are not compiled in: enable feature \"tls\"",
        ));
    }
    let Some(rest) = url.rest().strip_prefix("//") else { return problem("names no server") };
    if rest.contains('#') {
        return problem("contains a #, which must be percent-encoded in a user or password");
    }
    let (user, rest) = rest.rsplit_once('@').map_or(("", rest), |(user, rest)| (user, rest));
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (primary, database) = match deployment {
        Deployment::Sentinel => primary_and_database(path, keys)?,
        _ => (None, path),
    };
    let driver = DriverKeys::read(url, scheme == "rediss", keys)?;
    let database = match (driver.database.map(|database| database.to_string()), database) {
        (Some(named), "") => named,
        (Some(named), other) if named != other => {
            return Err(ConfigError::new("db", "contradicts the database in the path: keep one"));
        }
        (_, other) => other.to_owned(),
    };
    if deployment == Deployment::Cluster && !matches!(database.as_str(), "" | "0") {
        return problem("names a database, and a cluster has only number 0");
    }
    let hosts: Vec<&str> = hosts.split(',').collect();
    if deployment == Deployment::Single && hosts.len() > 1 {
        return problem(
            "names several servers, and redis:// is for one (use redlock://, redis-cluster:// or redis+sentinel:// for several)",
        );
    }
    if hosts.iter().any(|host| host.is_empty() || host.starts_with(':')) {
        return problem("names a server without a host");
    }
    let server = |host: &&str| {
        let at = if user.is_empty() { "" } else { "@" };
        let has_port = host.rsplit(']').next().is_some_and(|rest| rest.contains(':'));
        let port = if deployment == Deployment::Sentinel && !has_port { ":26379" } else { "" };
        let text = format!("{scheme}://{user}{at}{host}{port}/{database}");
        text.as_str().into_connection_info().map_err(|error| {
            let ConfigError { key, problem } = invalid_url(&error);
            ConfigError::new(key, format!("{problem}: write {}", url_example(url, deployment)))
        })
    };
    Ok(Hosts { servers: hosts.iter().map(server).collect::<Result<_, _>>()?, driver, primary })
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

fn url_example(url: &StoreUrl, deployment: Deployment) -> String {
    format!(
        "{}://user:password@{}, with characters such as @ : / # ? % in a user or password percent-encoded",
        url.scheme(),
        deployment.url_example()
    )
}

fn read_socket(url: &StoreUrl, keys: &mut Keys) -> Result<Hosts, ConfigError> {
    let driver = DriverKeys::read(url, false, keys)?;
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
