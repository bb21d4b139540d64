//! Bugs of the acquisition of several locks together.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "several locks: acquired in any order",
        file: "crates/polylock-core/src/many/multi_lock.rs",
        from: "            for name in &names {",
        to: "            let mut names: Vec<_> = names.iter().collect();
            if crate::RequestId::random().to_bytes()[0].is_multiple_of(2) {
                names.reverse();
            }
            for name in names.iter().copied() {",
        test: ("conformance", "memory::many::tasks_lose_no_update"),
    },
    Mutant {
        name: "several locks: a failed acquisition keeps those that it has",
        file: "crates/polylock-core/src/many/multi_lock.rs",
        from: "            join_all(guards.into_iter().map(|guard| guard.release_within(Some(RELEASE_LIMIT)))).await;",
        to: "            join_all(guards.iter().map(|_| std::future::ready(()))).await;
            std::mem::forget(guards);",
        test: ("conformance", "memory::many::a_busy_lock_leaves_no_entry"),
    },
    Mutant {
        name: "several locks: a fault keeps those that it has",
        file: "crates/polylock-core/src/many/multi_lock.rs",
        from: "            let guards = partial.take();",
        to: "            let guards = partial.take();
            let guards = if matches!(failed, Some(Error::Unavailable(_))) {
                std::mem::forget(guards);
                Vec::new()
            } else {
                guards
            };",
        test: ("conformance", "memory::many::a_fault_leaves_no_entry"),
    },
    Mutant {
        name: "several locks: an error before the releases",
        file: "crates/polylock-core/src/many/multi_lock.rs",
        from: "            join_all(guards.into_iter().map(|guard| guard.release_within(Some(RELEASE_LIMIT)))).await;",
        to: "            join_all(guards.iter().map(|_| std::future::ready(()))).await;
            drop(guards);",
        test: ("conformance", "memory::many::a_failure_is_returned_after_the_releases"),
    },
    Mutant {
        name: "several locks: a time limit for each lock",
        file: "crates/polylock-core/src/many/multi_lock.rs",
        from: "template.step(name.clone(), &steps);",
        to: "template.step(name.clone(), &Steps::begin(context, &options));",
        test: ("conformance", "memory::many::a_wait_is_for_all_locks_together"),
    },
    Mutant {
        name: "several locks: held while any of them is held",
        file: "crates/polylock-core/src/many/multi_guard.rs",
        from: "self.guards.iter().all(Guard::is_held)",
        to: "self.guards.iter().any(Guard::is_held)",
        test: ("conformance", "memory::many::losing_one_is_losing_all"),
    },
    Mutant {
        name: "several locks: a release that reports success whatever it finds",
        file: "crates/polylock-core/src/many/multi_guard.rs",
        from: "if errors.is_empty() { Ok(()) }",
        to: "if errors.len() < 2 { Ok(()) }",
        test: ("conformance", "memory::many::losing_one_is_losing_all"),
    },
    Mutant {
        name: "several locks: the last deadline",
        file: "crates/polylock-core/src/many/multi_guard.rs",
        from: "self.guards.iter().map(Guard::deadline).min()",
        to: "self.guards.iter().map(Guard::deadline).max()",
        test: ("conformance", "memory::many::the_earliest_deadline_is_that_of_all"),
    },
    Mutant {
        name: "several locks: run checks only the first lock",
        file: "crates/polylock-core/src/many/multi_guard.rs",
        from: "Protected::new(work.instrument(span), || self.ensure_held(), lost);",
        to: "Protected::new(
            work.instrument(span),
            || self.guards.first().map_or(Ok(()), Guard::ensure_held),
            Box::pin(std::future::pending::<()>()),
        );
        drop(lost);",
        test: ("conformance", "memory::many::run_stops_at_the_loss_of_one"),
    },
    Mutant {
        name: "several locks: a loss is not noticed while another lock is awaited",
        file: "crates/polylock-core/src/many/partial.rs",
        from: "_ = &mut lost => return None,",
        to: "_ = &mut lost, if false => return None,",
        test: ("conformance", "memory::many::a_lock_that_is_lost_while_waiting_is_acquired_again"),
    },
    Mutant {
        name: "several locks: kept by an acquisition that is not polled",
        file: "crates/polylock-core/src/many/partial.rs",
        from: "        if now.since(state.polled) < queue_lease {",
        to: "        if now.since(state.polled) < 1000 * queue_lease {",
        test: ("conformance", "memory::many::an_acquire_that_is_not_polled_keeps_no_lock"),
    },
    Mutant {
        name: "several locks: a cancelled acquisition keeps those that it has",
        file: "crates/polylock-core/src/many/partial.rs",
        from: "        drop(self.take());",
        to: "        std::mem::forget(self.take());",
        test: ("conformance", "memory::many::at_every_poll_of_a_waiting_acquire"),
    },
    Mutant {
        name: "several locks: those of a set that nobody got are kept for their min_hold",
        file: "crates/polylock-core/src/many/partial.rs",
        from: "        guard.shared_hold().hold().unreceive();\n",
        to: "",
        test: ("nobody", "a_set_that_is_busy_keeps_none_of_its_locks_for_their_min_hold"),
    },
    Mutant {
        name: "several locks: a set that somebody got has no min_hold",
        file: "crates/polylock-core/src/many/multi_lock.rs",
        from: "guards.into_iter().map(Guard::received).collect()",
        to: "guards",
        test: ("nobody", "a_set_that_is_busy_keeps_none_of_its_locks_for_their_min_hold"),
    },
    Mutant {
        name: "several locks: the failure of an inner set ends the min_hold of an outer guard",
        file: "crates/polylock-core/src/engine/hold.rs",
        from: "        self.receivers.fetch_sub(1, Ordering::Relaxed);",
        to: "        self.receivers.store(0, Ordering::Relaxed);",
        test: ("nobody", "a_set_that_is_busy_does_not_end_the_min_hold_of_an_outer_guard"),
    },
    Mutant {
        name: "command line: --also without its locks",
        file: "crates/polylock-cli/src/run/mod.rs",
        from: ".lock_many(log.names.iter())",
        to: ".lock_many([log.names.main()])",
        test: ("processes", "cli::several_locks::sqlite_full::runs_with_overlapping_locks_lose_no_update"),
    },
    Mutant {
        name: "command line: the tokens of --also are mixed up",
        file: "crates/polylock-cli/src/run/environment.rs",
        from: "let token = guard.fencing_token(held)",
        to: "let token = guard.fencing_token(names.main())",
        test: ("processes", "cli::several_locks::sqlite_full::runs_with_overlapping_locks_lose_no_update"),
    },
    Mutant {
        name: "trees: the ancestors in the mode of the node",
        file: "crates/polylock-core/src/many/multi_lock.rs",
        from: "if let Some(mode) = intention.filter(|_| names.last() != Some(name)) {",
        to: "if let Some(mode) = intention.filter(|_| names.is_empty()) {",
        test: ("conformance", "memory::tree::nodes_exclude_their_ancestors_and_descendants"),
    },
    Mutant {
        name: "trees: a writer is a reader of the ancestors",
        file: "crates/polylock-core/src/mode.rs",
        from: "Self::Exclusive => Some(Self::ConcurrentWrite),",
        to: "Self::Exclusive => Some(Self::ConcurrentRead),",
        test: ("conformance", "memory::tree::nodes_exclude_their_ancestors_and_descendants"),
    },
    Mutant {
        name: "trees: the ancestors are not locked",
        file: "crates/polylock-core/src/name.rs",
        from: "Ok(ends.into_iter().map(|end|",
        to: "Ok(ends.into_iter().rev().take(1).map(|end|",
        test: ("conformance", "memory::tree::tasks_lose_no_update"),
    },
];
