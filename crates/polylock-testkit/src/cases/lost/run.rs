//! `run` polls nothing under a lost lock.

use std::{
    future::{pending, poll_fn},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::Poll,
    thread,
    time::Duration,
};

use polylock_core::{Clock, LostReason, Operation, SystemClock};

use super::lost_reason;
use crate::{
    ManualClock,
    faults::{Gate, Side},
    trial::{Outcome, SOON, Trial, acquired, acquired_by, join, outside, soon, until, watched, within},
};

/// The store hangs when the work is done: the caller gets the output, not the outage.
pub(in crate::cases) async fn run_returns_when_the_work_is_done(trial: Trial) -> Outcome {
    let (store, gate) = watched(trial.store().await, Gate::new);
    let locks = trial.open(store);
    let guard = acquired(locks.lock("n")).await;
    gate.shut(Operation::Release, Side::Request);
    let output = within(SOON, "run while the release hangs", guard.run(async { 7 })).await;
    assert_eq!(output.ok(), Some(7));
    gate.thaw();
    trial.assert_empty(&["n"], "after the store has recovered").await;
    Ok(())
}

/// The process is paused in a poll of the work, past the deadline. The work requests another poll at once, and must not get it.
pub(in crate::cases) async fn run_polls_nothing_after_the_deadline(trial: Trial) -> Outcome {
    let clock = ManualClock::new();
    let locks = trial.open_by(trial.store().await, &clock);
    for pause_at in 1..=20 {
        let guard = acquired_by(&clock, locks.lock("n")).await;
        let (clock, over) = (clock.clone(), trial.long());
        let mut polls = 0;
        let work = poll_fn(|context| {
            polls += 1;
            if polls == pause_at {
                clock.advance(over);
            }
            context.waker().wake_by_ref();
            Poll::<()>::Pending
        });
        let outcome = soon("run", guard.run(work)).await;
        assert_eq!(lost_reason(outcome), Some(LostReason::DeadlineReached));
        assert_eq!(polls, pause_at, "polled after the deadline");
        trial.assert_empty(&["n"], "after a loss").await;
    }
    on_a_blocked_executor(&trial).await;
    Ok(())
}

/// The same case with the real clock, on a current-thread runtime that the work blocks.
async fn on_a_blocked_executor(trial: &Trial) {
    let (store, gate) = watched(trial.store().await, Gate::new);
    let (locks, ttl) = (trial.open(store), trial.short());
    outside(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let guard = acquired(locks.lock("n").ttl(ttl)).await;
            gate.freeze();
            let polls_after = AtomicUsize::new(0);
            let mut paused = false;
            let work = poll_fn(|context| {
                if paused {
                    polls_after.fetch_add(1, Ordering::SeqCst);
                }
                if !paused {
                    paused = true;
                    // The fault: one poll that lasts beyond the lease.
                    thread::sleep(ttl * 3 / 2 + Duration::from_millis(50));
                }
                context.waker().wake_by_ref();
                Poll::<()>::Pending
            });
            let outcome = guard.run(work).await;
            assert_eq!(lost_reason(outcome), Some(LostReason::DeadlineReached));
            assert_eq!(polls_after.load(Ordering::SeqCst), 0, "polled after the deadline");
            gate.thaw();
        });
    })
    .await;
    trial.assert_empty(&["n"], "after a loss on a blocked executor").await;
}

/// Work that never ends by itself is dropped when the lock is lost, before `run` returns.
pub(in crate::cases) async fn run_drops_the_work(trial: Trial) -> Outcome {
    struct Dropped(Arc<AtomicBool>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    let clock = ManualClock::new();
    let (store, gate) = watched(trial.store().await, Gate::new);
    let locks = trial.open_by(store, &clock);
    let guard = acquired_by(&clock, locks.lock("n")).await;
    gate.freeze();
    let (started, dropped) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let work = {
        let (started, dropped) = (started.clone(), Dropped(dropped.clone()));
        async move {
            let _dropped = dropped;
            started.store(true, Ordering::SeqCst);
            pending::<()>().await;
        }
    };
    let seen = dropped.clone();
    let running = tokio::spawn(async move {
        let outcome = guard.run(work).await;
        (lost_reason(outcome), seen.load(Ordering::SeqCst))
    });
    until("the work starts", || started.load(Ordering::SeqCst)).await;
    assert!(!dropped.load(Ordering::SeqCst));
    clock.advance(trial.long());
    assert_eq!(join(running).await, (Some(LostReason::DeadlineReached), true));
    gate.thaw();
    trial.assert_empty(&["n"], "after a loss").await;

    // The output of work that ends in time is returned, and its lock is released.
    let locks = trial.locks().await;
    let output = soon("run", acquired(locks.lock("n")).await.run(async { SystemClock.now() })).await;
    assert!(output.is_ok());
    trial.assert_empty(&["n"], "after the work").await;
    Ok(())
}
