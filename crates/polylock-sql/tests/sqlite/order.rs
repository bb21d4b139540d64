//! First come, first served: the store's replies are those of core's pure rule.

use std::time::Duration;

use polylock_core::{
    ClaimOutcome, Clock, FencingToken, Mode, Release, Request, Store, SystemClock, invariant,
    queue::{QueueEntry, blockers},
};
use proptest::prelude::*;

use crate::common::{TestFile, held, queued, request, request_with_ttl};

/// A request and its state under the rule.
struct Entry {
    request: Request,
    queue_entry: QueueEntry,
    /// The token, once a claim has returned it: a release may have handed the lock over before.
    token: Option<FencingToken>,
}

/// Runs one random history on a lock: `Some(mode)` adds a request, `None` picks a request that claims again or leaves.
async fn history(stores: &[Store], steps: &[(Option<Mode>, prop::sample::Index, bool)]) {
    let mut entries: Vec<Entry> = Vec::new();
    // The modes and tokens of former holders.
    let mut former: Vec<(Mode, FencingToken)> = Vec::new();
    for (round, (newcomer, index, releases)) in steps.iter().enumerate() {
        let store = &stores[round % stores.len()];
        let at = match newcomer {
            Some(mode) => {
                let queue_entry = QueueEntry { seq: round as u64 + 1, mode: *mode, held: false };
                entries.push(Entry { request: request("n", *mode), queue_entry, token: None });
                entries.len() - 1
            }
            None if entries.is_empty() => continue,
            None => index.index(entries.len()),
        };
        if newcomer.is_none() && *releases {
            let Entry { request, token, .. } = entries.remove(at);
            assert_eq!(store.backend.release(&request).await.unwrap(), Release::Released);
            former.extend(token.map(|token| (request.mode, token)));
            continue;
        }
        let all: Vec<QueueEntry> = entries.iter().map(|entry| entry.queue_entry).collect();
        let own = all[at];
        let ahead = blockers(&all, own.seq, own.mode).count();
        match store.backend.claim(&entries[at].request).await.unwrap() {
            ClaimOutcome::Granted(grant) => {
                assert!(own.held || ahead == 0, "{own:?} overtook one of {all:?}");
                for (mode, token) in former.iter().filter(|(mode, _)| mode.conflicts_with(own.mode)) {
                    assert!(grant.token > *token, "{grant:?} after {token:?} of {mode:?}");
                }
                assert!(entries[at].token.replace(grant.token).is_none_or(|token| token == grant.token));
                entries[at].queue_entry.held = true;
            }
            ClaimOutcome::Queued(position) => {
                assert!(!own.held, "{own:?} lost its hold among {all:?}");
                assert_eq!(position.ahead, Some(u32::try_from(ahead).unwrap()), "{own:?} among {all:?}");
                assert_ne!(ahead, 0, "{own:?} is kept from a free lock by {all:?}");
            }
        }
        assert!(invariant::holders_are_compatible(
            entries.iter().filter(|entry| entry.queue_entry.held).map(|entry| entry.queue_entry.mode)
        ));
    }
    for entry in &entries {
        stores[0].backend.release(&entry.request).await.unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any arrivals, claims and departures in all six modes, over two connections to one file, get the replies of core's rule.
    #[test]
    fn grants_follow_the_queue_rule(
        steps in prop::collection::vec(
            (prop::option::of(prop::sample::select(&Mode::ALL[..])), any::<prop::sample::Index>(), any::<bool>()),
            1..40),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let file = TestFile::new();
            history(&[file.store().await, file.store().await], &steps).await;
            assert_eq!(file.rows().await, 0);
        });
    }
}

#[tokio::test]
async fn a_dead_waiter_is_skipped_when_its_queue_lease_expires() {
    let file = TestFile::new();
    let store = file.store().await;
    let (a, b) =
        (request("n", Mode::Exclusive), request_with_ttl("n", Mode::Exclusive, Duration::from_secs(2)));
    let c = request("n", Mode::Exclusive);
    held(&store, &a).await;
    queued(&store, &b).await;
    let position = queued(&store, &c).await;
    assert!(position.recheck_after <= b.queue_lease(), "{position:?}");
    store.backend.release(&a).await.unwrap();
    assert_eq!(queued(&store, &c).await.ahead, Some(1));
    SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(2005)).await;
    held(&store, &c).await;
}

#[tokio::test]
async fn an_expired_queue_entry_is_replaced_at_the_end_of_the_queue() {
    let file = TestFile::new();
    let store = file.store().await;
    let (a, expired) =
        (request("n", Mode::Exclusive), request_with_ttl("n", Mode::Exclusive, Duration::from_millis(100)));
    let c = request("n", Mode::Exclusive);
    held(&store, &a).await;
    queued(&store, &expired).await;
    queued(&store, &c).await;
    SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(105)).await;
    assert_eq!(queued(&store, &expired).await.ahead, Some(2));
    assert_eq!(queued(&store, &c).await.ahead, Some(1));
}

#[tokio::test]
async fn repeated_claims_keep_the_queue_entry_with_few_writes() {
    let file = TestFile::new();
    let store = file.store().await;
    let (a, b) =
        (request("n", Mode::Exclusive), request_with_ttl("n", Mode::Exclusive, Duration::from_millis(600)));
    held(&store, &a).await;
    queued(&store, &b).await;
    let mut raw = file.raw().await;
    let mut expiries = Vec::new();
    let start = SystemClock.now();
    while expiries.len() < 4 {
        assert!(SystemClock.now() < start + Duration::from_secs(30), "not refreshed: {expiries:?}");
        assert_eq!(queued(&store, &b).await.ahead, Some(1));
        let expires: i64 =
            sqlx::query_scalar("SELECT expires_at FROM polylock_waiters").fetch_one(&mut raw).await.unwrap();
        expiries.push(expires);
        expiries.dedup();
        SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(10)).await;
    }
    // In microseconds: at least half of the lease passes between two refreshes.
    assert!(expiries.windows(2).all(|pair| pair[1] - pair[0] >= 299_000), "{expiries:?}");
}

/// The holder and the waiter leave at the same time, in different processes. No entry is left, in any interleaving of their steps.
#[tokio::test]
async fn a_waiter_withdrawn_while_it_is_granted_the_lock_keeps_no_row() {
    let file = TestFile::new();
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
