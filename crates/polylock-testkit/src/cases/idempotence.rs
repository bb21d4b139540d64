//! The store's own contract, without core: every operation may come twice, late, or for nothing.

use std::time::Duration;

use polylock_core::{KeepAlive, Mode, Request, Standing};

use crate::trial::{Outcome, Raw, SOON, Trial, lock_name, pass, within};

fn request(trial: &Trial) -> Request {
    Request::new(lock_name("n"), Mode::Exclusive, trial.long())
}

pub(super) async fn a_claim_repeated_finds_its_own_grant(trial: Trial) -> Outcome {
    let raw = trial.raw().await;
    claims_repeated(&trial, [&raw, &raw, &raw]).await;
    Ok(())
}

pub(super) async fn a_claim_repeated_elsewhere_finds_the_same_grant(trial: Trial) -> Outcome {
    let (here, there) = (trial.raw().await, trial.raw().await);
    claims_repeated(&trial, [&here, &there, &here]).await;
    Ok(())
}

async fn claims_repeated(trial: &Trial, connections: [&Raw; 3]) {
    let me = request(trial);
    let first = connections[0].hold(&me).await;
    for raw in connections {
        let again = raw.hold(&me).await;
        assert_eq!(again.token, first.token, "one grant, one token");
        assert!(again.lease <= trial.long() + Duration::from_secs(1));
    }
    trial.keeps(1, "one request, one entry").await;
    connections[0].release(&me).await;
    trial.nothing_left(&["n"], "after the release").await;
}

pub(super) async fn a_claim_repeated_keeps_its_place(trial: Trial) -> Outcome {
    let raw = trial.raw().await;
    let (holder, first, second) = (request(&trial), request(&trial), request(&trial));
    raw.hold(&holder).await;
    raw.queue(&first).await;
    raw.queue(&second).await;
    for _ in 0..3 {
        raw.queue(&first).await;
    }
    trial.keeps(3, "a holder and two waiters").await;
    raw.release(&holder).await;
    raw.queue(&second).await;
    raw.hold(&first).await;
    raw.release(&first).await;
    raw.hold(&second).await;
    raw.release(&second).await;
    trial.nothing_left(&["n"], "after all").await;
    Ok(())
}

pub(super) async fn a_claim_that_does_not_queue_leaves_nothing(trial: Trial) -> Outcome {
    let raw = trial.raw().await;
    let (holder, mut tries) = (request(&trial), request(&trial));
    tries.queues = false;
    raw.hold(&holder).await;
    for _ in 0..3 {
        raw.queue(&tries).await;
    }
    trial.keeps(1, "the holder alone").await;
    raw.release(&holder).await;
    // It was never granted behind its back, so it is in nobody's way.
    raw.hold(&request_and_release(&trial, &raw).await).await;
    Ok(())
}

/// A request that has held and released, and holds again under a new id.
async fn request_and_release(trial: &Trial, raw: &Raw) -> Request {
    let other = request(trial);
    raw.hold(&other).await;
    raw.release(&other).await;
    request(trial)
}

pub(super) async fn a_release_repeated_succeeds(trial: Trial) -> Outcome {
    let (here, there) = (trial.raw().await, trial.raw().await);
    let (me, next) = (request(&trial), request(&trial));
    here.release(&me).await;
    here.hold(&me).await;
    here.release(&me).await;
    there.release(&me).await;
    let grant = there.hold(&next).await;
    here.release(&me).await;
    assert_eq!(there.hold(&next).await.token, grant.token, "a late release has taken another's lock");
    there.release(&next).await;
    trial.nothing_left(&["n"], "after all").await;
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
    trial.nothing_left(&["n"], "after all").await;
    Ok(())
}

pub(super) async fn a_release_of_anothers_changes_nothing(trial: Trial) -> Outcome {
    let (here, there) = (trial.raw().await, trial.raw().await);
    let (holder, stranger) = (request(&trial), request(&trial));
    let grant = here.hold(&holder).await;
    here.release(&stranger).await;
    there.release(&stranger).await;
    assert!(!there.try_once("n", Mode::Exclusive).await, "a stranger's release has freed the lock");
    assert_eq!(here.hold(&holder).await.token, grant.token);
    assert!(matches!(here.renew(&holder).await, KeepAlive::Held { .. }));
    here.release(&holder).await;
    trial.nothing_left(&["n"], "after all").await;
    Ok(())
}

pub(super) async fn a_renewal_extends_the_lease(trial: Trial) -> Outcome {
    let raw = trial.raw().await;
    renewed_on(&trial, &raw, &raw).await;
    Ok(())
}

pub(super) async fn a_renewal_elsewhere_extends_the_lease(trial: Trial) -> Outcome {
    let (here, there) = (trial.raw().await, trial.raw().await);
    renewed_on(&trial, &here, &there).await;
    Ok(())
}

/// Claimed on one connection, renewed on another or the same; a third looks.
async fn renewed_on(trial: &Trial, here: &Raw, there: &Raw) {
    let third = trial.raw().await;
    // Claimed for a short time, renewed for a long one: without the renewal it would end.
    let mut me = Request::new(lock_name("n"), Mode::Exclusive, trial.renewable());
    let grant = here.hold(&me).await;
    let short = me.ttl;
    me.ttl = trial.long();
    match there.renew(&me).await {
        KeepAlive::Held { lease } => {
            assert!(lease + Duration::from_millis(5) >= me.ttl, "renewed for {lease:?}");
        }
        other => panic!("it is held, not {other:?}"),
    }
    pass(short + Duration::from_millis(100)).await;
    assert!(!third.try_once("n", Mode::Exclusive).await, "the renewal was not carried out");
    let again = here.hold(&me).await;
    assert_eq!(again.token, grant.token, "a renewal is no new grant");
    here.release(&me).await;
    trial.nothing_left(&["n"], "after all").await;
}

pub(super) async fn a_renewal_never_creates(trial: Trial) -> Outcome {
    let raw = trial.raw().await;
    let me = request(&trial);
    assert!(matches!(raw.renew(&me).await, KeepAlive::Lost(_)), "never claimed");
    trial.nothing_left(&["n"], "renewed, never claimed").await;
    raw.hold(&me).await;
    raw.release(&me).await;
    assert!(matches!(raw.renew(&me).await, KeepAlive::Lost(_)), "released");
    trial.nothing_left(&["n"], "renewed after the release").await;
    let holder = request(&trial);
    raw.hold(&holder).await;
    assert!(matches!(raw.renew(&me).await, KeepAlive::Lost(_)), "another holds it");
    trial.keeps(1, "the holder alone").await;
    raw.release(&holder).await;
    trial.nothing_left(&["n"], "after all").await;
    Ok(())
}

pub(super) async fn a_renewal_never_revives(trial: Trial) -> Outcome {
    let raw = trial.raw().await;
    let dead = Request::new(lock_name("n"), Mode::Exclusive, trial.short());
    raw.hold(&dead).await;
    pass(trial.short() + Duration::from_millis(100)).await;
    // Nobody has taken it meanwhile; its lease is over all the same.
    assert!(matches!(raw.renew(&dead).await, KeepAlive::Lost(_)), "a lease that was over came back");
    let next = request(&trial);
    let grant = within(SOON, "the next", raw.hold(&next)).await;
    assert!(matches!(raw.renew(&dead).await, KeepAlive::Lost(_)), "another holds it");
    assert!(
        matches!(raw.claim(&dead).await, Standing::Queued(_)),
        "a claim that comes late has to wait, too"
    );
    raw.release(&dead).await;
    assert_eq!(raw.hold(&next).await.token, grant.token);
    raw.release(&next).await;
    trial.nothing_left(&["n"], "after all").await;
    Ok(())
}

pub(super) async fn a_renewal_never_grants_to_a_waiter(trial: Trial) -> Outcome {
    let raw = trial.raw().await;
    let (holder, waiter) = (request(&trial), request(&trial));
    let grant = raw.hold(&holder).await;
    raw.queue(&waiter).await;
    let outcome = raw.renew(&waiter).await;
    assert!(!matches!(outcome, KeepAlive::Held { .. }), "it waits, it does not hold: {outcome:?}");
    assert_eq!(raw.hold(&holder).await.token, grant.token);
    raw.queue(&waiter).await;
    raw.release(&holder).await;
    raw.release(&waiter).await;
    trial.nothing_left(&["n"], "after all").await;
    Ok(())
}
