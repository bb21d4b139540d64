//! The cases, and the list from which their tests and tables are generated.

mod blocking;
mod breaking;
mod cancel;
mod conversion;
mod deadlocks;
mod drop;
mod election;
mod events;
mod exclusion;
mod faults;
mod fencing;
mod handles;
mod hold_limits;
mod idempotence;
mod inspect;
mod keep_alive;
mod late;
mod leaks;
mod lost;
mod many;
mod modes;
mod names;
mod once;
mod order;
mod recovery;
mod reentrancy;
mod release;
mod renew;
mod secrets;
mod semaphore;
mod shutdown;
mod threads;
mod tree;
mod ttl;
mod wait;

use std::{future::Future, pin::Pin};

use crate::{
    need::Need,
    trial::{Outcome, Trial},
};

/// One promise, and the function that tests it.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) needs: &'static [Need],
    pub(crate) run: fn(Trial) -> Pin<Box<dyn Future<Output = Outcome> + Send>>,
}

/// The list of all cases, passed to the macro `$then`: module, case, and its needs.
#[doc(hidden)]
#[macro_export]
macro_rules! __cases {
    ($then:ident $($argument:tt)*) => {
        $crate::$then! {
            [$($argument)*]
            exclusion {
                one_holder_at_a_time []
                names_do_not_exclude_each_other []
                tasks_lose_no_update []
                tries_make_progress []
            }
            order {
                first_come_first_served [Order]
                a_newcomer_does_not_overtake_a_waiter [Order]
                a_dead_waiter_is_skipped [Order]
                readers_do_not_starve_a_writer [Order Shared]
                timeouts_do_not_delay_later_waiters [Order]
                other_readers_do_not_extend_the_lease_of_a_dead_reader [Order Shared]
                a_stopped_waiter_is_served_after_it_resumes [Order]
                an_expired_queue_entry_does_not_block_the_next_waiter [Order Anywhere]
            }
            modes {
                every_pair [Shared]
                every_triple_follows_the_queue_rule [Order Modes]
                readers_share_the_lock [Shared]
            }
            wait {
                a_wait_of_zero_tries_once []
                a_timeout_is_precise []
                a_timed_out_request_has_left_the_queue [Order Shared]
                an_acquire_that_is_not_polled_does_not_keep_the_lock []
                a_timed_out_waiter_leaves_no_entry [Count]
                a_timed_out_waiter_wakes_the_waiters_behind_it [Order Shared]
                a_grant_at_the_instant_of_the_timeout_is_not_lost []
                a_release_wakes_the_next_waiter []
                a_push_is_faster_than_the_recheck [Push]
                a_short_outage_is_retried []
                a_long_outage_ends_the_wait []
                a_permanent_fault_ends_the_wait []
                the_queue_is_read_for_a_display [Inspect Order]
            }
            renew {
                a_short_lease_is_renewed_for_many_ttls []
                a_blocked_executor_does_not_starve_renewals []
                a_renewal_before_the_first_poll_is_reported []
                the_deadline_counts_from_the_send_time []
                nothing_is_renewed_after_a_release []
            }
            keep_alive {
                returns_an_outcome_for_each_request_of_a_batch []
                extends_a_full_batch []
                keeps_the_queue_position_of_a_waiter [Order]
            }
            lost {
                a_hung_renewal []
                a_frozen_store []
                a_panicking_renewal []
                a_failing_renewal_is_retried_until_the_deadline []
                a_transient_error_is_not_a_loss []
                gone_from_the_store [Anywhere]
                before_the_next_grant []
                a_suspended_machine []
                a_late_grant_is_discarded []
                run_polls_nothing_after_the_deadline []
                run_drops_the_work []
                run_returns_when_the_work_is_done []
                a_release_is_not_a_loss []
            }
            fencing {
                tokens_grow_across_releases [Tokens]
                tokens_grow_across_reconnects [Tokens]
                tokens_grow_across_an_expiry [Tokens]
                tokens_grow_across_a_break [Tokens Inspect]
                concurrent_holders_have_different_tokens [Tokens Shared]
                tokens_continue_after_a_raise [Tokens Raise]
            }
            reentrancy {
                guards_are_counted []
                other_owners_are_excluded []
                two_tasks_of_one_owner_do_not_block_each_other []
                a_try_never_waits []
                a_weaker_mode_is_granted [Shared]
                a_stronger_mode_is_refused [Shared]
            }
            many {
                tasks_lose_no_update []
                overlapping_sets_exclude_each_other []
                a_busy_lock_leaves_no_entry []
                a_fault_leaves_no_entry []
                a_failure_is_returned_after_the_releases []
                a_wait_is_for_all_locks_together []
                losing_one_is_losing_all []
                the_earliest_deadline_is_that_of_all []
                run_stops_at_the_loss_of_one []
                a_lock_that_is_lost_while_waiting_is_acquired_again []
                an_acquire_that_is_not_polled_keeps_no_lock []
                at_every_poll_of_a_free_acquire []
                at_every_poll_of_a_waiting_acquire []
            }
            tree {
                nodes_exclude_their_ancestors_and_descendants [Modes]
                a_lock_of_the_root_excludes_the_tree [Modes]
                tasks_lose_no_update [Modes]
                invalid_nodes_are_refused_before_any_io []
            }
            semaphore {
                one_slot_excludes_other_holders []
                one_free_slot_of_five_excludes_other_holders []
                admits_as_many_holders_as_slots []
                first_come_first_served [Order]
                a_try_takes_any_free_slot []
                is_independent_of_the_lock_with_its_name []
                another_number_of_slots_is_an_error [Inspect]
                another_number_of_slots_is_noticed_in_every_slot [Slots]
                the_slot_of_a_dead_holder_is_free_after_its_ttl []
                a_wait_that_times_out_leaves_no_entry []
                shows_its_slots_and_waiters [Inspect]
                at_every_poll_of_a_free_acquire []
                at_every_poll_of_a_waiting_acquire []
            }
            once {
                one_of_many_tasks_runs_the_job [JobRecords]
                a_failed_attempt_is_repeated_as_often_as_configured [JobRecords]
                an_attempt_without_an_end_counts_as_failed [JobRecords]
                another_process_reports_the_outcome_of_an_attempt [JobRecords]
                each_period_has_one_run [JobRecords]
                a_process_that_lost_the_lock_does_not_begin [JobRecords]
                only_a_greater_version_replaces_a_record [JobRecords]
                a_record_is_absent_after_its_time [JobRecords]
                a_try_does_not_wait_for_another_process [JobRecords]
                bad_settings_are_refused_before_any_io [JobRecords]
                at_every_poll_of_a_run [JobRecords]
            }
            conversion {
                a_downgrade_lets_waiters_in [Convert]
                a_downgrade_is_faster_than_the_recheck [Convert Push]
                an_upgrade_excludes_all_others [Convert]
                an_upgrade_is_ahead_of_new_requests [Convert]
                a_second_upgrader_is_in_a_deadlock [Convert]
                an_upgrade_that_times_out_changes_nothing [Convert]
                at_every_poll_of_an_upgrade [Convert]
                a_late_copy_changes_nothing [Convert]
                a_lost_reply_is_repeated [Convert]
                an_upgrade_whose_replies_are_lost_is_undone [Convert]
                a_lost_hold_is_not_converted [Convert]
                a_broken_hold_is_not_converted [Convert Inspect]
                inspection_shows_the_present_mode [Convert Inspect]
                tasks_lose_no_update [Convert]
                bad_modes_are_refused_before_any_io []
            }
            handles {
                another_process_renews_and_releases_the_hold [Anywhere]
                a_hold_that_nobody_renews_ends_with_its_lease [Anywhere]
                a_broken_hold_is_not_adopted [Anywhere Inspect]
                a_broken_hold_is_released_by_its_handle [Anywhere Inspect]
                a_hold_of_a_session_has_no_handle []
                a_renewal_elsewhere_never_shortens_the_lease [Anywhere]
                an_adoption_has_the_terms_of_the_store [Anywhere Convert]
                a_conversion_elsewhere_ends_the_guard [Anywhere Convert]
                a_slot_has_a_handle [Anywhere]
                a_hold_that_was_left_is_not_adopted [Anywhere Park]
            }
            late {
                a_renewal_with_a_shorter_ttl_changes_nothing [Anywhere]
                a_renewal_between_two_ttls_changes_nothing [Anywhere]
                a_claim_after_a_longer_renewal_changes_nothing [Anywhere]
                a_claim_after_a_release_elsewhere_takes_nothing [Anywhere]
                a_claim_after_two_releases_takes_nothing [Anywhere]
                a_claim_after_the_release_of_a_broken_hold_takes_nothing [Anywhere Inspect]
                a_repeated_release_of_a_broken_hold_reports_the_break [Anywhere Inspect]
                a_renewal_after_a_park_changes_nothing [Park]
                a_second_park_changes_nothing [Park]
                a_park_of_another_hold_changes_nothing [Park]
                a_parked_hold_lasts_beyond_its_lease [Park]
                a_parked_hold_is_released_and_broken [Park Inspect]
            }
            deadlocks {
                of_two_owners_refuse_the_youngest_request [Inspect Order]
                of_three_owners_are_found [Inspect Order]
                are_not_reported_without_a_cycle [Inspect Order]
                of_whole_processes_are_not_reported []
                of_one_owner_are_refused_at_once []
            }
            names {
                invalid_names_are_refused_before_any_io []
                similar_names_are_different_locks []
                inspection_returns_names_byte_for_byte [Inspect]
                a_prefix_is_not_a_pattern [Inspect]
            }
            ttl {
                out_of_range_is_refused_before_any_io []
                the_longest_times_do_not_overflow []
                a_guard_gets_the_requested_ttl []
                an_abandoned_hold_expires_on_time []
            }
            cancel {
                at_every_poll_of_a_free_acquire []
                at_every_poll_of_a_waiting_acquire []
                at_every_poll_of_a_timed_acquire []
                at_every_poll_of_a_try []
                at_every_poll_of_a_release []
                at_every_poll_of_a_run []
                with_a_claim_in_flight []
                with_a_wait_in_flight []
                with_a_release_in_flight []
                at_many_instants []
            }
            drop {
                inside_a_runtime []
                outside_any_runtime []
                in_a_panic []
                after_its_runtime_was_dropped []
                at_the_end_of_a_current_thread_runtime []
                at_the_end_of_a_multi_thread_runtime []
            }
            threads {
                acquire_without_a_runtime []
                exclude_each_other []
                release_at_their_end []
            }
            shutdown {
                releases_all_holds []
                ends_the_waiters []
                refuses_acquisitions_before_any_io []
                is_completed_after_a_drop []
                reports_a_release_that_fails []
            }
            hold_limits {
                max_hold_ends_a_hold_that_is_renewed []
                max_hold_ends_a_hold_before_its_lease []
                max_hold_frees_the_lock_of_a_stuck_holder []
                min_hold_delays_a_release []
                min_hold_delays_a_drop []
                min_hold_does_not_delay_a_later_release []
                limits_are_checked_before_any_io []
            }
            events {
                report_renewals_with_their_slack []
                warn_of_a_loss_before_it []
                are_bounded_for_a_slow_reader []
                end_with_the_guard []
            }
            leaks {
                nothing_after_cycles_over_distinct_names [Count]
                nothing_after_timeouts [Count]
                nothing_after_cancelled_waits [Count]
                nothing_after_losses [Count]
                no_records_of_ended_requests [Records]
                nothing_after_a_thousand_locks [Inspect]
            }
            inspect {
                shows_the_holders [Inspect]
                shows_the_waiters_in_order [Inspect Order]
                shows_a_shrinking_queue_in_order [Inspect Order]
                shows_at_most_the_remaining_lease [Inspect]
                shows_live_entries_only [Inspect]
            }
            breaking {
                waits_for_the_holder [Inspect]
                stops_a_run_before_the_next_grant [Inspect]
                notifies_the_holder_at_once [Inspect Alerts]
                ends_with_the_lease [Inspect]
                keeps_the_first_notice [Inspect]
                by_force_grants_the_next_waiter_at_once [Inspect]
                by_force_is_reported_by_the_release [Inspect]
                of_a_free_lock_changes_nothing [Inspect]
                of_one_hold_never_touches_the_next [Inspect]
                of_one_reader_leaves_the_others [Inspect Shared]
                by_token_breaks_that_hold_alone [Inspect]
            }
            release {
                reports_if_it_removed_an_entry []
                of_a_waiter_reports_if_it_removed_an_entry [Order]
                of_a_superseded_hold_is_an_error [Anywhere]
                is_retried_after_a_lost_reply []
            }
            recovery {
                after_the_store_was_emptied [Tokens]
                after_a_server_restart [Tokens]
            }
            secrets {
                do_not_appear_in_public_output []
                do_not_appear_in_traces []
            }
            idempotence {
                a_repeated_claim_returns_its_grant []
                a_repeated_claim_on_another_connection_returns_its_grant [Anywhere]
                a_repeated_claim_keeps_its_queue_position [Order]
                a_claim_that_does_not_queue_leaves_no_entry []
                a_repeated_release_succeeds []
                a_release_withdraws_a_waiter []
                a_release_by_another_request_changes_nothing []
                a_renewal_extends_the_lease []
                a_renewal_on_another_connection_extends_the_lease [Anywhere]
                a_renewal_never_creates_a_hold []
                a_renewal_never_revives_an_expired_hold []
                a_renewal_never_grants_to_a_waiter []
            }
            blocking {
                no_operation_blocks_its_thread []
            }
            election {
                one_leader_at_a_time []
                a_resignation_gives_the_next_candidate_a_turn [Order]
                a_lost_term_is_followed_by_another_one []
            }
            faults {
                overtaking_exclusion []
                overtaking_cancel []
                overtaking_waits []
                overtaking_drops []
                flaky_exclusion []
                flaky_cancel []
                flaky_waits []
                flaky_leaks [Count]
                slow_exclusion []
                slow_cancel []
                slow_order [Order]
                slow_drops []
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __table {
    ([] $($module:ident { $($case:ident [$($need:ident)*])* })*) => {
        /// The names of all cases, as in the names of the tests that [`conformance!`](crate::conformance) generates.
        pub const CASES: &[&str] = &[$($(concat!(stringify!($module), "::", stringify!($case)),)*)*];

        pub(crate) const TABLE: &[Case] = &[$($(Case {
            name: concat!(stringify!($module), "::", stringify!($case)),
            needs: &[$(Need::$need),*],
            run: |trial| Box::pin($module::$case(trial)),
        },)*)*];
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __tests {
    ([] $($module:ident { $($case:ident [$($need:ident)*])* })*) => {
        $(mod $module {
            $(#[test]
            fn $case() {
                let case = concat!(stringify!($module), "::", stringify!($case));
                $crate::__test(super::TARGET, case, &super::factory());
            })*
        })*
    };
}

/// Generates one `#[test]` per case, named `target::group::case`, so that filters work.
///
/// The closure creates a new [`Target`](crate::Target) for every case; it may also return `Result<impl Target, Missing>`.
///
/// ```
/// # struct MyTarget;
/// # #[async_trait::async_trait]
/// # impl polylock_testkit::Target for MyTarget {
/// #     async fn connect(&self) -> polylock_core::Result<polylock_core::Store> {
/// #         Ok(polylock_core::memory::connect())
/// #     }
/// # }
/// polylock_testkit::conformance!(my_store, || async { MyTarget });
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! conformance {
    ($target:ident, $create:expr) => {
        mod $target {
            #[allow(unused_imports, reason = "the closure may use any name of the caller")]
            use super::*;

            const TARGET: &str = stringify!($target);

            fn factory() -> $crate::TargetFactory {
                $crate::TargetFactory::new($create)
            }

            $crate::__cases! { __tests }
        }
    };
}

crate::__cases! { __table }
