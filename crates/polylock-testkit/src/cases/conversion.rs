//! Conversions of holds to other modes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures_util::future::join_all;
use polylock_core::{
    Clock, Conversion, ConversionOutcome, Convert, Error, Fault, Guard, Locks, LostReason, Mode, NotAcquired,
    Operation, Request, Result, Store, SystemClock, Unavailable,
};

use super::{
    cancel::at_every_poll,
    wait::{assert_pushed, waits_for_notification},
};
use crate::{
    faults::Recording,
    trial::{
        Outcome, SOON, Trial, acquired, cancel_at, join, lock_name, pass, released, soon, tried, until,
        watched, within,
    },
};

/// A wait that ends during a case.
const SHORT: Duration = Duration::from_millis(150);

async fn upgraded(guard: &mut Guard, to: Mode) {
    let upgrade = soon("upgrade", guard.upgrade(to)).await;
    upgrade.unwrap_or_else(|error| panic!("upgrade to {to}: {}", error.chain()));
    assert_eq!(guard.mode(), to);
}

async fn downgraded(guard: &mut Guard, to: Mode) {
    let downgrade = soon("downgrade", guard.downgrade(to)).await;
    downgrade.unwrap_or_else(|error| panic!("downgrade to {to}: {}", error.chain()));
    assert_eq!(guard.mode(), to);
}

async fn shared(locks: &Locks) -> Guard {
    acquired(locks.lock("n").shared()).await
}

/// Waits until a request in the shared mode is refused, because a conversion waits.
async fn waits_ahead(locks: &Locks) {
    within(SOON, "new readers are refused", async {
        while let Some(guard) = tried(locks.lock("n").shared()).await {
            released(guard).await;
            pass(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// Waits until a request in the shared mode is granted the lock, because no conversion waits any more.
async fn admits_readers(locks: &Locks) {
    let reader = within(SOON, "a new reader", locks.lock("n").shared().acquire()).await;
    released(reader.unwrap_or_else(|error| panic!("acquire: {}", error.chain()))).await;
}

pub(super) async fn a_downgrade_lets_waiters_in(trial: Trial) -> Outcome {
    let (here, recording) = trial.recorded().await;
    let there = trial.locks().await;
    let mut guard = acquired(here.lock("n")).await;
    let before = guard.fencing_token();
    let waiting =
        [here.clone(), there.clone()].map(|locks| tokio::spawn(async move { shared(&locks).await }));
    soon("a waiter is queued", recording.queued(&lock_name("n"), 1)).await;
    downgraded(&mut guard, Mode::Shared).await;
    assert!(guard.fencing_token() > before, "a conversion has a new token");
    let readers = within(SOON, "the readers beside a downgraded holder", join_all(waiting)).await;
    for reader in readers {
        let reader = reader.expect("no panic");
        assert!(reader.fencing_token() > before);
        assert!(guard.is_held() && reader.is_held());
        released(reader).await;
    }
    assert!(tried(there.lock("n")).await.is_none(), "a writer beside a reader");
    released(guard).await;
    trial.assert_entries(0, "at the end").await;
    Ok(())
}

/// If the store pushes, the waiters that a downgrade lets in do not wait for their next claim.
pub(super) async fn a_downgrade_is_faster_than_the_recheck(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.recorded().await);
    let mut took = Vec::new();
    for round in 0..5 {
        let name = format!("round-{round}");
        let mut guard = acquired(here.lock(&name)).await;
        let waiting = there.0.lock(&name).shared();
        let reader = tokio::spawn(async move {
            let guard = acquired(waiting).await;
            (SystemClock.now(), guard)
        });
        waits_for_notification(&there.1, &name).await;
        let lets_in = SystemClock.now();
        downgraded(&mut guard, Mode::Shared).await;
        let (served, reader) = join(reader).await;
        took.push(served.since(lets_in));
        released(reader).await;
        released(guard).await;
    }
    assert_pushed(took);
    trial.assert_entries(0, "at the end").await;
    Ok(())
}

pub(super) async fn an_upgrade_excludes_all_others(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let mut guard = shared(&here).await;
    let before = guard.fencing_token();
    upgraded(&mut guard, Mode::Exclusive).await;
    assert!(guard.fencing_token() > before, "a conversion has a new token");
    assert!(tried(there.lock("n").shared()).await.is_none(), "a reader beside a writer");
    // Both directions, again and again.
    for _ in 0..3 {
        let before = guard.fencing_token();
        downgraded(&mut guard, Mode::Shared).await;
        upgraded(&mut guard, Mode::Exclusive).await;
        assert!(guard.fencing_token() > before);
    }
    let token = guard.fencing_token();
    released(guard).await;
    let next = acquired(there.lock("n")).await;
    assert!(next.fencing_token() > token, "tokens grow after a conversion");
    released(next).await;
    trial.assert_entries(0, "at the end").await;
    Ok(())
}

pub(super) async fn an_upgrade_is_ahead_of_new_requests(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let (mut first, second) = (shared(&here).await, shared(&there).await);
    let upgrading = tokio::spawn(async move {
        upgraded(&mut first, Mode::Exclusive).await;
        first
    });
    waits_ahead(&there).await;
    let waiting = tokio::spawn(async move { shared(&there).await });
    pass(SHORT).await;
    assert!(!upgrading.is_finished() && second.is_held(), "upgraded beside a reader");
    released(second).await;
    let first = join(upgrading).await;
    assert!(first.is_held() && !waiting.is_finished(), "a new reader has overtaken the upgrade");
    released(first).await;
    released(join(waiting).await).await;
    trial.assert_entries(0, "at the end").await;
    Ok(())
}

pub(super) async fn a_second_upgrader_is_in_a_deadlock(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let (mut first, mut second) = (shared(&here).await, shared(&there).await);
    let upgrading = tokio::spawn(async move {
        upgraded(&mut first, Mode::Exclusive).await;
        first
    });
    waits_ahead(&there).await;
    let refused = within(SOON, "the second upgrade", second.upgrade(Mode::Exclusive)).await;
    assert!(matches!(refused, Err(Error::Deadlock { .. })), "{refused:?}");
    assert!(second.is_held() && second.mode() == Mode::Shared && !upgrading.is_finished());
    released(second).await;
    released(join(upgrading).await).await;
    trial.assert_entries(0, "at the end").await;
    Ok(())
}

pub(super) async fn an_upgrade_that_times_out_changes_nothing(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let (mut first, second) = (shared(&here).await, shared(&there).await);
    for wait in [Duration::ZERO, SHORT] {
        let refused = within(SHORT + SOON, "an upgrade", first.upgrade(Mode::Exclusive).wait(wait)).await;
        let is_refused = match (&refused, wait.is_zero()) {
            (Err(Error::NotAcquired { reason: NotAcquired::Busy, .. }), true) => true,
            (Err(Error::NotAcquired { reason: NotAcquired::TimedOut { waited }, .. }), false) => {
                *waited >= wait
            }
            _ => false,
        };
        assert!(is_refused, "{refused:?}");
        assert!(first.is_held() && first.mode() == Mode::Shared && second.is_held());
        admits_readers(&there).await;
    }
    released(second).await;
    upgraded(&mut first, Mode::Exclusive).await;
    released(first).await;
    trial.assert_entries(0, "at the end").await;
    Ok(())
}

pub(super) async fn at_every_poll_of_an_upgrade(trial: Trial) -> Outcome {
    let (trial, here, there) = (&trial, &trial.locks().await, &trial.locks().await);
    // One without a limit of its own, in its wait.
    let (mut first, second) = (shared(here).await, shared(there).await);
    tokio::select! {
        biased;
        outcome = first.upgrade(Mode::Exclusive).into_future() => panic!("beside a reader: {outcome:?}"),
        () = waits_ahead(there) => {}
    }
    // The hold stays, and only the upgrade has ended.
    admits_readers(there).await;
    assert!(first.is_held() && first.mode() == Mode::Shared);
    released(second).await;
    released(first).await;
    trial.assert_entries(0, "after a cancellation").await;
    at_every_poll(|at| async move {
        let (mut first, second) = (shared(here).await, shared(there).await);
        let upgrade = first.upgrade(Mode::Exclusive).wait(SHORT).into_future();
        let outcome = soon("a cancelled upgrade", cancel_at(upgrade, at)).await;
        let ended = match outcome {
            None => false,
            Some(Err(Error::NotAcquired { .. })) => true,
            other => panic!("beside a reader: {other:?}"),
        };
        assert!(first.is_held() && first.mode() == Mode::Shared && second.is_held());
        admits_readers(there).await;
        released(second).await;
        // The next conversion follows the end of the one before.
        upgraded(&mut first, Mode::Exclusive).await;
        released(first).await;
        trial.assert_entries(0, &format!("after the cancellation at {at:?}")).await;
        ended
    })
    .await;
    Ok(())
}

pub(super) async fn a_late_copy_changes_nothing(trial: Trial) -> Outcome {
    let store = trial.store().await;
    let (store, recording) = watched(store, Recording::new);
    let convert = store.convert.clone().expect("a case with this need");
    let here = trial.open(store);
    let mut guard = acquired(here.lock("n")).await;
    let before = guard.fencing_token();
    let claim = recording.of(Operation::Claim).into_iter().next().expect("it holds the lock");
    downgraded(&mut guard, Mode::Shared).await;
    upgraded(&mut guard, Mode::Exclusive).await;
    let token = guard.fencing_token();
    for to in [Mode::Shared, Mode::ConcurrentRead] {
        let (convert, request) = (convert.clone(), claim.request.clone());
        let late = Conversion::new(before, Mode::Exclusive, to);
        let outcome = trial.on_io(async move { convert.convert(&request, &late).await }).await;
        assert_eq!(outcome, ConversionOutcome::OtherToken(token), "a late downgrade to {to}");
    }
    let there = trial.locks().await;
    assert!(tried(there.lock("n").shared()).await.is_none(), "a reader beside a writer");
    released(guard).await;
    let (convert, request) = (convert.clone(), claim.request.clone());
    let late = Conversion::new(token, Mode::Exclusive, Mode::Shared);
    let outcome = trial.on_io(async move { convert.convert(&request, &late).await }).await;
    assert_eq!(outcome, ConversionOutcome::Lost(LostReason::Gone), "after the release");
    trial.assert_entries(0, "at the end").await;
    Ok(())
}

/// The conversions of a store, of which each one is carried out and then loses its reply, until `recovered` is set.
#[derive(Debug)]
struct LosesReplies {
    convert: Arc<dyn Convert>,
    recovered: AtomicBool,
    sent: AtomicU64,
}

#[async_trait]
impl Convert for LosesReplies {
    async fn convert(&self, request: &Request, conversion: &Conversion) -> Result<ConversionOutcome> {
        self.sent.fetch_add(1, Ordering::SeqCst);
        let outcome = self.convert.convert(request, conversion).await?;
        if self.recovered.load(Ordering::SeqCst) {
            return Ok(outcome);
        }
        Err(Unavailable::new("test", Operation::Convert, Fault::Temporary, "the reply is lost").into())
    }
}

fn losing_replies(store: Store) -> (Store, Arc<LosesReplies>) {
    let convert = store.convert.clone().expect("a case with this need");
    let loses = LosesReplies { convert, recovered: AtomicBool::new(false), sent: AtomicU64::new(0) };
    let loses = Arc::new(loses);
    (store.converting(loses.clone()), loses)
}

pub(super) async fn a_lost_reply_is_repeated(trial: Trial) -> Outcome {
    let there = trial.locks().await;
    for (from, to) in [(Mode::Exclusive, Mode::Shared), (Mode::Shared, Mode::Exclusive)] {
        let (store, loses) = losing_replies(trial.store().await);
        let here = trial.open(store);
        let mut guard = acquired(here.lock("n").mode(from)).await;
        let before = guard.fencing_token();
        let converting = tokio::spawn(async move {
            if to == Mode::Shared {
                downgraded(&mut guard, to).await;
            } else {
                upgraded(&mut guard, to).await;
            }
            guard
        });
        until("the conversion is repeated", || loses.sent.load(Ordering::SeqCst) >= 2).await;
        loses.recovered.store(true, Ordering::SeqCst);
        let guard = join(converting).await;
        assert!(guard.is_held() && guard.fencing_token() > before);
        let reader = tried(there.lock("n").shared()).await;
        assert_eq!(reader.is_some(), to == Mode::Shared, "a reader beside a holder in {to}");
        if let Some(reader) = reader {
            assert!(
                reader.fencing_token() > guard.fencing_token(),
                "the token of the conversion is that of its reply"
            );
            released(reader).await;
        }
        released(guard).await;
        trial.assert_entries(0, "at the end").await;
    }
    Ok(())
}

pub(super) async fn an_upgrade_whose_replies_are_lost_is_undone(trial: Trial) -> Outcome {
    let there = trial.locks().await;
    let (store, loses) = losing_replies(trial.store().await);
    let here = trial.open(store);
    let mut guard = shared(&here).await;
    let refused = within(SHORT + SOON, "an upgrade", guard.upgrade(Mode::Exclusive).wait(SHORT)).await;
    assert!(matches!(refused, Err(Error::NotAcquired { .. })), "{refused:?}");
    assert!(guard.is_held() && guard.mode() == Mode::Shared);
    loses.recovered.store(true, Ordering::SeqCst);
    admits_readers(&there).await;
    assert!(guard.is_held());
    let before = guard.fencing_token();
    upgraded(&mut guard, Mode::Exclusive).await;
    assert!(guard.fencing_token() > before);
    released(guard).await;
    trial.assert_entries(0, "at the end").await;
    Ok(())
}

pub(super) async fn a_lost_hold_is_not_converted(trial: Trial) -> Outcome {
    let (store, recording) = watched(trial.store().await, Recording::new);
    let here = trial.open(store.clone());
    let mut guard = acquired(here.lock("n")).await;
    let claim = recording.of(Operation::Claim).into_iter().next().expect("it holds the lock");
    let (backend, request) = (store.backend.clone(), claim.request.clone());
    trial.on_io(async move { backend.release(&request).await }).await;
    let lost = soon("downgrade", guard.downgrade(Mode::Shared)).await;
    assert_eq!(lost.as_ref().err().and_then(Error::lost), Some(&LostReason::Gone), "{lost:?}");
    assert!(!guard.is_held());
    drop(guard);
    trial.assert_entries(0, "at the end").await;
    Ok(())
}

pub(super) async fn a_broken_hold_is_not_converted(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let mut guard = shared(&here).await;
    soon("break", there.break_lock("n").reason("it is needed")).await.expect("a store that can be inspected");
    let lost = soon("upgrade", guard.upgrade(Mode::Exclusive)).await;
    let reason = lost.as_ref().err().and_then(Error::lost);
    assert!(matches!(reason, Some(LostReason::Broken(_))), "{lost:?}");
    drop(guard);
    trial.assert_entries(0, "at the end").await;
    Ok(())
}

pub(super) async fn inspection_shows_the_present_mode(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let (mut first, second) = (shared(&here).await, shared(&there).await);
    let upgrading = tokio::spawn(async move {
        upgraded(&mut first, Mode::Exclusive).await;
        first
    });
    waits_ahead(&there).await;
    let modes = async || trial.status("n").await.holders.iter().map(|holder| holder.mode).collect::<Vec<_>>();
    assert_eq!(modes().await, [Mode::Shared, Mode::Shared]);
    released(second).await;
    let first = join(upgrading).await;
    let status = trial.status("n").await;
    assert_eq!(modes().await, [Mode::Exclusive]);
    assert_eq!(status.holders[0].token, Some(first.fencing_token()));
    released(first).await;
    Ok(())
}

/// Tasks that read in a shared mode, and write after an upgrade, on two connections.
pub(super) async fn tasks_lose_no_update(trial: Trial) -> Outcome {
    const TASKS: usize = 6;
    const UPDATES: u64 = 5;
    let connections = [trial.locks().await, trial.locks().await];
    let (value, last_token) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (locks, value, last_token) =
                (connections[task % 2].clone(), value.clone(), last_token.clone());
            tokio::spawn(async move {
                let mut updates = 0;
                while updates < UPDATES {
                    let mut guard = acquired(locks.lock("n").shared()).await;
                    match soon("upgrade", guard.upgrade(Mode::Exclusive)).await {
                        Ok(()) => {
                            let before = value.load(Ordering::SeqCst);
                            pass(Duration::from_millis(1)).await;
                            value.store(before + 1, Ordering::SeqCst);
                            let token = guard.fencing_token().get();
                            assert!(
                                last_token.swap(token, Ordering::SeqCst) < token,
                                "a token is not greater"
                            );
                            assert!(guard.is_held());
                            updates += 1;
                            downgraded(&mut guard, Mode::Shared).await;
                        }
                        Err(Error::Deadlock { .. }) => {}
                        Err(error) => panic!("upgrade: {}", error.chain()),
                    }
                    released(guard).await;
                }
            })
        })
        .collect();
    for task in tasks {
        join(task).await;
    }
    assert_eq!(value.load(Ordering::SeqCst), TASKS as u64 * UPDATES);
    trial.assert_entries(0, "at the end").await;
    Ok(())
}

pub(super) async fn bad_modes_are_refused_before_any_io(trial: Trial) -> Outcome {
    let store = trial.store().await;
    let converts = store.convert.is_some();
    let (store, sent) = if converts {
        let (store, loses) = losing_replies(store);
        (store, Some(loses))
    } else {
        (store, None)
    };
    let locks = trial.open(store);
    let mut guard = acquired(locks.lock("n")).await;
    for to in [Mode::Null, Mode::Shared] {
        let refused = soon("upgrade", guard.upgrade(to)).await;
        match refused {
            Err(Error::Config(error)) if converts => assert_eq!(error.key, "mode"),
            Err(Error::Unsupported { .. }) if !converts => {}
            other => panic!("upgrade from EX to {to}: {other:?}"),
        }
    }
    let refused = soon("downgrade", guard.downgrade(Mode::Null)).await;
    assert!(matches!(refused, Err(Error::Config(_) | Error::Unsupported { .. })), "{refused:?}");
    if converts {
        // Nothing to change.
        upgraded(&mut guard, Mode::Exclusive).await;
        downgraded(&mut guard, Mode::Exclusive).await;
    }
    assert_eq!(sent.map_or(0, |loses| loses.sent.load(Ordering::SeqCst)), 0);
    assert!(guard.is_held() && guard.mode() == Mode::Exclusive);
    released(guard).await;
    Ok(())
}
