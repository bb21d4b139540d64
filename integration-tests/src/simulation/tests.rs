//! The simulation itself: a seed reproduces its run, the sound store breaks no promise, and each planted bug is found.

use std::time::Duration;

use clap::ValueEnum;
use polylock_core::{Clock, SystemClock};

use super::{
    plan::{Plan, Planted, StoreKind},
    timeline, world,
};

/// The stores.
const STORES: &[StoreKind] = &[StoreKind::Queue, StoreKind::Redis, StoreKind::Redlock];

#[test]
fn a_seed_reproduces_its_run() {
    for (store, seed) in STORES.iter().flat_map(|store| (0..6).map(move |seed| (*store, seed))) {
        let plan = Plan::draw(store, seed, None);
        let [first, second] = [0, 1].map(|_| world::run(&plan, true).unwrap());
        let [a, b] = [&first, &second].map(|outcome| outcome.timeline.iter().map(ToString::to_string));
        for (a, b) in a.zip(b) {
            assert_eq!(a, b, "{store:?}, seed {seed}");
        }
        assert_eq!(
            timeline::hash(&first.timeline),
            timeline::hash(&second.timeline),
            "{store:?}, seed {seed}"
        );
    }
}

/// Runs random seeds for a few seconds.
fn is_sound(store: StoreKind) {
    let (end, mut sections) = (SystemClock.now() + Duration::from_secs(5), 0);
    for seed in fastrand::u64(..).. {
        let outcome = world::run(&Plan::draw(store, seed, None), false).unwrap();
        assert!(outcome.violations.is_empty(), "{store:?}, seed {seed}: {:#?}", outcome.violations);
        sections += outcome.sections;
        if SystemClock.now() >= end {
            break;
        }
    }
    assert!(sections > 10, "{sections}");
}

#[test]
fn the_queue_breaks_no_promise() {
    is_sound(StoreKind::Queue);
}

#[test]
fn redis_breaks_no_promise() {
    is_sound(StoreKind::Redis);
}

#[test]
fn redlock_breaks_no_promise() {
    is_sound(StoreKind::Redlock);
}

/// The seeds that have found bugs in core: a try that was taken over and then refused was not released.
const FOUND: [(StoreKind, u64); 3] = [
    (StoreKind::Queue, 5_873_016_522_577_097_298),
    (StoreKind::Queue, 1_464_415_035_459_990_552),
    (StoreKind::Queue, 7_738_382_392_082_299_258),
];

#[test]
fn the_seeds_that_have_found_bugs_are_sound() {
    for (store, seed) in FOUND {
        let outcome = world::run(&Plan::draw(store, seed, None), false).unwrap();
        assert!(outcome.violations.is_empty(), "{store:?}, seed {seed}: {:#?}", outcome.violations);
    }
}

/// The longest search for a planted bug.
const LONGEST: Duration = Duration::from_secs(60);

/// Searches from a random seed until a run with the planted bug fails.
fn find(planted: Planted) {
    let began = SystemClock.now();
    let first = fastrand::u64(..u64::MAX / 2);
    for seed in first.. {
        let took = SystemClock.now().since(began);
        assert!(took < LONGEST, "{planted:?} was not found in {} runs from seed {first}", seed - first);
        let outcome = world::run(&Plan::draw(planted.store(), seed, Some(planted)), false).unwrap();
        if let Some(violation) = outcome.violations.first() {
            let took = SystemClock.now().since(began);
            println!("{planted:?}: seed {seed}, {} runs, {took:.1?}: {violation}", seed - first + 1);
            return;
        }
    }
}

/// Each planted bug has a test of its name.
macro_rules! find {
    ($($name:ident: $planted:ident,)+) => {
        $(#[test] fn $name() { find(Planted::$planted); })+

        #[test]
        fn every_planted_bug_has_a_test() {
            assert_eq!(Planted::value_variants(), [$(Planted::$planted),+]);
        }
    };
}

find! {
    finds_late_claims: LateClaim,
    finds_releases_of_other_requests: ForeignRelease,
    finds_deadlines_from_the_reply: ReplyDeadline,
    finds_waiters_without_recheck: NoRecheck,
    finds_tokens_drawn_before_the_claim: EarlyToken,
    finds_revived_holds: RevivedHold,
    finds_lost_state: LostState,
    finds_early_handovers: EarlyHandover,
    finds_unreported_copies: UnreportedCopy,
    finds_late_claims_of_redis: RedisLateClaim,
    finds_unchecked_claims_of_redis: RedisUncheckedClaim,
    finds_unchecked_handovers_of_redis: RedisUncheckedHandover,
    finds_releases_of_other_requests_of_redis: RedisForeignRelease,
    finds_claims_of_redis_that_grant_nothing_to_waiters: RedisNoFallback,
    finds_false_renewals_of_redis: RedisFalseRenewal,
    finds_early_tokens_of_redis: RedisEarlyToken,
    finds_lost_state_of_redis: RedisLostState,
    finds_withdrawals_of_live_votes: RedlockLiveVote,
    finds_servers_that_vote_without_delay: RedlockNoDelay,
    finds_unmarked_votes: RedlockUnmarkedVote,
    finds_late_proposals: RedlockLateProposal,
    finds_withdrawals_of_other_requests: RedlockForeignRelease,
    finds_second_votes: RedlockSecondVote,
    finds_false_acknowledgements: RedlockFalseAcknowledgement,
}
