//! The cases, and the one list of them that everything else is made from.

mod blocking;
mod breaking;
mod cancel;
mod drop;
mod exclusion;
mod faults;
mod fencing;
mod idempotence;
mod inspect;
mod keep_alive;
mod leaks;
mod lost;
mod modes;
mod names;
mod order;
mod recovery;
mod reentrancy;
mod release;
mod renew;
mod secrets;
mod ttl;
mod wait;

use std::{future::Future, pin::Pin};

use crate::trial::{Outcome, Trial};

/// What a case needs of a store; where it is lacking, the case is reported as unsupported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// All six modes.
    Modes,
    /// The shared mode beside the exclusive one.
    Shared,
    /// Order of arrival.
    Order,
    /// Fencing tokens.
    Tokens,
    /// Inspection.
    Inspect,
    /// Break notices that are pushed.
    Alerts,
    /// A way to count what is kept.
    Count,
    /// Wake-ups that are pushed.
    Push,
    /// Holds that any connection can speak for.
    Anywhere,
}

/// One promise and how to look at it.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) needs: &'static [Need],
    pub(crate) run: fn(Trial) -> Pin<Box<dyn Future<Output = Outcome> + Send>>,
}

/// The list of all cases, handed to the macro `$then`: module, case, and what it needs.
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
                tries_alone_make_progress []
            }
            order {
                first_come_first_served [Order]
                a_newcomer_does_not_overtake_a_waiter [Order]
                a_dead_waiter_is_passed_over [Order]
                readers_do_not_starve_a_writer [Order Shared]
                time_outs_cost_nobody_behind_them [Order]
                a_dead_reader_is_passed_over_while_others_come_and_go [Order Shared]
                a_waiter_that_was_stopped_comes_back [Order]
            }
            modes {
                every_pair [Shared]
                every_triple_keeps_the_queue_rule [Order Modes]
                readers_hold_together [Shared]
            }
            wait {
                zero_tries_once []
                a_time_out_is_precise []
                a_timed_out_request_has_left_the_queue [Order Shared]
                an_acquire_that_is_not_polled_is_passed_on []
                who_timed_out_leaves_nothing [Count]
                who_timed_out_wakes_those_behind [Order Shared]
                a_grant_at_the_instant_of_the_time_out_is_not_lost []
                a_release_wakes_the_next []
                a_push_is_quicker_than_the_recheck [Push]
                a_short_outage_is_borne []
                a_long_outage_ends_the_wait []
                a_fault_for_good_ends_the_wait []
            }
            renew {
                a_short_lease_is_kept_for_many_ttls []
                a_blocked_executor_does_not_starve_renewals []
                is_told_though_it_came_before_the_first_poll []
                the_deadline_counts_from_the_sending []
                nothing_is_renewed_after_a_release []
            }
            keep_alive {
                answers_for_each_request_of_a_batch []
                extends_a_full_batch []
                keeps_a_waiter_in_its_place [Order]
            }
            lost {
                a_hung_renewal []
                a_frozen_store []
                a_panicking_renewal []
                a_failing_renewal_is_not_lost_before_the_deadline []
                a_transient_error_is_not_lost []
                gone_from_the_store [Anywhere]
                before_another_is_granted []
                a_suspended_machine []
                a_late_grant_is_no_hold []
                run_polls_nothing_after_the_deadline []
                run_drops_the_work []
                run_returns_when_the_work_is_done []
                a_release_never_fires_it []
            }
            fencing {
                grows_over_releases [Tokens]
                grows_over_reconnects [Tokens]
                grows_over_expiry [Tokens]
                grows_over_a_break [Tokens Inspect]
                holders_together_have_tokens_of_their_own [Tokens Shared]
            }
            reentrancy {
                is_counted []
                other_owners_are_excluded []
                one_owner_enters_from_two_tasks_at_once []
                a_try_never_waits []
                a_weaker_mode_enters [Shared]
                a_stronger_mode_is_refused [Shared]
            }
            names {
                bad_names_are_refused_before_any_io []
                odd_names_are_locks_of_their_own []
                odd_names_are_shown_byte_for_byte [Inspect]
                a_prefix_is_no_pattern [Inspect]
            }
            ttl {
                out_of_range_is_refused_before_any_io []
                the_longest_times_do_not_overflow []
                is_what_a_guard_gets []
                an_abandoned_hold_expires_in_its_time []
            }
            cancel {
                at_every_poll_of_a_free_acquire []
                at_every_poll_of_a_waiting_acquire []
                at_every_poll_of_a_timed_acquire []
                at_every_poll_of_a_try []
                at_every_poll_of_a_release []
                at_every_poll_of_a_run []
                with_the_claim_on_its_way []
                with_the_wait_under_way []
                with_the_release_on_its_way []
                at_many_instants []
            }
            drop {
                inside_a_runtime []
                outside_of_any_runtime []
                in_a_panic []
                after_its_runtime_has_gone []
                as_the_last_act_of_a_current_thread_runtime []
                as_the_last_act_of_a_multi_thread_runtime []
            }
            leaks {
                nothing_after_cycles_over_distinct_names [Count]
                nothing_after_time_outs [Count]
                nothing_after_cancelled_waits [Count]
                nothing_after_losses [Count]
                nothing_after_a_thousand_locks [Inspect]
            }
            inspect {
                shows_who_holds [Inspect]
                shows_who_waits_in_order [Inspect Order]
                shows_a_shrinking_queue_in_order [Inspect Order]
                shows_no_more_than_the_lease [Inspect]
                shows_live_entries_only [Inspect]
            }
            breaking {
                waits_for_the_holder [Inspect]
                stops_a_run_before_the_next_grant [Inspect]
                reaches_the_holder_at_once [Inspect Alerts]
                ends_with_the_lease [Inspect]
                keeps_the_first_notice [Inspect]
                by_force_serves_the_next_at_once [Inspect]
                by_force_is_reported_by_the_release [Inspect]
                of_a_free_lock_changes_nothing [Inspect]
            }
            release {
                reports_whether_there_was_an_entry []
                of_a_waiter_reports_it_too [Order]
                of_a_superseded_hold_is_an_error [Anywhere]
                with_its_first_reply_lost_succeeds []
            }
            recovery {
                after_the_store_was_emptied [Tokens]
                after_a_restart_of_the_server [Tokens]
            }
            secrets {
                appear_in_nothing_public []
                appear_in_no_trace []
            }
            idempotence {
                a_claim_repeated_finds_its_own_grant []
                a_claim_repeated_elsewhere_finds_the_same_grant [Anywhere]
                a_claim_repeated_keeps_its_place [Order]
                a_claim_that_does_not_queue_leaves_nothing []
                a_release_repeated_succeeds []
                a_release_withdraws_a_waiter []
                a_release_of_anothers_changes_nothing []
                a_renewal_extends_the_lease []
                a_renewal_elsewhere_extends_the_lease [Anywhere]
                a_renewal_never_creates []
                a_renewal_never_revives []
                a_renewal_never_grants_to_a_waiter []
            }
            blocking {
                no_operation_blocks_its_thread []
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
        /// The names of all cases, as in the names of the tests that [`conformance!`](crate::conformance) makes.
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
                $crate::__test(super::TARGET, case, &super::maker());
            })*
        })*
    };
}

/// Makes one `#[test]` per case, named `target::group::case`, so that filters work.
///
/// The closure makes a fresh [`Target`](crate::Target) for every case; it may also return
/// `Result<impl Target, Missing>`.
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
    ($target:ident, $make:expr) => {
        mod $target {
            #[allow(unused_imports, reason = "whatever the closure names")]
            use super::*;

            const TARGET: &str = stringify!($target);

            fn maker() -> $crate::Maker {
                $crate::Maker::new($make)
            }

            $crate::__cases! { __tests }
        }
    };
}

crate::__cases! { __table }
