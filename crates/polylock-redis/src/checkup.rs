//! What the server says of itself, and whether locks are safe in it.

use std::collections::HashMap;

use polylock_core::Fault;
use redis::{InfoDict, RedisResult, Value, aio::MultiplexedConnection};

use crate::{Allowed, error::Trouble, link::Dial};

/// What counts about a server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Health {
    /// For how long it has run, in seconds, when it was asked; `None` if this user may not know.
    pub(crate) uptime_s: Option<u64>,
    /// Which run of which server it is, if this user may know.
    pub(crate) run: Option<String>,
    /// Whether what it has acknowledged is on its disk, as far as is known.
    pub(crate) is_durable: bool,
    /// Its clock, in us since 1970, when it was asked.
    pub(crate) clock_us: i64,
}

/// Asks the server, which takes one round trip.
///
/// # Errors
/// If it does not answer, or can't be used.
pub(crate) async fn ask(connection: &mut MultiplexedConnection, dial: &Dial) -> Result<Health, Trouble> {
    let mut questions = redis::pipe();
    questions.cmd("TIME").cmd("INFO");
    for setting in ["appendfsync", "active-replica", "multi-master"] {
        questions.cmd("CONFIG").arg("GET").arg(setting);
    }
    // Each may be forbidden, and managed servers know no CONFIG.
    let answers: Vec<RedisResult<Value>> =
        questions.ignore_errors().query_async(connection).await.map_err(Trouble::Driver)?;
    let mut answers = answers.into_iter();
    let time = answers.next().unwrap_or(Ok(Value::Nil)).map_err(Trouble::Driver)?;
    let (seconds, micros): (i64, i64) =
        redis::from_redis_value(time).map_err(|error| Trouble::Driver(error.into()))?;
    let clock_us = seconds.saturating_mul(1_000_000).saturating_add(micros);
    let info = answers.next().and_then(Result::ok).map(redis::from_redis_value::<InfoDict>);
    let Some(Ok(info)) = info else {
        tracing::warn!(
            server = dial.place,
            "can't look at the server's settings, because this user may not use INFO: whether it evicts keys, is a \
             replica or forgets at a restart is not known"
        );
        return Ok(Health { clock_us, ..Health::default() });
    };
    let mut settings = HashMap::new();
    for answer in answers.flatten() {
        settings.extend(redis::from_redis_value::<HashMap<String, String>>(answer).unwrap_or_default());
    }
    let told = |key: &str| info.get(key).or_else(|| settings.get(key).cloned());
    let health = look(&told, &dial.allowed)?;
    if let (Some(danger), false) = (forgets(&told), dial.may_forget) {
        tracing::warn!(server = dial.place, "{danger}");
    }
    Ok(Health { clock_us, ..health })
}

/// What the server may forget of what it has acknowledged, if it may.
fn forgets(told: &dyn Fn(&str) -> Option<String>) -> Option<&'static str> {
    if told("aof_enabled").is_none_or(|enabled| enabled != "1") {
        return Some(
            "the server keeps no append-only file: after a crash or restart it has forgotten who holds locks, and gives \
             them again (set appendonly yes and appendfsync always)",
        );
    }
    // A server that does not tell is given the benefit of the doubt.
    told("appendfsync").filter(|sync| sync != "always").map(|_| {
        "the server's appendfsync is not always: a crash of its machine may forget the grants of the last second, and \
         give them again"
    })
}

/// Judges by what `told` says of each key of INFO or CONFIG.
fn look(told: &dyn Fn(&str) -> Option<String>, allowed: &[Allowed]) -> Result<Health, Trouble> {
    let unfit = |why: String| Err(Trouble::Unfit(Fault::Permanent, why));
    let is = |key: &str, value: &str| told(key).is_some_and(|told| told == value);
    let version = told("redis_version").unwrap_or_default();
    if version_of(&version).is_some_and(|version| version < (6, 2)) {
        return unfit(format!("the server is too old: it is {version}, and Redis 6.2 or later is needed"));
    }
    if is("active-replica", "yes") || is("multi-master", "yes") || is("role", "active-replica") {
        return unfit(
            "an active replica (KeyDB's active-replica or multi-master) takes writes on both sides, so two holders \
             could have one lock: use a single primary, or independent servers with redlock://"
                .to_owned(),
        );
    }
    if told("role").is_some_and(|role| role != "master") {
        return unfit("this is a replica: connect to the primary".to_owned());
    }
    // Valkey calls it by another name.
    match told("redis_mode").or_else(|| told("server_mode")).as_deref() {
        Some("sentinel") => {
            return unfit("this is a Sentinel, which keeps no data: connect to the primary".to_owned());
        }
        Some("cluster") if !allowed.contains(&Allowed::Cluster) => {
            return unfit(
                "this is a node of a Redis Cluster, whose failover forgets the last grants: use a single primary or \
                 redlock://, or set polylock.allow=cluster and connect to the node that serves the prefix"
                    .to_owned(),
            );
        }
        _ => {}
    }
    let evicting = told("maxmemory_policy").filter(|policy| policy != "noeviction");
    if let (Some(policy), false) = (evicting, allowed.contains(&Allowed::Eviction)) {
        return unfit(format!(
            "its maxmemory-policy is {policy}, which may evict a lock that is held: set it to noeviction, or accept \
             that with polylock.allow=eviction"
        ));
    }
    Ok(Health {
        uptime_s: told("uptime_in_seconds").and_then(|seconds| seconds.parse().ok()),
        run: told("run_id"),
        is_durable: is("aof_enabled", "1") && is("appendfsync", "always"),
        clock_us: 0,
    })
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
        ("uptime_in_seconds", "12"),
    ];

    fn judged(key: &str, value: &str, allowed: &[Allowed]) -> Result<Health, String> {
        let told = |asked: &str| {
            if asked == key {
                return Some(value.to_owned());
            }
            FIT.iter().find(|(key, _)| *key == asked).map(|(_, value)| (*value).to_owned())
        };
        look(&told, allowed).map_err(|trouble| match trouble {
            Trouble::Unfit(Fault::Permanent, why) => why,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn a_fit_server_is_fit() {
        assert_eq!(judged("", "", &[]), Ok(Health { uptime_s: Some(12), ..Health::default() }));
        assert_eq!(look(&|_| None, &[]).unwrap(), Health::default(), "one that says nothing");
    }

    #[test]
    fn what_breaks_locks_is_refused_with_what_to_do() {
        for (key, value, word) in [
            ("redis_version", "6.0.16", "6.2 or later"),
            ("role", "slave", "connect to the primary"),
            ("role", "active-replica", "redlock://"),
            ("active-replica", "yes", "redlock://"),
            ("multi-master", "yes", "redlock://"),
            ("redis_mode", "sentinel", "Sentinel"),
            ("redis_mode", "cluster", "polylock.allow=cluster"),
            ("maxmemory_policy", "allkeys-lru", "polylock.allow=eviction"),
            ("maxmemory_policy", "volatile-ttl", "noeviction"),
        ] {
            let why = judged(key, value, &[]).unwrap_err();
            assert!(why.contains(word), "{key}={value}: {why}");
        }
    }

    #[test]
    fn what_a_server_may_forget_is_told() {
        let danger = |settings: &[(&str, &str)]| {
            let told = |asked: &str| {
                settings.iter().find(|(key, _)| *key == asked).map(|(_, value)| (*value).to_owned())
            };
            forgets(&told)
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
    fn valkey_says_it_in_its_own_words() {
        let told = |key: &str| (key == "server_mode").then(|| "cluster".to_owned());
        assert!(look(&told, &[]).is_err());
        assert!(look(&told, &[Allowed::Cluster]).is_ok());
    }

    #[test]
    fn what_may_be_allowed_is_allowed_one_by_one() {
        assert!(judged("redis_mode", "cluster", &[Allowed::Cluster]).is_ok());
        assert!(judged("redis_mode", "cluster", &[Allowed::Eviction]).is_err());
        assert!(judged("maxmemory_policy", "allkeys-lru", &[Allowed::Eviction]).is_ok());
        assert!(judged("role", "slave", &[Allowed::Eviction, Allowed::Cluster]).is_err());
    }
}
