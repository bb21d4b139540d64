//! The range of lease times, and that a lease ends when its time is over: not before, not never.

use std::time::Duration;

use polylock_core::{Clock, Error, Mode, Request, SystemClock};

use crate::trial::{Outcome, SOON, Trial, acquired, join, lock_name, released, soon, within};

pub(super) async fn out_of_range_is_refused_before_any_io(trial: Trial) -> Outcome {
    let (locks, recording) = trial.recorded().await;
    let range = trial.capabilities().ttl.clone();
    assert!(range.start() < range.end(), "the range is empty: {range:?}");
    let (min, max) = (*range.start(), *range.end());
    let instant = Duration::from_nanos(1);
    let odd =
        [Duration::ZERO, instant, min.saturating_sub(instant), max.saturating_add(instant), Duration::MAX];
    for ttl in odd.into_iter().filter(|ttl| !range.contains(ttl)) {
        let errors = [
            soon("acquire", locks.lock("n").ttl(ttl).acquire()).await.map(drop),
            soon("try", locks.lock("n").ttl(ttl).try_acquire()).await.map(drop),
        ];
        for error in errors {
            match error {
                Err(Error::InvalidTtl { ttl: told, min: told_min, max: told_max, .. }) => {
                    assert_eq!((told, told_min, told_max), (ttl, min, max));
                }
                other => panic!("a TTL of {ttl:?} should be refused: {other:?}"),
            }
        }
    }
    assert!(recording.calls().is_empty(), "refused before any I/O");
    Ok(())
}

pub(super) async fn the_longest_times_do_not_overflow(trial: Trial) -> Outcome {
    let (locks, recording) = trial.recorded().await;
    let longest = *trial.capabilities().ttl.end();
    let patient = |name: &str| locks.lock(name).ttl(longest).wait(Duration::MAX).outage(Duration::MAX);
    let guard = acquired(patient("n")).await;
    assert!(guard.is_held());
    let waiting = tokio::spawn(acquired(patient("n")));
    soon("it waits", recording.queued(&lock_name("n"), 1)).await;
    released(guard).await;
    let guard = join(waiting).await;
    assert!(guard.is_held() && guard.remaining() <= longest);
    released(guard).await;
    trial.nothing_left(&["n"], "after the longest lease").await;
    Ok(())
}

/// A lease time within the range is what a guard gets; a store that can't give it says so in its range.
pub(super) async fn is_what_a_guard_gets(trial: Trial) -> Outcome {
    let locks = trial.locks().await;
    let range = trial.capabilities().ttl.clone();
    for wanted in [*range.start(), trial.short(), trial.long(), Duration::from_secs(600), *range.end()] {
        let ttl = wanted.clamp(*range.start(), *range.end());
        let sent = SystemClock.now();
        let guard = acquired(locks.lock("n").ttl(ttl)).await;
        let (left, took) = (guard.remaining(), SystemClock.now().since(sent));
        let margin = polylock_core::invariant::margin(ttl);
        assert!(left <= ttl && left + margin + took >= ttl, "{left:?} are left of {ttl:?} after {took:?}");
        released(guard).await;
    }
    trial.nothing_left(&["n"], "after all").await;
    Ok(())
}

pub(super) async fn an_abandoned_hold_expires_in_its_time(trial: Trial) -> Outcome {
    let (raw, locks) = (trial.raw().await, trial.locks().await);
    let ttl = trial.short();
    for waits in [false, true] {
        let dead = Request::new(lock_name("n"), Mode::Exclusive, ttl);
        let sent = SystemClock.now();
        let grant = raw.hold(&dead).await;
        assert!(grant.lease + Duration::from_millis(5) >= ttl, "a lease of {:?}, not {ttl:?}", grant.lease);
        let next = async {
            if waits {
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
        let next = within(ttl + SOON, "an abandoned hold expires", next).await;
        let after = SystemClock.now().since(sent);
        assert!(after + Duration::from_millis(5) >= ttl, "granted to another after {after:?} of {ttl:?}");
        released(next).await;
    }
    Ok(())
}
