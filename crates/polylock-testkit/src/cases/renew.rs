//! A hold is renewed for as long as its holder lives, and its deadline is never too late.

use std::{thread, time::Duration};

use futures_util::FutureExt;
use polylock_core::{Clock, Operation, deadline};

use crate::{
    ManualClock,
    faults::{Gate, Recording, Side},
    trial::{
        Outcome, Trial, acquired, acquired_by, join, outside, pass, released, soon, tried, until, watched,
        while_running,
    },
};

/// The maximum by which a store may round up a lease.
const ROUNDING: Duration = Duration::from_millis(1001);

pub(super) async fn a_short_lease_is_renewed_for_many_ttls(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let ttl = trial.renewable();
    let guard = acquired(here.lock("n").ttl(ttl)).await;
    let renewals = 8;
    for renewal in 0..renewals {
        let renewed = soon("a renewal", guard.renewed()).await;
        assert!(renewed.is_some(), "lost after {renewal} renewals");
        assert!(guard.is_held() && guard.remaining() <= ttl);
        assert!(tried(there.lock("n")).await.is_none(), "a held lock was granted after {renewal} renewals");
    }
    released(guard).await;
    trial.assert_empty(&["n"], "after the renewals").await;
    Ok(())
}

pub(super) async fn a_blocked_executor_does_not_starve_renewals(trial: Trial) -> Outcome {
    let (locks, there) = (trial.locks().await, trial.locks().await);
    let ttl = trial.renewable();
    let guard = outside(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let guard = acquired(locks.lock("n").ttl(ttl)).await;
            // The fault: a task that does not yield for longer than the lease.
            thread::sleep(ttl * 3 / 2);
            guard
        })
    })
    .await;
    assert!(guard.is_held(), "not renewed while the executor of the user was blocked");
    assert!(tried(there.lock("n")).await.is_none());
    released(guard).await;
    Ok(())
}

pub(super) async fn a_renewal_before_the_first_poll_is_reported(trial: Trial) -> Outcome {
    let clock = ManualClock::new();
    let locks = trial.open_by(trial.store().await, &clock);
    let guard = acquired_by(&clock, locks.lock("n")).await;
    let (renewed, first) = (guard.renewed(), guard.deadline());
    clock.advance(trial.long() / 3 + Duration::from_millis(1));
    while_running(&clock, until("a renewal", || guard.deadline() != first)).await;
    assert_eq!(
        renewed.now_or_never(),
        Some(Some(guard.deadline())),
        "a renewal before the first poll was not reported"
    );
    let after = guard.renewed();
    released(guard).await;
    assert_eq!(soon("the end", after).await, None, "expected None after the release");
    Ok(())
}

/// A late reply does not make the hold longer.
pub(super) async fn the_deadline_counts_from_the_send_time(trial: Trial) -> Outcome {
    let clock = ManualClock::new();
    let (store, gate) = watched(trial.store().await, Gate::new);
    let (store, recording) = watched(store, Recording::new);
    let locks = trial.open_by(store, &clock);
    let ttl = trial.long();
    let late = ttl / 6;
    // On a busy machine, an operation may fail and be sent again, which is later.
    let is_only = |operation| recording.of(operation).len() == 1;

    gate.shut(Operation::Claim, Side::Reply);
    let sent = clock.now();
    let acquiring = tokio::spawn(acquired(locks.lock("n")));
    soon("the claim", gate.blocked(Operation::Claim)).await;
    clock.advance(late);
    gate.open(Operation::Claim);
    let guard = while_running(&clock, join(acquiring)).await;
    let latest = deadline::of(sent, ttl + ROUNDING);
    assert!(
        guard.deadline() <= latest || !is_only(Operation::Claim),
        "counted from the reply of the claim: {:?}",
        guard.remaining()
    );

    gate.shut(Operation::Renew, Side::Reply);
    let renewed = guard.renewed();
    clock.advance(ttl / 3 - late + Duration::from_millis(1));
    let sent = clock.now();
    soon("the renewal", gate.blocked(Operation::Renew)).await;
    clock.advance(late / 2);
    gate.open(Operation::Renew);
    let deadline = while_running(&clock, soon("the reply to the renewal", renewed)).await.expect("held");
    assert!(
        deadline <= deadline::of(sent, ttl + ROUNDING) || !is_only(Operation::Renew),
        "counted from the reply of the renewal"
    );
    released(guard).await;
    Ok(())
}

pub(super) async fn nothing_is_renewed_after_a_release(trial: Trial) -> Outcome {
    let clock = ManualClock::new();
    let (store, recording) = watched(trial.store().await, Recording::new);
    let locks = trial.open_by(store, &clock);
    let third = trial.long() / 3;
    let guard = acquired_by(&clock, locks.lock("n")).await;
    let renewed = guard.renewed();
    clock.advance(third + Duration::from_millis(1));
    while_running(&clock, soon("a renewal", renewed)).await;
    released(guard).await;
    let renewals = recording.of(Operation::Renew).len();
    for round in 0..6 {
        clock.advance(third);
        // Tasks that the clock has woken run before this.
        released(acquired_by(&clock, locks.lock(format!("other-{round}"))).await).await;
        pass(Duration::from_millis(1)).await;
    }
    let after = recording.of(Operation::Renew);
    assert_eq!(after.len(), renewals, "renewed after the release: {:?}", after.last());
    Ok(())
}
