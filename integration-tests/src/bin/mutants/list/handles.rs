//! Bugs of holds without a process.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "handles: a hold that has ended is adopted",
        file: "crates/polylock-core/src/engine/adopt.rs",
        from: "KeepAlive::Lost(reason) => return Err(Error::Lost { name: request.name.clone(), reason }),",
        to: "KeepAlive::Lost(_) => request.ttl,",
        test: ("conformance", "memory::handles::a_hold_that_nobody_renews_ends_with_its_lease"),
    },
    Mutant {
        name: "handles: a hold that ends with its session has a handle",
        file: "crates/polylock-core/src/engine/adopt.rs",
        from: "        HoldLifetime::Lease => Ok(()),",
        to: "        _ => Ok(()),",
        test: ("conformance", "zookeeper::handles::a_hold_of_a_session_has_no_handle"),
    },
    Mutant {
        name: "handles: the keeper does not look for the process",
        file: "crates/polylock-cli/src/command/handles.rs",
        from: "    while !process.has_ended() {",
        to: "    while process.has_ended() || true {",
        test: ("cli", "handles::a_hold_lasts_as_long_as_a_process"),
    },
    Mutant {
        name: "handles: the keeper waits on after the end of its parent",
        file: "crates/polylock-cli/src/command/handles.rs",
        from: "        () = parent_ended() => return Ok(exit::SIGNAL),\n",
        to: "",
        test: ("cli", "handles::a_wait_for_a_busy_lock_ends_with_its_command"),
    },
];
