//! Messages that arrive late, twice or in another order, from the process that has the hold or from another one: they change nothing that was
//! confirmed since.

use std::time::Duration;

use polylock_core::{
    BreakNotice, BreakOrder, Clock, FencingToken, KeepAlive, LostReason, Mode, Release, Request, SystemClock,
};

use crate::trial::{Outcome, Raw, SOON, Trial, lock_name, pass, soon};

/// The time after which no store accepts a copy of a claim, even without a record that refuses it.
const OLDEST_COPY: Duration = Duration::from_secs(5);

fn request(ttl: Duration) -> Request {
    Request::new(lock_name("n"), Mode::Exclusive, ttl)
}

/// The time after which a lease has certainly ended.
fn after(lease: Duration) -> Duration {
    lease + Duration::from_millis(100)
}

async fn park(trial: &Trial, request: &Request, token: FencingToken, left: Duration) -> Release {
    let (park, request) = (trial.park(), request.clone());
    trial.on_io(async move { park.park(&request, token, left).await }).await
}

async fn assert_held(raw: &Raw, what: &str) {
    assert!(!raw.try_once("n", Mode::Exclusive).await, "another request was granted the lock: {what}");
}

/// Waits until another request is granted the lock, and returns how long that took.
async fn freed(raw: &Raw, what: &str, limit: Duration) -> Duration {
    let began = SystemClock.now();
    while !raw.try_once("n", Mode::Exclusive).await {
        assert!(SystemClock.now() < began + limit, "the lock is not free after {limit:?}: {what}");
        pass(Duration::from_millis(20)).await;
    }
    SystemClock.now().since(began)
}

pub(super) async fn a_renewal_with_a_shorter_ttl_changes_nothing(trial: Trial) -> Outcome {
    let (here, there, third) = (trial.raw().await, trial.raw().await, trial.raw().await);
    let holder = request(trial.long());
    let token = here.hold(&holder).await.token;
    assert!(matches!(here.renew(&holder).await, KeepAlive::Held { .. }));
    let mut shorter = holder.clone();
    shorter.ttl = trial.short();
    for connection in [&there, &here] {
        let renewed = connection.renew(&shorter).await;
        assert!(matches!(renewed, KeepAlive::Held { lease, .. } if lease >= shorter.ttl), "{renewed:?}");
    }
    pass(after(shorter.ttl)).await;
    assert_held(&third, "a renewal has shortened the lease").await;
    assert_eq!(here.hold(&holder).await.token, token);
    assert_eq!(here.release(&holder).await, Release::Released);
    trial.assert_empty(&["n"], "at the end").await;
    Ok(())
}

/// Three connections with three TTLs: a store that keeps one of them beside the lease must keep the greatest.
pub(super) async fn a_renewal_between_two_ttls_changes_nothing(trial: Trial) -> Outcome {
    let (here, there, third) = (trial.raw().await, trial.raw().await, trial.raw().await);
    let claimed = request(trial.short());
    here.hold(&claimed).await;
    let (mut longer, mut between) = (claimed.clone(), claimed.clone());
    longer.ttl = trial.long();
    // A store may count in whole seconds.
    between.ttl = (claimed.ttl + Duration::from_secs(1)).min(longer.ttl);
    assert!(matches!(there.renew(&longer).await, KeepAlive::Held { .. }));
    let renewed = third.renew(&between).await;
    assert!(matches!(renewed, KeepAlive::Held { lease, .. } if lease >= between.ttl), "{renewed:?}");
    if between.ttl < longer.ttl {
        pass(after(between.ttl)).await;
        assert_held(&third, "a renewal has shortened the lease").await;
    }
    assert!(matches!(here.renew(&claimed).await, KeepAlive::Held { .. }));
    assert_eq!(here.release(&claimed).await, Release::Released);
    trial.assert_empty(&["n"], "at the end").await;
    Ok(())
}

pub(super) async fn a_claim_after_a_longer_renewal_changes_nothing(trial: Trial) -> Outcome {
    let (here, there, third) = (trial.raw().await, trial.raw().await, trial.raw().await);
    let claimed = request(trial.renewable());
    let token = here.hold(&claimed).await.token;
    let mut longer = claimed.clone();
    longer.ttl = trial.long();
    assert!(matches!(there.renew(&longer).await, KeepAlive::Held { .. }));
    // A copy of the claim.
    assert_eq!(there.hold(&claimed).await.token, token);
    if claimed.ttl < longer.ttl {
        pass(after(claimed.ttl)).await;
        assert_held(&third, "a claim has shortened the lease").await;
    }
    assert_eq!(here.release(&claimed).await, Release::Released);
    trial.assert_empty(&["n"], "at the end").await;
    Ok(())
}

/// Another process ends the hold, as with a handle, and does not know which copies of its claim are still under way.
pub(super) async fn a_claim_after_a_release_elsewhere_takes_nothing(trial: Trial) -> Outcome {
    let (here, there) = (trial.raw().await, trial.raw().await);
    let holder = request(trial.long());
    here.hold(&holder).await;
    let mut known = holder.clone();
    known.outlives_process = true;
    assert_eq!(there.release(&known).await, Release::Released);
    late_claim_takes_nothing(&trial, &here, &holder).await;
    here.release(&holder).await;
    Ok(())
}

/// The reply to the first one may be lost, and a release that finds nothing then counts as one that has succeeded.
pub(super) async fn a_repeated_release_of_a_broken_hold_reports_the_break(trial: Trial) -> Outcome {
    let (here, there) = (trial.raw().await, trial.raw().await);
    for outlives_process in [false, true] {
        let mut holder = request(trial.long());
        holder.outlives_process = outlives_process;
        broken_by_force(&trial, &here, &holder).await;
        for connection in [&here, &there, &here] {
            let outcome = connection.release(&holder).await;
            assert!(matches!(outcome, Release::Lost(LostReason::Broken(_))), "{outcome:?} {holder:?}");
        }
    }
    trial.assert_empty(&["n"], "at the end").await;
    Ok(())
}

/// The record of the break ends with the lease, the refusal of claims does not.
pub(super) async fn a_claim_after_the_release_of_a_broken_hold_takes_nothing(trial: Trial) -> Outcome {
    let (here, there) = (trial.raw().await, trial.raw().await);
    let mut holder = request(trial.short());
    holder.outlives_process = true;
    broken_by_force(&trial, &here, &holder).await;
    let began = SystemClock.now();
    there.release(&holder).await;
    // It would last for longer than the check.
    let mut late = holder.clone();
    late.ttl = trial.long();
    late_claim_takes_nothing(&trial, &here, &late).await;
    pass(after(holder.ttl)).await;
    // Later, no copy of a claim arrives any more: the lease is longer, or the machine busy.
    if SystemClock.now() < began + after(holder.ttl).min(OLDEST_COPY) + Duration::from_secs(1) {
        late_claim_takes_nothing(&trial, &here, &late).await;
    }
    here.release(&holder).await;
    trial.assert_empty(&["n"], "at the end").await;
    Ok(())
}

/// The second one is by a process that knows of no copies.
pub(super) async fn a_claim_after_two_releases_takes_nothing(trial: Trial) -> Outcome {
    let (here, there) = (trial.raw().await, trial.raw().await);
    let holder = request(trial.long());
    here.hold(&holder).await;
    let mut known = holder.clone();
    known.outlives_process = true;
    assert_eq!(there.release(&known).await, Release::Released);
    there.release(&holder).await;
    late_claim_takes_nothing(&trial, &here, &holder).await;
    here.release(&holder).await;
    trial.assert_empty(&["n"], "at the end").await;
    Ok(())
}

async fn broken_by_force(trial: &Trial, raw: &Raw, holder: &Request) {
    let token = raw.hold(holder).await.token;
    let (inspect, name) = (trial.inspect(), lock_name("n"));
    let order = BreakOrder::new(BreakNotice::default(), [Some(token)]).force();
    assert_eq!(trial.on_io(async move { inspect.break_lock(&name, &order).await }).await.len(), 1);
}

async fn late_claim_takes_nothing(trial: &Trial, raw: &Raw, holder: &Request) {
    // A lock service refuses it.
    let (backend, claim) = (raw.0.clone(), holder.clone());
    trial.on_io(async move { Ok(backend.claim(&claim).await.is_ok()) }).await;
    freed(raw, "a late claim has taken it for nobody", SOON).await;
}

pub(super) async fn a_renewal_after_a_park_changes_nothing(trial: Trial) -> Outcome {
    let (raw, other) = (trial.raw().await, trial.raw().await);
    let mut left = trial.short();
    let holder = loop {
        let holder = request(trial.long());
        let token = raw.hold(&holder).await.token;
        let began = SystemClock.now();
        assert_eq!(park(&trial, &holder, token, left).await, Release::Released);
        if trial.orders_messages() {
            for connection in [&raw, &other] {
                assert_eq!(connection.renew(&holder).await, KeepAlive::Lost(LostReason::Gone));
            }
            // A copy of the claim.
            raw.claim(&holder).await;
        }
        let is_free = other.try_once("n", Mode::Exclusive).await;
        if SystemClock.now() < began + left {
            assert!(!is_free, "another request was granted the lock: it is parked");
            break holder;
        }
        // The machine is busy: the copy of the claim may have arrived after the end, and holds the lock again.
        raw.release(&holder).await;
        left = (2 * left).min(trial.long());
    };
    freed(&other, "it was extended after the park", left + SOON).await;
    raw.release(&holder).await;
    trial.assert_empty(&["n"], "at the end").await;
    Ok(())
}

pub(super) async fn a_second_park_changes_nothing(trial: Trial) -> Outcome {
    if !trial.orders_messages() {
        return Ok(());
    }
    let raw = trial.raw().await;
    let holder = request(trial.long());
    let token = raw.hold(&holder).await.token;
    let (left, began) = (trial.short(), SystemClock.now());
    for left in [left, trial.long(), left] {
        let outcome = park(&trial, &holder, token, left).await;
        // On a busy machine the hold may have ended.
        let is_over = SystemClock.now() >= began + trial.short();
        assert!(outcome == Release::Released || is_over, "{outcome:?}");
    }
    freed(&raw, "a second park has extended it", left + SOON).await;
    raw.release(&holder).await;
    trial.assert_empty(&["n"], "at the end").await;
    Ok(())
}

pub(super) async fn a_park_of_another_hold_changes_nothing(trial: Trial) -> Outcome {
    let raw = trial.raw().await;
    let holder = request(trial.long());
    let token = raw.hold(&holder).await.token;
    let earlier = FencingToken::new(token.get() - 1).expect("a smaller number");
    let left = trial.short();
    for (request, token) in [(&holder, earlier), (&request(trial.long()), token)] {
        let outcome = park(&trial, request, token, left).await;
        assert_eq!(outcome, Release::Lost(LostReason::Gone), "{token} {request:?}");
    }
    pass(after(left)).await;
    assert_held(&raw, "the park of another hold has shortened it").await;
    assert!(matches!(raw.renew(&holder).await, KeepAlive::Held { .. }));
    assert_eq!(raw.release(&holder).await, Release::Released);
    assert!(matches!(park(&trial, &holder, token, left).await, Release::Lost(_)), "parked after its release");
    trial.assert_empty(&["n"], "at the end").await;
    Ok(())
}

pub(super) async fn a_parked_hold_lasts_beyond_its_lease(trial: Trial) -> Outcome {
    let raw = trial.raw().await;
    let holder = request(trial.renewable());
    let token = raw.hold(&holder).await.token;
    assert_eq!(park(&trial, &holder, token, trial.long()).await, Release::Released);
    if holder.ttl < trial.long() {
        pass(after(holder.ttl)).await;
        assert_held(&raw, "it is parked for longer than its lease").await;
    }
    assert_eq!(raw.release(&holder).await, Release::Released);
    trial.assert_empty(&["n"], "at the end").await;
    Ok(())
}

pub(super) async fn a_parked_hold_is_released_and_broken(trial: Trial) -> Outcome {
    let raw = trial.raw().await;
    let holder = request(trial.long());
    let token = raw.hold(&holder).await.token;
    park(&trial, &holder, token, trial.long()).await;
    let status = trial.status("n").await;
    let shown: Vec<_> = status.holders.iter().map(|entry| (entry.token, entry.broken.clone())).collect();
    assert_eq!(shown, [(Some(token), None)]);
    let (inspect, name) = (trial.inspect(), lock_name("n"));
    let order = BreakOrder::new(BreakNotice::default(), [Some(token)]).force();
    let broken = trial.on_io(async move { inspect.break_lock(&name, &order).await }).await;
    assert_eq!(broken.len(), 1);
    soon("the next grant", freed(&raw, "it was broken by force", SOON)).await;
    raw.release(&holder).await;
    trial.assert_empty(&["n"], "at the end").await;
    Ok(())
}
