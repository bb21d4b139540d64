//! Breaking a lock: cooperatively, so that two holders never overlap, and by force.

use std::{sync::mpsc, time::Duration};

use polylock_core::{
    BreakLock, BreakNotice, BreakOrder, Clock, Entry, FencingToken, KeepAlive, Label, LostReason, Mode,
    OwnerId, Release, Request, SystemClock,
};

use tokio::sync::oneshot;

use crate::{
    ManualClock,
    trial::{
        Outcome, SOON, Trial, acquired, acquired_by, join, lock_name, outside, pass, released, soon, timeout,
        tried, while_running, within,
    },
};

const INSTANT: Duration = Duration::from_nanos(1);

fn notice() -> BreakNotice {
    let operator = OwnerId::new("operator@host-b").expect("an owner");
    BreakNotice::new(operator, Some(Label::new("it hangs, see 'ticket' 7").expect("a label")))
}

/// Breaks with this notice, through the public API.
async fn break_with_notice(order: BreakLock) -> Vec<Entry> {
    let BreakNotice { by, reason, .. } = notice();
    let order = order.by(&by.expect("a name")).reason(reason.expect("a reason").as_str());
    let broken = soon("a break", order).await;
    broken.unwrap_or_else(|error| panic!("the break failed: {}", error.chain()))
}

/// Breaks in the store itself, without core.
async fn break_in_store(trial: &Trial, name: &str, force: bool) -> Vec<Entry> {
    let order = BreakOrder::new(notice(), tokens(trial, name).await);
    send(trial, name, if force { order.force() } else { order }).await
}

/// Returns the tokens of the present holders.
async fn tokens(trial: &Trial, name: &str) -> Vec<Option<FencingToken>> {
    trial.status(name).await.holders.iter().map(|holder| holder.token).collect()
}

/// Sends an order to the store itself.
async fn send(trial: &Trial, name: &str, order: BreakOrder) -> Vec<Entry> {
    let (inspect, name) = (trial.inspect(), lock_name(name));
    trial.on_io(async move { inspect.break_lock(&name, &order).await }).await
}

/// A copy of an order that arrives late finds another holder.
pub(super) async fn of_one_hold_never_touches_the_next(trial: Trial) -> Outcome {
    let raw = trial.raw().await;
    for force in [false, true] {
        let [first, next] = [(); 2].map(|()| Request::new(lock_name("n"), Mode::Exclusive, trial.long()));
        raw.hold(&first).await;
        let order = BreakOrder::new(notice(), tokens(&trial, "n").await);
        let order = if force { order.force() } else { order };
        raw.release(&first).await;
        raw.hold(&next).await;
        let broken = send(&trial, "n", order).await;
        assert_eq!(broken, [], "with force: {force}");
        let renewed = raw.renew(&next).await;
        assert!(matches!(renewed, KeepAlive::Held { .. }), "with force: {force}, {renewed:?}");
        assert_eq!(raw.release(&next).await, Release::Released, "with force: {force}");
    }
    trial.assert_empty(&["n"], "after late breaks").await;
    Ok(())
}

/// A reader that is broken does not take the others with it.
pub(super) async fn of_one_reader_leaves_the_others(trial: Trial) -> Outcome {
    let raw = trial.raw().await;
    for force in [false, true] {
        let [one, other] = [(); 2].map(|()| Request::new(lock_name("n"), Mode::Shared, trial.long()));
        let token = raw.hold(&one).await.token;
        raw.hold(&other).await;
        let order = BreakOrder::new(notice(), [Some(token)]);
        let broken = send(&trial, "n", if force { order.force() } else { order }).await;
        assert_eq!(broken.iter().map(|entry| entry.token).collect::<Vec<_>>(), [Some(token)]);
        assert_eq!(raw.renew(&one).await, KeepAlive::Lost(LostReason::Broken(notice())));
        assert!(matches!(raw.renew(&other).await, KeepAlive::Held { .. }), "with force: {force}");
        raw.release(&one).await;
        assert_eq!(raw.release(&other).await, Release::Released, "with force: {force}");
    }
    trial.assert_empty(&["n"], "after a break").await;
    Ok(())
}

/// The public API names the hold that its caller has seen.
pub(super) async fn by_token_breaks_that_hold_alone(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let guard = acquired(here.lock("n")).await;
    let token = guard.fencing_token();
    released(guard).await;
    let next = acquired(here.lock("n")).await;
    let stale = break_with_notice(there.break_lock("n").token(token)).await;
    assert_eq!(stale, []);
    let broken = break_with_notice(there.break_lock("n").token(token).token(next.fencing_token())).await;
    assert_eq!(broken.iter().map(|entry| entry.token).collect::<Vec<_>>(), [Some(next.fencing_token())]);
    drop(next);
    released(acquired(there.lock("n")).await).await;
    Ok(())
}

pub(super) async fn waits_for_the_holder(trial: Trial) -> Outcome {
    let clock = ManualClock::new();
    let (here, there) = (trial.open_by(trial.store().await, &clock), trial.locks().await);
    let owner = OwnerId::unique();
    let guard = acquired_by(&clock, here.lock("n").owner(&owner)).await;
    let lost = tokio::spawn(guard.lost());
    let victims = break_with_notice(there.break_lock("n")).await;
    let [victim] = &victims[..] else { panic!("expected one broken hold: {victims:?}") };
    assert_eq!((&victim.owner, victim.broken.as_ref()), (&owner, Some(&notice())));
    clock.advance(trial.long() / 3 + INSTANT);
    let reason = while_running(&clock, soon("the loss", join(lost))).await;
    assert_eq!(reason, LostReason::Broken(notice()));
    assert_eq!(soon("the notice", guard.revoked()).await, notice());
    assert!(!guard.is_held(), "a broken hold is reported as held");
    assert_eq!(
        guard.ensure_held().expect_err("lost").lost(),
        Some(&LostReason::Broken(notice())),
        "the error does not name the operator and the reason"
    );
    // Its holder may still be working: only the holder can confirm that it has stopped.
    assert!(tried(there.lock("n")).await.is_none(), "granted before the release of the broken hold");
    assert_eq!(
        trial.status("n").await.holders.first().and_then(|entry| entry.broken.clone()),
        Some(notice())
    );
    let refused = soon("the release of a broken lock", guard.release()).await;
    assert_eq!(refused.expect_err("the hold was broken").lost(), Some(&LostReason::Broken(notice())));
    // The release has arrived when it returns.
    released(tried(there.lock("n")).await.expect("free after the release")).await;
    trial.assert_empty(&["n"], "after a break").await;
    Ok(())
}

pub(super) async fn stops_a_run_before_the_next_grant(trial: Trial) -> Outcome {
    let clock = ManualClock::new();
    let (here, there) = (trial.open_by(trial.store().await, &clock), trial.locks().await);
    let guard = acquired_by(&clock, here.lock("n")).await;
    let ((begun, begins), (end, ends)) = (oneshot::channel(), mpsc::channel::<()>());
    // The break comes in the middle of a poll that does not end, so nothing can drop the work.
    let run = tokio::spawn(outside(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(guard.run(async move {
            begun.send(()).ok();
            ends.recv_timeout(timeout()).ok();
            std::future::pending::<()>().await;
        }))
    }));
    soon("the work", begins).await.expect("it begins");
    break_with_notice(there.break_lock("n")).await;
    clock.advance(trial.long() / 3 + INSTANT);
    let waits = there.lock("n").wait(Duration::from_millis(300)).acquire();
    assert!(soon("a wait", waits).await.is_err(), "granted while the work was running");
    let next = tokio::spawn(acquired(there.lock("n")));
    end.send(()).expect("the work still runs");
    let outcome = while_running(&clock, join(run)).await;
    assert_eq!(outcome.expect_err("broken").lost(), Some(&LostReason::Broken(notice())));
    let next = within(SOON, "the grant to the next holder after the end of the work", join(next)).await;
    released(next).await;
    trial.assert_empty(&["n"], "after a break").await;
    Ok(())
}

pub(super) async fn notifies_the_holder_at_once(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let guard = acquired(here.lock("n")).await;
    let other = acquired(here.lock("other")).await;
    break_with_notice(there.break_lock("n")).await;
    // Without a push the notice would come with the next renewal.
    assert!(trial.long() / 3 > SOON);
    let lost = within(SOON, "the pushed break notice", guard.lost()).await;
    assert_eq!(lost, LostReason::Broken(notice()));
    assert!(other.is_held());
    drop(guard);
    released(other).await;
    trial.assert_empty(&["n", "other"], "after a break").await;
    Ok(())
}

pub(super) async fn ends_with_the_lease(trial: Trial) -> Outcome {
    let (raw, there) = (trial.raw().await, trial.locks().await);
    let holder = Request::new(lock_name("n"), Mode::Exclusive, trial.short());
    raw.hold(&holder).await;
    break_in_store(&trial, "n", false).await;
    let by = SystemClock.now() + trial.short() + SOON;
    // A holder that does not stop and continues to renew does not extend its lease.
    while tried(there.lock("n")).await.is_none() {
        assert!(SystemClock.now() < by, "a broken hold excludes others after the end of its lease");
        let renewal = raw.renew(&holder).await;
        assert!(matches!(renewal, KeepAlive::Lost(_)), "the renewal of a broken hold returned {renewal:?}");
        pass(Duration::from_millis(10)).await;
    }
    raw.release(&holder).await;
    trial.assert_empty(&["n"], "after a break").await;
    Ok(())
}

pub(super) async fn keeps_the_first_notice(trial: Trial) -> Outcome {
    let raw = trial.raw().await;
    let holder = Request::new(lock_name("n"), Mode::Exclusive, trial.long());
    raw.hold(&holder).await;
    break_in_store(&trial, "n", false).await;
    let second = BreakOrder::new(BreakNotice::new(OwnerId::process(), None), tokens(&trial, "n").await);
    send(&trial, "n", second).await;
    assert_eq!(raw.renew(&holder).await, KeepAlive::Lost(LostReason::Broken(notice())));
    // Its own release frees the lock, and finds its entry: no other request had the lock meanwhile.
    assert_eq!(raw.release(&holder).await, Release::Released);
    trial.assert_empty(&["n"], "after a break").await;
    Ok(())
}

pub(super) async fn by_force_grants_the_next_waiter_at_once(trial: Trial) -> Outcome {
    let clock = ManualClock::new();
    let (here, (there, recording)) = (trial.open_by(trial.store().await, &clock), trial.recorded().await);
    let owner = OwnerId::unique();
    let guard = acquired_by(&clock, here.lock("n").owner(&owner)).await;
    let lost = tokio::spawn(guard.lost());
    let waiting = tokio::spawn(acquired(there.lock("n")));
    soon("the waiter is queued", recording.queued(&lock_name("n"), 1)).await;
    let victims = break_with_notice(there.break_lock("n").force()).await;
    assert_eq!(
        victims.iter().map(|entry| &entry.owner).collect::<Vec<_>>(),
        [&owner],
        "the break returns another owner"
    );
    let next = within(SOON, "the grant to the waiter after a forced break", join(waiting)).await;
    assert!(next.fencing_token() >= victims[0].token.expect("a holder has a token"));
    clock.advance(trial.long() / 3 + INSTANT);
    let reason = while_running(&clock, soon("the loss", join(lost))).await;
    assert_eq!(reason, LostReason::Broken(notice()));
    drop(guard);
    trial.assert_entries(1, "the release of a broken hold must not end the next one").await;
    assert!(next.is_held());
    released(next).await;
    trial.assert_empty(&["n"], "after the break").await;
    Ok(())
}

pub(super) async fn by_force_is_reported_by_the_release(trial: Trial) -> Outcome {
    let (here, there) = (trial.raw().await, trial.locks().await);
    for next_holds in [false, true] {
        let holder = Request::new(lock_name("n"), Mode::Exclusive, trial.long());
        here.hold(&holder).await;
        break_in_store(&trial, "n", true).await;
        let next = if next_holds { tried(there.lock("n")).await } else { None };
        assert_eq!(here.release(&holder).await, Release::Lost(LostReason::Broken(notice())));
        if let Some(next) = next {
            assert!(
                tried(there.lock("n")).await.is_none(),
                "the release of a broken hold ended the next one"
            );
            released(next).await;
        }
        trial.assert_empty(&["n"], "after a break by force").await;
    }
    Ok(())
}

pub(super) async fn of_a_free_lock_changes_nothing(trial: Trial) -> Outcome {
    let locks = trial.locks().await;
    let other = acquired(locks.lock("other")).await;
    assert_eq!(break_with_notice(locks.break_lock("n")).await, []);
    assert_eq!(break_with_notice(locks.break_lock("n").force()).await, []);
    // In the store, too, to which core sends no break without a hold: of a hold that has ended.
    let guard = acquired(locks.lock("n")).await;
    let ended = guard.fencing_token();
    released(guard).await;
    for order in [BreakOrder::new(notice(), [Some(ended)]), BreakOrder::new(notice(), [Some(ended)]).force()]
    {
        assert_eq!(send(&trial, "n", order).await, []);
    }
    assert!(trial.status("n").await.is_free());
    let others = trial.status("other").await.holders;
    assert_eq!(
        others.iter().map(|entry| entry.broken.clone()).collect::<Vec<_>>(),
        [None],
        "a break changed another lock"
    );
    // A break does not apply to later holds.
    let later = acquired(locks.lock("n")).await;
    pass(Duration::from_millis(20)).await;
    assert!(later.is_held());
    released(later).await;
    released(other).await;
    trial.assert_empty(&["n", "other"], "after the break").await;
    Ok(())
}
