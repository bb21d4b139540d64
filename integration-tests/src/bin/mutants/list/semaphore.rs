//! Bugs of semaphores.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "semaphore: the name of a slot can be that of a user's lock",
        file: "crates/polylock-core/src/name.rs",
        from: "const PART: char = '\\0';",
        to: "const PART: char = '/';",
        test: (
            "units of library polylock_core",
            "name::tests::the_locks_of_a_semaphore_are_no_names_of_users",
        ),
    },
    Mutant {
        name: "semaphore: all slots are one lock",
        file: "crates/polylock-core/src/semaphore/lock.rs",
        from: "self.template.step(names.semaphore.of_semaphore(Some(slot)), steps)",
        to: "self.template.step(names.semaphore.of_semaphore(Some(slot / 1024)), steps)",
        test: ("conformance", "memory::semaphore::a_try_takes_any_free_slot"),
    },
    Mutant {
        name: "semaphore: one slot too many",
        file: "crates/polylock-core/src/semaphore/lock.rs",
        from: "        let waits = (0..self.slots).map(",
        to: "        let waits = (0..=self.slots).map(",
        test: ("conformance", "memory::semaphore::one_slot_excludes_other_holders"),
    },
    Mutant {
        name: "semaphore: a try looks at one slot only",
        file: "crates/polylock-core/src/semaphore/lock.rs",
        from: "for slot in (0..self.slots).filter(|slot| *slot != first) {",
        to: "for slot in (0..0).filter(|slot| *slot != first) {",
        test: ("conformance", "memory::semaphore::a_try_takes_any_free_slot"),
    },
    Mutant {
        name: "semaphore: waiters do not wait for the turnstile",
        file: "crates/polylock-core/src/semaphore/lock.rs",
        from: "let turnstile = turnstile.acquire().await.map_err(failed)?;",
        to: "let turnstile = turnstile.mode(crate::Mode::Null).acquire().await.map_err(failed)?;",
        test: ("conformance", "memory::semaphore::first_come_first_served"),
    },
    Mutant {
        name: "semaphore: an outage before the slot fails at once",
        file: "crates/polylock-core/src/semaphore/lock.rs",
        from: "            Err(error) if error.is_temporary() => {}",
        to: "            Err(error) if error.is_not_acquired() => {}",
        test: ("limits", "a_semaphore_waits_out_an_outage_before_its_slot"),
    },
    Mutant {
        name: "steps: each one counts an outage anew",
        file: "crates/polylock-core/src/lock.rs",
        from: "lock.failing = Some(steps.failing().clone());",
        to: "lock.failing = Some(steps.failing().clone()).filter(|_| false);",
        test: ("limits", "several_locks_count_an_outage_once_although_the_first_ones_are_lost"),
    },
    Mutant {
        name: "steps: each one has the whole wait",
        file: "crates/polylock-core/src/engine/steps.rs",
        from: "self.wait.map(|wait| (self.began + wait).since(self.context.now()).max(SHORTEST_WAIT))",
        to: "self.wait.map(|wait| wait.max(SHORTEST_WAIT))",
        test: ("limits", "the_wait_of_a_job_includes_the_outage_before_it"),
    },
    Mutant {
        name: "steps: a reply of the store does not end an outage",
        file: "crates/polylock-core/src/engine/failing.rs",
        from: "        *lock(&self.0) = None;",
        to: "        drop(lock(&self.0));",
        test: ("limits", "a_reply_ends_an_outage"),
    },
    Mutant {
        name: "a wait whose grant is passed on counts from its begin again",
        file: "crates/polylock-core/src/engine/acquire.rs",
        from: "limits.wait = wait.map(|wait|",
        to: "limits.wait = limits.wait.map(|wait|",
        test: ("limits", "a_wait_counts_from_its_begin_however_often_the_lock_is_passed_on"),
    },
    Mutant {
        name: "semaphore: the turnstile is kept",
        file: "crates/polylock-core/src/semaphore/lock.rs",
        from: "                drop(turnstile);",
        to: "                std::mem::forget(turnstile);",
        test: ("conformance", "memory::semaphore::admits_as_many_holders_as_slots"),
    },
    Mutant {
        name: "semaphore: a waiter of the turnstile keeps it after its time limit",
        file: "crates/polylock-core/src/semaphore/lock.rs",
        from: "                join_all(turnstile.into_iter().map(|guard| guard.release_within(Some(RELEASE_LIMIT)))).await;",
        to: "                std::mem::forget(turnstile);",
        test: ("conformance", "memory::semaphore::a_wait_that_times_out_leaves_no_entry"),
    },
    Mutant {
        name: "semaphore: holders with another number of slots are not noticed",
        file: "crates/polylock-core/src/semaphore/lock.rs",
        from: ".find(|(number, _)| *number != self.slots)",
        to: ".find(|(number, _)| *number == u32::MAX)",
        test: ("conformance", "memory::semaphore::another_number_of_slots_is_an_error"),
    },
    Mutant {
        name: "semaphore: waiters are not shown",
        file: "crates/polylock-core/src/semaphore/status.rs",
        from: "let waiters = lock.holders.into_iter().chain(lock.waiters);",
        to: "let waiters = lock.waiters.into_iter();",
        test: ("conformance", "memory::semaphore::shows_its_slots_and_waiters"),
    },
    Mutant {
        name: "command line: --slots without its slot",
        file: "crates/polylock-cli/src/run/environment.rs",
        from: "if let Some(slot) = names.slot() {",
        to: "if let Some(slot) = names.slot().map(|_| 0) {",
        test: ("cli", "slots::each_run_has_a_slot_of_its_own"),
    },
];
