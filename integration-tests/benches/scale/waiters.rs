//! Waiters of one lock in one process, and what other locks of that process feel of them.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use hdrhistogram::Histogram;
use polylock::Locks;
use polylock_integration_tests::{
    clock::{now, pause},
    history::{at, nanos},
};
use serde_json::{Value, json};

use crate::site::Site;

/// Has `count` tasks wait for one lock for `lasts`, and then lets each have it in turn.
pub(crate) async fn measure(site: &Site, count: usize, lasts: Duration) -> Value {
    let locks = site.open("polylock.ttl=30s").await;
    let usual_pairs = pairs(&locks, Duration::from_secs(2)).await;
    let first = locks.lock("n").acquire().await.unwrap();
    let other = locks.lock("other").ttl(Duration::from_secs(4)).acquire().await.unwrap();
    let began = now();
    let order = Arc::new(Mutex::new(Vec::with_capacity(count)));
    let tasks: Vec<_> = (0..count)
        .map(|number| {
            let (acquisition, order) = (locks.lock("n").label(number.to_string()).acquire(), order.clone());
            tokio::spawn(async move {
                let guard = acquisition.await.unwrap();
                order.lock().unwrap().push(number);
                guard.release().await.unwrap();
            })
        })
        .collect();
    // In the order of arrival at the store, if it has one: claims of one process may overtake each other on the way.
    let mut arrivals: Vec<usize> = (0..count).collect();
    while site.store.has_queue() {
        let waiters = locks.inspect("n").await.unwrap().waiters;
        if waiters.len() == count {
            arrivals = waiters.iter().map(|waiter| waiter.label.parse().unwrap()).collect();
            break;
        }
        pause(Duration::from_millis(200)).await;
    }
    let queued = now().since(began);
    let before = site.used().await;
    let idle_pairs = pairs(&locks, lasts).await;
    let idle = site.used().await.since(&before);

    let before = site.used().await;
    let (began, is_done) = (now(), Arc::new(AtomicBool::new(false)));
    let pairs_beside = tokio::spawn(pairs_until(locks.clone(), is_done.clone()));
    first.release().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    let drained = now().since(began);
    is_done.store(true, Ordering::Relaxed);
    let drain_pairs = pairs_beside.await.unwrap();
    let used = site.used().await.since(&before);
    let order = order.lock().unwrap().clone();
    let mut places = vec![0; count];
    arrivals.iter().enumerate().for_each(|(place, number)| places[*number] = place);
    let inversions = order.windows(2).filter(|pair| places[pair[0]] > places[pair[1]]).count();
    let of_pairs = |pairs: &Histogram<u64>| pairs.len() * site.scripts_of_a_pair() as u64;
    let (beside, idle_beside) = (of_pairs(&drain_pairs), of_pairs(&idle_pairs));
    json!({
        "measured": "waiters", "store": site.store.name(), "count": count, "queued_in_s": queued.as_secs_f64(),
        "idle_own_cpu_percent": idle.own, "idle_servers_cpu_percent": idle.servers,
        "idle_scripts_per_s": per_second(idle.scripts.saturating_sub(idle_beside), lasts),
        "idle_commands_per_s": per_second(idle.commands, lasts),
        "usual_pair_p50_us": micros(&usual_pairs, 0.5), "usual_pair_p99_us": micros(&usual_pairs, 0.99),
        "idle_pair_p50_us": micros(&idle_pairs, 0.5), "idle_pair_p99_us": micros(&idle_pairs, 0.99),
        "drained_in_s": drained.as_secs_f64(), "inversions": inversions,
        "drain_own_cpu_percent": used.own, "drain_servers_cpu_percent": used.servers,
        "scripts_per_acquisition": ratio(used.scripts.saturating_sub(beside), count),
        "commands_per_acquisition": ratio(used.commands, count),
        "drain_pair_p50_us": micros(&drain_pairs, 0.5), "drain_pair_p99_us": micros(&drain_pairs, 0.99),
        "drain_pair_max_us": micros(&drain_pairs, 1.0), "other_lock_held": other.is_held(),
    })
}

/// Takes and releases a free lock ten times a second.
async fn pairs(locks: &Locks, lasts: Duration) -> Histogram<u64> {
    let is_done = Arc::new(AtomicBool::new(false));
    let task = tokio::spawn(pairs_until(locks.clone(), is_done.clone()));
    pause(lasts).await;
    is_done.store(true, Ordering::Relaxed);
    task.await.unwrap()
}

async fn pairs_until(locks: Locks, is_done: Arc<AtomicBool>) -> Histogram<u64> {
    let mut seen = nanos();
    while !is_done.load(Ordering::Relaxed) {
        let began = now();
        locks.lock("free").acquire().await.unwrap().release().await.unwrap();
        seen.saturating_record(u64::try_from(now().since(began).as_nanos()).unwrap());
        pause(Duration::from_millis(100)).await;
    }
    seen
}

fn micros(seen: &Histogram<u64>, quantile: f64) -> u128 {
    at(seen, quantile).as_micros()
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn per_second(count: u64, lasts: Duration) -> f64 {
    count as f64 / lasts.as_secs_f64()
}

#[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
fn ratio(count: u64, of: usize) -> f64 {
    count as f64 / of as f64
}
