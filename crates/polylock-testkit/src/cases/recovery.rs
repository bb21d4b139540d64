//! The store loses its data, or its server, while programs use it. The target does that; where it can't, the case is unsupported.

use polylock_core::{Clock, LostReason, SystemClock};
use tokio::task::JoinSet;

use crate::trial::{
    Outcome, SOON, Trial, Unsupported, acquired, join, lock_name, released, soon, tried, within,
};

/// Somebody deletes everything that the store keeps, its counters included. The hold is gone, and its holder is notified with its next
/// renewal at the latest. Until then another may be granted the lock; its token is greater, so a resource tells the two apart.
pub(super) async fn after_the_store_was_emptied(trial: Trial) -> Outcome {
    let here = trial.locks().await;
    let (there, recording) = trial.recorded().await;
    let guard = acquired(here.lock("n").ttl(trial.renewable())).await;
    let (held, lost) = (guard.fencing_token(), tokio::spawn(guard.lost()));
    let mut waiters = JoinSet::new();
    for _ in 0..2 {
        let waiter = there.lock("n");
        waiters.spawn(async move {
            let guard = acquired(waiter).await;
            let token = guard.fencing_token();
            released(guard).await;
            token
        });
    }
    soon("both wait", recording.queued(&lock_name("n"), trial.in_queue(2))).await;

    let began = SystemClock.now();
    if !trial.empty().await {
        return Err(Unsupported("the target does not empty the store".to_owned()));
    }
    let served = within(trial.renewable() + SOON, "the waiters", waiters.join_all()).await;
    println!("the waiters were served within {:.1?}", SystemClock.now().since(began));
    assert!(served.iter().all(|token| *token > held) && served[0] != served[1], "{served:?} after {held:?}");
    let reason = within(trial.renewable() + SOON, "the loss", join(lost)).await;
    assert_eq!(reason, LostReason::Gone);
    let refused = soon("the release of a lost lock", guard.release()).await;
    assert_eq!(refused.expect_err("it was lost").lost(), Some(&LostReason::Gone));

    // Programs that were connected before, and new ones, go on.
    let new = trial.locks().await;
    for locks in [&here, &there, &new] {
        let guard = acquired(locks.lock("n")).await;
        assert!(served.iter().all(|token| *token < guard.fencing_token()), "tokens began again");
        assert!(tried(new.lock("n")).await.is_none(), "two holders");
        released(guard).await;
    }
    trial.nothing_left(&["n"], "after the store was emptied").await;
    Ok(())
}

/// The server is killed and started again with what it has on its disk: holders and waiters keep what they have.
pub(super) async fn after_a_restart_of_the_server(trial: Trial) -> Outcome {
    let Some((trial, server)) = trial.on_own_server().await else {
        return Err(Unsupported("the target has no server of its own to restart".to_owned()));
    };
    let here = trial.locks().await;
    let (there, recording) = trial.recorded().await;
    let guard = acquired(here.lock("n")).await;
    let token = guard.fencing_token();
    let waiting = tokio::spawn(acquired(there.lock("n")));
    soon("it waits", recording.queued(&lock_name("n"), 1)).await;

    server.restart().await;
    assert!(guard.is_held(), "the restart took longer than a lease");
    assert!(tried(trial.locks().await.lock("n")).await.is_none(), "the server has forgotten the holder");
    assert!(!waiting.is_finished(), "the server has forgotten the holder");
    released(guard).await;
    let next = join(waiting).await;
    assert!(next.fencing_token() > token, "{:?} after {token:?}", next.fencing_token());
    released(next).await;
    trial.nothing_left(&["n"], "after a restart").await;
    Ok(())
}
