//! An explicit owner enters again what it holds; nobody else does.

use std::time::Duration;

use polylock_core::{Error, Mode, OwnerId};

use crate::trial::{Outcome, SOON, Trial, acquired, join, lock_name, released, soon, tried, within};

pub(super) async fn is_counted(trial: Trial) -> Outcome {
    let (locks, recording) = trial.recorded().await;
    let there = trial.locks().await;
    let me = OwnerId::unique();
    let mut guards = Vec::new();
    for _ in 0..4 {
        guards.push(acquired(locks.lock("n").reentrant(&me)).await);
    }
    guards.push(tried(locks.lock("n").reentrant(&me)).await.expect("a try enters, too"));
    assert!(
        guards.iter().all(|guard| guard.fencing_token() == guards[0].fencing_token()),
        "one hold, one token"
    );
    assert!(guards.iter().all(|guard| guard.owner() == &me));
    assert_eq!(recording.ids().len(), 1, "one hold, one request");
    trial.keeps(1, "one hold, one entry").await;
    // In an order that is neither that of entering nor the reverse, released and dropped.
    for (at, drops) in [(1, false), (3, true), (0, false), (1, true)] {
        let guard = guards.remove(at);
        if drops {
            drop(guard);
        } else {
            released(guard).await;
        }
        assert!(guards.iter().all(|guard| guard.is_held()), "{} are inside", guards.len());
        assert!(tried(there.lock("n")).await.is_none(), "released with {} still inside", guards.len());
    }
    released(guards.remove(0)).await;
    trial.nothing_left(&["n"], "after the last has left").await;
    Ok(())
}

pub(super) async fn other_owners_are_excluded(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let (me, other) = (OwnerId::unique(), OwnerId::unique());
    let guard = acquired(here.lock("n").reentrant(&me)).await;
    assert!(tried(here.lock("n").reentrant(&other)).await.is_none(), "another owner");
    assert!(tried(here.lock("n").owner(&me)).await.is_none(), "the owner, who did not ask to re-enter");
    assert!(
        tried(there.lock("n").reentrant(&me)).await.is_none(),
        "the same name in another process is another"
    );
    let elsewhere = tried(here.lock("m").reentrant(&me)).await.expect("another lock");
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
    let me = OwnerId::unique();
    let holder = acquired(there.lock("n")).await;
    let waiting = tokio::spawn(acquired(here.lock("n").reentrant(&me)));
    soon("it waits", recording.queued(&lock_name("n"), 1)).await;
    let tries = async {
        assert!(tried(here.lock("n").reentrant(&me)).await.is_none(), "it is held by another");
        let refused = here.lock("n").reentrant(&me).wait(Duration::ZERO).acquire().await;
        assert!(refused.is_err_and(|error| error.is_not_acquired()));
    };
    within(SOON, "tries of an owner that waits", tries).await;
    released(holder).await;
    released(join(waiting).await).await;
    trial.nothing_left(&["n"], "after all").await;
    Ok(())
}

/// Two tasks of one owner ask while another holds the lock: neither waits for the other.
pub(super) async fn one_owner_enters_from_two_tasks_at_once(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let me = OwnerId::unique();
    for held in [false, true] {
        let holder = if held { Some(acquired(there.lock("n")).await) } else { None };
        let enter = || tokio::spawn(acquired(here.lock("n").reentrant(&me)));
        let (first, second) = (enter(), enter());
        if let Some(holder) = holder {
            tokio::task::yield_now().await;
            released(holder).await;
        }
        let both = soon("both tasks of one owner", async { (first.await, second.await) }).await;
        let (first, second) = (both.0.expect("no panic"), both.1.expect("no panic"));
        assert_eq!(first.fencing_token(), second.fencing_token(), "one hold");
        released(first).await;
        assert!(second.is_held());
        assert!(tried(there.lock("n")).await.is_none());
        released(second).await;
        trial.nothing_left(&["n"], "after both").await;
    }
    Ok(())
}

pub(super) async fn a_weaker_mode_enters(trial: Trial) -> Outcome {
    let locks = trial.locks().await;
    let me = OwnerId::unique();
    let outer = acquired(locks.lock("n").reentrant(&me)).await;
    for mode in trial.modes() {
        let inner = acquired(locks.lock("n").mode(mode).reentrant(&me)).await;
        assert_eq!(inner.fencing_token(), outer.fencing_token(), "{mode} inside EX");
        assert_eq!(inner.mode(), Mode::Exclusive, "the mode of the hold that was entered");
        released(inner).await;
    }
    assert!(outer.is_held());
    released(outer).await;
    trial.nothing_left(&["n"], "after all").await;
    Ok(())
}

pub(super) async fn a_stronger_mode_is_refused(trial: Trial) -> Outcome {
    let locks = trial.locks().await;
    let me = OwnerId::unique();
    let outer = acquired(locks.lock("n").shared().reentrant(&me)).await;
    let refused = soon("entering in a stronger mode", locks.lock("n").reentrant(&me).acquire()).await;
    match refused {
        Err(Error::Reentry { owner, held, wanted, .. }) => {
            assert_eq!((owner, held, wanted), (me.clone(), Mode::Shared, Mode::Exclusive));
        }
        other => panic!("waiting for itself would last for ever: {other:?}"),
    }
    assert!(soon("trying it", locks.lock("n").reentrant(&me).try_acquire()).await.is_err());
    assert!(outer.is_held(), "a refusal harms nobody");
    released(outer).await;
    trial.nothing_left(&["n"], "after the refusal").await;
    Ok(())
}
