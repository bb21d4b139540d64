//! Bugs of holds without a process.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "handles: a hold that has ended is adopted",
        file: "crates/polylock-core/src/engine/adopt.rs",
        from: "KeepAlive::Lost(reason) => return Err(Error::Lost { name: request.name.clone(), reason }),",
        to: "KeepAlive::Lost(_) => (request.ttl, None),",
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
        from: "        _ = &mut parent => return Ok(exit::SIGNAL),\n",
        to: "",
        test: ("cli", "handles::a_wait_for_a_busy_lock_ends_with_its_command"),
    },
    Mutant {
        name: "handles: a keeper keeps the lock although nobody has received its handle",
        file: "crates/polylock-cli/src/command/handles.rs",
        from: "if parent.await == Ok(true) {",
        to: "if parent.await.is_ok() {",
        test: ("cli", "handles::a_hold_whose_handle_nobody_receives_is_released"),
    },
    Mutant {
        name: "handles: a handle that nobody reads makes the command deaf",
        file: "crates/polylock-cli/src/command/handles.rs",
        from: "let printing = thread::Builder::new().spawn(move || sender.send(output.deliver(&line)));",
        to: "let printing = io::Result::Ok(sender.send(output.deliver(&line)));",
        test: ("cli", "unread::a_handle_that_nobody_reads_keeps_no_lock"),
    },
    Mutant {
        name: "handles: a closed reader of a handle is no error",
        file: "crates/polylock-cli/src/output/mod.rs",
        from: "            false => Err(Failure::new(INTERNAL, \"can't write to stdout: it is a closed pipe\")),",
        to: "            false => Ok(()),",
        test: ("cli", "handles::a_hold_whose_handle_nobody_receives_is_released"),
    },
];
