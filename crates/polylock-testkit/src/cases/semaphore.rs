//! Semaphores: at most as many holders as slots, in order.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use polylock_core::{
    Clock, Entry, Error, Fencing, Label, LockName, Locks, Mode, NotAcquired, OwnerId, Request, Semaphore,
    SlotGuard, SystemClock, sync::lock,
};

use super::{
    cancel::{at_every_poll, no_fault},
    exclusion::{Contention, increment},
};
use crate::{
    faults::Call,
    trial::{
        CancelAt, Outcome, SOON, Trial, acquired, cancel_at, join, pass, released, scale, soon, tried, until,
        within,
    },
};

/// Returns the number of requests for a turnstile that have a reply.
fn turns(calls: &[Call]) -> usize {
    let is_turn = |call: &&Call| call.request.name.is_turnstile() && call.answered.is_some();
    calls.iter().filter(is_turn).map(|call| call.request.id).collect::<BTreeSet<_>>().len()
}

async fn slot(semaphore: Semaphore) -> SlotGuard {
    soon("acquire", semaphore.acquire()).await.unwrap_or_else(|error| panic!("acquire: {}", error.chain()))
}

async fn try_slot(semaphore: Semaphore) -> Option<SlotGuard> {
    let outcome = soon("try_acquire", semaphore.try_acquire()).await;
    outcome.unwrap_or_else(|error| panic!("try_acquire: {}", error.chain()))
}

async fn released_slot(guard: SlotGuard) {
    soon("release", guard.release()).await.unwrap_or_else(|error| panic!("release: {}", error.chain()));
}

pub(super) async fn one_slot_excludes_other_holders(trial: Trial) -> Outcome {
    contend(&trial, 1).await;
    Ok(())
}

pub(super) async fn one_free_slot_of_five_excludes_other_holders(trial: Trial) -> Outcome {
    let locks = trial.locks().await;
    let mut taken = Vec::new();
    for _ in 0..4 {
        taken.push(slot(locks.semaphore("one", 5)).await);
    }
    let slots: BTreeSet<u32> = taken.iter().map(SlotGuard::slot).collect();
    assert_eq!(slots.len(), 4, "two holders of one slot: {slots:?}");
    contend(&trial, 5).await;
    for guard in taken {
        assert!(guard.is_held());
        released_slot(guard).await;
    }
    trial.assert_entries(0, "at the end").await;
    Ok(())
}

/// Tasks increment a number under a semaphore with one free slot.
async fn contend(trial: &Trial, slots: u32) {
    const TASKS: usize = 12;
    let rounds = 3 * scale();
    let connections = [trial.locks().await, trial.locks().await];
    let contention = Arc::new(Contention::default());
    let workers: Vec<_> = (0..TASKS)
        .map(|task| {
            let (locks, contention) = (connections[task % 2].clone(), contention.clone());
            tokio::spawn(async move {
                for _ in 0..rounds {
                    let number = contention.number(0);
                    let attempt = contention.recorder.invoke(number.name, task.to_string(), Mode::Exclusive);
                    let guard = slot(locks.semaphore(number.name, slots)).await;
                    let hold = attempt.acquired(&guard);
                    increment(number).await;
                    assert!(guard.is_held(), "a hold with a lease of a minute was lost at once");
                    hold.releasing(&guard);
                    released_slot(guard).await;
                }
            })
        })
        .collect();
    for worker in workers {
        join(worker).await;
    }
    contention.check_history(trial, TASKS * rounds);
}

/// The holders of the slots, and the last token of each slot.
#[derive(Default)]
struct Inside {
    slots: BTreeSet<u32>,
    tokens: BTreeMap<u32, u64>,
}

pub(super) async fn admits_as_many_holders_as_slots(trial: Trial) -> Outcome {
    const TASKS: usize = 16;
    const SLOTS: u32 = 4;
    let rounds = 3 * scale();
    let connections = [trial.locks().await, trial.locks().await];
    let has_tokens = trial.capabilities().fencing != Fencing::Absent;
    let inside = Arc::new(Mutex::new(Inside::default()));
    let workers: Vec<_> = (0..TASKS)
        .map(|task| {
            let (locks, inside) = (connections[task % 2].clone(), inside.clone());
            tokio::spawn(async move {
                for _ in 0..rounds {
                    let guard = slot(locks.semaphore("n", SLOTS)).await;
                    let (number, token) = (guard.slot(), guard.fencing_token().get());
                    {
                        let mut inside = lock(&inside);
                        assert!(number < SLOTS && guard.slots() == SLOTS);
                        assert!(inside.slots.insert(number), "two holders of slot {number}");
                        let last = inside.tokens.insert(number, token);
                        assert!(
                            !has_tokens || last < Some(token),
                            "slot {number}: token {token} after {last:?}"
                        );
                    }
                    pass(Duration::from_millis(2)).await;
                    assert!(guard.is_held());
                    lock(&inside).slots.remove(&number);
                    released_slot(guard).await;
                }
            })
        })
        .collect();
    for worker in workers {
        join(worker).await;
    }
    trial.assert_entries(0, "at the end").await;
    Ok(())
}

pub(super) async fn first_come_first_served(trial: Trial) -> Outcome {
    const WAITERS: usize = 8;
    let (here, recording) = trial.recorded().await;
    let (there, others) = trial.recorded().await;
    let (first, second) = (slot(here.semaphore("n", 2)).await, slot(here.semaphore("n", 2)).await);
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = Vec::new();
    for number in 0..WAITERS {
        let (locks, seen) = if number % 2 == 0 { (&here, &recording) } else { (&there, &others) };
        let (semaphore, served) = (locks.semaphore("n", 2), served.clone());
        let before = turns(&seen.calls());
        waiters.push(tokio::spawn(async move {
            let guard = slot(semaphore).await;
            lock(&served).push(number);
            released_slot(guard).await;
        }));
        // The first one gets the turnstile, and the others are in its queue.
        soon("the waiter is in the queue", seen.until(|calls| turns(calls) > before)).await;
    }
    // The two holders, an entry per waiter, and the requests of the first waiter for both slots.
    trial.assert_entries(2 + WAITERS as u64 + 2, "only the first waiter requests slots").await;
    // One at a time: the next one is served when the one before it has released.
    released_slot(first).await;
    for waiter in waiters {
        join(waiter).await;
    }
    let order = lock(&served).clone();
    assert_eq!(order, (0..WAITERS).collect::<Vec<_>>());
    released_slot(second).await;
    trial.assert_entries(0, "at the end").await;
    Ok(())
}

pub(super) async fn a_try_takes_any_free_slot(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let mut guards = Vec::new();
    for number in 0..3 {
        let locks = if number % 2 == 0 { &here } else { &there };
        guards.push(try_slot(locks.semaphore("n", 3)).await.expect("a slot is free"));
    }
    let slots: BTreeSet<u32> = guards.iter().map(SlotGuard::slot).collect();
    assert_eq!(slots.into_iter().collect::<Vec<_>>(), [0, 1, 2]);
    for locks in [&here, &there] {
        assert!(try_slot(locks.semaphore("n", 3)).await.is_none(), "a fourth slot");
        let refused = soon("a wait of zero", locks.semaphore("n", 3).wait(Duration::ZERO).acquire()).await;
        assert!(matches!(refused, Err(Error::NotAcquired { reason: NotAcquired::Busy, .. })), "{refused:?}");
    }
    trial.assert_entries(3, "only the three slots are held").await;
    let freed = guards.remove(1);
    let number = freed.slot();
    released_slot(freed).await;
    let again = try_slot(here.semaphore("n", 3)).await.expect("one is free again");
    assert_eq!(again.slot(), number);
    drop((again, guards));
    trial.assert_entries(0, "at the end").await;
    Ok(())
}

pub(super) async fn is_independent_of_the_lock_with_its_name(trial: Trial) -> Outcome {
    let locks = trial.locks().await;
    let lock = acquired(locks.lock("n")).await;
    let guard = try_slot(locks.semaphore("n", 1)).await.expect("the lock does not exclude the semaphore");
    assert!(tried(locks.lock("n")).await.is_none());
    assert!(try_slot(locks.semaphore("n", 1)).await.is_none());
    let other = try_slot(locks.semaphore("m", 1)).await.expect("another semaphore");
    released(lock).await;
    released(acquired(locks.lock("n")).await).await;
    drop((guard, other));
    trial.assert_entries(0, "at the end").await;
    Ok(())
}

pub(super) async fn another_number_of_slots_is_an_error(trial: Trial) -> Outcome {
    let holder = slot(trial.locks().await.semaphore("n", 4)).await;
    for slots in [3, 5] {
        let locks = trial.locks().await;
        for outcome in [
            soon("an acquire", locks.semaphore("n", slots).acquire()).await.map(Some),
            soon("a try", locks.semaphore("n", slots).try_acquire()).await,
        ] {
            let error = outcome.expect_err("a semaphore with four slots was acquired with another number");
            let text = error.to_string();
            assert!(matches!(error, Error::Config(_)), "{text}");
            assert!(text.contains("4 slots") && text.contains(&slots.to_string()), "{text}");
        }
        trial.assert_entries(1, "only the holder remains").await;
    }
    released_slot(holder).await;
    // A semaphore that is not in use can have any number.
    released_slot(slot(trial.locks().await.semaphore("n", 3)).await).await;
    trial.assert_entries(0, "at the end").await;
    Ok(())
}

pub(super) async fn another_number_of_slots_is_noticed_in_every_slot(trial: Trial) -> Outcome {
    let raw = trial.bare();
    for number in [0, 8, 100, 1023] {
        let name = LockName::of_slot("n", number).expect("a semaphore has this slot");
        // A hold of a semaphore with the greatest number of slots.
        let mut holder = Request::new(name, Mode::Exclusive, trial.long());
        holder.label = Some(Label::new("slots=1024").expect("a valid label"));
        raw.hold(&holder).await;
        let locks = trial.locks().await;
        for outcome in [
            soon("an acquire", locks.semaphore("n", 3).acquire()).await.map(Some),
            soon("a try", locks.semaphore("n", 3).try_acquire()).await,
        ] {
            let error =
                outcome.err().unwrap_or_else(|| panic!("the holder of slot {number} was not noticed"));
            assert!(matches!(error, Error::Config(_)) && error.to_string().contains("1024 slots"), "{error}");
        }
        trial.assert_entries(1, "only the holder remains").await;
        raw.release(&holder).await;
    }
    // Other locks are not those of the semaphore.
    let other = acquired(trial.locks().await.lock("n1").label("slots=9")).await;
    released_slot(slot(trial.locks().await.semaphore("n", 3)).await).await;
    released(other).await;
    trial.assert_entries(0, "at the end").await;
    Ok(())
}

pub(super) async fn the_slot_of_a_dead_holder_is_free_after_its_ttl(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let ttl = trial.renewable();
    let kept = slot(here.semaphore("n", 2)).await;
    let dead = slot(here.semaphore("n", 2).ttl(ttl)).await;
    let (number, deadline) = (dead.slot(), dead.deadline());
    assert!(dead.leave_to_expire().is_ok());
    let next = within(ttl + SOON, "the slot of a dead holder", there.semaphore("n", 2).acquire()).await;
    let next = next.unwrap_or_else(|error| panic!("acquire: {}", error.chain()));
    assert_eq!(next.slot(), number);
    assert!(SystemClock.now() >= deadline, "granted before the end of the lease");
    released_slot(next).await;
    released_slot(kept).await;
    Ok(())
}

pub(super) async fn a_wait_that_times_out_leaves_no_entry(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let holder = slot(here.semaphore("n", 1)).await;
    let wait = Duration::from_millis(300);
    let began = SystemClock.now();
    let refused = soon("a wait", there.semaphore("n", 1).wait(wait).acquire()).await;
    let took = SystemClock.now().since(began);
    match refused {
        Err(Error::NotAcquired { name, reason: NotAcquired::TimedOut { waited } }) => {
            assert_eq!(name.as_str(), "n");
            assert!(waited >= wait && waited <= took, "reported a wait of {waited:?}, took {took:?}");
        }
        // On a busy machine, the first reply may come after the timeout.
        Err(error) => assert!(error.is_temporary(), "{}", error.chain()),
        Ok(guard) => panic!("a slot that is taken was granted: {guard:?}"),
    }
    trial.assert_entries(1, "only the holder remains").await;
    released_slot(holder).await;
    trial.assert_entries(0, "at the end").await;
    Ok(())
}

pub(super) async fn shows_its_slots_and_waiters(trial: Trial) -> Outcome {
    let locks = trial.locks().await;
    let owner = OwnerId::unique();
    let holder = slot(locks.semaphore("n", 1).owner(&owner).label("nightly")).await;
    let waiting = tokio::spawn(slot(locks.semaphore("n", 1).label("later")));
    let mut status = inspected(&locks).await;
    let limit = SystemClock.now() + SOON;
    let is_shown = |waiters: &[Entry]| waiters.iter().map(|waiter| &*waiter.label).eq(["later"]);
    // The turnstile of the holder is released in the background.
    while !is_shown(&status.waiters) && SystemClock.now() < limit {
        pass(Duration::from_millis(2)).await;
        status = inspected(&locks).await;
    }
    assert_eq!(status.slots, Some(1));
    let [held] = &status.held[..] else { panic!("{status:?}") };
    assert_eq!((held.slot, held.holder.owner.clone(), &*held.holder.label), (0, owner, "nightly"));
    assert!(is_shown(&status.waiters), "{status:?}");
    released_slot(holder).await;
    released_slot(join(waiting).await).await;
    trial.assert_entries(0, "at the end").await;
    let free = inspected(&locks).await;
    assert!(free.slots.is_none() && free.held.is_empty() && free.waiters.is_empty(), "{free:?}");
    Ok(())
}

async fn inspected(locks: &Locks) -> polylock_core::SemaphoreStatus {
    let status = soon("inspect_semaphore", locks.inspect_semaphore("n")).await;
    status.unwrap_or_else(|error| panic!("inspect_semaphore: {}", error.chain()))
}

pub(super) async fn at_every_poll_of_a_free_acquire(trial: Trial) -> Outcome {
    let (trial, locks) = (&trial, &trial.locks().await);
    at_every_poll(|at| async move {
        let guard =
            no_fault(soon("a cancelled acquire", cancel_at(locks.semaphore("n", 2).acquire(), at)).await);
        let ended = guard.is_some();
        drop(guard);
        trial.assert_entries(0, &format!("after the cancellation at {at:?}")).await;
        ended
    })
    .await;
    Ok(())
}

pub(super) async fn at_every_poll_of_a_waiting_acquire(trial: Trial) -> Outcome {
    let (trial, here) = (&trial, &trial.locks().await);
    at_every_poll(|at| async move {
        let (there, recording) = trial.recorded().await;
        let (first, second) = (slot(here.semaphore("n", 2)).await, slot(here.semaphore("n", 2)).await);
        let waiting = tokio::spawn(cancel_at(there.semaphore("n", 2).acquire(), at));
        let is_first_poll = matches!(at, CancelAt::AfterPoll(0 | 1));
        let queued = recording
            .until(|calls| calls.iter().any(|call| call.queued && !call.request.name.is_turnstile()));
        tokio::select! {
            () = queued, if !is_first_poll => {}
            () = until("the cancellation or the queue entry", || waiting.is_finished()) => {}
        }
        released_slot(first).await;
        let guard = no_fault(join(waiting).await);
        let ended = guard.is_some();
        drop(guard);
        trial.assert_entries(1, &format!("only the holder remains after the cancellation at {at:?}")).await;
        released_slot(second).await;
        ended
    })
    .await;
    Ok(())
}
