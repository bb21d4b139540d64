//! Locks that one process holds.

use std::time::Duration;

use polylock_bench::held::Held;
use serde_json::{Value, json};

use crate::site::Site;

/// Holds `count` locks for `lasts`.
pub(crate) async fn measure(site: &Site, count: usize, lasts: Duration) -> Value {
    let ttl = site.store.ttl();
    let locks = site.open(&format!("polylock.ttl={}s", ttl.as_secs())).await;
    let held = Held::acquire(&locks, count, ttl).await.unwrap();
    let (acquired_in, bytes_each) = (held.acquired_in, held.bytes_each);
    let before = site.used().await;
    let watched = held.watch(lasts).await;
    let used = site.used().await.since(&before);
    let released = held.release().await;
    json!({
        "measured": "held", "store": site.store.name(), "count": count, "ttl_s": ttl.as_secs(), "held_s": used.seconds,
        "acquired_in_s": acquired_in.as_secs_f64(), "released_in_s": released.released_in.as_secs_f64(),
        "lost": watched.lost, "releases_failed": released.failed,
        "least_remaining_s": watched.least_remaining.as_secs_f64(),
        "own_bytes_each": bytes_each, "own_cpu_percent": used.own, "servers_cpu_percent": used.servers,
        "scripts": used.scripts, "commands": used.commands,
    })
}
