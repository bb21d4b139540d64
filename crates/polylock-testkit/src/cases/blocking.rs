//! A store does not block the thread that polls its operations: every other lock of the process waits for that thread.

use std::time::Duration;

use polylock_core::{Mode, Request};

use crate::{
    faults::Polls,
    trial::{Outcome, Trial, lock_name, watched},
};

/// The number of times that each operation is carried out.
const ROUNDS: usize = 20;

pub(super) async fn no_operation_blocks_its_thread(trial: Trial) -> Outcome {
    let (store, polls) = watched(trial.store().await, Polls::new);
    let raw = crate::trial::Raw(store.backend);
    for _ in 0..ROUNDS {
        let [holder, waiter] =
            ["n", "n"].map(|name| Request::new(lock_name(name), Mode::Exclusive, trial.long()));
        raw.hold(&holder).await;
        raw.queue(&waiter).await;
        raw.renew(&holder).await;
        raw.release(&waiter).await;
        raw.release(&holder).await;
    }
    // A busy machine sometimes stops a thread, and so does a page fault or a lock inside of the allocator. A store that blocks does so in
    // every operation.
    let blocked = polls.blocked();
    assert!(
        blocked.len() < ROUNDS / 2,
        "{} of {} operations blocked their thread, for up to {:?}: use an async driver, or a thread of the store",
        blocked.len(),
        polls.operations(),
        blocked.iter().max().unwrap_or(&Duration::ZERO),
    );
    trial.assert_empty(&["n"], "at the end").await;
    Ok(())
}
