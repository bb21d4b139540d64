//! Bugs of the check for deadlocks.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "deadlocks: a cycle is reported after the first look",
        file: "crates/polylock-core/src/deadlock.rs",
        from: "        self.0.iter().all(|wait| {",
        to: "        self.0.iter().take(0).all(|wait| {",
        test: ("units of library polylock_core", "deadlock::tests::only_the_same_requests_confirm_a_cycle"),
    },
    Mutant {
        name: "deadlocks: every request of the cycle is refused",
        file: "crates/polylock-core/src/engine/deadlock_check.rs",
        from: ".filter(|it| it.victim() == Some(&request.owner))",
        to: "",
        test: ("conformance", "memory::deadlocks::of_two_owners_refuse_the_youngest_request"),
    },
    Mutant {
        name: "deadlocks: an owner with several tasks is one thread of control",
        file: "crates/polylock-core/src/owner.rs",
        from: "self.0.rsplit_once(':').is_some_and(",
        to: "self.0.rsplit_once('\\n').is_some_and(",
        test: ("conformance", "memory::deadlocks::of_whole_processes_are_not_reported"),
    },
    Mutant {
        name: "deadlocks: a wait for a compatible holder is a wait",
        file: "crates/polylock-core/src/deadlock.rs",
        from: "                        || !waiter.mode.conflicts_with(other.mode)\n",
        to: "",
        test: (
            "units of library polylock_core",
            "deadlock::tests::a_waiter_ahead_is_waited_for_and_readers_are_not",
        ),
    },
    Mutant {
        name: "deadlocks: a request of the holder waits for itself",
        file: "crates/polylock-core/src/engine/keeper.rs",
        from: "find_map(|hold| Some(hold.mode()).filter(|held| held.conflicts_with(mode)))",
        to: "find_map(|hold| Some(hold.mode()).filter(|held| held.conflicts_with(mode) && false))",
        test: ("conformance", "memory::deadlocks::of_one_owner_are_refused_at_once"),
    },
];
