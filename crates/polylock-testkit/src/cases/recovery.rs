//! The store loses its data, or its server, while programs use it. The target simulates that; if it can't, the case is unsupported.

use polylock_core::{Clock, LostReason, SystemClock};
use tokio::task::JoinSet;

use crate::trial::{
    Outcome, SOON, Trial, Unsupported, acquired, join, lock_name, released, soon, tried, within,
};

/// Another client deletes everything that the store keeps, its counters included. The hold is gone, and its holder is notified with its
/// next renewal at the latest. Until then another request may be granted the lock; its token is greater, so a resource can distinguish
/// the two.
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
    soon("both waiters are queued", recording.queued(&lock_name("n"), trial.in_queue(2))).await;

    let began = SystemClock.now();
    if !trial.empty().await {
        return Err(Unsupported("the target can't empty the store".to_owned()));
    }
    let served = within(trial.renewable() + SOON, "the grants to the waiters", waiters.join_all()).await;
    println!("waiters were served within {:.1?}", SystemClock.now().since(began));
    assert!(
        served.iter().all(|token| *token > held) && served[0] != served[1],
        "the tokens {served:?} do not grow after {held:?}"
    );
    let reason = within(trial.renewable() + SOON, "the loss", join(lost)).await;
    assert_eq!(reason, LostReason::Gone);
    let refused = soon("the release of a lost lock", guard.release()).await;
    assert_eq!(refused.expect_err("the hold was lost").lost(), Some(&LostReason::Gone));

    // Programs that were connected before, and new ones, continue.
    let new = trial.locks().await;
    for locks in [&here, &there, &new] {
        let guard = acquired(locks.lock("n")).await;
        assert!(
            served.iter().all(|token| *token < guard.fencing_token()),
            "the tokens restarted after the store was emptied"
        );
        assert!(tried(new.lock("n")).await.is_none(), "a held lock was granted");
        released(guard).await;
    }
    trial.assert_empty(&["n"], "after the store was emptied").await;
    Ok(())
}

/// The server is killed and started again with its persistent data: holders and waiters keep their entries.
pub(super) async fn after_a_server_restart(trial: Trial) -> Outcome {
    let Some((trial, server)) = trial.on_own_server().await else {
        return Err(Unsupported("the target has no server that can be restarted".to_owned()));
    };
    let here = trial.locks().await;
    let (there, recording) = trial.recorded().await;
    let guard = acquired(here.lock("n")).await;
    let token = guard.fencing_token();
    let waiting = tokio::spawn(acquired(there.lock("n")));
    soon("the waiter is queued", recording.queued(&lock_name("n"), 1)).await;

    server.restart().await;
    assert!(guard.is_held(), "the hold was lost: the restart took longer than the lease");
    assert!(
        tried(trial.locks().await.lock("n")).await.is_none(),
        "the hold did not survive the restart of the server"
    );
    assert!(!waiting.is_finished(), "the hold did not survive the restart of the server");
    released(guard).await;
    let next = join(waiting).await;
    assert!(
        next.fencing_token() > token,
        "the token {:?} does not grow after {token:?}",
        next.fencing_token()
    );
    released(next).await;
    trial.assert_empty(&["n"], "after a restart").await;
    Ok(())
}
