//! Bugs of core.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "deadline counted from the reply of the claim",
        file: "crates/polylock-core/src/engine/acquisition.rs",
        from: "                    return Ok(Acquired::New { grant, sent });
                }
                Ok(ClaimOutcome::Granted(_))",
        to: "                    return Ok(Acquired::New { grant, sent: self.context.now() });
                }
                Ok(ClaimOutcome::Granted(_))",
        test: ("conformance", "memory::renew::the_deadline_counts_from_the_send_time"),
    },
    Mutant {
        name: "deadline counted from the reply of the renewal",
        file: "crates/polylock-core/src/engine/keeper.rs",
        from: "keeper.apply(sent, &batch, reply);",
        to: "keeper.apply(context.now(), &batch, reply);",
        test: ("conformance", "memory::renew::the_deadline_counts_from_the_send_time"),
    },
    Mutant {
        name: "the deadline is not checked while a renewal hangs",
        file: "crates/polylock-core/src/engine/keeper/due.rs",
        from: "        if self.deadline() <= now {",
        to: "        if self.deadline() <= now && !self.in_flight {",
        test: ("processes", "watchdog::a_hung_renewal_does_not_delay_the_loss_without_a_call_on_the_guard"),
    },
    Mutant {
        name: "a renewal that hangs is not followed by another",
        file: "crates/polylock-core/src/engine/keeper/state.rs",
        from: "self.renew_at = now + self.lease / 6;",
        to: "self.renew_at = Moment::NEVER;",
        test: ("processes", "watchdog::a_hung_renewal_does_not_delay_the_loss_without_a_call_on_the_guard"),
    },
    Mutant {
        name: "a server releases a hold that its client renews elsewhere",
        file: "crates/polylock-core/src/engine/keeper.rs",
        from: "if is_lost && hold.is_known_elsewhere()",
        to: "if false",
        test: ("keep_alive", "a_server_does_not_release_a_hold_that_its_client_renews_elsewhere"),
    },
    Mutant {
        name: "a server releases a broken lock before its client does",
        file: "crates/polylock-core/src/engine/shared_hold.rs",
        from: " && !self.handle.context.holds_outlive_process",
        to: "",
        test: ("keep_alive", "a_server_does_not_release_a_broken_lock_before_its_client_does"),
    },
    Mutant {
        name: "release without owner check in memory",
        file: "crates/polylock-core/src/memory.rs",
        from: "            entries.retain(|entry| entry.id != request.id);
            let outcome",
        to: "            entries.clear();
            let outcome",
        test: ("conformance", "memory::idempotence::a_release_by_another_request_changes_nothing"),
    },
    Mutant {
        name: "a retried release that reports the loss of its own first attempt",
        file: "crates/polylock-core/src/engine/context.rs",
        from: "            Release::Lost(_) if attempts > 1 => ",
        to: "            Release::Lost(_) if attempts > 9 => ",
        test: ("conformance", "memory::release::is_retried_after_a_lost_reply"),
    },
    Mutant {
        name: "reentrancy: a caller that is not polled keeps the hold that it has entered",
        file: "crates/polylock-core/src/engine/acquisition.rs",
        from: "                return shared_hold
                    .hold()",
        to: "                shared_hold.clone().keep_until_received();
                return shared_hold
                    .hold()",
        test: ("nobody", "an_entry_that_is_not_polled_does_not_keep_the_lock"),
    },
    Mutant {
        name: "reentrancy: a caller that is not polled keeps the hold that another one has entered",
        file: "crates/polylock-core/src/engine/granted.rs",
        from: ".inspect(|shared_hold| shared_hold.end_keeping())",
        to: "",
        test: (
            "nobody",
            "the_first_of_two_acquisitions_does_not_keep_the_lock_of_the_second_while_it_is_not_polled",
        ),
    },
    Mutant {
        name: "a shutdown keeps a lock for the min_hold of a caller that has not received it",
        file: "crates/polylock-core/src/engine/hold.rs",
        from: "(self.has_receiver() && !left.is_zero()",
        to: "(!left.is_zero()",
        test: ("nobody", "a_shutdown_keeps_only_a_lock_that_its_holder_has_received"),
    },
    Mutant {
        name: "a release that reports success whatever it finds",
        file: "crates/polylock-core/src/engine/hold_end.rs",
        from: "            Release::Lost(reason) => {
                self.report_loss(&reason);
                Ended::Lost(reason).into_result(self.name())
            }",
        to: "            Release::Lost(_) => Ok(()),",
        test: ("conformance", "memory::release::of_a_superseded_hold_is_an_error"),
    },
    Mutant {
        name: "a broken hold released before its holder has stopped",
        file: "crates/polylock-core/src/engine/keeper.rs",
        from: "    if hold.is_kept_after_loss() {",
        to: "    if false {",
        test: ("conformance", "memory::breaking::waits_for_the_holder"),
    },
    Mutant {
        name: "a grant kept for an acquire future that is not polled",
        file: "crates/polylock-core/src/engine/keeper/due.rs",
        from: "(self.receive_by() <= now && self.hold.pass_on())",
        to: "(self.receive_by() <= now && false)",
        test: ("conformance", "memory::wait::an_acquire_that_is_not_polled_does_not_keep_the_lock"),
    },
    Mutant {
        name: "a try_acquire that waits for another task of its owner",
        file: "crates/polylock-core/src/engine/acquisition.rs",
        from: "            let cell = if self.request.queues {",
        to: "            let cell = if true {",
        test: ("conformance", "memory::reentrancy::a_try_never_waits"),
    },
    Mutant {
        name: "run that waits for its release as long as the lease lasts",
        file: "crates/polylock-core/src/guard.rs",
        from: "self.release_within(Some(RELEASE_LIMIT))",
        to: "self.release_within(None)",
        test: ("conformance", "memory::lost::run_returns_when_the_work_is_done"),
    },
    Mutant {
        name: "claim dropped mid-flight",
        file: "crates/polylock-core/src/engine/acquisition_task.rs",
        from: "        if let Some(mut claim) = self.claim {
            // The reply is not used; only the end of the claim matters: see the module.
            drop(claim.reply().await);
        }
",
        to: "        drop(self.claim);
",
        test: ("conformance", "memory::cancel::with_a_claim_in_flight"),
    },
    Mutant {
        name: "guarded work polled before the clock is read",
        file: "crates/polylock-core/src/guard.rs",
        from: "        if let Err(lost) = (this.check)() {
            this.work.set(None);",
        to: "        if let (true, Err(lost)) = (signalled, (this.check)()) {
            this.work.set(None);",
        test: (
            "processes",
            "stops::sqlite_full::a_stopped_holder_reports_the_loss_and_its_work_is_not_polled_after_the_deadline",
        ),
    },
    Mutant {
        name: "the end of the program does not wait for releases",
        file: "crates/polylock-core/src/engine/pending.rs",
        from: "AT_EXIT: Duration = Duration::from_millis(500);",
        to: "AT_EXIT: Duration = Duration::ZERO;",
        test: ("processes", "exit::sqlite_full::with_the_locks_in_a_static"),
    },
    Mutant {
        name: "claims before releases, and releases before renewals",
        file: "crates/polylock-core/src/gate.rs",
        from: "for class in Precedence::ALL {",
        to: "for class in Precedence::ALL.into_iter().rev() {",
        test: (
            "units of library polylock_core",
            "gate::tests::renewals_go_before_releases_and_releases_before_claims",
        ),
    },
    Mutant {
        name: "a waiter keeps its place in the process, although its entry in the store was created again",
        file: "crates/polylock-core/src/engine/acquisition.rs",
        from: "        if let Some(number) = position.number {",
        to: "        if let Some(number) = position.number.filter(|_| false) {",
        test: ("conformance", "sqlite_full::order::an_expired_queue_entry_does_not_block_the_next_waiter"),
    },
    Mutant {
        name: "an unavailable store is not retried",
        file: "crates/polylock-core/src/engine/connect.rs",
        from: "if !error.is_temporary() || now >= until {",
        to: "if !error.is_temporary() || now >= until || now > began {",
        test: ("cli", "exit_codes::a_store_that_is_unreachable_at_the_start"),
    },
    Mutant {
        name: "a hold in a session is not renewed until its delayed release",
        file: "crates/polylock-core/src/engine/context.rs",
        from: "HoldLifetime::Session => (Duration::MAX, Duration::ZERO),",
        to: "HoldLifetime::Session => (Duration::ZERO, Duration::MAX),",
        test: ("engine", "a_release_after_a_delay_keeps_a_hold_that_would_end_with_the_process"),
    },
    Mutant {
        name: "a last renewal for a whole lease",
        file: "crates/polylock-core/src/engine/context.rs",
        from: "let left = end.since(self.now()).max(shortest);",
        to: "let left = request.ttl.max(shortest);",
        test: ("engine", "a_release_after_a_delay_leaves_a_lease_of_that_delay"),
    },
    Mutant {
        name: "queue entries are not kept alive",
        file: "crates/polylock-core/src/engine/acquisition.rs",
        from: "        self.keeper.wait(request, &waiting.entry, sent);
",
        to: "",
        test: ("conformance", "memory::keep_alive::keeps_the_queue_position_of_a_waiter"),
    },
    Mutant {
        name: "a hold that has stopped its renewals is renewed after a requested one",
        file: "crates/polylock-core/src/engine/keeper/state.rs",
        from: "let renew_at = if self.on_request {",
        to: "let renew_at = if false && self.on_request {",
        test: ("keep_alive", "a_hold_that_stops_its_renewals_lasts_until_its_deadline_or_the_next_renewal"),
    },
    Mutant {
        name: "a hold that a batch reports as unknown is lost",
        file: "crates/polylock-core/src/engine/keeper/state.rs",
        from: "        if *outcome == KeepAlive::Unknown {",
        to: "        if false {",
        test: ("keep_alive", "a_keep_alive_without_a_result_is_retried"),
    },
    Mutant {
        name: "a repeated claim has another ticket, and loses a kept notification",
        file: "crates/polylock-core/src/wakeups/state.rs",
        from: "        let Self { waiters, tickets, last, .. } = self;
",
        to: "        self.remove(request.id);
        let Self { waiters, tickets, last, .. } = self;
",
        test: (
            "units of library polylock_core",
            "wakeups::tests::a_claim_without_a_reply_stays_registered_until_it_is_granted",
        ),
    },
    Mutant {
        name: "a request that does not queue is registered as a waiter",
        file: "crates/polylock-core/src/wakeups.rs",
        from: "if request.queues { self.lock().register(request) } else { (0, false) };",
        to: "self.lock().register(request);",
        test: (
            "units of library polylock_core",
            "wakeups::tests::a_request_that_does_not_queue_is_not_registered",
        ),
    },
    Mutant {
        name: "the lease of a notified grant counts from the notification",
        file: "crates/polylock-core/src/engine/acquisition.rs",
        from: "sent: waiting.entry.granted_after(sent)",
        to: "sent: context.now()",
        test: (
            "keep_alive",
            "the_lease_of_a_notified_grant_counts_from_the_last_keep_alive_of_the_queue_entry",
        ),
    },
    Mutant {
        name: "an operation that its caller drops is not handed over",
        file: "crates/polylock-core/src/engine/foreground.rs",
        from: "        let work = self.0.lock().take();
        if let Some(work) = work {",
        to: "        let work = self.0.lock().take();
        if let Some(work) = work.filter(|_| false) {",
        test: ("foreground", "an_operation_dropped_by_its_caller_is_rolled_back_or_completed"),
    },
    Mutant {
        name: "a connection of the parent is used after a fork",
        file: "crates/polylock-core/src/engine/foreground.rs",
        from: "if !context.is_own_process() || context.now()",
        to: "if context.now()",
        test: ("fork", "use_after_a_fork_is_an_immediate_error_without_side_effects"),
    },
    Mutant {
        name: "a connection of a caller that is not polled is not taken over",
        file: "crates/polylock-core/src/engine/foreground.rs",
        from: "        self.watch(operation, Arc::downgrade(&task) as _);
",
        to: "        drop(operation);
",
        test: ("foreground", "moving::a_caller_that_is_not_polled_keeps_no_connection"),
    },
    Mutant {
        name: "an operation that its caller drops ends there",
        file: "crates/polylock-core/src/io.rs",
        from: "    fn drop(&mut self) {
        self.move_to_thread();",
        to: "    fn drop(&mut self) {
        self.future = None;",
        test: ("foreground", "moving::a_dropped_operation_continues_and_is_rolled_back"),
    },
    Mutant {
        name: "a late reply about a queue entry ends the hold",
        file: "crates/polylock-core/src/engine/keeper/state.rs",
        from: "        if sent < self.since && !matches!",
        to: "        if sent > now && !matches!",
        test: ("keep_alive", "a_reply_from_the_time_in_the_queue_does_not_end_a_hold"),
    },
    Mutant {
        name: "an operation that its caller does not poll is not taken over",
        file: "crates/polylock-core/src/engine/foreground.rs",
        from: "if foreground.take_over(now) {",
        to: "if foreground.take_over(Moment::default()) {",
        test: ("foreground", "a_lock_whose_caller_is_not_polled_is_passed_on"),
    },
    Mutant {
        name: "a claim that the caller has dropped is not withdrawn",
        file: "crates/polylock-core/src/engine/acquisition_task.rs",
        from: "may_have_entry: !matches!(first, FirstClaim::NotSent),",
        to: "may_have_entry: false,",
        test: ("foreground", "an_operation_dropped_by_its_caller_is_rolled_back_or_completed"),
    },
    Mutant {
        name: "a try is not released although its first claim may be delivered after the reply",
        file: "crates/polylock-core/src/engine/acquisition.rs",
        from: "self.may_have_entry = is_first_unknown || position.may_be_granted_late;",
        to: "self.may_have_entry = position.may_be_granted_late;",
        test: ("foreground", "a_try_whose_first_claim_may_be_late_is_released_though_the_lock_is_busy"),
    },
    Mutant {
        name: "a try is not released although the store reports a late copy of its claim",
        file: "crates/polylock-core/src/engine/acquisition.rs",
        from: "self.may_have_entry = is_first_unknown || position.may_be_granted_late;",
        to: "self.may_have_entry = is_first_unknown;",
        test: ("foreground", "a_try_is_released_if_the_store_reports_a_late_copy"),
    },
    Mutant {
        name: "a try that its caller claimed is not released although the store reports a late copy of its claim",
        file: "crates/polylock-core/src/engine/first_claim.rs",
        from: "if !request.queues && !position.may_be_granted_late =>",
        to: "if !request.queues && (!position.may_be_granted_late || true) =>",
        test: ("foreground", "a_try_is_released_if_the_store_reports_a_late_copy"),
    },
    Mutant {
        name: "a waiter that has failed stays in the local queue until its rollback is confirmed",
        file: "crates/polylock-core/src/engine/acquisition_task.rs",
        from: "let rollback = Rollback::of(acquisition);",
        to: "let rollback = Rollback { needed: acquisition.may_have_entry, claim: acquisition.claim };",
        test: ("claims", "an_acquisition_does_not_wait_for_the_rollback_of_an_earlier_one"),
    },
    Mutant {
        name: "the I/O thread claims for a cancelled caller",
        file: "crates/polylock-core/src/engine/first_claim.rs",
        from: "    caller: Caller,
    /// The result from the I/O thread, if the acquisition continues there.
    reply: A,
    driven: Driven<ClaimOutcome, (Parts, OwnedSemaphorePermit)>,
",
        to: "    driven: Driven<ClaimOutcome, (Parts, OwnedSemaphorePermit)>,
    caller: Caller,
    reply: A,
",
        test: ("foreground", "the_io_thread_does_not_claim_for_a_cancelled_caller"),
    },
    Mutant {
        name: "a claim that fails on the connection of a caller is not sent on another",
        file: "crates/polylock-core/src/engine/first_claim.rs",
        from: "            Err(error) if error.is_temporary() && error.retry_after().is_none() => {
                continue_on_thread(parts, FirstClaim::Unknown);
            }
",
        to: "",
        test: ("foreground", "a_failure_on_the_callers_connection_is_retried_on_the_io_thread"),
    },
    Mutant {
        name: "the unusable connection of a caller is replaced at once",
        file: "crates/polylock-core/src/per_runtime.rs",
        from: "entry.give_up(now + PAUSE)",
        to: "entry.give_up(now)",
        test: ("foreground", "connections::a_broken_connection_is_replaced_after_a_pause"),
    },
    Mutant {
        name: "the owner that another program wrote is cut at 255 characters",
        file: "crates/polylock-core/src/owner.rs",
        from: "if clean.len() + c.len_utf8() > OwnerId::MAX_BYTES {",
        to: "if clean.chars().count() >= OwnerId::MAX_BYTES {",
        test: ("units of library polylock_core", "fuzz::tests::owners"),
    },
    Mutant {
        name: "testkit: a percent sign is not escaped in a history",
        file: "crates/polylock-testkit/src/history/section.rs",
        from: "if byte.is_ascii_graphic() && byte != b'%' {",
        to: "if byte.is_ascii_graphic() {",
        test: ("units of library polylock_testkit", "history::fuzz::tests::histories"),
    },
    Mutant {
        name: "a watch reads the store without a pause",
        file: "crates/polylock-core/src/watch.rs",
        from: "None => (Moment::NEVER, ended + cost.max(busy)),",
        to: "None => (Moment::NEVER, ended + cost.min(busy)),",
        test: (
            "units of library polylock_core",
            "watch::tests::a_watch_reads_once_a_second_also_if_its_futures_are_dropped",
        ),
    },
    Mutant {
        name: "a watch shows an outage that has ended",
        file: "crates/polylock-core/src/watch.rs",
        from: "events.extend(self.merge(found, read.ended).into_iter().map(WatchEvent::Changed));",
        to: "let outage = self.state.outage.clone(); events.extend(self.merge(found, read.ended).into_iter().map(WatchEvent::Changed)); Arc::make_mut(&mut self.state).outage = outage;",
        test: ("units of library polylock_core", "watch::tests::an_outage_is_an_event_and_the_watch_goes_on"),
    },
    Mutant {
        name: "a lease that has ended is shown as a release",
        file: "crates/polylock-core/src/watched/compare.rs",
        from: "if holder.expires_in <= since {",
        to: "if holder.expires_in < since / 2 {",
        test: (
            "units of library polylock_core",
            "watched::compare::tests::a_hold_that_is_gone_after_its_lease_has_expired",
        ),
    },
    Mutant {
        name: "a guard that is dropped after a fork locks what a thread of the parent has locked",
        file: "crates/polylock-core/src/engine/shared_hold.rs",
        from: "if !self.handle.context.is_own_process() {\n            // A thread",
        to: "if false {\n            // A thread",
        test: ("fork", "use_after_a_fork_is_an_immediate_error_without_side_effects"),
    },
];
