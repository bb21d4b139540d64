//! Mutation tests of the suite: every bug planted here must make its cases fail.
//!
//! Bugs of the engine alone (a deadline that counts from the reply, for instance) can't be planted in a store; CONTRIBUTING lists those
//! mutations with the cases that detect them.
#![allow(missing_docs, missing_debug_implementations, unreachable_pub, reason = "not a public crate")]
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "planted/bug.rs"]
mod bug;
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

use bug::Bug;
use bugs::{Broken, State};
use polylock_core::{Capabilities, Result, Store, memory};
use polylock_testkit::{CASES, Failure, Missing, OwnServer, Target, TargetFactory, Verdict, check};

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
    /// The in-memory store has no server, and keeps its data.
    async fn restart(&self) {}
}

fn verdict(bug: Bug, case: &str) -> Result<Verdict, Failure> {
    // The shortest timeout that the sound twin below tolerates.
    polylock_testkit::__set_timeout(Duration::from_secs(8));
    check(case, &TargetFactory::new(move || async move { Planted::new(bug) }))
}

/// The runs of a case on a bug that shows only under some schedules.
const RUNS: usize = 3;

/// Runs `cases` in parallel, since most of them wait, and returns the cases that do not detect `bug`.
fn undetected(bug: Bug, cases: &[&'static str]) -> Vec<String> {
    let runs: Vec<_> = cases
        .iter()
        .map(|case| {
            (
                case,
                thread::spawn({
                    let case = *case;
                    move || {
                        let is_detected = |verdict: &Result<Verdict, Failure>| verdict.is_err();
                        let mut verdicts = (1..RUNS).map(|_| verdict(bug, case));
                        verdicts.find(is_detected).unwrap_or_else(|| verdict(bug, case))
                    }
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

        /// All cases with a test here that makes them fail.
        const DETECTING: &[&str] = &[$($($case),+),*];
    };
}

planted! {
    grants_every_request: GrantsEveryRequest =>
        "exclusion::one_holder_at_a_time" "exclusion::tasks_lose_no_update" "threads::exclude_each_other" "modes::every_pair"
        "modes::readers_share_the_lock" "reentrancy::other_owners_are_excluded" "faults::overtaking_exclusion"
        "faults::flaky_exclusion" "faults::slow_exclusion" "renew::a_blocked_executor_does_not_starve_renewals"
        "lost::a_late_grant_is_discarded" "drop::after_its_runtime_was_dropped" "cancel::with_a_wait_in_flight"
        "cancel::at_every_poll_of_a_timed_acquire" "wait::a_timeout_is_precise"
        "semaphore::one_slot_excludes_other_holders" "semaphore::one_free_slot_of_five_excludes_other_holders"
        "semaphore::admits_as_many_holders_as_slots" "semaphore::a_try_takes_any_free_slot"
        "semaphore::a_wait_that_times_out_leaves_no_entry" "semaphore::another_number_of_slots_is_an_error"
        "many::tasks_lose_no_update" "many::overlapping_sets_exclude_each_other" "many::a_busy_lock_leaves_no_entry"
        "tree::nodes_exclude_their_ancestors_and_descendants" "tree::a_lock_of_the_root_excludes_the_tree"
        "tree::tasks_lose_no_update"
        "idempotence::a_renewal_never_grants_to_a_waiter" "reentrancy::guards_are_counted" "leaks::nothing_after_timeouts"
        "election::one_leader_at_a_time";
    folds_names: FoldsNames =>
        "names::similar_names_are_different_locks" "names::inspection_returns_names_byte_for_byte"
        "names::a_prefix_is_not_a_pattern";
    one_lock_for_all: OneLockForAll =>
        "semaphore::is_independent_of_the_lock_with_its_name"
        "exclusion::names_do_not_exclude_each_other" "names::similar_names_are_different_locks";
    truncates_names: TruncatesNames => "names::similar_names_are_different_locks";
    constant_token: ConstantToken =>
        "fencing::tokens_grow_across_releases" "fencing::tokens_grow_across_reconnects" "fencing::tokens_grow_across_an_expiry"
        "fencing::tokens_grow_across_a_break" "fencing::concurrent_holders_have_different_tokens"
        "exclusion::tasks_lose_no_update" "recovery::after_the_store_was_emptied"
        "recovery::after_a_server_restart";
    never_raises: NeverRaises => "fencing::tokens_continue_after_a_raise";
    no_queue: NoQueue =>
        "deadlocks::of_two_owners_refuse_the_youngest_request" "deadlocks::of_three_owners_are_found"
        "order::first_come_first_served" "order::a_newcomer_does_not_overtake_a_waiter"
        "order::readers_do_not_starve_a_writer" "modes::every_triple_follows_the_queue_rule"
        "idempotence::a_repeated_claim_keeps_its_queue_position" "inspect::shows_the_waiters_in_order" "faults::slow_order"
        "order::a_dead_waiter_is_skipped" "order::timeouts_do_not_delay_later_waiters";
    forgets_positions: ForgetsPositions => "idempotence::a_repeated_claim_keeps_its_queue_position";
    grants_again: GrantsAgain =>
        "idempotence::a_repeated_claim_returns_its_grant"
        "idempotence::a_repeated_claim_on_another_connection_returns_its_grant"
        "idempotence::a_release_by_another_request_changes_nothing";
    duplicates_claims: DuplicatesClaims =>
        "wait::a_short_outage_is_retried" "wait::a_long_outage_ends_the_wait" "faults::flaky_waits"
        "faults::flaky_leaks" "faults::flaky_cancel";
    omits_numbers: OmitsNumbers => "order::an_expired_queue_entry_does_not_block_the_next_waiter";
    never_notifies: NeverNotifies =>
        "wait::a_push_is_faster_than_the_recheck" "conversion::a_downgrade_is_faster_than_the_recheck";
    forgets_releases: ForgetsReleases =>
        "handles::a_broken_hold_is_released_by_its_handle" "exclusion::one_holder_at_a_time" "wait::a_release_wakes_the_next_waiter" "leaks::nothing_after_losses"
        "leaks::nothing_after_cycles_over_distinct_names" "cancel::at_every_poll_of_a_free_acquire"
        "cancel::at_every_poll_of_a_try" "cancel::at_every_poll_of_a_release" "cancel::at_every_poll_of_a_run"
        "cancel::with_a_claim_in_flight" "cancel::with_a_release_in_flight" "cancel::at_many_instants"
        "drop::inside_a_runtime" "drop::outside_any_runtime" "drop::in_a_panic"
        "drop::after_its_runtime_was_dropped" "drop::at_the_end_of_a_current_thread_runtime"
        "drop::at_the_end_of_a_multi_thread_runtime" "threads::release_at_their_end" "threads::acquire_without_a_runtime"
        "shutdown::releases_all_holds" "shutdown::is_completed_after_a_drop"
        "hold_limits::max_hold_ends_a_hold_that_is_renewed" "hold_limits::max_hold_ends_a_hold_before_its_lease"
        "hold_limits::min_hold_does_not_delay_a_later_release" "events::end_with_the_guard"
        "events::report_renewals_with_their_slack" "idempotence::a_repeated_release_succeeds"
        "lost::a_hung_renewal" "lost::a_frozen_store" "lost::run_drops_the_work" "lost::a_suspended_machine"
        "faults::overtaking_drops" "faults::slow_drops" "faults::overtaking_cancel" "faults::slow_cancel"
        "handles::a_hold_of_a_session_has_no_handle" "handles::a_slot_has_a_handle" "reentrancy::guards_are_counted" "reentrancy::a_weaker_mode_is_granted" "reentrancy::a_stronger_mode_is_refused"
        "reentrancy::two_tasks_of_one_owner_do_not_block_each_other" "lost::a_panicking_renewal"
        "lost::a_failing_renewal_is_retried_until_the_deadline" "lost::a_transient_error_is_not_a_loss"
        "lost::run_polls_nothing_after_the_deadline" "ttl::the_longest_times_do_not_overflow"
        "wait::a_permanent_fault_ends_the_wait" "exclusion::tries_make_progress"
        "leaks::nothing_after_a_thousand_locks" "many::a_busy_lock_leaves_no_entry" "many::a_fault_leaves_no_entry"
        "many::losing_one_is_losing_all" "many::the_earliest_deadline_is_that_of_all" "many::run_stops_at_the_loss_of_one"
        "many::a_lock_that_is_lost_while_waiting_is_acquired_again" "many::at_every_poll_of_a_free_acquire"
        "many::an_acquire_that_is_not_polled_keeps_no_lock" "many::a_wait_is_for_all_locks_together"
        "many::a_failure_is_returned_after_the_releases" "semaphore::at_every_poll_of_a_free_acquire"
        "semaphore::at_every_poll_of_a_waiting_acquire" "semaphore::first_come_first_served"
        "election::a_resignation_gives_the_next_candidate_a_turn" "election::a_lost_term_is_followed_by_another_one";
    never_withdraws: NeverWithdraws =>
        "wait::a_grant_at_the_instant_of_the_timeout_is_not_lost"
        "wait::a_timed_out_request_has_left_the_queue"
        "wait::a_timed_out_waiter_leaves_no_entry" "wait::a_timed_out_waiter_wakes_the_waiters_behind_it"
        "leaks::nothing_after_cancelled_waits" "leaks::nothing_after_timeouts" "shutdown::ends_the_waiters"
        "cancel::at_every_poll_of_a_waiting_acquire" "cancel::with_a_wait_in_flight"
        "idempotence::a_release_withdraws_a_waiter" "faults::overtaking_waits" "cancel::at_many_instants"
        "many::at_every_poll_of_a_waiting_acquire";
    releases_any_holder: ReleasesAnyHolder =>
        "idempotence::a_release_by_another_request_changes_nothing" "idempotence::a_repeated_release_succeeds"
        "lost::gone_from_the_store" "cancel::at_every_poll_of_a_timed_acquire";
    renewal_creates: RenewalCreates =>
        "idempotence::a_renewal_never_creates_a_hold" "idempotence::a_renewal_never_revives_an_expired_hold" "breaking::waits_for_the_holder";
    renewal_always_succeeds: RenewalAlwaysSucceeds =>
        "idempotence::a_renewal_extends_the_lease" "idempotence::a_renewal_on_another_connection_extends_the_lease"
        "idempotence::a_renewal_never_grants_to_a_waiter"
        "renew::a_short_lease_is_renewed_for_many_ttls" "renew::a_blocked_executor_does_not_starve_renewals"
        "lost::a_release_is_not_a_loss" "idempotence::a_renewal_never_creates_a_hold"
        "handles::another_process_renews_and_releases_the_hold" "recovery::after_the_store_was_emptied";
    queues_tries: QueuesTries =>
        "wait::a_wait_of_zero_tries_once" "idempotence::a_claim_that_does_not_queue_leaves_no_entry";
    never_expires: NeverExpires =>
        "semaphore::the_slot_of_a_dead_holder_is_free_after_its_ttl"
        "ttl::an_abandoned_hold_expires_on_time" "fencing::tokens_grow_across_an_expiry" "inspect::shows_live_entries_only"
        "hold_limits::max_hold_frees_the_lock_of_a_stuck_holder" "handles::a_hold_that_nobody_renews_ends_with_its_lease"
        "order::other_readers_do_not_extend_the_lease_of_a_dead_reader" "order::a_stopped_waiter_is_served_after_it_resumes"
        "inspect::shows_at_most_the_remaining_lease"
        "lost::before_the_next_grant" "lost::a_late_grant_is_discarded" "order::a_dead_waiter_is_skipped";
    expires_early: ExpiresEarly =>
        "hold_limits::min_hold_delays_a_release" "hold_limits::min_hold_delays_a_drop"
        "ttl::an_abandoned_hold_expires_on_time" "lost::before_the_next_grant";
    exaggerates_leases: ExaggeratesLeases =>
        "renew::the_deadline_counts_from_the_send_time" "lost::before_the_next_grant";
    grants_half: GrantsHalf => "ttl::an_abandoned_hold_expires_on_time" "ttl::a_guard_gets_the_requested_ttl";
    every_mode_exclusive: EveryModeExclusive =>
        "modes::every_pair" "modes::readers_share_the_lock" "modes::every_triple_follows_the_queue_rule"
        "fencing::concurrent_holders_have_different_tokens";
    shared_is_weak: SharedIsWeak => "modes::every_pair" "modes::every_triple_follows_the_queue_rule";
    forgets_labels: ForgetsLabels =>
        "semaphore::shows_its_slots_and_waiters" "semaphore::another_number_of_slots_is_noticed_in_every_slot"
        "inspect::shows_the_holders";
    shows_waiters_reversed: ShowsWaitersReversed =>
        "inspect::shows_the_waiters_in_order" "inspect::shows_a_shrinking_queue_in_order"
        "wait::the_queue_is_read_for_a_display";
    prefix_folds: PrefixFolds => "names::a_prefix_is_not_a_pattern";
    shuffles_outcomes: ShufflesOutcomes => "keep_alive::returns_an_outcome_for_each_request_of_a_batch";
    keeps_half_a_batch_alive: KeepsHalfABatchAlive => "keep_alive::extends_a_full_batch";
    does_not_keep_waiters_alive: DoesNotKeepWaitersAlive => "keep_alive::keeps_the_queue_position_of_a_waiter";
    blocks: Blocks => "blocking::no_operation_blocks_its_thread";
    release_always_succeeds: ReleaseAlwaysSucceeds =>
        "release::reports_if_it_removed_an_entry" "release::of_a_waiter_reports_if_it_removed_an_entry"
        "release::of_a_superseded_hold_is_an_error" "breaking::by_force_is_reported_by_the_release";
    break_does_nothing: BreakDoesNothing =>
        "handles::a_broken_hold_is_not_adopted"
        "breaking::by_force_grants_the_next_waiter_at_once" "breaking::stops_a_run_before_the_next_grant"
        "fencing::tokens_grow_across_a_break";
    break_is_forced: BreakIsForced => "breaking::waits_for_the_holder" "breaking::stops_a_run_before_the_next_grant";
    forgets_notices: ForgetsNotices => "breaking::waits_for_the_holder" "breaking::by_force_grants_the_next_waiter_at_once";
    keeps_the_last_notice: KeepsTheLastNotice => "breaking::keeps_the_first_notice";
    renews_broken: RenewsBroken => "breaking::ends_with_the_lease";
    never_alerts: NeverAlerts => "breaking::notifies_the_holder_at_once";
    breaks_all: BreaksAll => "breaking::of_a_free_lock_changes_nothing";
    breaks_the_next: BreaksTheNext =>
        "breaking::of_one_hold_never_touches_the_next" "breaking::of_one_reader_leaves_the_others"
        "breaking::by_token_breaks_that_hold_alone";
    renewal_shortens: RenewalShortens =>
        "late::a_renewal_with_a_shorter_ttl_changes_nothing" "late::a_renewal_between_two_ttls_changes_nothing"
        "late::a_claim_after_a_longer_renewal_changes_nothing"
        "handles::a_renewal_elsewhere_never_shortens_the_lease";
    omits_terms: OmitsTerms =>
        "handles::an_adoption_has_the_terms_of_the_store" "handles::a_conversion_elsewhere_ends_the_guard";
    grants_released: GrantsReleased =>
        "late::a_claim_after_a_release_elsewhere_takes_nothing" "late::a_claim_after_two_releases_takes_nothing"
        "late::a_claim_after_the_release_of_a_broken_hold_takes_nothing";
    reports_breaks_once: ReportsBreaksOnce => "late::a_repeated_release_of_a_broken_hold_reports_the_break";
    park_does_nothing: ParkDoesNothing =>
        "late::a_renewal_after_a_park_changes_nothing" "late::a_second_park_changes_nothing"
        "late::a_parked_hold_lasts_beyond_its_lease" "handles::a_hold_that_was_left_is_not_adopted";
    park_releases: ParkReleases => "late::a_parked_hold_is_released_and_broken";
    parks_any_hold: ParksAnyHold => "late::a_park_of_another_hold_changes_nothing";
    keeps_unreleased_records: KeepsUnreleasedRecords => "leaks::no_records_of_ended_requests";
    shows_ids: ShowsIds => "secrets::do_not_appear_in_public_output";
    traces_ids: TracesIds => "secrets::do_not_appear_in_traces";
    never_converts: NeverConverts =>
        "conversion::a_downgrade_lets_waiters_in" "conversion::an_upgrade_excludes_all_others"
        "conversion::a_lost_reply_is_repeated" "conversion::tasks_lose_no_update";
    converts_again: ConvertsAgain => "conversion::a_late_copy_changes_nothing";
    forgets_upgrades: ForgetsUpgrades =>
        "conversion::an_upgrade_is_ahead_of_new_requests" "conversion::a_second_upgrader_is_in_a_deadlock"
        "conversion::inspection_shows_the_present_mode";
    keeps_upgrades: KeepsUpgrades =>
        "conversion::an_upgrade_that_times_out_changes_nothing" "conversion::at_every_poll_of_an_upgrade"
        "conversion::an_upgrade_whose_replies_are_lost_is_undone";
    converts_lost_holds: ConvertsLostHolds =>
        "conversion::a_lost_hold_is_not_converted" "conversion::a_broken_hold_is_not_converted";
    forgets_records: ForgetsRecords =>
        "once::one_of_many_tasks_runs_the_job" "once::an_attempt_without_an_end_counts_as_failed" "once::a_failed_attempt_is_repeated_as_often_as_configured"
        "once::each_period_has_one_run" "once::a_try_does_not_wait_for_another_process" "once::at_every_poll_of_a_run"
        "once::another_process_reports_the_outcome_of_an_attempt";
    replaces_later_records: ReplacesLaterRecords =>
        "once::only_a_greater_version_replaces_a_record" "once::a_process_that_lost_the_lock_does_not_begin";
    keeps_records: KeepsRecords => "once::a_record_is_absent_after_its_time";
    empty_ttl_range: EmptyTtlRange => "ttl::out_of_range_is_refused_before_any_io";
}

/// Cases of the engine alone, which no store can break; mutations of core test them.
const ENGINE_ONLY: &[&str] = &[
    "renew::a_renewal_before_the_first_poll_is_reported",
    "renew::nothing_is_renewed_after_a_release",
    "names::invalid_names_are_refused_before_any_io",
    "tree::invalid_nodes_are_refused_before_any_io",
    "conversion::bad_modes_are_refused_before_any_io",
    "once::bad_settings_are_refused_before_any_io",
    "release::is_retried_after_a_lost_reply",
    "events::are_bounded_for_a_slow_reader",
    "events::warn_of_a_loss_before_it",
    "hold_limits::limits_are_checked_before_any_io",
    "shutdown::refuses_acquisitions_before_any_io",
    "shutdown::reports_a_release_that_fails",
    "reentrancy::a_try_never_waits",
    "wait::an_acquire_that_is_not_polled_does_not_keep_the_lock",
    "lost::run_returns_when_the_work_is_done",
    "deadlocks::are_not_reported_without_a_cycle",
    "deadlocks::of_whole_processes_are_not_reported",
    "deadlocks::of_one_owner_are_refused_at_once",
];

#[test]
fn every_case_detects_a_planted_bug() {
    let detecting: BTreeSet<&str> = DETECTING.iter().chain(ENGINE_ONLY).copied().collect();
    let all: BTreeSet<&str> = CASES.iter().copied().collect();
    assert_eq!(all.difference(&detecting).collect::<Vec<_>>(), [] as [&&str; 0]);
    assert_eq!(detecting.difference(&all).collect::<Vec<_>>(), [] as [&&str; 0]);
}

#[test]
fn every_case_passes_without_a_bug() {
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
fn a_hang_is_a_failure_that_names_the_case() {
    let failure =
        check("wait::a_wait_of_zero_tries_once", &TargetFactory::new(|| async { Hangs })).unwrap_err();
    assert!(failure.to_string().starts_with("wait::a_wait_of_zero_tries_once: hangs"), "{failure}");
}

#[test]
fn an_unavailable_target_is_missing_and_not_passed() {
    let factory = TargetFactory::new(|| async { Err::<Hangs, Missing>(Missing("no server".to_owned())) });
    assert_eq!(
        check("wait::a_wait_of_zero_tries_once", &factory),
        Ok(Verdict::Missing("no server".to_owned()))
    );
}

/// A store that declares fewer capabilities.
struct Minimal;

#[async_trait::async_trait]
impl Target for Minimal {
    async fn connect(&self) -> Result<Store> {
        let store = Broken::connect(memory::named("minimal"), Bug::Minimal, Arc::default());
        Ok(Store::new(store.backend))
    }
}

#[test]
fn an_undeclared_promise_is_unsupported_and_not_passed() {
    for case in [
        "order::first_come_first_served",
        "modes::every_pair",
        "fencing::tokens_grow_across_releases",
        "inspect::shows_the_holders",
        "leaks::nothing_after_timeouts",
        "idempotence::a_repeated_claim_on_another_connection_returns_its_grant",
        "wait::a_push_is_faster_than_the_recheck",
    ] {
        let verdict = check(case, &TargetFactory::new(|| async { Minimal }));
        assert!(matches!(verdict, Ok(Verdict::Unsupported(_))), "{case}: {verdict:?}");
    }
    // The declared promises are tested all the same.
    for case in ["exclusion::one_holder_at_a_time", "wait::a_release_wakes_the_next_waiter"] {
        assert_eq!(check(case, &TargetFactory::new(|| async { Minimal })), Ok(Verdict::Passed), "{case}");
    }
}
