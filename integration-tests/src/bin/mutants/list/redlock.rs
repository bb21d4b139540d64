//! Bugs of Redlock.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "Redlock: a majority of the servers that reply",
        file: "crates/polylock-redis/src/redlock/tally.rs",
        from: "        let quorum = quorum(self.replies.len());
        numbers.into_iter().find(|number| votes(*number) >= quorum)
    }

    /// Returns true if further replies can't change the outcome.
    pub(super) fn is_decided(&self) -> bool {
",
        to: "        let quorum = quorum(self.replies.iter().filter(|reply| **reply > Some(0)).count());
        numbers.into_iter().find(|number| votes(*number) >= quorum)
    }

    pub(super) fn is_decided(&self) -> bool {
        if self.elected().is_some() || self.replies.contains(&None) {
            return self.elected().is_some();
        }
",
        test: ("scenarios", "redlock::quorum::only_the_majority_side_of_a_partition_is_granted_the_lock"),
    },
    Mutant {
        name: "Redlock: a late proposal is recorded as waiting",
        file: "crates/polylock-redis/src/redlock/scripts/propose.lua",
        from: "if last_is_valid and number <= last then",
        to: "if false then",
        test: (
            "scenarios",
            "redlock::keeping::a_late_proposal_of_a_request_that_was_withdrawn_waits_for_nothing",
        ),
    },
    Mutant {
        name: "Redlock: a release that accepts late proposals",
        file: "crates/polylock-redis/src/redlock/scripts/release.lua",
        from: "    accept(number + 1, keep)",
        to: "",
        test: ("scenarios", "redlock::leftovers::a_proposal_executed_after_the_release_gets_no_vote"),
    },
    Mutant {
        name: "Redlock: votes of slow servers are not withdrawn",
        file: "crates/polylock-redis/src/redlock/withdrawals.rs",
        from: "        self.servers.repeat(self.server);",
        to: "",
        test: ("scenarios", "redlock::leftovers::a_release_is_repeated_at_a_node_that_was_unreachable"),
    },
    Mutant {
        name: "Redlock: a repeated withdrawal that finds no vote counts as a loss",
        file: "crates/polylock-redis/src/redlock/proposals.rs",
        from: "server.is_uncertain |= server.under_way.is_some();",
        to: "",
        test: (
            "units of library polylock_redis",
            "redlock::proposals_tests::replies_to_two_withdrawals_may_arrive_in_reverse_order",
        ),
    },
    Mutant {
        name: "Redlock: the release of an earlier attempt confirms a later one",
        file: "crates/polylock-redis/src/redlock/proposals.rs",
        from: "if number == UNKNOWN && record.number != UNKNOWN {",
        to: "if false {",
        test: (
            "units of library polylock_redis",
            "redlock::proposals_tests::an_acknowledgement_from_before_the_first_proposal_confirms_no_later_withdrawal",
        ),
    },
    Mutant {
        name: "Redlock: a proposal to a server that may still execute a release of the same request",
        file: "crates/polylock-redis/src/redlock/proposals.rs",
        from: "is_barred: server.may_execute_late(),",
        to: "is_barred: false,",
        test: (
            "units of library polylock_redis",
            "redlock::proposals_tests::random_events_forget_no_vote_and_withdraw_no_live_vote",
        ),
    },
    Mutant {
        name: "Redlock: a withdrawal that is left to the runtime of its caller",
        file: "crates/polylock-redis/src/redlock/withdrawals.rs",
        from: "            io.take_over(request.id);
",
        to: "            let _ = io;
",
        test: ("scenarios", "redlock::runtimes::a_withdrawal_of_a_runtime_that_is_not_driven_is_repeated"),
    },
    Mutant {
        name: "Redlock: a caller's connection that leads to another server",
        file: "crates/polylock-redis/src/redlock/node.rs",
        from: "run.is_some() && io.link.run().as_deref() == run",
        to: "run.is_some() && io.link.run().is_some()",
        test: ("scenarios", "redlock::runtimes::a_connection_that_leads_to_another_server_is_not_used"),
    },
    Mutant {
        name: "Redlock: a claim that ends with the runtime of its caller closes the servers",
        file: "crates/polylock-redis/src/redlock/backend.rs",
        from: "            let sent = self.servers.proposals().on_send(request.id, index, number)?;
",
        to: "            let sent = self.servers.proposals().on_send(request.id, index, number)?;
            if node.is_for_caller() {
                self.servers.proposals().on_reply(sent, DefiniteReply::Refused);
            }
",
        test: ("scenarios", "redlock::runtimes::a_runtime_that_ends_during_claims_leaves_no_vote"),
    },
    Mutant {
        name: "Redlock: a waiter that arrives during a release of its process is not woken",
        file: "crates/polylock-redis/src/redlock/backend.rs",
        from: "        if is_last {
",
        to: "        if is_last && false {
",
        test: (
            "scenarios",
            "redlock::waiting::a_waiter_that_arrives_during_a_release_of_its_process_is_woken",
        ),
    },
    Mutant {
        name: "Redlock: a withdrawal with the number of a live proposal",
        file: "crates/polylock-redis/src/redlock/proposals.rs",
        from: "        let must_acknowledge = record.servers[server].must_acknowledge(record.withdrawn);
        must_acknowledge.then_some(record.withdrawn)
    }

    /// Returns the requests with a withdrawal that `server` has to acknowledge, oldest proposal first.
    pub(super) fn unacknowledged(&self, server: usize, now: Moment) -> Vec<(RequestId, LockName)> {
        let must_acknowledge = |record: &Record| record.servers[server].must_acknowledge(record.withdrawn);",
        to: "        let must_acknowledge = record.servers[server].open > 0;
        must_acknowledge.then_some(record.number)
    }

    /// Returns the requests with a withdrawal that `server` has to acknowledge, oldest proposal first.
    pub(super) fn unacknowledged(&self, server: usize, now: Moment) -> Vec<(RequestId, LockName)> {
        let must_acknowledge = |record: &Record| record.withdrawn > 0 && record.servers[server].open > 0;",
        test: ("scenarios", "redlock::schedules::random_schedules_break_no_guarantee_and_leave_no_vote"),
    },
    Mutant {
        name: "Redlock: a withdrawal that removes a later vote",
        file: "crates/polylock-redis/src/redlock/scripts/release.lua",
        from: "(number == 0 or entry[1] <= number)",
        to: "true",
        test: ("scenarios", "redlock::stale::a_late_withdrawal_does_not_affect_a_later_proposal"),
    },
    Mutant {
        name: "Redlock: a server without a proposal confirms a release",
        file: "crates/polylock-redis/src/redlock/proposals.rs",
        from: "let reply = if server.open == 0 { Reply::Absent } else { Reply::Missing };",
        to: "let reply = if server.open == 0 { Reply::Removed } else { Reply::Missing };",
        test: ("scenarios", "redlock::release::a_server_without_a_vote_confirms_no_release"),
    },
    Mutant {
        name: "Redlock: a restored vote is not withdrawn at the release",
        file: "crates/polylock-redis/src/redlock/proposals.rs",
        from: "        record.servers[server].on_send(number);
",
        to: "        if record.phase != Phase::Claiming {
            return Some(Sent { request: RequestId::from_bytes([0; 16]), server, number });
        }
        record.servers[server].on_send(number);
",
        test: ("scenarios", "redlock::release::a_restored_vote_is_withdrawn"),
    },
    Mutant {
        name: "Redlock: votes are restored only after a majority has extended its own",
        file: "crates/polylock-redis/src/redlock/keep_alive.rs",
        from: "None if tally.is_held_somewhere(*number)",
        to: "None if false && tally.is_held_somewhere(*number)",
        test: ("scenarios", "redlock::renewal::votes_are_restored_while_a_node_of_a_bare_majority_is_silent"),
    },
    Mutant {
        name: "Redlock: a vote is restored although a server reports a break",
        file: "crates/polylock-redis/src/redlock/keep_alive.rs",
        from: "self.notice.is_empty() && !replied",
        to: "!replied",
        test: ("scenarios", "redlock::renewal::without_a_majority_no_vote_is_restored_after_a_break"),
    },
    Mutant {
        name: "Redlock: a vote is restored after its hold was parked",
        file: "crates/polylock-redis/src/redlock/scripts/park.lua",
        from: "accept(number + 1, ARGV[4])\n",
        to: "",
        test: ("scenarios", "redlock::keeping::a_vote_of_a_parked_hold_is_not_restored"),
    },
    Mutant {
        name: "Redlock: a release does not report the loss of most votes",
        file: "crates/polylock-redis/src/redlock/proposals.rs",
        from: "let had_vote = removed || may_be_repeated || server.is_uncertain;",
        to: "let had_vote = true;",
        test: ("scenarios", "redlock::release::a_release_without_a_majority_of_votes_reports_the_loss"),
    },
    Mutant {
        name: "Redlock: votes of servers that have lost their data count",
        file: "crates/polylock-redis/src/redlock/node.rs",
        from: "        observed == Observed::Counts
    }",
        to: "        true
    }",
        test: ("scenarios", "redlock::restart::a_server_that_has_lost_its_votes_elects_no_second_holder"),
    },
    Mutant {
        name: "Redlock: the delay of a server counts from the sending of a command",
        file: "crates/polylock-redis/src/redlock/node.rs",
        from: "        let now = SystemClock.now();
        let (was_sent",
        to:
            "        let now = reply.peer.as_ref().map_or_else(|| SystemClock.now(), |(_, sent_at)| *sent_at);
        let (was_sent",
        test: ("scenarios", "redlock::restart::the_delay_does_not_count_from_the_sending_of_a_late_command"),
    },
    Mutant {
        name: "Redlock: a server with its data counts at once after a restart",
        file: "crates/polylock-redis/src/redlock/scripts/membership.lua",
        from: "if not state or known_run ~= run then",
        to: "if not state then",
        test: ("scenarios", "redlock::restart::a_restarted_server_has_a_delay_although_it_has_its_data"),
    },
    Mutant {
        name: "Redlock: a process counts from what an earlier one has seen before the restart",
        file: "crates/polylock-redis/src/redlock/scripts/membership.lua",
        from: "if known_nonce == nonce then",
        to: "if known_nonce then",
        test: ("scenarios", "redlock::restart::programs_that_run_for_a_moment_see_the_end_of_the_delay"),
    },
    Mutant {
        name: "Redlock: a process does not count from the arrival at an earlier one",
        file: "crates/polylock-redis/src/redlock/membership.rs",
        from: ".max(now.since(since));",
        to: ".max(now.since(since).min(Duration::ZERO));",
        test: ("scenarios", "redlock::restart::programs_that_run_for_a_moment_see_the_end_of_the_delay"),
    },
    Mutant {
        name: "Redlock: a broken vote that is extended",
        file: "crates/polylock-redis/src/redlock/scripts/keep_alive.lua",
        from: "if entry[5] then",
        to: "if false then",
        test: ("conformance", "redlock3::breaking::ends_with_the_lease"),
    },
    Mutant {
        name: "Redlock: an unknown outcome fails its batch",
        file: "crates/polylock-redis/src/redlock/keep_alive.rs",
        from: "if unknown == outcomes.len() {",
        to: "if unknown > 0 {",
        test: ("scenarios", "redlock::keeping::an_unknown_outcome_does_not_fail_the_rest_of_its_batch"),
    },
    Mutant {
        name: "Redlock: a renewal without a majority counts",
        file: "crates/polylock-redis/src/redlock/keep_alive.rs",
        from: "None => KeepAlive::Unknown,",
        to: "None => KeepAlive::Held { lease: request.ttl },",
        test: ("scenarios", "redlock::keeping::an_unknown_outcome_does_not_fail_the_rest_of_its_batch"),
    },
    Mutant {
        name: "Redlock: a message for each renewal",
        file: "crates/polylock-redis/src/redlock/connect.rs",
        from: "    capabilities.queue_lease = QueueLease::Absent;
",
        to: "    capabilities.queue_lease = QueueLease::Absent;
    capabilities.keep_alive_batch = 1;
",
        test: ("scenarios", "redlock::keeping::many_locks_are_kept_while_the_servers_are_healthy"),
    },
    Mutant {
        name: "Redlock: a broken vote is restored",
        file: "crates/polylock-redis/src/redlock/scripts/break.lua",
        from: "accept(number + 1, keep)\n",
        to: "",
        test: ("scenarios", "redlock::breaking::a_broken_vote_is_not_restored"),
    },
    Mutant {
        name: "Redlock: a break finds no hold whose votes are not all known",
        file: "crates/polylock-redis/src/redlock/inspect.rs",
        from: "votes.len() + missing >= quorum(count)",
        to: "votes.len() >= quorum(count)",
        test: ("scenarios", "redlock::breaking::a_hold_whose_votes_are_not_all_known_is_shown_and_broken"),
    },
    Mutant {
        name: "Redlock: marks on a minority end a hold",
        file: "crates/polylock-redis/src/redlock/tally.rs",
        from: "(most + count(None) < quorum)",
        to: "(most + count(None) < self.replies.len())",
        test: ("scenarios", "redlock::breaking::a_break_at_a_minority_fails_and_does_not_end_the_hold"),
    },
    Mutant {
        name: "Redlock: a wrong number that is followed",
        file: "crates/polylock-redis/src/redlock/numbers.rs",
        from: "if far.len() <= spare {",
        to: "if far.is_empty() {",
        test: ("scenarios", "redlock::tokens::the_wrong_number_of_one_node_is_not_followed"),
    },
    Mutant {
        name: "the first refusal ends a proposal while servers are down",
        file: "crates/polylock-redis/src/redlock/backend.rs",
        from: "ballot.is_decided() && (ballot.elected().is_some() || !(1..=spare).contains(&far))",
        to: "ballot.is_decided() && far < 9",
        test: ("conformance", "redlock5_two_dead::fencing::tokens_continue_after_a_raise"),
    },
    Mutant {
        name: "Redlock: lists with majorities that need not share a server",
        file: "crates/polylock-redis/src/redlock/scripts/member.lua",
        from: "return quorums > size + other_size - shared",
        to: "return quorums >= size + other_size - shared",
        test: (
            "scenarios",
            "redlock::configuration::a_server_accepts_two_lists_if_their_majorities_share_a_server",
        ),
    },
    Mutant {
        name: "Redlock: a refused list is used",
        file: "crates/polylock-redis/src/redlock/connect.rs",
        from: "    servers.check_list(Operation::Connect)?;\n",
        to: "",
        test: (
            "scenarios",
            "redlock::configuration::programs_with_other_settings_are_refused_until_the_first_ones_have_ended",
        ),
    },
    Mutant {
        name: "Redlock: the list of a program that runs is forgotten",
        file: "crates/polylock-redis/src/redlock/backend.rs",
        from: "        self.servers.enlist_before_claim().await;\n        self.servers.check_list",
        to: "        self.servers.check_list",
        test: ("scenarios", "redlock::configuration::of_two_lists_without_a_common_majority_one_is_refused"),
    },
    Mutant {
        name: "Redlock: a claim after an idle time does not wait until its list is compared",
        file: "crates/polylock-redis/src/redlock/backend.rs",
        from: "self.servers.enlist_before_claim().await;",
        to: "drop(self.servers.enlist_again(false));",
        test: (
            "scenarios",
            "redlock::configuration::a_program_that_was_idle_is_compared_before_its_next_claim",
        ),
    },
    Mutant {
        name: "Redlock: a program that one server refuses is recorded by the others",
        file: "crates/polylock-redis/src/redlock/enlist.rs",
        from: "        self.send_list(false, timeout).await;",
        to: "        self.send_list(true, timeout).await;",
        test: ("scenarios", "redlock::configuration::a_program_that_one_server_refuses_is_recorded_by_none"),
    },
    Mutant {
        name: "Redlock: a program with a smaller max_ttl ends the delay of a server that refuses it",
        file: "crates/polylock-redis/src/redlock/scripts/member.lua",
        from: "membership(ARGV[1], ARGV[2], unobserved)",
        to: "membership(ARGV[1], ARGV[2], ARGV[3])",
        test: (
            "scenarios",
            "redlock::configuration::only_a_program_whose_list_is_recorded_ends_the_delay_of_a_server",
        ),
    },
    Mutant {
        name: "Redlock: a list lasts for as long as the clock of its server was set back",
        file: "crates/polylock-redis/src/redlock/scripts/member.lua",
        from: "if ends - now > kept then",
        to: "if ends < 0 then",
        test: (
            "scenarios",
            "redlock::configuration::a_list_ends_in_its_time_whatever_the_clock_of_the_server",
        ),
    },
    Mutant {
        name: "Redlock: a number that most servers refuse is continued",
        file: "crates/polylock-redis/src/redlock/numbers.rs",
        from: "            state.last = time;
",
        to: "",
        test: (
            "units of library polylock_redis",
            "redlock::numbers::tests::numbers_that_a_majority_refuses_are_not_continued",
        ),
    },
    Mutant {
        name: "Redlock: a release does not end the wait at a server that has refused the request",
        file: "crates/polylock-redis/src/redlock/backend.rs",
        from: "let is_noted = proposals.may_be_queued(request.id);",
        to: "let is_noted = false;",
        test: (
            "scenarios",
            "redlock::keeping::a_holder_that_one_server_has_refused_does_not_wait_there_after_its_release",
        ),
    },
];
