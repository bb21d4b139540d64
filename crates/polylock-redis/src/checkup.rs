//! What a server states about itself, and whether locks are safe in it.

use std::collections::HashMap;

use polylock_core::Fault;
use redis::{InfoDict, RedisResult, Value, aio::MultiplexedConnection};

use crate::{
    Allowed,
    error::Cause,
    link::{Endpoint, Expected},
};

/// The state of a server, as far as it matters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Health {
    /// The id of this run of the server, if this user may know it: another after each start.
    pub(crate) run: Option<String>,
    /// Whether everything that it has acknowledged is on its disk, as far as is known.
    pub(crate) is_durable: bool,
    /// Its clock, in us since 1970.
    pub(crate) clock_us: i64,
}

/// Returns the state of the server, in one round trip.
///
/// # Errors
/// If it does not reply, or can't be used.
pub(crate) async fn check(
    connection: &mut MultiplexedConnection,
    endpoint: &Endpoint,
) -> Result<Health, Cause> {
    let mut questions = redis::pipe();
    questions.cmd("TIME").cmd("INFO");
    for setting in ["appendfsync", "active-replica", "multi-master"] {
        questions.cmd("CONFIG").arg("GET").arg(setting);
    }
    if let Some(name) = &endpoint.client_name {
        questions.cmd("CLIENT").arg("SETNAME").arg(name);
    }
    // Each may be forbidden, and managed servers know no CONFIG.
    let replies: Vec<RedisResult<Value>> =
        questions.ignore_errors().query_async(connection).await.map_err(Cause::Driver)?;
    let mut replies = replies.into_iter();
    let time = replies.next().unwrap_or(Ok(Value::Nil));
    let info = replies.next().and_then(Result::ok).map(redis::from_redis_value::<InfoDict>);
    let mut settings = HashMap::new();
    for reply in replies.flatten() {
        settings.extend(redis::from_redis_value::<HashMap<String, String>>(reply).unwrap_or_default());
    }
    let info = info.and_then(Result::ok);
    let value = |key: &str| info.as_ref()?.get(key).or_else(|| settings.get(key).cloned());
    // Before the clock: a Sentinel has none, and is refused with advice.
    let health = judge(&value, endpoint.expected, &endpoint.allowed)?;
    let time = time.map_err(Cause::Driver)?;
    let (seconds, micros): (i64, i64) =
        redis::from_redis_value(time).map_err(|error| Cause::Driver(error.into()))?;
    let clock_us = seconds.saturating_mul(1_000_000).saturating_add(micros);
    if info.is_none() {
        tracing::warn!(
            server = endpoint.address,
            "can't check the server's settings, because this user may not use INFO: whether it evicts keys, is a \
             replica or forgets at a restart is not known"
        );
    } else if let (Some(danger), false) = (forgets(&value), endpoint.may_forget) {
        tracing::warn!(server = endpoint.address, "{danger}");
    }
    Ok(Health { clock_us, ..health })
}

/// What the server may forget of what it has acknowledged; `None` if nothing.
fn forgets(value: &dyn Fn(&str) -> Option<String>) -> Option<&'static str> {
    if value("aof_enabled").is_none_or(|enabled| enabled != "1") {
        return Some(
            "the server keeps no append-only file: after a crash or restart it has forgotten who holds locks, and gives \
             them again (set appendonly yes and appendfsync always)",
        );
    }
    // A server that does not state it is not warned about.
    value("appendfsync").filter(|sync| sync != "always").map(|_| {
        "the server's appendfsync is not always: a crash of its machine may forget the grants of the last second, and \
         give them again"
    })
}

/// Judges the server by `value`, which returns what it states for a key of INFO or CONFIG.
fn judge(
    value: &dyn Fn(&str) -> Option<String>,
    expected: Expected,
    allowed: &[Allowed],
) -> Result<Health, Cause> {
    let unusable = |why: String| Err(Cause::Unusable(Fault::Permanent, why));
    let is = |key: &str, expected: &str| value(key).is_some_and(|value| value == expected);
    let version = value("redis_version").unwrap_or_default();
    if version_of(&version).is_some_and(|version| version < (6, 2)) {
        return unusable(format!("the server is too old: it is {version}, and Redis 6.2 or later is needed"));
    }
    if is("active-replica", "yes") || is("multi-master", "yes") || is("role", "active-replica") {
        return unusable(
            "an active replica (KeyDB's active-replica or multi-master) takes writes on both sides, so two holders \
             could have one lock: use a single primary, or independent servers with redlock://"
                .to_owned(),
        );
    }
    // Valkey has another name for it.
    let mode = value("redis_mode").or_else(|| value("server_mode"));
    match (mode.as_deref(), expected) {
        (Some("sentinel"), _) => {
            return unusable(format!(
                "this is a Sentinel, which keeps no data: write redis+sentinel:// with this address and the name of the \
                 primary as path{}",
                watched(value)
            ));
        }
        (Some("cluster"), Expected::ClusterNode) if version_of(&version).is_some_and(|it| it < (7, 0)) => {
            return unusable(format!(
                "the node is too old: it is {version}, and a cluster needs Redis 7.0 or later, for messages in the slot of \
                 a lock"
            ));
        }
        (Some("cluster"), Expected::Primary) if !allowed.contains(&Allowed::Cluster) => {
            return unusable(
                "this is a node of a Redis Cluster: write redis-cluster:// (or rediss-cluster://), and see there what a \
                 failover may forget; to use one node alone, connect to the one that serves the prefix, and set \
                 polylock.allow=cluster"
                    .to_owned(),
            );
        }
        (Some("cluster"), Expected::NamedPrimary) => {
            return unusable("this is a node of a Redis Cluster: write redis-cluster://".to_owned());
        }
        (Some("standalone"), Expected::ClusterNode) => {
            return unusable(
                "this server is not part of a Redis Cluster (cluster-enabled is no): write redis://"
                    .to_owned(),
            );
        }
        _ => {}
    }
    if value("role").is_some_and(|role| role != "master") {
        let primary = value("master_host").zip(value("master_port"));
        let primary = primary.map_or(String::new(), |(host, port)| format!(", which is {host}:{port}"));
        return match expected {
            Expected::Primary => unusable(format!("this is a replica: connect to the primary{primary}")),
            // A failover is under way, or this client does not know of it yet.
            Expected::ClusterNode | Expected::NamedPrimary => Err(Cause::Unusable(
                Fault::Temporary,
                format!("this is a replica now, and another server the primary{primary}"),
            )),
        };
    }
    let evicting = value("maxmemory_policy").filter(|policy| policy != "noeviction");
    if let (Some(policy), false) = (evicting, allowed.contains(&Allowed::Eviction)) {
        return unusable(format!(
            "its maxmemory-policy is {policy}, which may evict a lock that is held: set it to noeviction, or accept \
             that with polylock.allow=eviction"
        ));
    }
    Ok(Health {
        run: value("run_id"),
        is_durable: is("aof_enabled", "1") && is("appendfsync", "always") && !was_replica(value),
        clock_us: 0,
    })
}

/// The primaries that a Sentinel watches, as it states them: `name=orders,status=ok,address=10.0.0.7:6379,…`.
fn watched(value: &dyn Fn(&str) -> Option<String>) -> String {
    let primaries = (0..).map_while(|index| value(&format!("master{index}"))).filter_map(|primary| {
        let part = |key: &str| primary.split(',').find_map(|part| part.strip_prefix(key)).map(str::to_owned);
        Some(format!("{} is {}", part("name=")?, part("address=")?))
    });
    let primaries: Vec<_> = primaries.collect();
    if primaries.is_empty() { String::new() } else { format!(" ({})", primaries.join(", ")) }
}

/// Whether the server was a replica before it became a primary: replication is asynchronous, so it lacks what the former primary
/// acknowledged last.
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

    const FIT: [(&str, &str); 6] = [
        ("redis_version", "7.0.15"),
        ("redis_mode", "standalone"),
        ("role", "master"),
        ("maxmemory_policy", "noeviction"),
        ("aof_enabled", "1"),
        ("run_id", "5c1e"),
    ];

    fn judged(key: &str, value: &str, allowed: &[Allowed]) -> Result<Health, String> {
        let value = |asked: &str| {
            if asked == key {
                return Some(value.to_owned());
            }
            FIT.iter().find(|(key, _)| *key == asked).map(|(_, value)| (*value).to_owned())
        };
        judge(&value, Expected::Primary, allowed).map_err(|cause| match cause {
            Cause::Unusable(Fault::Permanent, why) => why,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn a_fit_server_is_fit() {
        assert_eq!(judged("", "", &[]), Ok(Health { run: Some("5c1e".to_owned()), ..Health::default() }));
        assert_eq!(
            judge(&|_| None, Expected::Primary, &[]).unwrap(),
            Health::default(),
            "one that says nothing"
        );
    }

    #[test]
    fn what_breaks_locks_is_refused_with_what_to_do() {
        for (key, value, word) in [
            ("redis_version", "6.0.16", "6.2 or later"),
            ("role", "slave", "connect to the primary"),
            ("role", "active-replica", "redlock://"),
            ("active-replica", "yes", "redlock://"),
            ("multi-master", "yes", "redlock://"),
            ("redis_mode", "sentinel", "redis+sentinel://"),
            ("redis_mode", "cluster", "redis-cluster://"),
            ("maxmemory_policy", "allkeys-lru", "polylock.allow=eviction"),
            ("maxmemory_policy", "volatile-ttl", "noeviction"),
        ] {
            let why = judged(key, value, &[]).unwrap_err();
            assert!(why.contains(word), "{key}={value}: {why}");
        }
    }

    #[test]
    fn a_node_of_a_cluster_is_expected_to_be_one() {
        let judged = |settings: &[(&str, &str)], expected| {
            let value = |asked: &str| {
                settings.iter().find(|(key, _)| *key == asked).map(|(_, value)| (*value).to_owned())
            };
            judge(&value, expected, &[])
        };
        let node = [("redis_version", "7.0.15"), ("redis_mode", "cluster"), ("role", "master")];
        assert!(judged(&node, Expected::ClusterNode).is_ok());
        let (old, alone) = ([("redis_version", "6.2.0"), node[1], node[2]], [("redis_mode", "standalone")]);
        for settings in [&old[..], &alone[..]] {
            let refused = judged(settings, Expected::ClusterNode);
            assert!(matches!(refused, Err(Cause::Unusable(Fault::Permanent, _))), "{refused:?}");
        }
        // A failover passes.
        for (mode, expected) in [("cluster", Expected::ClusterNode), ("standalone", Expected::NamedPrimary)] {
            let replica = judged(&[("redis_mode", mode), ("role", "slave")], expected);
            assert!(matches!(replica, Err(Cause::Unusable(Fault::Temporary, _))), "{replica:?}");
        }
    }

    #[test]
    fn what_a_server_may_forget_is_told() {
        let danger = |settings: &[(&str, &str)]| {
            let value = |asked: &str| {
                settings.iter().find(|(key, _)| *key == asked).map(|(_, value)| (*value).to_owned())
            };
            forgets(&value)
        };
        assert!(
            danger(&[("aof_enabled", "0"), ("appendfsync", "always")])
                .unwrap()
                .contains("no append-only file")
        );
        assert!(
            danger(&[("aof_enabled", "1"), ("appendfsync", "everysec")]).unwrap().contains("last second")
        );
        assert_eq!(danger(&[("aof_enabled", "1"), ("appendfsync", "always")]), None);
        assert_eq!(danger(&[("aof_enabled", "1")]), None);
    }

    #[test]
    fn a_durable_server_syncs_every_write_and_was_never_a_replica() {
        let durable = |id: &str| {
            let settings = [("aof_enabled", "1"), ("appendfsync", "always"), ("master_replid2", id)];
            let value = |asked: &str| {
                settings.iter().find(|(key, _)| *key == asked).map(|(_, value)| (*value).to_owned())
            };
            judge(&value, Expected::Primary, &[]).unwrap().is_durable
        };
        assert!(durable("0000000000"));
        assert!(!durable("00000000a0"), "promoted");
    }

    #[test]
    fn valkey_says_it_in_its_own_words() {
        let value = |key: &str| (key == "server_mode").then(|| "cluster".to_owned());
        assert!(judge(&value, Expected::Primary, &[]).is_err());
        assert!(judge(&value, Expected::Primary, &[Allowed::Cluster]).is_ok());
    }

    #[test]
    fn what_may_be_allowed_is_allowed_one_by_one() {
        assert!(judged("redis_mode", "cluster", &[Allowed::Cluster]).is_ok());
        assert!(judged("redis_mode", "cluster", &[Allowed::Eviction]).is_err());
        assert!(judged("maxmemory_policy", "allkeys-lru", &[Allowed::Eviction]).is_ok());
        assert!(judged("role", "slave", &[Allowed::Eviction, Allowed::Cluster]).is_err());
    }
}
