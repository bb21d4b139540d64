//! The store's own contract, without core: every operation may come twice, late, or without need.

use std::time::Duration;

use polylock_core::{ClaimOutcome, KeepAlive, Mode, Request};

use crate::trial::{Outcome, Raw, SOON, Trial, lock_name, pass, within};

fn request(trial: &Trial) -> Request {
    Request::new(lock_name("n"), Mode::Exclusive, trial.long())
}

pub(super) async fn a_repeated_claim_returns_its_grant(trial: Trial) -> Outcome {
    let raw = trial.raw().await;
    repeat_claims(&trial, [&raw, &raw, &raw]).await;
    Ok(())
}

pub(super) async fn a_repeated_claim_on_another_connection_returns_its_grant(trial: Trial) -> Outcome {
    let (here, there) = (trial.raw().await, trial.raw().await);
    repeat_claims(&trial, [&here, &there, &here]).await;
    Ok(())
}

async fn repeat_claims(trial: &Trial, connections: [&Raw; 3]) {
    let request = request(trial);
    let first = connections[0].hold(&request).await;
    for raw in connections {
        let again = raw.hold(&request).await;
        assert_eq!(again.token, first.token, "a repeated claim got another token");
        assert!(again.lease <= trial.long() + Duration::from_secs(1));
    }
    trial.assert_entries(1, "a repeated claim must leave one entry").await;
    connections[0].release(&request).await;
    trial.assert_empty(&["n"], "after the release").await;
}

pub(super) async fn a_repeated_claim_keeps_its_queue_position(trial: Trial) -> Outcome {
    let raw = trial.raw().await;
    let (holder, first, second) = (request(&trial), request(&trial), request(&trial));
    raw.hold(&holder).await;
    raw.queue(&first).await;
    raw.queue(&second).await;
    for _ in 0..3 {
        raw.queue(&first).await;
    }
    trial.assert_entries(3, "a holder and two waiters after repeated claims").await;
    raw.release(&holder).await;
    raw.queue(&second).await;
    raw.hold(&first).await;
    raw.release(&first).await;
    raw.hold(&second).await;
    raw.release(&second).await;
    trial.assert_empty(&["n"], "at the end").await;
    Ok(())
}

pub(super) async fn a_claim_that_does_not_queue_leaves_no_entry(trial: Trial) -> Outcome {
    let raw = trial.raw().await;
    let (holder, mut tries) = (request(&trial), request(&trial));
    tries.queues = false;
    raw.hold(&holder).await;
    for _ in 0..3 {
        raw.queue(&tries).await;
    }
    trial.assert_entries(1, "only the holder remains").await;
    raw.release(&holder).await;
    // It was not granted unnoticed, so it blocks no other request.
    raw.hold(&request_and_release(&trial, &raw).await).await;
    Ok(())
}

/// Returns a new request, after another one has held and released the lock.
async fn request_and_release(trial: &Trial, raw: &Raw) -> Request {
    let other = request(trial);
    raw.hold(&other).await;
    raw.release(&other).await;
    request(trial)
}

pub(super) async fn a_repeated_release_succeeds(trial: Trial) -> Outcome {
    let (here, there) = (trial.raw().await, trial.raw().await);
    let (released, next) = (request(&trial), request(&trial));
    here.release(&request(&trial)).await;
    here.hold(&released).await;
    here.release(&released).await;
    there.release(&released).await;
    let grant = there.hold(&next).await;
    here.release(&released).await;
    assert_eq!(
        there.hold(&next).await.token,
        grant.token,
        "a late release ended the hold of another request"
    );
    there.release(&next).await;
    trial.assert_empty(&["n"], "at the end").await;
    Ok(())
}

pub(super) async fn a_release_withdraws_a_waiter(trial: Trial) -> Outcome {
    let raw = trial.raw().await;
    let (holder, waiter, last) = (request(&trial), request(&trial), request(&trial));
    raw.hold(&holder).await;
    raw.queue(&waiter).await;
    raw.queue(&last).await;
    raw.release(&waiter).await;
    raw.release(&waiter).await;
    raw.release(&holder).await;
    raw.hold(&last).await;
    raw.release(&last).await;
    trial.assert_empty(&["n"], "at the end").await;
    Ok(())
}

pub(super) async fn a_release_by_another_request_changes_nothing(trial: Trial) -> Outcome {
    let (here, there) = (trial.raw().await, trial.raw().await);
    let (holder, other) = (request(&trial), request(&trial));
    let grant = here.hold(&holder).await;
    here.release(&other).await;
    there.release(&other).await;
    assert!(!there.try_once("n", Mode::Exclusive).await, "the release of another request freed the lock");
    assert_eq!(here.hold(&holder).await.token, grant.token);
    assert!(matches!(here.renew(&holder).await, KeepAlive::Held { .. }));
    here.release(&holder).await;
    trial.assert_empty(&["n"], "at the end").await;
    Ok(())
}

pub(super) async fn a_renewal_extends_the_lease(trial: Trial) -> Outcome {
    let raw = trial.raw().await;
    renew_on(&trial, &raw, &raw).await;
    Ok(())
}

pub(super) async fn a_renewal_on_another_connection_extends_the_lease(trial: Trial) -> Outcome {
    let (here, there) = (trial.raw().await, trial.raw().await);
    renew_on(&trial, &here, &there).await;
    Ok(())
}

/// Claims on one connection, renews on another or the same one, and checks on a third.
async fn renew_on(trial: &Trial, here: &Raw, there: &Raw) {
    let third = trial.raw().await;
    // The claim has a short lease, the renewal a long one: without the renewal the hold would end.
    let mut holder = Request::new(lock_name("n"), Mode::Exclusive, trial.renewable());
    let grant = here.hold(&holder).await;
    let short = holder.ttl;
    holder.ttl = trial.long();
    match there.renew(&holder).await {
        KeepAlive::Held { lease, .. } => {
            assert!(lease + Duration::from_millis(5) >= holder.ttl, "renewed only for {lease:?}");
        }
        other => panic!("expected Held from the renewal of a hold, got {other:?}"),
    }
    pass(short + Duration::from_millis(100)).await;
    assert!(
        !third.try_once("n", Mode::Exclusive).await,
        "the lock was granted to another request although its hold was renewed"
    );
    let again = here.hold(&holder).await;
    assert_eq!(again.token, grant.token, "the renewal changed the token");
    here.release(&holder).await;
    trial.assert_empty(&["n"], "at the end").await;
}

pub(super) async fn a_renewal_never_creates_a_hold(trial: Trial) -> Outcome {
    let raw = trial.raw().await;
    let released = request(&trial);
    assert!(
        matches!(raw.renew(&released).await, KeepAlive::Lost(_)),
        "a request was renewed that never claimed"
    );
    trial.assert_empty(&["n"], "after a renewal without a claim").await;
    raw.hold(&released).await;
    raw.release(&released).await;
    assert!(matches!(raw.renew(&released).await, KeepAlive::Lost(_)), "a released hold was renewed");
    trial.assert_empty(&["n"], "after a renewal that follows the release").await;
    let holder = request(&trial);
    raw.hold(&holder).await;
    assert!(
        matches!(raw.renew(&released).await, KeepAlive::Lost(_)),
        "renewed while another request holds the lock"
    );
    trial.assert_entries(1, "only the holder remains").await;
    raw.release(&holder).await;
    trial.assert_empty(&["n"], "at the end").await;
    Ok(())
}

pub(super) async fn a_renewal_never_revives_an_expired_hold(trial: Trial) -> Outcome {
    let raw = trial.raw().await;
    let dead = Request::new(lock_name("n"), Mode::Exclusive, trial.short());
    raw.hold(&dead).await;
    pass(trial.short() + Duration::from_millis(100)).await;
    // No other request has taken the lock meanwhile; its lease has ended all the same.
    assert!(matches!(raw.renew(&dead).await, KeepAlive::Lost(_)), "an expired hold was renewed");
    let next = request(&trial);
    let grant = within(SOON, "the grant to the next request", raw.hold(&next)).await;
    assert!(
        matches!(raw.renew(&dead).await, KeepAlive::Lost(_)),
        "renewed while another request holds the lock"
    );
    assert!(
        matches!(raw.claim(&dead).await, ClaimOutcome::Queued(_)),
        "a late claim was granted a held lock"
    );
    raw.release(&dead).await;
    assert_eq!(raw.hold(&next).await.token, grant.token);
    raw.release(&next).await;
    trial.assert_empty(&["n"], "at the end").await;
    Ok(())
}

pub(super) async fn a_renewal_never_grants_to_a_waiter(trial: Trial) -> Outcome {
    let raw = trial.raw().await;
    let (holder, waiter) = (request(&trial), request(&trial));
    let grant = raw.hold(&holder).await;
    raw.queue(&waiter).await;
    let outcome = raw.renew(&waiter).await;
    assert!(!matches!(outcome, KeepAlive::Held { .. }), "expected a waiter to stay queued, got {outcome:?}");
    assert_eq!(raw.hold(&holder).await.token, grant.token);
    raw.queue(&waiter).await;
    raw.release(&holder).await;
    raw.release(&waiter).await;
    trial.assert_empty(&["n"], "at the end").await;
    Ok(())
}
