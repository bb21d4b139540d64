//! First come, first served: held to the same answers as the pure rule of core.

use std::time::Duration;

use polylock_core::{
    Clock, FencingToken, Mode, Release, Request, Standing, Store, SystemClock, invariant,
    queue::{Standpoint, blockers},
};
use proptest::prelude::*;

use crate::common::{File, held, lasting, queued, request};

/// A request and where the rule has it.
struct Entry {
    request: Request,
    standpoint: Standpoint,
    /// Once a claim has returned it: a release may have handed the lock over before.
    token: Option<FencingToken>,
}

/// One random history on a lock: `Some(mode)` is a newcomer, `None` picks someone who claims again or leaves.
async fn history(stores: &[Store], steps: &[(Option<Mode>, prop::sample::Index, bool)]) {
    let mut entries: Vec<Entry> = Vec::new();
    // The modes and tokens of former holders.
    let mut former: Vec<(Mode, FencingToken)> = Vec::new();
    for (round, (newcomer, which, leaves)) in steps.iter().enumerate() {
        let store = &stores[round % stores.len()];
        let at = match newcomer {
            Some(mode) => {
                let standpoint = Standpoint { seq: round as u64 + 1, mode: *mode, held: false };
                entries.push(Entry { request: request("n", *mode), standpoint, token: None });
                entries.len() - 1
            }
            None if entries.is_empty() => continue,
            None => which.index(entries.len()),
        };
        if newcomer.is_none() && *leaves {
            let Entry { request, token, .. } = entries.remove(at);
            assert_eq!(store.backend.release(&request).await.unwrap(), Release::Released);
            former.extend(token.map(|token| (request.mode, token)));
            continue;
        }
        let all: Vec<Standpoint> = entries.iter().map(|entry| entry.standpoint).collect();
        let me = all[at];
        let ahead = blockers(&all, me.seq, me.mode).count();
        match store.backend.claim(&entries[at].request).await.unwrap() {
            Standing::Held(grant) => {
                assert!(me.held || ahead == 0, "{me:?} overtook one of {all:?}");
                for (mode, token) in former.iter().filter(|(mode, _)| mode.conflicts_with(me.mode)) {
                    assert!(grant.token > *token, "{grant:?} after {token:?} of {mode:?}");
                }
                assert!(entries[at].token.replace(grant.token).is_none_or(|token| token == grant.token));
                entries[at].standpoint.held = true;
            }
            Standing::Queued(place) => {
                assert!(!me.held, "{me:?} lost its hold among {all:?}");
                assert_eq!(place.ahead, Some(u32::try_from(ahead).unwrap()), "{me:?} among {all:?}");
                assert_ne!(ahead, 0, "{me:?} is kept from a free lock by {all:?}");
            }
        }
        assert!(invariant::holders_are_compatible(
            entries.iter().filter(|entry| entry.standpoint.held).map(|entry| entry.standpoint.mode)
        ));
    }
    for entry in &entries {
        stores[0].backend.release(&entry.request).await.unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any arrivals, claims and departures in all six modes, over two connections to one file, are answered as the
    /// rule of core answers them.
    #[test]
    fn grants_are_those_of_the_rule(
        steps in prop::collection::vec(
            (prop::option::of(prop::sample::select(&Mode::ALL[..])), any::<prop::sample::Index>(), any::<bool>()),
            1..40),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let file = File::new();
            history(&[file.store().await, file.store().await], &steps).await;
            assert_eq!(file.rows().await, 0);
        });
    }
}

#[tokio::test]
async fn a_dead_waiter_is_passed_over_within_its_own_short_lease() {
    let file = File::new();
    let store = file.store().await;
    let (a, b) = (request("n", Mode::Exclusive), lasting("n", Mode::Exclusive, Duration::from_millis(200)));
    let c = request("n", Mode::Exclusive);
    held(&store, &a).await;
    queued(&store, &b).await;
    let place = queued(&store, &c).await;
    assert!(place.recheck_after <= b.place_ttl(), "{place:?}");
    store.backend.release(&a).await.unwrap();
    assert_eq!(queued(&store, &c).await.ahead, Some(1));
    SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(205)).await;
    held(&store, &c).await;
}

#[tokio::test]
async fn a_place_that_has_run_out_is_taken_anew_at_the_end() {
    let file = File::new();
    let store = file.store().await;
    let (a, late) =
        (request("n", Mode::Exclusive), lasting("n", Mode::Exclusive, Duration::from_millis(100)));
    let c = request("n", Mode::Exclusive);
    held(&store, &a).await;
    queued(&store, &late).await;
    queued(&store, &c).await;
    SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(105)).await;
    assert_eq!(queued(&store, &late).await.ahead, Some(2));
    assert_eq!(queued(&store, &c).await.ahead, Some(1));
}

#[tokio::test]
async fn a_waiter_that_goes_on_claiming_keeps_its_place_without_writing_each_time() {
    let file = File::new();
    let store = file.store().await;
    let (a, b) = (request("n", Mode::Exclusive), lasting("n", Mode::Exclusive, Duration::from_millis(600)));
    held(&store, &a).await;
    queued(&store, &b).await;
    let mut raw = file.raw().await;
    let mut expiries = Vec::new();
    let start = SystemClock.now();
    while SystemClock.now() < start + Duration::from_millis(900) {
        assert_eq!(queued(&store, &b).await.ahead, Some(1));
        let expires: i64 =
            sqlx::query_scalar("SELECT expires_at FROM polylock_waiters").fetch_one(&mut raw).await.unwrap();
        expiries.push(expires);
        SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(10)).await;
    }
    let claims = expiries.len();
    expiries.dedup();
    assert!((3..=5).contains(&expiries.len()), "{} refreshes in {claims} claims", expiries.len());
}

/// The holder and the waiter leave at the same time, in different processes. Whichever step of the one comes between two steps of the
/// other, nothing is left behind.
#[tokio::test]
async fn a_waiter_that_leaves_while_it_is_granted_the_lock_keeps_nothing() {
    let file = File::new();
    let (one, two) = (file.store().await, file.store().await);
    for _ in 0..150 {
        let (a, b) = (request("n", Mode::Exclusive), request("n", Mode::Exclusive));
        held(&one, &a).await;
        queued(&two, &b).await;
        let (released, withdrawn) = tokio::join!(one.backend.release(&a), two.backend.release(&b));
        assert_eq!((released.unwrap(), withdrawn.unwrap()), (Release::Released, Release::Released));
        assert_eq!(file.rows().await, 0);
    }
}
