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
        name: "a shutdown that ends before the drop of a guard has sent its release",
        file: "crates/polylock-core/src/engine/shared_hold.rs",
        from: "        let under_way = self.handle.context.pending.begin();
        let releasing = match self.leave() {
            Ok(until) => self.hold",
        to: "        let left = self.leave();
        let under_way = self.handle.context.pending.begin();
        let releasing = match left {
            Ok(until) => self.hold",
        test: ("shutdown", "waits_for_the_release_of_a_guard_whose_drop_is_in_progress"),
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
    Mutant {
        name: "a hold that lasts longer than its max_hold",
        file: "crates/polylock-core/src/engine/hold_limits.rs",
        from: "        deadline::of(sent, lease).min(self.end)",
        to: "        deadline::of(sent, lease)",
        test: ("conformance", "memory::hold_limits::max_hold_ends_a_hold_before_its_lease"),
    },
    Mutant {
        name: "a hold that is renewed beyond its max_hold",
        file: "crates/polylock-core/src/engine/hold_limits.rs",
        from: "if deadline::of(sent, lease) >= self.end { Moment::NEVER } else { sent + lease / 3 }",
        to: "sent + lease / 3",
        test: ("conformance", "memory::hold_limits::max_hold_ends_a_hold_that_is_renewed"),
    },
    Mutant {
        name: "a lock that is released at its max_hold while its holder works",
        file: "crates/polylock-core/src/engine/hold.rs",
        from: "Phase::Lost(LostReason::Broken(_) | LostReason::MaxHold)",
        to: "Phase::Lost(LostReason::Broken(_))",
        test: ("conformance", "memory::hold_limits::max_hold_ends_a_hold_before_its_lease"),
    },
    Mutant {
        name: "a min_hold that a release ignores",
        file: "crates/polylock-core/src/engine/shared_hold.rs",
        from: "        let Some(end) = self.hold.kept_until() else {",
        to: "        let Some(end) = self.hold.kept_until().filter(|_| false) else {",
        test: ("conformance", "memory::hold_limits::min_hold_delays_a_release"),
    },
    Mutant {
        name: "a min_hold that a drop ignores",
        file: "crates/polylock-core/src/engine/shared_hold.rs",
        from: "        if let Some(end) = self.hold.kept_until() {",
        to: "        if let Some(end) = self.hold.kept_until().filter(|_| false) {",
        test: ("conformance", "memory::hold_limits::min_hold_delays_a_drop"),
    },
    Mutant {
        name: "renewals that the events of a guard omit",
        file: "crates/polylock-core/src/engine/keeper/state.rs",
        from: "                    self.hold.report(GuardEvent::Renewed { deadline, slack });\n",
        to: "",
        test: ("conformance", "memory::events::report_renewals_with_their_slack"),
    },
    Mutant {
        name: "a loss without a warning in the events of a guard",
        file: "crates/polylock-core/src/engine/keeper/state.rs",
        from: "if left < self.lease / 3 && ",
        to: "if left > self.lease && ",
        test: ("conformance", "memory::events::warn_of_a_loss_before_it"),
    },
    Mutant {
        name: "events of a guard that a slow reader keeps in memory",
        file: "crates/polylock-core/src/engine/hold_events.rs",
        from: "const KEPT: usize = 16;",
        to: "const KEPT: usize = 1 << 16;",
        test: ("conformance", "memory::events::are_bounded_for_a_slow_reader"),
    },
    Mutant {
        name: "a queue that is read without a display",
        file: "crates/polylock-core/src/progress.rs",
        from: "            if let Some(interval) = self.state().interest {",
        to: "            if let Some(interval) = self.state().interest.or(Some(None)) {",
        test: ("conformance", "memory::wait::the_queue_is_read_for_a_display"),
    },
];
