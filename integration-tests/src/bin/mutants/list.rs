//! The bugs, and who catches them.

/// A bug to plant.
pub(crate) struct Mutant {
    pub(crate) name: &'static str,
    pub(crate) file: &'static str,
    /// What stands there, exactly once, ...
    from: &'static str,
    /// ... and what shall.
    to: &'static str,
    /// Test binary and name of the test that must fail.
    pub(crate) test: (&'static str, &'static str),
}

impl Mutant {
    /// The file with the bug in it, or why it can't be planted.
    pub(crate) fn planted(&self, text: &str) -> Result<String, String> {
        match text.matches(self.from).count() {
            1 => Ok(text.replace(self.from, self.to)),
            count => Err(format!("{} holds its text {count} times: write the mutant anew", self.file)),
        }
    }
}

pub(crate) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "deadline counted from the reply of the claim",
        file: "crates/polylock-core/src/engine/turn.rs",
        from: "                    return Ok(Mine::Granted { grant, sent });
                }
                Ok(Standing::Held(_))",
        to: "                    return Ok(Mine::Granted { grant, sent: self.shared.now() });
                }
                Ok(Standing::Held(_))",
        test: ("conformance", "memory::renew::the_deadline_counts_from_the_sending"),
    },
    Mutant {
        name: "deadline counted from the reply of the renewal",
        file: "crates/polylock-core/src/engine/hold.rs",
        from: "                    return Ok((sent, lease));",
        to: "                    return Ok((sent.max(shared.now()), lease));",
        test: ("conformance", "memory::renew::the_deadline_counts_from_the_sending"),
    },
    Mutant {
        name: "renewal not raced with the deadline",
        file: "crates/polylock-core/src/engine/hold.rs",
        from: "                    () = shared.until(deadline) => return Err(LostReason::DeadlineReached),
                    Some(answer) = flying.next() => answer,
                    () = shared.until(sent + patience) => (sent, Err(shared.silent(Operation::Renew))),
",
        to: "                    Some(answer) = flying.next() => answer,
",
        test: ("watchdog", "a_hung_renewal_does_not_delay_the_loss_though_nobody_looks"),
    },
    Mutant {
        name: "renewal raced with its own patience alone",
        file: "crates/polylock-core/src/engine/hold.rs",
        from: "                    () = shared.until(deadline) => return Err(LostReason::DeadlineReached),
                    Some(answer)",
        to: "                    Some(answer)",
        test: ("watchdog", "a_hung_renewal_does_not_delay_the_loss_though_nobody_looks"),
    },
    Mutant {
        name: "release without owner check in memory",
        file: "crates/polylock-core/src/memory.rs",
        from: "entries.retain(|entry| entry.id != request.id)",
        to: "entries.clear()",
        test: ("conformance", "memory::idempotence::a_release_of_anothers_changes_nothing"),
    },
    Mutant {
        name: "release without owner check in SQLite",
        file: "crates/polylock-sql/src/sqlite/statements/release.sql",
        from: "name = ?1 AND request = ?2;",
        to: "name = ?1 AND ?2 IS NOT NULL;",
        test: ("conformance", "sqlite_full::idempotence::a_release_of_anothers_changes_nothing"),
    },
    Mutant {
        name: "release without owner check in PostgreSQL",
        file: "crates/polylock-sql/src/postgres/statements/routines/release.sql",
        from: "WHERE name = a_name AND slot IN ('', a_request) AND request = a_request;",
        to: "WHERE name = a_name;",
        test: ("conformance", "postgres::idempotence::a_release_of_anothers_changes_nothing"),
    },
    Mutant {
        name: "pessimistic: a token counts though the lock was lost before it was drawn",
        file: "crates/polylock-sql/src/pessimistic/store.rs",
        from: "if !self.confirmed(&mut session, request, self.host.patience()).await {",
        to: "if self.host.patience().is_zero() {",
        test: ("databases", "pessimistic::postgres::a_token_drawn_after_the_lock_was_lost_does_not_count"),
    },
    Mutant {
        name: "pessimistic: a holder that is silent keeps its lock",
        file: "crates/polylock-sql/src/postgres/statements/pessimistic/confirm.sql",
        from: "idle_in_transaction_session_timeout = $1",
        to: "idle_in_transaction_session_timeout = 600000",
        test: ("databases", "pessimistic::on_postgres::a_stopped_holder_loses_the_lock_by_the_servers_clock"),
    },
    Mutant {
        name: "pessimistic: rows in use are taken for unused",
        file: "crates/polylock-sql/src/postgres/statements/pessimistic/enter.sql",
        from: "part = 0 FOR SHARE",
        to: "part = 0",
        test: (
            "databases",
            "pessimistic::on_postgres::rows_that_the_dead_left_are_cleared_by_the_next_who_opens",
        ),
    },
    Mutant {
        name: "pessimistic: who leaves leaves its rows",
        file: "crates/polylock-sql/src/mysql/statements/pessimistic/clear.sql",
        from: "DELETE FROM {p}_rows WHERE name = $1;",
        to: "",
        test: (
            "databases",
            "pessimistic::on_mariadb::cycles_leave_no_row_no_transaction_and_few_connections",
        ),
    },
    Mutant {
        name: "stale token let into a row",
        file: "crates/polylock-sql/src/optimistic/fenced.rs",
        from: "is: \"<=\", value",
        to: "is: \"<>\", value: -1 - 0 * value",
        test: ("optimistic", "updates::sqlite::a_row_refuses_a_smaller_token"),
    },
    Mutant {
        name: "fence read from an old snapshot in MySQL",
        file: "crates/polylock-sql/src/optimistic/statements/raised.mysql.sql",
        from: " FOR UPDATE",
        to: "",
        test: ("optimistic", "fences::mysql::an_old_snapshot_never_lets_a_stale_token_pass"),
    },
    Mutant {
        name: "claim dropped mid-flight",
        file: "crates/polylock-core/src/engine/turn.rs",
        from: "        if let Some(mut claim) = self.claim {
            // Its answer does not matter, its end does: see the module.
            drop(claim.answer().await);
        }
",
        to: "        drop(self.claim);
",
        test: ("conformance", "memory::cancel::with_the_claim_on_its_way"),
    },
    Mutant {
        name: "guarded work polled before the clock is read",
        file: "crates/polylock-core/src/guard.rs",
        from: "        if let Err(ended) = this.hold.check() {
            this.work.set(None);",
        to: "        if let (true, Err(ended)) = (signalled, this.hold.check()) {
            this.work.set(None);",
        test: (
            "processes",
            "stops::sqlite_full::a_stopped_holder_reports_the_loss_and_its_work_is_not_polled_after_the_deadline",
        ),
    },
    Mutant {
        name: "end of the program not held up for releases",
        file: "crates/polylock-core/src/engine/pending.rs",
        from: "AT_EXIT: Duration = Duration::from_millis(500);",
        to: "AT_EXIT: Duration = Duration::ZERO;",
        test: ("exit", "sqlite_full::with_the_locks_in_a_static"),
    },
    Mutant {
        name: "release without owner check, in Redis",
        file: "crates/polylock-redis/src/single/scripts/release_at_once.lua",
        from: "local removed = redis.call('HDEL', KEYS[1], ARGV[1])",
        to: "local removed = redis.call('DEL', KEYS[1])",
        test: ("conformance", "redis::idempotence::a_release_of_anothers_changes_nothing"),
    },
    Mutant {
        name: "claims that come after their release not noted, in Redis",
        file: "crates/polylock-redis/src/single/backend.rs",
        from: "        if may_come_late {
            self.may_come_late(request, expires_us.load(Ordering::Relaxed));
        }
",
        to: "        drop(may_come_late);
",
        test: ("redis", "late::a_claim_that_comes_after_its_release_takes_nothing"),
    },
    Mutant {
        name: "claims that do not expire, in Redis",
        file: "crates/polylock-redis/src/single/backend.rs",
        from: "const VALIDITY: Duration = Duration::from_secs(1);",
        to: "const VALIDITY: Duration = Duration::from_secs(3600);",
        test: ("redis", "late::a_claim_that_is_delivered_after_seconds_has_expired"),
    },
    Mutant {
        name: "tokens beyond what a server counts exactly, in Redis",
        file: "crates/polylock-redis/src/single/scripts/claim_at_once.lua",
        from: " and number < 9007199254740991",
        to: "",
        test: ("redis", "tokens::without_a_greater_number_nobody_is_granted_and_the_error_says_what_to_do"),
    },
    Mutant {
        name: "a broken hold that is extended, in Redis",
        file: "crates/polylock-redis/src/single/scripts/renew.lua",
        from: "if entry[8] then",
        to: "if false then",
        test: ("conformance", "redis::breaking::ends_with_the_lease"),
    },
    Mutant {
        name: "Redlock: a majority of those that answer",
        file: "crates/polylock-redis/src/redlock/tally.rs",
        from: "        let quorum = quorum(self.replies.len());
        numbers",
        to: "        let quorum = quorum(self.replies.iter().filter(|reply| **reply > Some(0)).count());
        numbers",
        test: ("redlock", "quorum::of_two_sides_of_a_partition_only_the_greater_one_gets_the_lock"),
    },
    Mutant {
        name: "Redlock: a release that lets late proposals in",
        file: "crates/polylock-redis/src/redlock/scripts/release.lua",
        from: "    accept(number + 1, keep)",
        to: "",
        test: ("redlock", "leftovers::a_proposal_that_comes_after_the_release_takes_nothing"),
    },
    Mutant {
        name: "Redlock: votes that stragglers keep",
        file: "crates/polylock-redis/src/redlock/withdrawals.rs",
        from: "                    cluster.repeat(index);",
        to: "",
        test: ("redlock", "leftovers::a_node_that_is_away_at_the_release_is_asked_when_it_is_back"),
    },
    Mutant {
        name: "Redlock: a withdrawal with the number of a live proposal",
        file: "crates/polylock-redis/src/redlock/proposals.rs",
        from: "        let owes = record.servers[server].owes(record.withdrawn);
        owes.then_some(record.withdrawn)
    }

    /// The requests whose withdrawal `server` has to acknowledge, oldest proposal first.
    pub(super) fn owed(&self, server: usize, now: Moment) -> Vec<(RequestId, LockName)> {
        let owes = |record: &Record| record.servers[server].owes(record.withdrawn);",
        to: "        let owes = record.servers[server].open > 0;
        owes.then_some(record.number)
    }

    /// The requests whose withdrawal `server` has to acknowledge, oldest proposal first.
    pub(super) fn owed(&self, server: usize, now: Moment) -> Vec<(RequestId, LockName)> {
        let owes = |record: &Record| record.withdrawn > 0 && record.servers[server].open > 0;",
        test: (
            "redlock",
            "schedules::no_schedule_breaks_exclusion_or_the_order_of_tokens_or_leaves_anything",
        ),
    },
    Mutant {
        name: "Redlock: a withdrawal that removes a later vote",
        file: "crates/polylock-redis/src/redlock/scripts/release.lua",
        from: "(number == 0 or entry[1] <= number)",
        to: "true",
        test: ("redlock", "stale::a_late_undo_leaves_a_later_try_of_the_same_request_alone"),
    },
    Mutant {
        name: "Redlock: a server that was never asked confirms a release",
        file: "crates/polylock-redis/src/redlock/proposals.rs",
        from: "let reply = if server.open == 0 { Reply::Absent } else { Reply::Missing };",
        to: "let reply = if server.open == 0 { Reply::Removed } else { Reply::Missing };",
        test: ("redlock", "release::a_server_that_was_never_asked_confirms_nothing"),
    },
    Mutant {
        name: "Redlock: a vote that was restored is forgotten at the release",
        file: "crates/polylock-redis/src/redlock/proposals.rs",
        from: "        record.servers[server].sends(number);
",
        to: "        if record.phase == Phase::Claims {
            record.servers[server].sends(number);
        }
",
        test: ("redlock", "release::a_vote_that_was_restored_is_withdrawn"),
    },
    Mutant {
        name: "Redlock: a loss of most votes is released as if nothing had happened",
        file: "crates/polylock-redis/src/redlock/proposals.rs",
        from: "let had_vote = removed || may_be_repeated || server.is_uncertain;",
        to: "let had_vote = true;",
        test: ("redlock", "release::a_hold_without_a_majority_of_votes_is_reported_as_lost_by_its_release"),
    },
    Mutant {
        name: "Redlock: votes of servers that have forgotten count",
        file: "crates/polylock-redis/src/redlock/node.rs",
        from: "counts: observed == Observed::Counts",
        to: "counts: true",
        test: ("redlock", "restart::a_server_that_has_forgotten_does_not_give_the_lock_to_another"),
    },
    Mutant {
        name: "Redlock: a server that has forgotten counts from the sending of a command",
        file: "crates/polylock-redis/src/redlock/node.rs",
        from: "        let now = SystemClock.now();
        let (was_sent",
        to:
            "        let now = reply.peer.as_ref().map_or_else(|| SystemClock.now(), |(_, sent_at)| *sent_at);
        let (was_sent",
        test: ("redlock", "restart::the_delay_does_not_count_from_the_sending_of_a_command_that_was_late"),
    },
    Mutant {
        name: "Redlock: a server that was not durable counts at once after a restart",
        file: "crates/polylock-redis/src/redlock/scripts/membership.lua",
        from: "not (was_durable == '1' and durable == '1')",
        to: "durable ~= '1'",
        test: (
            "redlock",
            "restart::a_server_that_was_not_durable_before_its_restart_has_a_delay_though_it_has_its_data",
        ),
    },
    Mutant {
        name: "Redlock: a broken vote that is extended",
        file: "crates/polylock-redis/src/redlock/scripts/renew.lua",
        from: "    if entry[5] then",
        to: "    if false then",
        test: ("conformance", "redlock3::breaking::ends_with_the_lease"),
    },
    Mutant {
        name: "Redlock: a broken vote that is given again",
        file: "crates/polylock-redis/src/redlock/scripts/break.lua",
        from: "    accept(number + 1, keep)",
        to: "",
        test: ("redlock", "breaking::a_vote_that_was_broken_is_not_given_again"),
    },
    Mutant {
        name: "Redlock: marks on a minority end a hold",
        file: "crates/polylock-redis/src/redlock/tally.rs",
        from: "(self.replies.len() - lost < quorum)",
        to: "(lost > 0)",
        test: ("redlock", "breaking::a_minority_of_marks_is_a_failed_break_and_does_not_end_the_hold"),
    },
    Mutant {
        name: "Redlock: a wrong number that is followed",
        file: "crates/polylock-redis/src/redlock/numbers.rs",
        from: "if far.len() <= spare {",
        to: "if far.is_empty() {",
        test: ("redlock", "tokens::the_wrong_number_of_one_node_locks_out_nobody"),
    },
    Mutant {
        name: "ZooKeeper: a session is believed for as long as the driver believes in it",
        file: "crates/polylock-zookeeper/src/session.rs",
        from: "self.timeout * 2 / 3",
        to: "self.timeout * 7 / 5",
        test: ("zookeeper", "partitions::a_holder_that_is_not_heard_is_told_in_time"),
    },
    Mutant {
        name: "ZooKeeper: a node whose making was not answered is not looked for",
        file: "crates/polylock-zookeeper/src/claims.rs",
        from: "Outcome::Unknown => match find(&session, &directory, guid).await? {",
        to: "Outcome::Unknown => match find(&session, &directory, guid).await?.filter(|_| false) {",
        test: ("zookeeper", "lost_answers::of_any_kind_leave_no_ghost"),
    },
    Mutant {
        name: "ZooKeeper: the end of a lock's numbers is not seen",
        file: "crates/polylock-zookeeper/src/claims.rs",
        from: "self.child.sequence < 0 || self.child.sequence > LAST",
        to: "self.child.sequence < 0 && self.child.sequence > LAST",
        test: ("zookeeper", "border::beyond_the_last_number_nobody_is_granted_before_all_others_have_gone"),
    },
    Mutant {
        name: "ZooKeeper: a fence that looks at a node which is always there",
        file: "crates/polylock-zookeeper/src/fence.rs",
        from: "self.client.new_check_writer(&self.path, None)",
        to: "self.client.new_check_writer(\"/\", None)",
        test: ("zookeeper", "fence::a_released_lock_writes_nothing"),
    },
    Mutant {
        name: "Azure: a renewal that is answered with another's id is believed",
        file: "crates/polylock-azure/src/blobs.rs",
        from: "Ok(told.as_deref() == Some(OURS))",
        to: "Ok(told.is_some())",
        test: ("azure", "answers::a_renewal_that_is_answered_with_anothers_id_is_a_loss"),
    },
    Mutant {
        name: "Azure: an acquisition that was not answered is not released again",
        file: "crates/polylock-azure/src/backend.rs",
        from: "attempt.and_then(|attempt| attempt.unanswered)",
        to: "attempt.and_then(|attempt| attempt.unanswered).filter(|_| false)",
        test: ("azure", "late::an_acquisition_that_comes_after_its_release_keeps_nobody_out"),
    },
    Mutant {
        name: "Azure: a token that is remembered is believed though others have written since",
        file: "crates/polylock-azure/src/tokens.rs",
        from: "(Some(of) == etag).then(",
        to: "(Some(of) == etag || etag.is_some()).then(",
        test: ("azure", "leases::has_a_greater_token_than_that_of_any_other_process"),
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use polylock_integration_tests::cargo::workspace;

    /// So that a change of the text is noticed with the next test run, not with the next run of the mutants.
    #[test]
    fn every_bug_can_still_be_planted() {
        for mutant in MUTANTS {
            let text = std::fs::read_to_string(workspace().join(mutant.file)).unwrap();
            assert_ne!(mutant.planted(&text).unwrap(), text, "{}", mutant.name);
        }
    }

    #[test]
    fn what_does_not_stand_there_exactly_once_is_not_planted() {
        let mutant = &MUTANTS[0];
        assert!(mutant.planted("something else").is_err());
        assert!(mutant.planted(&mutant.from.repeat(2)).is_err());
    }
}
