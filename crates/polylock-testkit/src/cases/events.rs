//! The events of a hold for its holder.

use std::time::Duration;

use polylock_core::{Clock, GuardEvent, LostReason, Operation};

use crate::{
    ManualClock,
    faults::{Gate, Side},
    trial::{Outcome, Trial, acquired, acquired_by, released, soon, watched, while_running},
};

const INSTANT: Duration = Duration::from_nanos(1);

pub(super) async fn report_renewals_with_their_slack(trial: Trial) -> Outcome {
    let clock = ManualClock::new();
    let locks = trial.open_by(trial.store().await, &clock);
    let guard = acquired_by(&clock, locks.lock("n")).await;
    let mut events = guard.events();
    for _ in 0..3 {
        let before = guard.deadline();
        clock.advance(trial.long() / 3 + INSTANT);
        let left = before.since(clock.now());
        match while_running(&clock, events.next()).await {
            Some(GuardEvent::Renewed { deadline, slack }) => {
                assert!(deadline > before && guard.deadline() >= deadline, "the deadline of a renewal");
                assert!(slack <= left && !slack.is_zero(), "a slack of {slack:?} with {left:?} left");
            }
            event => panic!("expected a renewal: {event:?}"),
        }
    }
    released(guard).await;
    assert_eq!(soon("the end of the events", events.next()).await, None);
    trial.assert_empty(&["n"], "after the release").await;
    Ok(())
}

pub(super) async fn warn_of_a_loss_before_it(trial: Trial) -> Outcome {
    let clock = ManualClock::new();
    let (store, gate) = watched(trial.store().await, Gate::new);
    let locks = trial.open_by(store, &clock);
    let guard = acquired_by(&clock, locks.lock("n")).await;
    let mut events = guard.events();
    gate.shut(Operation::Renew, Side::Request);
    clock.advance(guard.remaining() - INSTANT);
    let warning = soon("a warning", events.next()).await;
    assert_eq!(warning, Some(GuardEvent::SlackLow { left: INSTANT }));
    assert!(guard.is_held(), "the warning came after the loss");
    clock.advance(INSTANT);
    let loss = soon("the loss", events.next()).await;
    assert_eq!(loss, Some(GuardEvent::Lost(LostReason::DeadlineReached)));
    assert_eq!(soon("the end of the events", events.next()).await, None);
    gate.thaw();
    drop(guard);
    trial.assert_empty(&["n"], "after a loss").await;
    Ok(())
}

pub(super) async fn are_bounded_for_a_slow_reader(trial: Trial) -> Outcome {
    const RENEWALS: u64 = 40;
    let clock = ManualClock::new();
    let (store, gate) = watched(trial.store().await, Gate::new);
    let locks = trial.open_by(store, &clock);
    let guard = acquired_by(&clock, locks.lock("n")).await;
    let [mut slow, mut slower] = [guard.events(), guard.events()];
    for _ in 0..RENEWALS {
        let renewed = guard.renewed();
        clock.advance(trial.long() / 3 + INSTANT);
        assert!(while_running(&clock, renewed).await.is_some());
    }
    // A renewal is reported a moment after it has moved the deadline.
    let mut kept = 0;
    match soon("the events", slow.next()).await {
        Some(GuardEvent::Missed(missed)) => {
            while missed + kept < RENEWALS {
                let event = soon("a kept event", slow.next()).await;
                assert!(
                    matches!(event, Some(GuardEvent::Renewed { .. } | GuardEvent::Missed(_))),
                    "{event:?}"
                );
                kept += 1;
            }
            assert!((1..=32).contains(&kept), "{kept} events were kept");
        }
        event => panic!("expected a report of dropped events: {event:?}"),
    }
    gate.freeze();
    clock.advance(guard.remaining());
    assert!(!guard.is_held(), "held after the deadline");
    // The loss comes before the events that were not read.
    let loss = soon("the loss", slower.next()).await;
    assert_eq!(loss, Some(GuardEvent::Lost(LostReason::DeadlineReached)));
    gate.thaw();
    drop(guard);
    trial.assert_empty(&["n"], "after a loss").await;
    Ok(())
}

pub(super) async fn end_with_the_guard(trial: Trial) -> Outcome {
    let locks = trial.locks().await;
    let guard = acquired(locks.lock("n")).await;
    let mut events = guard.events();
    drop(guard);
    assert_eq!(soon("the end of the events", events.next()).await, None);
    assert_eq!(soon("the end of the events", events.next()).await, None);
    trial.assert_empty(&["n"], "after the drop").await;
    Ok(())
}
