//! Reads the state that a server reports, and checks that locks are safe in it.

use std::{collections::HashMap, sync::Arc};

use polylock_core::Fault;
use redis::{InfoDict, RedisResult, Value, aio::MultiplexedConnection};

use crate::{
    config::Allowed,
    endpoint::{Endpoint, Expected},
    error::{Cause, NO_CLUSTER, READS_ITS_DATA},
};

/// The relevant state of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Health {
    /// The id of this run of the server, which changes with each start; `None` if the user may not read it.
    pub(crate) run: Option<Arc<str>>,
    /// True if everything that the server has acknowledged is on its disk, as far as is known.
    pub(crate) is_durable: bool,
    /// The server's clock, in us since 1970.
    pub(crate) clock_us: i64,
}

/// Returns the state of the server. Takes one round trip.
///
/// # Errors
/// If the server does not reply or can't be used.
pub(crate) async fn check(
    connection: &mut MultiplexedConnection,
    endpoint: &Endpoint,
) -> Result<Health, Cause> {
    let mut commands = redis::pipe();
    commands.cmd("TIME").cmd("INFO");
    for setting in
        ["appendfsync", "active-replica", "multi-master", "min-replicas-to-write", "min-replicas-max-lag"]
    {
        commands.cmd("CONFIG").arg("GET").arg(setting);
    }
    if let Some(name) = &endpoint.client_name {
        commands.cmd("CLIENT").arg("SETNAME").arg(name);
    }
    // Each command may be forbidden, and managed servers have no CONFIG.
    let replies: Vec<RedisResult<Value>> =
        commands.ignore_errors().query_async(connection).await.map_err(Cause::Driver)?;
    let mut replies = replies.into_iter();
    let time = replies.next().unwrap_or(Ok(Value::Nil));
    let info = replies.next().and_then(Result::ok).map(redis::from_redis_value::<InfoDict>);
    let mut settings = HashMap::new();
    for reply in replies.flatten() {
        settings.extend(redis::from_redis_value::<HashMap<String, String>>(reply).unwrap_or_default());
    }
    let info = info.and_then(Result::ok);
    let value = |key: &str| info.as_ref()?.get(key).or_else(|| settings.get(key).cloned());
    // Checked before the clock: a Sentinel has none, and is refused with advice.
    let health = check_settings(&value, endpoint.expected, &endpoint.allowed)?;
    let time = time.map_err(Cause::Driver)?;
    let (seconds, micros): (i64, i64) =
        redis::from_redis_value(time).map_err(|error| Cause::Driver(error.into()))?;
    let clock_us = seconds.saturating_mul(1_000_000).saturating_add(micros);
    if info.is_none() {
        tracing::warn!(
            server = endpoint.address,
            "can't check the server's settings, because INFO is not allowed: it may evict keys, be a \
             replica, or lose its data in a restart"
        );
    } else if let (Some(warning), false) = (durability_warning(&value), endpoint.tolerates_data_loss) {
        tracing::warn!(server = endpoint.address, "{warning}");
    }
    if let Some(warning) = isolation_warning(&value, endpoint.expected) {
        tracing::warn!(server = endpoint.address, "{warning}");
    }
    Ok(Health { clock_us, ..health })
}

/// Returns a warning about acknowledged data that the server may forget; `None` if it forgets nothing.
pub(crate) fn durability_warning(value: &dyn Fn(&str) -> Option<String>) -> Option<&'static str> {
    if value("aof_enabled").is_none_or(|enabled| enabled != "1") {
        return Some(
            "the server keeps no append-only file: after a crash or restart it has lost its locks, and grants \
             them again (set appendonly yes and appendfsync always)",
        );
    }
    // A server that does not report it causes no warning.
    value("appendfsync").filter(|sync| sync != "always").map(|_| {
        "the server's appendfsync is not always: a crash of its machine may lose the grants of the last second, and \
         the locks are granted again"
    })
}

/// Returns a warning about a primary that goes on alone after a failover has replaced it; `None` if it refuses writes without a replica, is
/// watched by nobody, or does not tell.
pub(crate) fn isolation_warning(
    value: &dyn Fn(&str) -> Option<String>,
    expected: Expected,
) -> Option<&'static str> {
    // Each of them is switched off by 0, and with it the other one.
    let is_off = |setting| value(setting).is_some_and(|number| number == "0");
    let goes_on_alone = is_off("min-replicas-to-write") || is_off("min-replicas-max-lag");
    (expected == Expected::NamedPrimary && goes_on_alone).then_some(
        "the primary's min-replicas-to-write or min-replicas-max-lag is 0: if it is cut off from the Sentinels, it continues to grant locks, and the next primary \
         grants them, too. Set min-replicas-to-write 1 and min-replicas-max-lag on all servers, which bound that time",
    )
}

/// Checks the server by `value`, which returns the server's value for a key of INFO or CONFIG.
pub(crate) fn check_settings(
    value: &dyn Fn(&str) -> Option<String>,
    expected: Expected,
    allowed: &[Allowed],
) -> Result<Health, Cause> {
    let unusable = |advice: String| Err(Cause::Unusable(Fault::Permanent, advice));
    let is = |key: &str, expected: &str| value(key).is_some_and(|value| value == expected);
    let version = value("redis_version").unwrap_or_default();
    if version_of(&version).is_some_and(|version| version < (6, 2)) {
        return unusable(format!(
            "the server is too old: it is {version}, and Redis 6.2 or later is required"
        ));
    }
    if is("active-replica", "yes") || is("multi-master", "yes") || is("role", "active-replica") {
        return unusable(
            "an active replica (KeyDB's active-replica or multi-master) accepts writes on both sides, so a lock could have two \
             holders: use a single primary, or independent servers with redlock://"
                .to_owned(),
        );
    }
    // Valkey has another name for this key.
    let mode = value("redis_mode").or_else(|| value("server_mode"));
    match (mode.as_deref(), expected) {
        (Some("sentinel"), _) => {
            return unusable(format!(
                "this is a Sentinel, which stores no data: write redis+sentinel:// with this address and the name of the \
                 primary as the path{}",
                watched_primaries(value)
            ));
        }
        (Some("cluster"), Expected::ClusterNode) if version_of(&version).is_some_and(|it| it < (7, 0)) => {
            return unusable(format!(
                "the node is too old: it is {version}, and a cluster requires Redis 7.0 or later, for messages in the slot of \
                 a lock"
            ));
        }
        (Some("cluster"), Expected::Primary) if !allowed.contains(&Allowed::Cluster) => {
            return unusable(
                "this is a node of a Redis Cluster: write redis-cluster:// (or rediss-cluster://), and read there which data a \
                 failover may lose; to use one node alone, connect to the one that serves the prefix, and set \
                 polylock.allow=cluster"
                    .to_owned(),
            );
        }
        (Some("cluster"), Expected::NamedPrimary) => {
            return unusable(
                "this is a node of a Redis Cluster: write redis-cluster:// (or rediss-cluster://)".to_owned(),
            );
        }
        (Some("standalone"), Expected::ClusterNode) => {
            return unusable(NO_CLUSTER.to_owned());
        }
        _ => {}
    }
    // A failover is in progress, or this client has not noticed it yet.
    let not_yet = |advice: String| Err(Cause::Unusable(Fault::Temporary, advice));
    if value("role").is_some_and(|role| role != "master") {
        let primary = value("master_host").zip(value("master_port"));
        let primary = primary.map_or(String::new(), |(host, port)| format!(", which is {host}:{port}"));
        return not_yet(match expected {
            Expected::Primary => format!("this is a replica: connect to the primary{primary}"),
            Expected::ClusterNode | Expected::NamedPrimary => {
                format!("this is a replica now, and another server is the primary{primary}")
            }
        });
    }
    if is("loading", "1") {
        // Until it has read them, it reports settings that it does not have.
        return not_yet(READS_ITS_DATA.to_owned());
    }
    let evicting = value("maxmemory_policy").filter(|policy| policy != "noeviction");
    if let (Some(policy), false) = (evicting, allowed.contains(&Allowed::Eviction)) {
        return unusable(format!(
            "its maxmemory-policy is {policy}, which may evict a held lock: set it to noeviction, or accept \
             the risk with polylock.allow=eviction"
        ));
    }
    Ok(Health {
        run: value("run_id").map(Arc::from),
        is_durable: is("aof_enabled", "1") && is("appendfsync", "always") && !was_replica(value),
        clock_us: 0,
    })
}

/// Returns the primaries that a Sentinel watches, from values such as `name=orders,status=ok,address=10.0.0.7:6379,…`.
fn watched_primaries(value: &dyn Fn(&str) -> Option<String>) -> String {
    let primaries = (0..).map_while(|index| value(&format!("master{index}"))).filter_map(|primary| {
        let part = |key: &str| primary.split(',').find_map(|part| part.strip_prefix(key)).map(str::to_owned);
        Some(format!("{} is {}", part("name=")?, part("address=")?))
    });
    let primaries: Vec<_> = primaries.collect();
    if primaries.is_empty() { String::new() } else { format!(" ({})", primaries.join(", ")) }
}

/// Returns true if the server was a replica before it became a primary. Replication is asynchronous, so the server lacks the writes that
/// the former primary acknowledged last.
fn was_replica(value: &dyn Fn(&str) -> Option<String>) -> bool {
    value("master_replid2").is_some_and(|id| id.chars().any(|digit| digit != '0'))
}

fn version_of(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.').map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUITABLE: [(&str, &str); 6] = [
        ("redis_version", "7.0.15"),
        ("redis_mode", "standalone"),
        ("role", "master"),
        ("maxmemory_policy", "noeviction"),
        ("aof_enabled", "1"),
        ("run_id", "5c1e"),
    ];

    fn checked(key: &str, value: &str, allowed: &[Allowed]) -> Result<Health, String> {
        let value = |requested: &str| {
            if requested == key {
                return Some(value.to_owned());
            }
            SUITABLE.iter().find(|(key, _)| *key == requested).map(|(_, value)| (*value).to_owned())
        };
        check_settings(&value, Expected::Primary, allowed).map_err(|cause| match cause {
            Cause::Unusable(Fault::Permanent, advice) => advice,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn a_suitable_server_is_accepted() {
        assert_eq!(checked("", "", &[]), Ok(Health { run: Some("5c1e".into()), ..Health::default() }));
        assert_eq!(
            check_settings(&|_| None, Expected::Primary, &[]).unwrap(),
            Health::default(),
            "one that says nothing"
        );
    }

    #[test]
    fn unsafe_settings_are_refused_with_a_remedy() {
        for (key, value, expected_text) in [
            ("redis_version", "6.0.16", "6.2 or later"),
            ("role", "active-replica", "redlock://"),
            ("active-replica", "yes", "redlock://"),
            ("multi-master", "yes", "redlock://"),
            ("redis_mode", "sentinel", "redis+sentinel://"),
            ("redis_mode", "cluster", "redis-cluster://"),
            ("maxmemory_policy", "allkeys-lru", "polylock.allow=eviction"),
            ("maxmemory_policy", "volatile-ttl", "noeviction"),
        ] {
            let advice = checked(key, value, &[]).unwrap_err();
            assert!(advice.contains(expected_text), "{key}={value}: {advice}");
        }
    }

    #[test]
    fn a_cluster_requires_a_primary_of_a_cluster() {
        let checked = |settings: &[(&str, &str)], expected| {
            let value = |requested: &str| {
                settings.iter().find(|(key, _)| *key == requested).map(|(_, value)| (*value).to_owned())
            };
            check_settings(&value, expected, &[])
        };
        let node = [("redis_version", "7.0.15"), ("redis_mode", "cluster"), ("role", "master")];
        assert!(checked(&node, Expected::ClusterNode).is_ok());
        let (old, alone) = ([("redis_version", "6.2.0"), node[1], node[2]], [("redis_mode", "standalone")]);
        for settings in [&old[..], &alone[..]] {
            let refused = checked(settings, Expected::ClusterNode);
            assert!(matches!(refused, Err(Cause::Unusable(Fault::Permanent, _))), "{refused:?}");
        }
    }

    #[test]
    fn a_failover_and_a_start_are_temporary() {
        for (mode, expected) in [
            ("cluster", Expected::ClusterNode),
            ("standalone", Expected::NamedPrimary),
            ("standalone", Expected::Primary),
        ] {
            for state in [("role", "slave"), ("loading", "1")] {
                let settings = [("redis_version", "7.0.15"), ("redis_mode", mode), state];
                let value = |requested: &str| {
                    settings.iter().find(|(key, _)| *key == requested).map(|(_, value)| (*value).to_owned())
                };
                let refused = check_settings(&value, expected, &[]);
                assert!(
                    matches!(refused, Err(Cause::Unusable(Fault::Temporary, _))),
                    "{state:?}: {refused:?}"
                );
            }
        }
    }

    #[test]
    fn missing_durability_causes_a_warning() {
        let warning = |settings: &[(&str, &str)]| {
            let value = |requested: &str| {
                settings.iter().find(|(key, _)| *key == requested).map(|(_, value)| (*value).to_owned())
            };
            durability_warning(&value)
        };
        assert!(
            warning(&[("aof_enabled", "0"), ("appendfsync", "always")])
                .unwrap()
                .contains("no append-only file")
        );
        assert!(
            warning(&[("aof_enabled", "1"), ("appendfsync", "everysec")]).unwrap().contains("last second")
        );
        assert_eq!(warning(&[("aof_enabled", "1"), ("appendfsync", "always")]), None);
        assert_eq!(warning(&[("aof_enabled", "1")]), None);
    }

    #[test]
    fn a_primary_that_goes_on_without_replicas_causes_a_warning() {
        let warning = |replicas: Option<&str>, expected| {
            let value = |key: &str| match key {
                "min-replicas-to-write" => replicas.map(str::to_owned),
                _ => Some("10".to_owned()),
            };
            isolation_warning(&value, expected)
        };
        assert!(warning(Some("0"), Expected::NamedPrimary).unwrap().contains("min-replicas-max-lag"));
        // A replica counts whatever its lag then.
        let value = |key: &str| Some(if key == "min-replicas-max-lag" { "0" } else { "1" }.to_owned());
        assert!(isolation_warning(&value, Expected::NamedPrimary).is_some());
        for (replicas, expected) in [
            (Some("1"), Expected::NamedPrimary),
            (None, Expected::NamedPrimary),
            (Some("0"), Expected::Primary),
            (Some("0"), Expected::ClusterNode),
        ] {
            assert_eq!(warning(replicas, expected), None, "{replicas:?}");
        }
    }

    #[test]
    fn a_durable_server_syncs_every_write_and_was_never_a_replica() {
        let durable = |id: &str| {
            let settings = [("aof_enabled", "1"), ("appendfsync", "always"), ("master_replid2", id)];
            let value = |requested: &str| {
                settings.iter().find(|(key, _)| *key == requested).map(|(_, value)| (*value).to_owned())
            };
            check_settings(&value, Expected::Primary, &[]).unwrap().is_durable
        };
        assert!(durable("0000000000"));
        assert!(!durable("00000000a0"), "promoted");
    }

    #[test]
    fn the_mode_key_of_valkey_is_recognised() {
        let value = |key: &str| (key == "server_mode").then(|| "cluster".to_owned());
        assert!(check_settings(&value, Expected::Primary, &[]).is_err());
        assert!(check_settings(&value, Expected::Primary, &[Allowed::Cluster]).is_ok());
    }

    #[test]
    fn each_property_is_allowed_separately() {
        assert!(checked("redis_mode", "cluster", &[Allowed::Cluster]).is_ok());
        assert!(checked("redis_mode", "cluster", &[Allowed::Eviction]).is_err());
        assert!(checked("maxmemory_policy", "allkeys-lru", &[Allowed::Eviction]).is_ok());
    }
}
