//! Many locks that one process wants at the same moment.

use std::time::Duration;

use futures_util::future::join_all;
use polylock::{Error, Guard};
use polylock_integration_tests::clock::now;
use serde_json::{Value, json};

use crate::site::Site;

/// Has `count` tasks take as many locks at once, half a second after a lock with a short TTL was taken. Each is tried once, or
/// acquired without a time limit.
pub(crate) async fn measure(site: &Site, count: usize, is_try: bool) -> Value {
    let locks = site.open("polylock.ttl=30s").await;
    let other = locks.lock("other").ttl(Duration::from_secs(2)).acquire().await.unwrap();
    let began = now();
    let outcomes = join_all((0..count).map(|number| {
        let lock = locks.lock(format!("lock-{number}"));
        tokio::spawn(
            async move { if is_try { lock.try_acquire().await } else { lock.acquire().await.map(Some) } },
        )
    }));
    let outcomes: Vec<Result<Option<Guard>, Error>> =
        outcomes.await.into_iter().map(Result::unwrap).collect();
    let acquired_in = now().since(began);
    let acquired = outcomes.iter().filter(|outcome| matches!(outcome, Ok(Some(_)))).count();
    let failed = outcomes.iter().filter(|outcome| outcome.is_err()).count();
    let began = now();
    let releases = outcomes.into_iter().filter_map(|outcome| outcome.ok().flatten()).map(Guard::release);
    let releases_failed = join_all(releases).await.iter().filter(|released| released.is_err()).count();
    json!({
        "measured": if is_try { "tries" } else { "acquires" }, "store": site.store.name(), "count": count,
        "acquired": acquired, "failed": failed, "acquired_in_s": acquired_in.as_secs_f64(),
        "released_in_s": now().since(began).as_secs_f64(), "releases_failed": releases_failed,
        "other_lock_held": other.is_held(),
    })
}
