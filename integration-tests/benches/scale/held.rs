//! Locks that one process holds.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use polylock_integration_tests::clock::{now, pause};
use serde_json::{Value, json};

use crate::site::Site;

const TTL: Duration = Duration::from_secs(6);

/// Holds `count` locks for `lasts`.
pub(crate) async fn measure(site: &Site, count: usize, lasts: Duration) -> Value {
    let locks = site.open(&format!("polylock.ttl={}s", TTL.as_secs())).await;
    let began = now();
    let guards = stream::iter(0..count)
        .map(|number| locks.lock(format!("lock-{number}")).acquire())
        .buffer_unordered(64)
        .map(Result::unwrap)
        .collect::<Vec<_>>();
    let guards = guards.await;
    let acquired = now().since(began);
    let before = site.used().await;
    let (until, mut least) = (now() + lasts, TTL);
    while now() < until {
        pause(Duration::from_millis(100)).await;
        let remaining = guards.iter().filter(|guard| guard.is_held()).map(polylock::Guard::remaining).min();
        least = least.min(remaining.unwrap_or_default());
    }
    let used = site.used().await.since(&before);
    let lost = guards.iter().filter(|guard| !guard.is_held()).count();
    let began = now();
    let failed = stream::iter(guards)
        .map(polylock::Guard::release)
        .buffer_unordered(64)
        .filter(|released| std::future::ready(released.is_err()))
        .count();
    let failed = failed.await;
    json!({
        "measured": "held", "store": site.store.name(), "count": count, "ttl_s": TTL.as_secs(), "held_s": used.seconds,
        "acquired_in_s": acquired.as_secs_f64(), "released_in_s": now().since(began).as_secs_f64(),
        "lost": lost, "releases_failed": failed, "least_remaining_s": least.as_secs_f64(),
        "own_cpu_percent": used.own, "servers_cpu_percent": used.servers, "scripts": used.scripts,
        "commands": used.commands,
    })
}
