//! Waiters of one lock in one process, and other locks of that process meanwhile.

use std::time::Duration;

use polylock_bench::{
    Times,
    waiters::{Waiters, pairs},
};
use serde_json::{Value, json};

use crate::site::Site;

/// Lets `count` tasks wait for one lock for `lasts`, and then lets each have it in turn.
pub(crate) async fn measure(site: &Site, count: usize, lasts: Duration) -> Value {
    let locks = site.open("polylock.ttl=30s").await;
    let usual_pairs = pairs(&locks, Duration::from_secs(2)).await.unwrap();
    let waiters = Waiters::queue(&locks, count).await.unwrap();
    let queued_in = waiters.queued_in;
    let before = site.used().await;
    let idle_pairs = waiters.idle(lasts).await.unwrap();
    let idle = site.used().await.since(&before);

    let before = site.used().await;
    let drained = waiters.drain().await.unwrap();
    let used = site.used().await.since(&before);
    let of_pairs = |pairs: &Times| pairs.count() * site.scripts_of_a_pair() as u64;
    let (beside, idle_beside) = (of_pairs(&drained.pairs), of_pairs(&idle_pairs));
    let micros = |time: Duration| time.as_micros();
    json!({
        "measured": "waiters", "store": site.store.name(), "count": count, "queued_in_s": queued_in.as_secs_f64(),
        "idle_own_cpu_percent": idle.own, "idle_servers_cpu_percent": idle.servers,
        "idle_scripts_per_s": per_second(idle.scripts.saturating_sub(idle_beside), lasts),
        "idle_commands_per_s": per_second(idle.commands, lasts),
        "usual_pair_p50_us": micros(usual_pairs.p50()), "usual_pair_p99_us": micros(usual_pairs.p99()),
        "idle_pair_p50_us": micros(idle_pairs.p50()), "idle_pair_p99_us": micros(idle_pairs.p99()),
        "drained_in_s": drained.drained_in.as_secs_f64(), "inversions": drained.inversions,
        "drain_own_cpu_percent": used.own, "drain_servers_cpu_percent": used.servers,
        "scripts_per_acquisition": ratio(used.scripts.saturating_sub(beside), count),
        "commands_per_acquisition": ratio(used.commands, count),
        "drain_pair_p50_us": micros(drained.pairs.p50()), "drain_pair_p99_us": micros(drained.pairs.p99()),
        "drain_pair_max_us": micros(drained.pairs.max()), "other_lock_held": drained.other_lock_held,
    })
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn per_second(count: u64, lasts: Duration) -> f64 {
    count as f64 / lasts.as_secs_f64()
}

#[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
fn ratio(count: u64, of: usize) -> f64 {
    count as f64 / of as f64
}
