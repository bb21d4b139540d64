//! Bugs of the transitional store.

use super::Mutant;

const UNITS: &str = "units of library polylock_core";

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "a transition from a store to itself is accepted",
        file: "crates/polylock-core/src/transition/same_store.rs",
        from: "if io::run(NAME, check).await? {",
        to: "if io::run(NAME, check).await? && false {",
        test: (UNITS, "transition::tests::one_store_by_two_names_is_found_and_the_check_leaves_nothing"),
    },
    Mutant {
        name: "a break ends a request that holds the old store and waits in the new one",
        file: "crates/polylock-core/src/transition/inspect.rs",
        from: "has_bug(Bug::BrokenWaiter) || !waits(entry)",
        to: "has_bug(Bug::BrokenWaiter) || waits(entry) || true",
        test: (UNITS, "transition::tests::a_break_ends_no_request_that_waits_in_the_new_store"),
    },
    Mutant {
        name: "requests of transitions with opposite orders wait for ever",
        file: "crates/polylock-core/src/transition/backend.rs",
        from: "                    self.order.check(request)?;\n",
        to: "",
        test: (
            "transition",
            "of_two_that_wait_for_each_other_one_fails_with_the_cause_and_the_other_goes_on",
        ),
    },
    Mutant {
        name: "a hold from before the wait of its owner counts as one of the opposite order",
        file: "crates/polylock-core/src/transition/order.rs",
        from: "old.waiters.iter().filter(began_with).any(",
        to: "old.waiters.iter().filter(|_| true).any(",
        test: (UNITS, "transition::order::tests::a_holder_that_does_not_wait_in_the_old_store_is_none"),
    },
    Mutant {
        name: "a transitional store that acquires the new store alone",
        file: "crates/polylock-core/src/transition.rs",
        from: "    let mut store = Store::new(Arc::new(Both::new(old, new, tokens, capabilities)));",
        to: "    let mut store = Store::new(Arc::new(Both::new(new.clone(), new, tokens, capabilities)));",
        test: ("processes", "migration::a_fleet_moves_to_another_store_and_back_without_an_overlap"),
    },
    Mutant {
        name: "a transitional store that acquires the old store alone",
        file: "crates/polylock-core/src/transition.rs",
        from: "    let mut store = Store::new(Arc::new(Both::new(old, new, tokens, capabilities)));",
        to: "    let mut store = Store::new(Arc::new(Both::new(old.clone(), old, tokens, capabilities)));",
        test: ("processes", "migration::a_fleet_moves_to_another_store_and_back_without_an_overlap"),
    },
    Mutant {
        name: "a transitional store that does not raise the old store",
        file: "crates/polylock-core/src/transition/tokens.rs",
        from: "            if raises_old {",
        to: "            if raises_old && token < old {",
        test: ("processes", "migration::a_fleet_moves_to_another_store_and_back_without_an_overlap"),
    },
    Mutant {
        name: "a transitional store that does not raise the new store",
        file: "crates/polylock-core/src/transition/tokens.rs",
        from: "            if raises_new {",
        to: "            if raises_new && token < new {",
        test: (UNITS, "transition::tests::tokens_grow_across_the_steps_in_both_directions"),
    },
    Mutant {
        name: "a number that was drawn before is granted again",
        file: "crates/polylock-core/src/transition/tokens.rs",
        from: "last.filter(|last| may_repeat && *last >= token)",
        to: "last.filter(|last| may_repeat && *last > token)",
        test: (UNITS, "transition::tests::a_number_that_was_drawn_before_is_not_granted_again"),
    },
    Mutant {
        name: "a try keeps the old store when the new one is taken",
        file: "crates/polylock-core/src/transition/backend.rs",
        from: "let is_held = self.old.release(request).await.is_err();",
        to: "let is_held = false;",
        test: (UNITS, "transition::tests::a_try_leaves_nothing_in_the_old_store"),
    },
    Mutant {
        name: "a hold that the new store has lost is kept",
        file: "crates/polylock-core/src/transition/backend.rs",
        from: "        (_, Some(KeepAlive::Lost(reason))) => KeepAlive::Lost(reason),",
        to: "        (old, Some(KeepAlive::Lost(_))) => old,",
        test: (UNITS, "transition::tests::a_hold_that_one_store_has_lost_is_lost"),
    },
    Mutant {
        name: "a request that waits in the old store is kept alive in the new one",
        file: "crates/polylock-core/src/transition/backend.rs",
        from: "            if let Some(Record::WaitsInOld) = records.get(&request.id) {",
        to: "            if let (Some(Record::WaitsInOld), true) = (records.get(&request.id), false) {",
        test: (
            UNITS,
            "transition::tests::a_request_that_waits_in_the_old_store_is_not_kept_alive_in_the_new_one",
        ),
    },
    Mutant {
        name: "a waiter that missed its grant in the old store stays queued",
        file: "crates/polylock-core/src/transition/backend.rs",
        from: "        (KeepAlive::Held { .. }, None) => KeepAlive::Lost(LostReason::Gone),",
        to: "        (KeepAlive::Held { .. }, None) => KeepAlive::Queued,",
        test: (UNITS, "transition::tests::a_waiter_that_has_been_granted_the_old_store_claims_again"),
    },
    Mutant {
        name: "a transition: the record of a job is not copied",
        file: "crates/polylock-core/src/transition/records.rs",
        from: "            self.copy(name, record, is_in_old).await?;\n",
        to: "            drop(self.copy(name, record, is_in_old));\n",
        test: (UNITS, "transition::records::tests::a_job_runs_once_per_period_in_a_fleet_that_moves"),
    },
    Mutant {
        name: "a transition: the tokens of the new store do not continue after the record of a job",
        file: "crates/polylock-core/src/transition/records.rs",
        from: "        raise.raise(&Request::new(name.clone(), Mode::Exclusive, keep), record.version.token).await?;\n",
        to: "        drop((raise, Request::new(name.clone(), Mode::Exclusive, keep)));\n",
        test: (UNITS, "transition::records::tests::a_job_runs_once_per_period_in_a_fleet_that_moves"),
    },
];
