//! Nothing stays behind.

use std::time::Duration;

use polylock_core::{Carrier, Operation, Order, OwnerId};

use crate::{
    faults::{Gate, Side},
    trial::{Outcome, Trial, acquired, chain, join, lock_name, released, scale, soon, watched},
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
    trial.keeps(0, "after the cycles").await;
    assert!(locks.close(Duration::from_secs(10)).await, "nothing is left to be done");
}

pub(super) async fn nothing_after_time_outs(trial: Trial) -> Outcome {
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
        let refused = join(wait).await.expect_err("another holds it");
        // Some waits are so short that the store can't say who holds it; those above all must leave nothing.
        assert!(refused.is_not_acquired() || refused.is_temporary(), "{}", chain(&refused));
    }
    trial.keeps(5, "the holders alone").await;
    for holder in holders {
        released(holder).await;
    }
    trial.keeps(0, "after the time-outs").await;
    Ok(())
}

/// `count`, or fewer where each lock and each wait takes a connection of its own.
fn at_once(trial: &Trial, count: usize) -> usize {
    let can = trial.capabilities();
    let pinned = can.carrier == Carrier::Connection && can.order == Order::Unordered;
    if pinned { count.min(30) } else { count }
}

pub(super) async fn nothing_after_cancelled_waits(trial: Trial) -> Outcome {
    let (locks, recording) = trial.recorded().await;
    let holder = acquired(locks.lock("n")).await;
    let count = at_once(&trial, 200);
    let waits: Vec<_> = (0..count).map(|_| tokio::spawn(locks.lock("n").acquire())).collect();
    soon("all wait", recording.queued(&lock_name("n"), trial.in_queue(count))).await;
    for wait in &waits {
        wait.abort();
    }
    trial.keeps(1, "the holder alone").await;
    released(holder).await;
    trial.nothing_left(&["n"], "after the waits were cancelled").await;
    for wait in waits {
        assert!(soon("the abort", wait).await.is_err_and(|cut| cut.is_cancelled()));
    }
    Ok(())
}

pub(super) async fn nothing_after_a_thousand_locks(trial: Trial) -> Outcome {
    let locks = trial.locks().await;
    let (count, workers) = (at_once(&trial, 1000), 16);
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
    let listed =
        soon("a list", locks.list("lock ")).await.unwrap_or_else(|error| panic!("{}", chain(&error)));
    assert_eq!(
        listed.iter().filter(|status| status.holders.len() == 1).count(),
        count,
        "all are listed as held"
    );
    assert!(guards.iter().all(polylock_core::Guard::is_held));
    drop(guards);
    assert!(locks.clone().close(Duration::from_secs(30)).await, "all releases have arrived");
    assert_eq!(
        soon("a list", locks.list("lock ")).await.map(|listed| listed.len()).ok(),
        Some(0),
        "nothing is left"
    );
    Ok(())
}

/// A hold whose renewals were not answered is lost; what they extended does not stay for another lease.
pub(super) async fn nothing_after_losses(trial: Trial) -> Outcome {
    let (store, gate) = watched(trial.store().await, Gate::new);
    let locks = trial.open(store);
    gate.shut(Operation::Renew, Side::Reply);
    let guard = acquired(locks.lock("n").ttl(trial.short())).await;
    soon("the loss", guard.lost()).await;
    trial.nothing_left(&["n"], "after a loss").await;
    gate.thaw();
    drop(guard);
    trial.nothing_left(&["n"], "after a lost guard was dropped").await;
    Ok(())
}
