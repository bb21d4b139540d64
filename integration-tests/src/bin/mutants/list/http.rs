//! Bugs of the lock service and its store.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "http: a reader of events stays when the server shuts down",
        file: "crates/polylock-server/src/events.rs",
        from: "lines.take_until(closes)",
        to: "lines.chain(stream::once(async { drop(closes); None }))",
        test: ("units of library polylock_server", "events::tests::all_streams_end_at_a_shutdown"),
    },
    Mutant {
        name: "http: a reader of events receives a change as an event and in the present state",
        file: "crates/polylock-server/src/events.rs",
        from: "!self.unsent.as_ref().is_some_and(is_unsent)",
        to: "!self.unsent.as_ref().is_some_and(|begin| false && is_unsent(begin))",
        test: (
            "units of library polylock_server",
            "events::tests::changes_while_the_present_state_is_sent_are_events_or_part_of_it",
        ),
    },
    Mutant {
        name: "http: a reader of events that is too slow continues with the oldest known event",
        file: "crates/polylock-server/src/watches.rs",
        from: "position.checked_sub(self.dropped).ok_or(TooSlow)?",
        to: "position.checked_sub(self.dropped).ok_or(TooSlow).unwrap_or(0)",
        test: (
            "units of library polylock_server",
            "events::tests::a_reader_that_is_too_slow_begins_again_with_the_present_state",
        ),
    },
    Mutant {
        name: "http: the watch of a prefix stays without readers",
        file: "crates/polylock-server/src/watches.rs",
        from: "if sender.receiver_count() == 0 {",
        to: "if sender.receiver_count() == usize::MAX {",
        test: (
            "units of library polylock_server",
            "events::tests::the_readers_of_a_prefix_share_a_watch_that_ends_with_the_last_one",
        ),
    },
    Mutant {
        name: "http: the server renews a lock that its client does not renew",
        file: "crates/polylock-server/src/renewals.rs",
        from: "guard.guards().iter().for_each(Guard::stop_renewals);",
        to: "",
        test: (
            "units of library polylock_server",
            "renewals::tests::each_renewal_by_the_client_extends_the_lease_and_nothing_else_does",
        ),
    },
    Mutant {
        name: "http: the stream of a lock ends although its client renews the lock",
        file: "crates/polylock-server/src/renewals.rs",
        from: "(guard.name(), guard.mode(), ttl) != (&request.name",
        to: "(guard.name(), guard.mode(), ttl) == (&request.name",
        test: (
            "units of library polylock_server",
            "renewals::tests::each_renewal_by_the_client_extends_the_lease_and_nothing_else_does",
        ),
    },
    Mutant {
        name: "http: requests stay on a silent connection",
        file: "crates/polylock-http/src/server.rs",
        from: "self.connection.unanswered(sending);",
        to: "let _ = &self.connection;",
        test: ("units of library polylock_http", "connection::tests::a_silent_connection_is_replaced"),
    },
    Mutant {
        name: "http: the server carries out claims that have expired",
        file: "crates/polylock-server/src/operations.rs",
        from: "turn.is_released() || expires.has_passed(service.clock.now()) {",
        to: "turn.is_released() || expires.us < 0 {",
        test: ("processes", "service::sqlite_full::a_claim_in_a_stopped_server_takes_no_lock_for_nobody"),
    },
    Mutant {
        name: "http: a claim follows the release of its request",
        file: "crates/polylock-server/src/turns.rs",
        from: "*turn.0 = true;",
        to: "*turn.0 = false;",
        test: (
            "units of library polylock_server",
            "turns::tests::operations_of_a_request_take_turns_and_no_claim_follows_a_release",
        ),
    },
    Mutant {
        name: "http: a claim that its client has dropped follows the release",
        file: "crates/polylock-server/src/operations.rs",
        from: "if turn.is_released() || expires",
        to: "if expires",
        test: (
            "units of library polylock_server",
            "serve_tests::a_claim_after_the_release_of_its_request_takes_no_lock",
        ),
    },
    Mutant {
        name: "http: a renewal without a result is a loss",
        file: "crates/polylock-server/src/holds.rs",
        from: "            return Err(Unavailable::new(backend, Operation::Renew, Fault::Temporary, cause).into());",
        to: "            let _ = (cause, backend);
            Outcome::Lost(LostReason::Gone)",
        test: ("units of library polylock_server", "holds::tests::a_renewal_without_a_result_is_no_loss"),
    },
    Mutant {
        name: "http: a release that is repeated is a loss",
        file: "crates/polylock-server/src/service.rs",
        from: "Release::Lost(LostReason::Gone) if is_repeated =>",
        to: "Release::Lost(LostReason::Gone) if is_repeated && request.ttl.is_zero() =>",
        test: ("units of library polylock_server", "service::tests::a_release_that_is_repeated_is_no_loss"),
    },
    Mutant {
        name: "http: a late reply to a claim extends the hold",
        file: "crates/polylock-server/src/holds.rs",
        from: "deadline::of(claimed, grant.lease)",
        to: "deadline::of(sent, grant.lease)",
        test: (
            "units of library polylock_server",
            "holds::tests::a_late_reply_to_a_claim_does_not_extend_the_hold",
        ),
    },
    Mutant {
        name: "http: a waiter without a client is kept",
        file: "crates/polylock-server/src/waiters.rs",
        from: "until < now",
        to: "until > now",
        test: ("units of library polylock_server", "waiters::tests::a_waiter_without_a_client_is_dropped"),
    },
    Mutant {
        name: "http: the lock of a stream ends with its server",
        file: "crates/polylock-server/src/service.rs",
        from: ".holds_outlive_process()",
        to: "",
        test: ("cli", "serve::the_lock_of_a_stream_outlives_its_server_until_the_end_of_the_lease"),
    },
    Mutant {
        name: "http: web pages use the locks",
        file: "crates/polylock-server/src/caller.rs",
        from: "headers().get(header::ORIGIN)",
        to: "headers().get(header::DNT)",
        test: ("cli", "serve::requests_of_web_pages_and_invalid_ones_are_refused"),
    },
    Mutant {
        name: "http: a name of a web page leads to the service",
        file: "crates/polylock-server/src/caller.rs",
        from: "access.is_local && host.is_some_and",
        to: "access.is_local && !host.is_some_and",
        test: ("units of library polylock_server", "serve_tests::web_pages_from_elsewhere_are_refused"),
    },
    Mutant {
        name: "http: an unknown token has the rights of a caller",
        file: "crates/polylock-server/src/access.rs",
        from: "known(token)).or_else(|| known(certificate))",
        to: "known(token)).or_else(|| known(certificate)).or_else(|| callers.values().next().cloned())",
        test: (
            "units of library polylock_server",
            "serve_tests::no_operation_is_carried_out_for_an_unknown_caller",
        ),
    },
    Mutant {
        name: "http: a right is one for all names",
        file: "crates/polylock-server/src/access.rs",
        from: "name.starts_with(&rule.prefix)",
        to: "name.is_empty() || !rule.prefix.is_empty() || rule.prefix.is_empty()",
        test: (
            "units of library polylock_server",
            "serve_tests::no_operation_is_carried_out_without_the_right_to_it",
        ),
    },
    Mutant {
        name: "http: a release needs no right",
        file: "crates/polylock-server/src/operations.rs",
        from: "ensure_holds(&caller, &request)?;\n    let release",
        to: "let _ = &caller;\n    let release",
        test: (
            "units of library polylock_server",
            "serve_tests::no_operation_is_carried_out_without_the_right_to_it",
        ),
    },
    Mutant {
        name: "http: a break does not expire",
        file: "crates/polylock-server/src/operations.rs",
        from: "let limit = limit_of(&service, &headers)?;\n    let holders",
        to: "let (limit, _) = (polylock_core::Moment::NEVER, headers);\n    let holders",
        test: (
            "units of library polylock_server",
            "operations::tests::no_hold_ends_by_a_message_that_its_client_has_given_up",
        ),
    },
    Mutant {
        name: "http: a message of the API does not expire",
        file: "crates/polylock-server/src/expiry.rs",
        from: "own.map(ServerClock::moment).ok_or_else(late)",
        to: "Ok(own.map_or(Moment::NEVER, ServerClock::moment))",
        test: (
            "processes",
            "service_messages::sqlite_full::a_message_that_its_client_has_given_up_is_not_carried_out",
        ),
    },
    Mutant {
        name: "http: a wait continues after the release of its request on another server",
        file: "crates/polylock-server/src/holds.rs",
        from: "match backend.keep_alive(&requests).await?.into_iter().next() {",
        to: "match Some(KeepAlive::Queued) {",
        test: (
            "processes",
            "service_messages::redis::a_server_that_was_stopped_does_not_claim_for_a_released_request",
        ),
    },
    Mutant {
        name: "http: a wait claims without a proof that its request still waits",
        file: "crates/polylock-server/src/holds.rs",
        from: "if claimed >= limit ||",
        to: "if",
        test: (
            "units of library polylock_server",
            "holds::tests::each_further_claim_follows_a_proof_that_the_request_waits",
        ),
    },
    Mutant {
        name: "http: a release does not expire on its way to the store",
        file: "crates/polylock-server/src/service.rs",
        from: "time_limit::until(limit, backend.release(request))",
        to: "time_limit::until(Moment::NEVER, backend.release(request))",
        test: (
            "processes",
            "service_messages::networks::postgres::a_release_that_its_client_has_given_up_does_not_end_the_hold",
        ),
    },
    Mutant {
        name: "http: a break does not expire on its way to the store",
        file: "crates/polylock-core/src/engine/shared_hold.rs",
        from: "let call = time_limit::until(Moment::NEVER, call(inspect));",
        to: "let call = call(inspect);",
        test: (
            "processes",
            "service_messages::networks::postgres::a_break_that_its_client_has_given_up_does_not_reach_the_next_holder",
        ),
    },
    Mutant {
        name: "Redis: a release is forgotten before the claims of other servers have expired",
        file: "crates/polylock-redis/src/queue/backend.rs",
        from: ".max(time_limit::LONGEST)",
        to: "",
        test: ("processes", "service_messages::redis::a_claim_that_arrives_after_the_release_takes_no_lock"),
    },
    Mutant {
        name: "http: a list shows all locks to all callers",
        file: "crates/polylock-server/src/status.rs",
        from: "caller.may(Right::Inspect, lock.name.as_str())",
        to: "caller.may(Right::Inspect, lock.name.as_str()) || !lock.is_free()",
        test: ("units of library polylock_server", "serve_tests::lists_show_what_the_caller_may_inspect"),
    },
    Mutant {
        name: "http: a stream is no request of its caller",
        file: "crates/polylock-server/src/streams.rs",
        from: "(service.clone(), caller.clone())",
        to: "(service.clone(), ())",
        test: (
            "units of library polylock_server",
            "caller::tests::a_stream_is_one_of_the_requests_of_its_caller_until_its_end",
        ),
    },
    Mutant {
        name: "http: the other locks of a stream are renewed after the loss of one",
        file: "crates/polylock-server/src/streams.rs",
        from: "                    drop(held);\n",
        to: "                    std::mem::forget(held);\n",
        test: (
            "units of library polylock_server",
            "serve_tests::the_loss_of_one_of_several_locks_is_the_loss_of_all",
        ),
    },
    Mutant {
        name: "http: the end of a stream releases its lock",
        file: "crates/polylock-server/src/renewals.rs",
        from: "guard.leave_to_expire().ok();",
        to: "drop(guard);",
        test: ("units of library polylock_server", "serve_tests::the_end_of_a_stream_is_no_release"),
    },
    Mutant {
        name: "http: a holder of any lock raises the tokens of all",
        file: "crates/polylock-server/src/operations.rs",
        from: "caller.ensure(Right::Raise,",
        to: "caller.ensure(Right::Exclusive,",
        test: (
            "units of library polylock_server",
            "operations::tests::tokens_are_raised_with_a_right_of_its_own_and_not_used_up",
        ),
    },
    Mutant {
        name: "http: a caller uses up the tokens of all locks",
        file: "crates/polylock-server/src/operations.rs",
        from: "if to.get() > farthest {",
        to: "if false {",
        test: (
            "units of library polylock_server",
            "operations::tests::tokens_are_raised_with_a_right_of_its_own_and_not_used_up",
        ),
    },
    Mutant {
        name: "http: a caller at its limits can not release a lock",
        file: "crates/polylock-server/src/caller.rs",
        from: "let permit = if is_upkeep(&request) {",
        to: "let permit = if false && is_upkeep(&request) {",
        test: (
            "units of library polylock_server",
            "caller::tests::a_caller_at_its_limits_keeps_and_releases_what_it_holds",
        ),
    },
    Mutant {
        name: "http: a renewal claims a lock",
        file: "crates/polylock-server/src/holds.rs",
        from: "if only_renews {",
        to: "if only_renews && wait > Duration::MAX {",
        test: ("units of library polylock_server", "serve_tests::the_end_of_a_stream_is_no_release"),
    },
    Mutant {
        name: "http: callers are not replaced",
        file: "crates/polylock-server/src/access.rs",
        from: "        *present = callers;\n",
        to: "",
        test: (
            "units of library polylock_server",
            "access::tests::callers_are_replaced_and_keep_their_requests",
        ),
    },
    Mutant {
        name: "http: the client uses one server",
        file: "crates/polylock-http/src/servers.rs",
        from: "(self.begin + step) % self.servers.all.len()",
        to: "(self.begin + step.min(0)) % self.servers.all.len()",
        test: ("processes", "service::sqlite_full::a_client_continues_on_another_server"),
    },
    Mutant {
        name: "http: a hold ends with the server that has claimed it",
        file: "crates/polylock-protocol/src/operations.rs",
        from: "request.outlives_process = true;",
        to: "request.outlives_process = false;",
        test: ("processes", "service::sqlite_full::a_client_continues_on_another_server"),
    },
];
