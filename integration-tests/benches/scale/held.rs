//! Locks that one process holds.

use std::{fs, time::Duration};

use futures_util::{StreamExt, stream};
use polylock_integration_tests::clock::{now, pause};
use serde_json::{Value, json};

use crate::site::Site;

/// Holds `count` locks for `lasts`.
pub(crate) async fn measure(site: &Site, count: usize, lasts: Duration) -> Value {
    let ttl = site.store.ttl();
    let locks = site.open(&format!("polylock.ttl={}s", ttl.as_secs())).await;
    locks.lock("first").acquire().await.unwrap().release().await.unwrap();
    let memory = resident();
    let began = now();
    let guards = stream::iter(0..count)
        .map(|number| locks.lock(format!("lock-{number}")).acquire())
        .buffer_unordered(64)
        .map(Result::unwrap)
        .collect::<Vec<_>>();
    let guards = guards.await;
    let acquired = now().since(began);
    let each = resident().saturating_sub(memory) / count.max(1);
    let before = site.used().await;
    let (until, mut minimum) = (now() + lasts, ttl);
    while now() < until {
        // Each look reads the clock for every lock, which costs more than keeping them if it is done often.
        pause(Duration::from_secs(1).min(lasts / 5)).await;
        let remaining = guards.iter().filter(|guard| guard.is_held()).map(polylock::Guard::remaining).min();
        minimum = minimum.min(remaining.unwrap_or_default());
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
        "measured": "held", "store": site.store.name(), "count": count, "ttl_s": ttl.as_secs(), "held_s": used.seconds,
        "acquired_in_s": acquired.as_secs_f64(), "released_in_s": now().since(began).as_secs_f64(),
        "lost": lost, "releases_failed": failed, "least_remaining_s": minimum.as_secs_f64(),
        "own_bytes_each": each, "own_cpu_percent": used.own, "servers_cpu_percent": used.servers, "scripts": used.scripts,
        "commands": used.commands,
    })
}

/// The bytes of memory that this process has.
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    1024 * line.trim().trim_end_matches(" kB").parse::<usize>().unwrap()
}
