//! Inspection shows holders and waiters.

use std::{collections::VecDeque, time::Duration};

use polylock_core::{Clock, Mode, OwnerId, Request, SystemClock};

use crate::{
    need::Need,
    trial::{Outcome, Trial, acquired, join, lock_name, pass, released, soon},
};

pub(super) async fn shows_the_holders(trial: Trial) -> Outcome {
    let locks = trial.locks().await;
    let owner = OwnerId::new("worker-7 / 🔒").expect("an owner");
    let label = "nightly 'report' %s";
    assert!(trial.status("n").await.is_free());
    let guard = acquired(locks.lock("n").owner(&owner).label(label)).await;
    pass(Duration::from_millis(20)).await;
    let status = trial.status("n").await;
    assert_eq!((status.name.as_str(), status.waiters.len()), ("n", 0));
    let [holder] = &status.holders[..] else { panic!("expected one holder: {status:?}") };
    assert_eq!((holder.mode, &holder.owner, &*holder.label), (Mode::Exclusive, &owner, label));
    assert_eq!(holder.token, Some(guard.fencing_token()));
    assert!(
        holder.age >= Duration::from_millis(15) && holder.age < Duration::from_secs(30),
        "{:?}",
        holder.age
    );
    let ttl = trial.long() + Duration::from_secs(1);
    assert!(holder.expires_in <= ttl && holder.expires_in > trial.long() / 2, "{:?}", holder.expires_in);
    released(guard).await;
    assert!(trial.status("n").await.is_free());
    let plain = acquired(locks.lock("n")).await;
    let status = trial.status("n").await;
    assert_eq!((&status.holders[0].owner, &*status.holders[0].label), (&OwnerId::process(), ""));
    released(plain).await;
    Ok(())
}

pub(super) async fn shows_the_waiters_in_order(trial: Trial) -> Outcome {
    let (locks, recording) = trial.recorded().await;
    let holder = acquired(locks.lock("n")).await;
    let mut waits = Vec::new();
    for waiter in 0..4 {
        let owner = OwnerId::new(format!("waiter-{waiter}")).expect("an owner");
        waits.push(tokio::spawn(acquired(locks.lock("n").owner(&owner).label("me"))));
        soon("the waiter is queued", recording.queued(&lock_name("n"), waiter + 1)).await;
    }
    let status = trial.status("n").await;
    assert_eq!(status.holders.len(), 1);
    let shown: Vec<&str> = status.waiters.iter().map(|waiter| waiter.owner.as_str()).collect();
    assert_eq!(shown, ["waiter-0", "waiter-1", "waiter-2", "waiter-3"]);
    for waiter in &status.waiters {
        assert_eq!((waiter.token, &*waiter.label, waiter.mode), (None, "me", Mode::Exclusive));
        assert!(
            waiter.expires_in <= Request::MAX_QUEUE_LEASE + Duration::from_secs(1),
            "{:?}",
            waiter.expires_in
        );
    }
    released(holder).await;
    for wait in waits {
        released(join(wait).await).await;
    }
    assert!(trial.status("n").await.is_free());
    Ok(())
}

pub(super) async fn shows_a_shrinking_queue_in_order(trial: Trial) -> Outcome {
    let (locks, recording) = trial.recorded().await;
    let owner = |number| OwnerId::new(format!("owner-{number}")).expect("an owner");
    let mut guard = acquired(locks.lock("n").owner(&owner(0))).await;
    let mut waits = VecDeque::new();
    for number in 1..6 {
        waits.push_back(tokio::spawn(acquired(locks.lock("n").owner(&owner(number)))));
        soon("the waiter is queued", recording.queued(&lock_name("n"), number)).await;
    }
    for first in 0..6 {
        let status = trial.status("n").await;
        let shown: Vec<_> =
            status.holders.iter().chain(&status.waiters).map(|entry| entry.owner.clone()).collect();
        assert_eq!((status.holders.len(), shown), (1, (first..6).map(owner).collect()));
        released(guard).await;
        let Some(next) = waits.pop_front() else { break };
        guard = join(next).await;
    }
    assert!(trial.status("n").await.is_free());
    Ok(())
}

/// The remaining lease that is shown is never longer than the entry would last if its holder died.
pub(super) async fn shows_at_most_the_remaining_lease(trial: Trial) -> Outcome {
    let raw = trial.raw().await;
    for ttl in [trial.short(), trial.long()] {
        let holder = Request::new(lock_name("n"), Mode::Exclusive, ttl);
        let sent = SystemClock.now();
        let lease = raw.hold(&holder).await.lease;
        let shown = |status: polylock_core::LockStatus| status.holders.first().map(|entry| entry.expires_in);
        match shown(trial.status("n").await) {
            Some(expires_in) => assert!(
                expires_in <= lease + Duration::from_millis(5),
                "shows {expires_in:?} of a lease of {lease:?}"
            ),
            // On a busy machine, a short lease may end first.
            None => {
                assert!(SystemClock.now().since(sent) >= lease, "not shown during its lease of {lease:?}");
            }
        }
        raw.release(&holder).await;
    }
    Ok(())
}

pub(super) async fn shows_live_entries_only(trial: Trial) -> Outcome {
    let raw = trial.raw().await;
    let request = |name| Request::new(lock_name(name), Mode::Exclusive, trial.short());
    let (holder, waiter) = (request("n"), request("n"));
    raw.hold(&holder).await;
    raw.queue(&waiter).await;
    let status = trial.status("n").await;
    assert_eq!(status.holders.len(), 1);
    if trial.lacks(Need::Order).await.is_none() {
        assert_eq!(status.waiters.len(), 1, "the queue is not shown");
    }
    pass(trial.short().max(waiter.queue_lease()) + Duration::from_millis(100)).await;
    assert!(trial.status("n").await.is_free(), "expired entries are shown");
    let inspect = trial.inspect();
    assert_eq!(
        trial.on_io(async move { inspect.list("").await }).await,
        [],
        "the list shows expired entries"
    );
    Ok(())
}
