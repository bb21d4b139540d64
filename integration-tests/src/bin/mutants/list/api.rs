//! Bugs of the parts of core that programs call.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "a shutdown that lets acquisitions begin",
        file: "crates/polylock-core/src/engine/lifecycle.rs",
        from: "            is_refused = state.is_shut_down;",
        to: "            is_refused = state.is_shut_down && false;",
        test: ("conformance", "memory::shutdown::refuses_acquisitions_before_any_io"),
    },
    Mutant {
        name: "a shutdown that leaves waiters in the queue",
        file: "crates/polylock-core/src/engine/acquisition_task.rs",
        from: "() = context.lifecycle.shutdown_begun() => Err(Error::ShutDown),",
        to: "() = context.lifecycle.shutdown_begun(), if false => Err(Error::ShutDown),",
        test: ("conformance", "memory::shutdown::ends_the_waiters"),
    },
    Mutant {
        name: "a shutdown that releases a lock which its guard still shows as held",
        file: "crates/polylock-core/src/engine/hold.rs",
        from: "        self.check().is_ok() && self.lose(LostReason::ShutDown)",
        to: "        self.check().is_ok()",
        test: ("conformance", "memory::shutdown::reports_a_release_that_fails"),
    },
    Mutant {
        name: "a shutdown that does not wait for acquisitions in progress",
        file: "crates/polylock-core/src/engine/lifecycle.rs",
        from: "self.when(|state| state.acquisitions == 0).await;",
        to: "self.when(|_| true).await;",
        test: ("shutdown", "leaves_nothing_of_acquisitions_at_the_same_time"),
    },
    Mutant {
        name: "a shutdown that does not wait for the releases of dropped guards",
        file: "crates/polylock-core/src/engine/shutdown.rs",
        from: "        context.pending.drained().await;
",
        to: "",
        test: ("shutdown", "waits_for_the_release_of_a_guard_that_was_dropped"),
    },
    Mutant {
        name: "a shutdown that its caller interrupts",
        file: "crates/polylock-core/src/engine/shutdown.rs",
        from: "        if let Err(error) = context.spawn(Operation::Release, work) {
            context.lifecycle.complete(Err(error.chain()));
        }",
        to: "        work.await;",
        test: ("shutdown", "a_shutdown_that_is_dropped_continues"),
    },
    Mutant {
        name: "a blocking call that stops the runtime of its task",
        file: "crates/polylock-core/src/blocking/wait.rs",
        from: "    if is_in_task() { Err(Error::AsyncContext) } else { Ok(()) }",
        to: "    if is_in_task() && false { Err(Error::AsyncContext) } else { Ok(()) }",
        test: ("blocking", "every_call_in_a_task_is_refused"),
    },
    Mutant {
        name: "a blocking call that is refused on every thread with a runtime",
        file: "crates/polylock-core/src/blocking/wait.rs",
        from: " && (0..=u8::MAX).any(|_| consume_budget().now_or_never().is_none())",
        to: "",
        test: ("blocking", "threads_that_may_block_are_not_refused"),
    },
    Mutant {
        name: "blocking work that begins under a lost lock",
        file: "crates/polylock-core/src/blocking/guard.rs",
        from: "        self.ensure_held()?;
        let output",
        to: "        let output",
        test: ("blocking", "a_guard_reports_its_loss_to_a_thread"),
    },
];
