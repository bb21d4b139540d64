//! A check that was never seen failing is no check: every bug planted here must make its cases fail.
//!
//! What only the engine can get wrong (counting a deadline from the reply, for instance) can't be planted in a store;
//! CONTRIBUTING lists those mutations with the cases that catch them.
#![allow(missing_docs, missing_debug_implementations, unreachable_pub, reason = "no public crate")]
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "planted/bugs.rs"]
mod bugs;

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use bugs::{Broken, Bug, State};
use polylock_core::{Capabilities, Result, Store, memory};
use polylock_testkit::{CASES, Failure, Maker, Missing, OwnServer, Target, Verdict, check};

struct Planted {
    name: String,
    bug: Bug,
    state: Arc<Mutex<State>>,
}

impl Planted {
    fn new(bug: Bug) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("planted {}", NEXT.fetch_add(1, Ordering::Relaxed));
        Self { name, bug, state: Arc::default() }
    }
}

#[async_trait::async_trait]
impl Target for Planted {
    async fn connect(&self) -> Result<Store> {
        Ok(Broken::connect(memory::named(&self.name), self.bug, self.state.clone()))
    }

    async fn empty(&self) -> Result<bool> {
        let (store, holders) = (memory::named(&self.name), self.state.lock().unwrap().holders());
        for holder in holders {
            store.backend.release(&holder).await?;
        }
        Ok(true)
    }

    async fn on_own_server(&self) -> Result<Option<Arc<dyn OwnServer>>> {
        Ok(Some(Arc::new(Self::new(self.bug))))
    }

    fn short_ttl(&self, _: &Capabilities) -> Duration {
        Duration::from_millis(200)
    }

    fn time_limit(&self) -> Duration {
        Duration::from_secs(45)
    }
}

#[async_trait::async_trait]
impl OwnServer for Planted {
    /// Memory has no server, and keeps what it has.
    async fn restart(&self) {}
}

fn verdict(bug: Bug, case: &str) -> Result<Verdict, Failure> {
    // As short as the sound twin below bears it.
    polylock_testkit::__set_patience(Duration::from_secs(6));
    check(case, &Maker::new(move || async move { Planted::new(bug) }))
}

/// Runs `cases` at the same time, as they mostly wait; those that `bug` does not make fail.
fn undetected(bug: Bug, cases: &[&'static str]) -> Vec<String> {
    let runs: Vec<_> = cases
        .iter()
        .map(|case| {
            (
                case,
                thread::spawn({
                    let case = *case;
                    move || verdict(bug, case)
                }),
            )
        })
        .collect();
    let mut undetected = Vec::new();
    for (case, run) in runs {
        match run.join().unwrap() {
            Err(failure) => println!("{bug:?}: {failure}"),
            Ok(verdict) => undetected.push(format!("{case}: {verdict:?}")),
        }
    }
    undetected
}

macro_rules! planted {
    ($($test:ident: $bug:ident => $($case:literal)+;)*) => {
        $(#[test]
        fn $test() {
            assert_eq!(undetected(Bug::$bug, &[$($case),+]), [] as [&str; 0]);
        })*

        /// All cases that are seen failing here.
        const DETECTING: &[&str] = &[$($($case),+),*];
    };
}

planted! {
    grants_everybody: GrantsEverybody =>
        "exclusion::one_holder_at_a_time" "exclusion::tasks_lose_no_update" "modes::every_pair"
        "modes::readers_hold_together" "reentrancy::other_owners_are_excluded" "faults::overtaking_exclusion"
        "faults::flaky_exclusion" "faults::slow_exclusion" "renew::a_blocked_executor_does_not_starve_renewals"
        "lost::a_late_grant_is_no_hold" "drop::after_its_runtime_has_gone" "cancel::with_the_wait_under_way"
        "cancel::at_every_poll_of_a_timed_acquire" "wait::a_time_out_is_precise"
        "idempotence::a_renewal_never_grants_to_a_waiter" "reentrancy::is_counted" "leaks::nothing_after_time_outs";
    folds_names: FoldsNames =>
        "names::odd_names_are_locks_of_their_own" "names::odd_names_are_shown_byte_for_byte"
        "names::a_prefix_is_no_pattern";
    one_lock_for_all: OneLockForAll =>
        "exclusion::names_do_not_exclude_each_other" "names::odd_names_are_locks_of_their_own";
    cuts_names: CutsNames => "names::odd_names_are_locks_of_their_own";
    constant_token: ConstantToken =>
        "fencing::grows_over_releases" "fencing::grows_over_reconnects" "fencing::grows_over_expiry"
        "fencing::grows_over_a_break" "fencing::holders_together_have_tokens_of_their_own"
        "exclusion::tasks_lose_no_update" "recovery::after_the_store_was_emptied"
        "recovery::after_a_restart_of_the_server";
    no_queue: NoQueue =>
        "order::first_come_first_served" "order::a_newcomer_does_not_overtake_a_waiter"
        "order::readers_do_not_starve_a_writer" "modes::every_triple_keeps_the_queue_rule"
        "idempotence::a_claim_repeated_keeps_its_place" "inspect::shows_who_waits_in_order" "faults::slow_order"
        "order::a_dead_waiter_is_passed_over" "order::time_outs_cost_nobody_behind_them";
    forgets_places: ForgetsPlaces => "idempotence::a_claim_repeated_keeps_its_place";
    grants_anew: GrantsAnew =>
        "idempotence::a_claim_repeated_finds_its_own_grant"
        "idempotence::a_claim_repeated_elsewhere_finds_the_same_grant"
        "idempotence::a_release_of_anothers_changes_nothing";
    claims_pile_up: ClaimsPileUp =>
        "wait::a_short_outage_is_borne" "wait::a_long_outage_ends_the_wait" "faults::flaky_waits"
        "faults::flaky_leaks" "faults::flaky_cancel" "wait::who_timed_out_wakes_those_behind";
    never_wakes: NeverWakes => "wait::a_push_is_quicker_than_the_recheck";
    forgets_releases: ForgetsReleases =>
        "exclusion::one_holder_at_a_time" "wait::a_release_wakes_the_next" "leaks::nothing_after_losses"
        "leaks::nothing_after_cycles_over_distinct_names" "cancel::at_every_poll_of_a_free_acquire"
        "cancel::at_every_poll_of_a_try" "cancel::at_every_poll_of_a_release" "cancel::at_every_poll_of_a_run"
        "cancel::with_the_claim_on_its_way" "cancel::with_the_release_on_its_way" "cancel::at_many_instants"
        "drop::inside_a_runtime" "drop::outside_of_any_runtime" "drop::in_a_panic"
        "drop::after_its_runtime_has_gone" "drop::as_the_last_act_of_a_current_thread_runtime"
        "drop::as_the_last_act_of_a_multi_thread_runtime" "idempotence::a_release_repeated_succeeds"
        "lost::a_hung_renewal" "lost::a_frozen_store" "lost::run_drops_the_work" "lost::a_suspended_machine"
        "faults::overtaking_drops" "faults::slow_drops" "faults::overtaking_cancel" "faults::slow_cancel"
        "reentrancy::is_counted" "reentrancy::a_weaker_mode_enters" "reentrancy::a_stronger_mode_is_refused"
        "reentrancy::one_owner_enters_from_two_tasks_at_once" "lost::a_panicking_renewal"
        "lost::a_failing_renewal_is_not_lost_before_the_deadline" "lost::a_transient_error_is_not_lost"
        "lost::run_polls_nothing_after_the_deadline" "ttl::the_longest_times_do_not_overflow"
        "wait::a_fault_for_good_ends_the_wait" "exclusion::tries_alone_make_progress"
        "leaks::nothing_after_a_thousand_locks";
    keeps_waiters: KeepsWaiters =>
        "wait::a_grant_at_the_instant_of_the_time_out_is_not_lost"
        "wait::a_timed_out_request_has_left_the_queue"
        "wait::who_timed_out_leaves_nothing" "wait::who_timed_out_wakes_those_behind"
        "leaks::nothing_after_cancelled_waits" "leaks::nothing_after_time_outs"
        "cancel::at_every_poll_of_a_waiting_acquire" "cancel::with_the_wait_under_way"
        "idempotence::a_release_withdraws_a_waiter" "faults::overtaking_waits" "cancel::at_many_instants";
    releases_anybody: ReleasesAnybody =>
        "idempotence::a_release_of_anothers_changes_nothing" "idempotence::a_release_repeated_succeeds"
        "lost::gone_from_the_store" "cancel::at_every_poll_of_a_timed_acquire";
    renewal_creates: RenewalCreates =>
        "idempotence::a_renewal_never_creates" "idempotence::a_renewal_never_revives" "breaking::waits_for_the_holder";
    renewal_says_yes: RenewalSaysYes =>
        "idempotence::a_renewal_extends_the_lease" "idempotence::a_renewal_elsewhere_extends_the_lease"
        "idempotence::a_renewal_never_grants_to_a_waiter"
        "renew::a_short_lease_is_kept_for_many_ttls" "renew::a_blocked_executor_does_not_starve_renewals"
        "lost::a_release_never_fires_it" "idempotence::a_renewal_never_creates"
        "recovery::after_the_store_was_emptied";
    tries_queue: TriesQueue =>
        "wait::zero_tries_once" "idempotence::a_claim_that_does_not_queue_leaves_nothing";
    never_expires: NeverExpires =>
        "ttl::an_abandoned_hold_expires_in_its_time" "fencing::grows_over_expiry" "inspect::shows_live_entries_only"
        "order::a_dead_reader_is_passed_over_while_others_come_and_go" "order::a_waiter_that_was_stopped_comes_back"
        "inspect::shows_no_more_than_the_lease"
        "lost::before_another_is_granted" "lost::a_late_grant_is_no_hold" "order::a_dead_waiter_is_passed_over";
    expires_early: ExpiresEarly =>
        "ttl::an_abandoned_hold_expires_in_its_time" "lost::before_another_is_granted";
    exaggerates_leases: ExaggeratesLeases =>
        "renew::the_deadline_counts_from_the_sending" "lost::before_another_is_granted";
    grants_half: GrantsHalf => "ttl::an_abandoned_hold_expires_in_its_time" "ttl::is_what_a_guard_gets";
    every_mode_exclusive: EveryModeExclusive =>
        "modes::every_pair" "modes::readers_hold_together" "modes::every_triple_keeps_the_queue_rule"
        "fencing::holders_together_have_tokens_of_their_own";
    shared_is_weak: SharedIsWeak => "modes::every_pair" "modes::every_triple_keeps_the_queue_rule";
    forgets_labels: ForgetsLabels => "inspect::shows_who_holds";
    shows_waiters_reversed: ShowsWaitersReversed =>
        "inspect::shows_who_waits_in_order" "inspect::shows_a_shrinking_queue_in_order";
    prefix_folds: PrefixFolds => "names::a_prefix_is_no_pattern";
    shuffles_outcomes: ShufflesOutcomes => "keep_alive::answers_for_each_request_of_a_batch";
    takes_half_a_batch: TakesHalfABatch => "keep_alive::extends_a_full_batch";
    forgets_to_keep_waiters: ForgetsToKeepWaiters => "keep_alive::keeps_a_waiter_in_its_place";
    blocks: Blocks => "blocking::no_operation_blocks_its_thread";
    release_says_yes: ReleaseSaysYes =>
        "release::reports_whether_there_was_an_entry" "release::of_a_waiter_reports_it_too"
        "release::of_a_superseded_hold_is_an_error" "breaking::by_force_is_reported_by_the_release";
    break_does_nothing: BreakDoesNothing =>
        "breaking::by_force_serves_the_next_at_once" "breaking::stops_a_run_before_the_next_grant"
        "fencing::grows_over_a_break";
    break_is_forced: BreakIsForced => "breaking::waits_for_the_holder" "breaking::stops_a_run_before_the_next_grant";
    forgets_notices: ForgetsNotices => "breaking::waits_for_the_holder" "breaking::by_force_serves_the_next_at_once";
    keeps_the_last_notice: KeepsTheLastNotice => "breaking::keeps_the_first_notice";
    renews_broken: RenewsBroken => "breaking::ends_with_the_lease";
    never_alerts: NeverAlerts => "breaking::reaches_the_holder_at_once";
    breaks_all: BreaksAll => "breaking::of_a_free_lock_changes_nothing";
    shows_ids: ShowsIds => "secrets::appear_in_nothing_public";
    traces_ids: TracesIds => "secrets::appear_in_no_trace";
    empty_ttl_range: EmptyTtlRange => "ttl::out_of_range_is_refused_before_any_io";
}

/// Cases that look at the engine alone, which no store can break: mutations of core are their twins.
const ENGINE_ONLY: &[&str] = &[
    "renew::is_told_though_it_came_before_the_first_poll",
    "renew::nothing_is_renewed_after_a_release",
    "names::bad_names_are_refused_before_any_io",
    "release::with_its_first_reply_lost_succeeds",
    "reentrancy::a_try_never_waits",
    "wait::an_acquire_that_is_not_polled_is_passed_on",
    "lost::run_returns_when_the_work_is_done",
];

#[test]
fn every_case_has_been_seen_failing() {
    let seen: BTreeSet<&str> = DETECTING.iter().chain(ENGINE_ONLY).copied().collect();
    let all: BTreeSet<&str> = CASES.iter().copied().collect();
    assert_eq!(all.difference(&seen).collect::<Vec<_>>(), [] as [&&str; 0]);
    assert_eq!(seen.difference(&all).collect::<Vec<_>>(), [] as [&&str; 0]);
}

#[test]
fn without_a_bug_the_wrapper_changes_nothing() {
    for cases in CASES.chunks(8) {
        let runs =
            cases.iter().map(|case| (case, thread::spawn(|| verdict(Bug::None, case)))).collect::<Vec<_>>();
        for (case, run) in runs {
            assert_eq!(run.join().unwrap(), Ok(Verdict::Passed), "{case}");
        }
    }
}

#[test]
fn an_unknown_case_is_a_failure() {
    assert!(verdict(Bug::None, "no::such_case").is_err());
}

struct Hangs;

#[async_trait::async_trait]
impl Target for Hangs {
    async fn connect(&self) -> Result<Store> {
        std::future::pending().await
    }

    fn time_limit(&self) -> Duration {
        Duration::from_millis(200)
    }
}

#[test]
fn a_hang_is_a_failure_that_tells_the_case() {
    let failure = check("wait::zero_tries_once", &Maker::new(|| async { Hangs })).unwrap_err();
    assert!(failure.to_string().starts_with("wait::zero_tries_once: hangs"), "{failure}");
}

#[test]
fn a_target_that_is_not_there_is_missing_and_not_passed() {
    let maker = Maker::new(|| async { Err::<Hangs, Missing>(Missing("no server".to_owned())) });
    assert_eq!(check("wait::zero_tries_once", &maker), Ok(Verdict::Missing("no server".to_owned())));
}

/// A store that declares less.
struct Modest;

#[async_trait::async_trait]
impl Target for Modest {
    async fn connect(&self) -> Result<Store> {
        let store = Broken::connect(memory::named("modest"), Bug::Modest, Arc::default());
        Ok(Store::new(store.backend))
    }
}

#[test]
fn what_a_store_does_not_promise_is_unsupported_and_not_passed() {
    for case in [
        "order::first_come_first_served",
        "modes::every_pair",
        "fencing::grows_over_releases",
        "inspect::shows_who_holds",
        "leaks::nothing_after_time_outs",
        "idempotence::a_claim_repeated_elsewhere_finds_the_same_grant",
        "wait::a_push_is_quicker_than_the_recheck",
    ] {
        let verdict = check(case, &Maker::new(|| async { Modest }));
        assert!(matches!(verdict, Ok(Verdict::Unsupported(_))), "{case}: {verdict:?}");
    }
    // What it promises is looked at all the same.
    for case in ["exclusion::one_holder_at_a_time", "wait::a_release_wakes_the_next"] {
        assert_eq!(check(case, &Maker::new(|| async { Modest })), Ok(Verdict::Passed), "{case}");
    }
}
