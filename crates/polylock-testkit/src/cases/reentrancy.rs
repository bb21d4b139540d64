//! An explicit owner can re-enter its own holds; no other owner can.

use std::time::Duration;

use polylock_core::{Error, Mode, OwnerId};

use crate::trial::{Outcome, SOON, Trial, acquired, join, lock_name, released, soon, tried, within};

pub(super) async fn guards_are_counted(trial: Trial) -> Outcome {
    let (locks, recording) = trial.recorded().await;
    let there = trial.locks().await;
    let owner = OwnerId::unique();
    let mut guards = Vec::new();
    for _ in 0..4 {
        guards.push(acquired(locks.lock("n").reentrant(&owner)).await);
    }
    guards.push(tried(locks.lock("n").reentrant(&owner)).await.expect("re-entered by a try"));
    assert!(
        guards.iter().all(|guard| guard.fencing_token() == guards[0].fencing_token()),
        "guards of one hold have different tokens"
    );
    assert!(guards.iter().all(|guard| guard.owner() == &owner));
    assert_eq!(recording.ids().len(), 1, "re-entering sent a request");
    trial.assert_entries(1, "guards of one hold must share one entry").await;
    // The order is neither that of entering nor the reverse; some guards are released, and some are dropped.
    for (at, drops) in [(1, false), (3, true), (0, false), (1, true)] {
        let guard = guards.remove(at);
        if drops {
            drop(guard);
        } else {
            released(guard).await;
        }
        assert!(guards.iter().all(|guard| guard.is_held()), "lost with {} guards left", guards.len());
        assert!(tried(there.lock("n")).await.is_none(), "released with {} guards left", guards.len());
    }
    released(guards.remove(0)).await;
    trial.assert_empty(&["n"], "after the release of the last guard").await;
    Ok(())
}

pub(super) async fn other_owners_are_excluded(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let (owner, other) = (OwnerId::unique(), OwnerId::unique());
    let guard = acquired(here.lock("n").reentrant(&owner)).await;
    assert!(tried(here.lock("n").reentrant(&other)).await.is_none(), "granted to another owner");
    assert!(tried(here.lock("n").owner(&owner)).await.is_none(), "re-entered without the option");
    assert!(
        tried(there.lock("n").reentrant(&owner)).await.is_none(),
        "re-entered by an owner of the same name in another process"
    );
    let elsewhere = tried(here.lock("m").reentrant(&owner)).await.expect("another lock");
    assert_ne!(elsewhere.name(), guard.name());
    released(elsewhere).await;
    released(guard).await;
    let next = tried(here.lock("n").reentrant(&other)).await.expect("free");
    released(next).await;
    Ok(())
}

/// A try does not wait for another task of its owner that is waiting in the queue.
pub(super) async fn a_try_never_waits(trial: Trial) -> Outcome {
    let ((here, recording), there) = (trial.recorded().await, trial.locks().await);
    let owner = OwnerId::unique();
    let holder = acquired(there.lock("n")).await;
    let waiting = tokio::spawn(acquired(here.lock("n").reentrant(&owner)));
    soon("the waiter is queued", recording.queued(&lock_name("n"), 1)).await;
    let tries = async {
        assert!(
            tried(here.lock("n").reentrant(&owner)).await.is_none(),
            "granted although another owner holds it"
        );
        let refused = here.lock("n").reentrant(&owner).wait(Duration::ZERO).acquire().await;
        assert!(refused.is_err_and(|error| error.is_not_acquired()));
    };
    within(SOON, "tries of an owner with a waiter", tries).await;
    released(holder).await;
    released(join(waiting).await).await;
    trial.assert_empty(&["n"], "at the end").await;
    Ok(())
}

/// Two tasks of one owner acquire while another owner holds the lock: neither waits for the other.
pub(super) async fn two_tasks_of_one_owner_do_not_block_each_other(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let owner = OwnerId::unique();
    for held in [false, true] {
        let holder = if held { Some(acquired(there.lock("n")).await) } else { None };
        let enter = || tokio::spawn(acquired(here.lock("n").reentrant(&owner)));
        let (first, second) = (enter(), enter());
        if let Some(holder) = holder {
            tokio::task::yield_now().await;
            released(holder).await;
        }
        let both = soon("both tasks of one owner", async { (first.await, second.await) }).await;
        let (first, second) = (both.0.expect("no panic"), both.1.expect("no panic"));
        assert_eq!(
            first.fencing_token(),
            second.fencing_token(),
            "two tasks of one owner got different holds"
        );
        released(first).await;
        assert!(second.is_held());
        assert!(tried(there.lock("n")).await.is_none());
        released(second).await;
        trial.assert_empty(&["n"], "at the end").await;
    }
    Ok(())
}

pub(super) async fn a_weaker_mode_is_granted(trial: Trial) -> Outcome {
    let locks = trial.locks().await;
    let owner = OwnerId::unique();
    let outer = acquired(locks.lock("n").reentrant(&owner)).await;
    for mode in trial.modes() {
        let inner = acquired(locks.lock("n").mode(mode).reentrant(&owner)).await;
        assert_eq!(inner.fencing_token(), outer.fencing_token(), "{mode} inside EX is a hold of its own");
        assert_eq!(inner.mode(), Mode::Exclusive, "expected the mode of the hold");
        released(inner).await;
    }
    assert!(outer.is_held());
    released(outer).await;
    trial.assert_empty(&["n"], "at the end").await;
    Ok(())
}

pub(super) async fn a_stronger_mode_is_refused(trial: Trial) -> Outcome {
    let locks = trial.locks().await;
    let owner = OwnerId::unique();
    let outer = acquired(locks.lock("n").shared().reentrant(&owner)).await;
    let refused = soon("an acquire in a stronger mode", locks.lock("n").reentrant(&owner).acquire()).await;
    match refused {
        Err(Error::Reentry { owner: reported, held, wanted, .. }) => {
            assert_eq!((reported, held, wanted), (owner.clone(), Mode::Shared, Mode::Exclusive));
        }
        other => panic!("expected Reentry instead of a deadlock, got {other:?}"),
    }
    assert!(soon("a try in a stronger mode", locks.lock("n").reentrant(&owner).try_acquire()).await.is_err());
    assert!(outer.is_held(), "the refused request ended the hold");
    released(outer).await;
    trial.assert_empty(&["n"], "after the refusal").await;
    Ok(())
}
