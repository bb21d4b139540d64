//! Nothing stays behind.

use std::time::Duration;

use polylock_core::{Clock, HoldLifetime, LockStatus, Locks, Operation, Order, OwnerId, SystemClock};

use crate::{
    faults::{Gate, Side},
    trial::{Outcome, Trial, Unsupported, acquired, join, lock_name, pass, released, scale, soon, watched},
};

pub(super) async fn nothing_after_cycles_over_distinct_names(trial: Trial) -> Outcome {
    cycles(&trial, 50 * scale()).await;
    Ok(())
}

pub(super) async fn cycles(trial: &Trial, each: usize) {
    let locks = trial.locks().await;
    let workers: Vec<_> = (0..4)
        .map(|worker| {
            let locks = locks.clone();
            tokio::spawn(async move {
                for cycle in 0..each {
                    let name = format!("worker {worker} cycle {cycle}");
                    let lock = locks.lock(&name);
                    let guard = match cycle % 3 {
                        0 => acquired(lock).await,
                        1 => acquired(lock.wait(Duration::from_secs(60))).await,
                        _ => acquired(lock.reentrant(&OwnerId::process()).label("a label")).await,
                    };
                    if cycle % 2 == 0 { released(guard).await } else { drop(guard) }
                }
            })
        })
        .collect();
    for worker in workers {
        join(worker).await;
    }
    trial.assert_entries(0, "after the cycles").await;
    assert!(locks.close(Duration::from_secs(10)).await, "the releases did not complete in time");
}

pub(super) async fn nothing_after_timeouts(trial: Trial) -> Outcome {
    let locks = trial.locks().await;
    let mut holders = Vec::new();
    for lock in 0..5 {
        holders.push(acquired(locks.lock(format!("lock {lock}"))).await);
    }
    let waits: Vec<_> = (0..50 * scale() as u64)
        .map(|wait| {
            let lock = locks.lock(format!("lock {}", wait % 5)).wait(Duration::from_millis(1 + wait % 20));
            tokio::spawn(lock.acquire())
        })
        .collect();
    for wait in waits {
        let refused = join(wait).await.expect_err("the lock is held");
        // Some waits are too short for a reply of the store; these in particular must leave nothing.
        assert!(refused.is_not_acquired() || refused.is_temporary(), "{}", refused.chain());
    }
    trial.assert_entries(5, "only the holders remain").await;
    for holder in holders {
        released(holder).await;
    }
    trial.assert_entries(0, "after the timeouts").await;
    Ok(())
}

/// Returns `count`, or at most 30 if each lock and each wait uses a connection of its own.
fn concurrent(trial: &Trial, count: usize) -> usize {
    let capabilities = trial.capabilities();
    let needs_connections =
        capabilities.hold_lifetime == HoldLifetime::Session && capabilities.order == Order::Unordered;
    if needs_connections { count.min(30) } else { count }
}

pub(super) async fn nothing_after_cancelled_waits(trial: Trial) -> Outcome {
    let (locks, recording) = trial.recorded().await;
    let holder = acquired(locks.lock("n")).await;
    let count = concurrent(&trial, 200);
    let waits: Vec<_> = (0..count).map(|_| tokio::spawn(locks.lock("n").acquire())).collect();
    soon("all waiters are queued", recording.queued(&lock_name("n"), trial.in_queue(count))).await;
    for wait in &waits {
        wait.abort();
    }
    trial.assert_entries(1, "only the holder remains").await;
    released(holder).await;
    trial.assert_empty(&["n"], "after the waits were cancelled").await;
    for wait in waits {
        assert!(soon("the abort", wait).await.is_err_and(|error| error.is_cancelled()));
    }
    Ok(())
}

pub(super) async fn nothing_after_a_thousand_locks(trial: Trial) -> Outcome {
    let locks = trial.locks().await;
    let (count, workers) = (concurrent(&trial, 1000), 16);
    let holding: Vec<_> = (0..workers)
        .map(|worker| {
            let locks = locks.clone();
            tokio::spawn(async move {
                let mut guards = Vec::new();
                for lock in (worker..count).step_by(workers) {
                    guards.push(acquired(locks.lock(format!("lock {lock}"))).await);
                }
                guards
            })
        })
        .collect();
    let mut guards = Vec::new();
    for worker in holding {
        guards.extend(join(worker).await);
    }
    let listed = soon("a list", list_of_held(&locks)).await;
    assert_eq!(
        listed.iter().filter(|status| status.holders.len() == 1).count(),
        count,
        "the list does not show every held lock"
    );
    assert!(guards.iter().all(polylock_core::Guard::is_held));
    drop(guards);
    assert!(locks.clone().close(Duration::from_secs(30)).await, "the releases did not complete in time");
    let listed = soon("a list", list_of_held(&locks)).await;
    assert_eq!(listed.len(), 0, "the list shows locks that were released");
    Ok(())
}

/// Returns the locks of this case, also if the store is too busy at first: after a thousand locks it may be.
async fn list_of_held(locks: &Locks) -> Vec<LockStatus> {
    loop {
        match locks.list("lock ").await {
            Ok(listed) => return listed,
            Err(error) => assert!(error.is_temporary(), "{}", error.chain()),
        }
        pass(Duration::from_millis(50)).await;
    }
}

/// A hold with unanswered renewals is lost; the lease that they extended does not keep the lock for longer.
pub(super) async fn nothing_after_losses(trial: Trial) -> Outcome {
    let (store, gate) = watched(trial.store().await, Gate::new);
    let locks = trial.open(store);
    gate.shut(Operation::Renew, Side::Reply);
    let guard = acquired(locks.lock("n").ttl(trial.short())).await;
    soon("the loss", guard.lost()).await;
    trial.assert_empty(&["n"], "after a loss").await;
    gate.thaw();
    drop(guard);
    trial.assert_empty(&["n"], "after the drop of a lost guard").await;
    Ok(())
}

/// The process remembers less than half of the holds that it has had, after a few leases at most. A store that waits for a release
/// to remove a record keeps those of all holds that were left to expire.
pub(super) async fn no_records_of_ended_requests(trial: Trial) -> Outcome {
    let lease = trial.short();
    if lease > Duration::from_secs(5) {
        return Err(Unsupported(format!("the shortest lease is {lease:?}, so it would take minutes")));
    }
    let store = trial.store().await;
    let (locks, each) = (trial.open(store.clone()), concurrent(&trial, 100));
    for is_released in [true, false] {
        let (mut ended, limit) = (0, SystemClock.now() + 20 * lease + Duration::from_secs(5));
        loop {
            for _ in 0..each {
                let guard = acquired(locks.lock(format!("lock {ended}, {is_released}")).ttl(lease)).await;
                // On a busy machine, the short lease may end before the reply. Then a record must not stay, either.
                let outcome = if is_released { guard.release().await } else { guard.leave_to_expire() };
                if let Err(error) = outcome {
                    assert!(error.is_temporary() || error.lost().is_some(), "{error}");
                }
                ended += 1;
            }
            pass(lease).await;
            let records = store.backend.request_records().unwrap_or_default();
            if 2 * records <= ended {
                break;
            }
            assert!(SystemClock.now() < limit, "{records} records of {ended} holds that have ended");
        }
    }
    Ok(())
}
