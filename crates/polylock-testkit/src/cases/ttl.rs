//! The range of TTLs, and the end of a lease: not before its time, and not much later.

use std::time::Duration;

use polylock_core::{Clock, Error, Mode, Request, SystemClock};

use crate::trial::{
    Outcome, SOON, Trial, acquired, join, lock_name, released, released_or_lost, soon, within,
};

pub(super) async fn out_of_range_is_refused_before_any_io(trial: Trial) -> Outcome {
    let (locks, recording) = trial.recorded().await;
    let range = trial.capabilities().ttl.clone();
    assert!(range.start() < range.end(), "the range is empty: {range:?}");
    let (min, max) = (*range.start(), *range.end());
    let instant = Duration::from_nanos(1);
    let invalid =
        [Duration::ZERO, instant, min.saturating_sub(instant), max.saturating_add(instant), Duration::MAX];
    for ttl in invalid.into_iter().filter(|ttl| !range.contains(ttl)) {
        let errors = [
            soon("acquire", locks.lock("n").ttl(ttl).acquire()).await.map(drop),
            soon("try", locks.lock("n").ttl(ttl).try_acquire()).await.map(drop),
        ];
        for error in errors {
            match error {
                Err(Error::InvalidTtl { ttl: reported, min: lowest, max: highest, .. }) => {
                    assert_eq!((reported, lowest, highest), (ttl, min, max));
                }
                other => panic!("expected InvalidTtl for a TTL of {ttl:?}, got {other:?}"),
            }
        }
    }
    assert!(recording.calls().is_empty(), "requests were sent before the error");
    Ok(())
}

pub(super) async fn the_longest_times_do_not_overflow(trial: Trial) -> Outcome {
    let (locks, recording) = trial.recorded().await;
    let longest = *trial.capabilities().ttl.end();
    let unbounded = |name: &str| locks.lock(name).ttl(longest).wait(Duration::MAX).outage(Duration::MAX);
    let guard = acquired(unbounded("n")).await;
    assert!(guard.is_held());
    let waiting = tokio::spawn(acquired(unbounded("n")));
    soon("the waiter is queued", recording.queued(&lock_name("n"), 1)).await;
    released(guard).await;
    let guard = join(waiting).await;
    assert!(guard.is_held() && guard.remaining() <= longest);
    released(guard).await;
    trial.assert_empty(&["n"], "after the longest lease").await;
    Ok(())
}

/// A guard gets a requested TTL within the range; a store that can't grant it must declare a smaller range.
pub(super) async fn a_guard_gets_the_requested_ttl(trial: Trial) -> Outcome {
    let locks = trial.locks().await;
    let range = trial.capabilities().ttl.clone();
    for wanted in [*range.start(), trial.short(), trial.long(), Duration::from_secs(600), *range.end()] {
        let ttl = wanted.clamp(*range.start(), *range.end());
        let sent = SystemClock.now();
        let guard = acquired(locks.lock("n").ttl(ttl)).await;
        let (remaining, took) = (guard.remaining(), SystemClock.now().since(sent));
        let margin = polylock_core::deadline::margin(ttl);
        assert!(
            remaining <= ttl && remaining + margin + took >= ttl,
            "expected a hold of {ttl:?}, but {remaining:?} remain after {took:?}"
        );
        released_or_lost(guard).await;
    }
    trial.assert_empty(&["n"], "at the end").await;
    Ok(())
}

pub(super) async fn an_abandoned_hold_expires_on_time(trial: Trial) -> Outcome {
    let (raw, locks) = (trial.raw().await, trial.locks().await);
    let ttl = trial.short();
    for is_queued in [false, true] {
        let dead = Request::new(lock_name("n"), Mode::Exclusive, ttl);
        let sent = SystemClock.now();
        let grant = raw.hold(&dead).await;
        assert!(
            grant.lease + Duration::from_millis(5) >= ttl,
            "granted a lease of {:?} instead of {ttl:?}",
            grant.lease
        );
        let next = async {
            if is_queued {
                return acquired(locks.lock("n")).await;
            }
            loop {
                let tried = locks.lock("n").try_acquire().await.expect("the store answers");
                if let Some(guard) = tried {
                    return guard;
                }
                SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(2)).await;
            }
        };
        let next = within(ttl + SOON, "the grant after an abandoned hold", next).await;
        let granted_after = SystemClock.now().since(sent);
        assert!(
            granted_after + Duration::from_millis(5) >= ttl,
            "granted to another request after {granted_after:?}, before the lease of {ttl:?} ended"
        );
        released(next).await;
    }
    Ok(())
}
