//! The bugs, and who catches them.

/// A bug to plant.
pub(crate) struct Mutant {
    pub(crate) name: &'static str,
    pub(crate) file: &'static str,
    /// What stands there, exactly once, ...
    from: &'static str,
    /// ... and what shall.
    to: &'static str,
    /// Test binary and name of the test that must fail; or `units of` a command or a `library`, and the name of the unit test.
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
        file: "crates/polylock-core/src/engine/acquisition.rs",
        from: "                    return Ok(Acquired::New { grant, sent });
                }
                Ok(Standing::Held(_))",
        to: "                    return Ok(Acquired::New { grant, sent: self.shared.now() });
                }
                Ok(Standing::Held(_))",
        test: ("conformance", "memory::renew::the_deadline_counts_from_the_sending"),
    },
    Mutant {
        name: "deadline counted from the reply of the renewal",
        file: "crates/polylock-core/src/engine/keeper.rs",
        from: "shared.keeper.apply(&shared, sent, &batch, reply);",
        to: "shared.keeper.apply(&shared, shared.now(), &batch, reply);",
        test: ("conformance", "memory::renew::the_deadline_counts_from_the_sending"),
    },
    Mutant {
        name: "the deadline is not checked while a renewal hangs",
        file: "crates/polylock-core/src/engine/keeper/due.rs",
        from: "        if self.deadline() <= now {",
        to: "        if self.deadline() <= now && !self.in_flight {",
        test: ("watchdog", "a_hung_renewal_does_not_delay_the_loss_though_nobody_looks"),
    },
    Mutant {
        name: "a renewal that hangs is not followed by another",
        file: "crates/polylock-core/src/engine/keeper.rs",
        from: "self.renew_at = now + self.lease / 6;",
        to: "self.renew_at = Moment::NEVER;",
        test: ("watchdog", "a_hung_renewal_does_not_delay_the_loss_though_nobody_looks"),
    },
    Mutant {
        name: "release without owner check in memory",
        file: "crates/polylock-core/src/memory.rs",
        from: "            entries.retain(|entry| entry.id != request.id);
            let outcome",
        to: "            entries.clear();
            let outcome",
        test: ("conformance", "memory::idempotence::a_release_of_anothers_changes_nothing"),
    },
    Mutant {
        name: "release without owner check in SQLite",
        file: "crates/polylock-sql/src/sqlite/statements/release.sql",
        from: "name = ?1 AND request = ?2\nRETURNING",
        to: "name = ?1 AND ?2 IS NOT NULL\nRETURNING",
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
        name: "PostgreSQL: a claim that expired on its way is carried out",
        file: "crates/polylock-sql/src/postgres/statements/routines/claim.sql",
        from: "IF v_now > a_expiry THEN",
        to: "IF v_now < 0 THEN",
        test: ("late_claims", "postgres::a_late_try_grants_nothing"),
    },
    Mutant {
        name: "MySQL: a claim that expired on its way is carried out",
        file: "crates/polylock-sql/src/mysql/statements/routines/claim.sql",
        from: "IF v_now > a_expiry THEN",
        to: "IF v_now < 0 THEN",
        test: ("late_claims", "mariadb::a_late_claim_leaves_no_waiter"),
    },
    Mutant {
        name: "SQL: a claim expires after its client has given it up",
        file: "crates/polylock-sql/src/engine/pool.rs",
        from: "self.clock.expiry_us(deadline.since(sent))",
        to: "self.clock.expiry_us(deadline.since(sent) * 60)",
        test: ("late_claims", "postgres::a_late_claim_of_a_lock_that_was_released_grants_nothing"),
    },
    Mutant {
        name: "SQL: a claim that is refused because the clock was set is not sent again",
        file: "crates/polylock-sql/src/engine/pool.rs",
        from: "const EXPIRIES: u32 = 4;",
        to: "const EXPIRIES: u32 = 1;",
        test: ("databases", "postgres::a_step_of_the_servers_clock_costs_a_claim_nothing_but_a_round_trip"),
    },
    Mutant {
        name: "MySQL: a grant leaves the expired entries that it overrides",
        file: "crates/polylock-sql/src/mysql/statements/routines/claim.sql",
        from: "    IF NOT EXISTS (SELECT 1 FROM {p}_holds WHERE name = a_name)
        AND NOT EXISTS (SELECT 1 FROM {p}_waiters WHERE name = a_name)
",
        to: "    IF NOT EXISTS (SELECT 1 FROM {p}_holds WHERE name = a_name AND expires_at > v_now)
        AND NOT EXISTS (SELECT 1 FROM {p}_waiters WHERE name = a_name AND expires_at > v_now)
",
        test: ("databases", "foreign_rows::mariadb::a_grant_removes_what_it_overrides"),
    },
    Mutant {
        name: "PostgreSQL: a grant leaves the expired entries that it overrides",
        file: "crates/polylock-sql/src/postgres/statements/routines/settle.sql",
        from: "            DELETE FROM {p}_waiters WHERE name = a_name AND request = w.request AND expires_at <= a_now;
            -- A keep-alive may have extended it since it was read.
            w.expires_at := (SELECT expires_at FROM {p}_waiters WHERE name = a_name AND request = w.request);
            CONTINUE WHEN w.expires_at IS NULL;
",
        to: "            CONTINUE;
",
        test: ("databases", "foreign_rows::postgres::a_grant_removes_what_it_overrides"),
    },
    Mutant {
        name: "SQLite: a grant leaves the expired entries that it overrides",
        file: "crates/polylock-sql/src/sqlite/statements/schema.sql",
        from: "    DELETE FROM {p}_waiters WHERE name = new.name AND expires_at <= {now};
    DELETE FROM {p}_holds WHERE name = new.name AND expires_at <= {now};
",
        to: "",
        test: ("databases", "foreign_rows::sqlite::a_grant_removes_what_it_overrides"),
    },
    Mutant {
        name: "PostgreSQL: a broken hold is extended",
        file: "crates/polylock-sql/src/postgres/statements/routines/keep_alive.sql",
        from: " AND notice IS NULL
            LIMIT 1 FOR UPDATE SKIP LOCKED) AS hold",
        to: "
            LIMIT 1 FOR UPDATE SKIP LOCKED) AS hold",
        test: ("conformance", "postgres::breaking::ends_with_the_lease"),
    },
    Mutant {
        name: "MySQL: a broken hold is extended",
        file: "crates/polylock-sql/src/mysql/statements/routines/keep_alive.sql",
        from: " AND expires_at > v_now AND notice IS NULL;",
        to: " AND expires_at > v_now;",
        test: ("conformance", "mariadb::breaking::ends_with_the_lease"),
    },
    Mutant {
        name: "SQLite: a broken hold is extended",
        file: "crates/polylock-sql/src/sqlite/statements/keep_alive.sql",
        from: " AND expires_at > {now} AND notice IS NULL;",
        to: " AND expires_at > {now};",
        test: ("conformance", "sqlite_full::breaking::ends_with_the_lease"),
    },
    Mutant {
        name: "PostgreSQL: holders are not notified of a break",
        file: "crates/polylock-sql/src/postgres/statements/routines/break.sql",
        from: "    PERFORM pg_notify(a_channel, encode(a_name, 'hex'));
",
        to: "",
        test: ("databases", "postgres::a_break_reaches_a_holder_that_listens"),
    },
    Mutant {
        name: "locks that were handed over are looked up by texts, in PostgreSQL",
        file: "crates/polylock-sql/src/postgres/statements.rs",
        from: "text.push_str(\"::bytea, \");",
        to: "text.push_str(\", \");",
        test: ("conformance", "postgres_unheard::order"),
    },
    Mutant {
        name: "a gate that was lost begins with zero, in MySQL",
        file: "crates/polylock-sql/src/mysql/statements/routines/claim.sql",
        from: "VALUES (v_shard, {now});",
        to: "VALUES (v_shard, 0);",
        test: ("conformance", "mariadb::recovery::after_the_store_was_emptied"),
    },
    Mutant {
        name: "tokens of a new file begin with one, in SQLite",
        file: "crates/polylock-sql/src/sqlite/statements/schema.sql",
        from: "SET seq = max(seq, {now})",
        to: "SET seq = max(seq, 0)",
        test: ("databases", "dropped::sqlite_begins_with_greater_tokens"),
    },
    Mutant {
        name: "tokens of new tables begin with one, in PostgreSQL",
        file: "crates/polylock-sql/src/postgres/statements/schema.sql",
        from: "greatest(last_value, (",
        to: "greatest(last_value, 0 * (",
        test: ("databases", "dropped::postgres_begins_with_greater_tokens"),
    },
    Mutant {
        name: "tables for later programs alone are used, in PostgreSQL",
        file: "crates/polylock-sql/src/engine/version.rs",
        from: "            _ if oldest > own => format!(",
        to: "            _ if oldest > own + 9 => format!(",
        test: ("databases", "upgrade::postgres::versions_that_can_not_share_locks_never_meet"),
    },
    Mutant {
        name: "an upgrade beside programs that can't share locks, in SQLite",
        file: "crates/polylock-sql/src/engine/version.rs",
        from: "            _ if oldest < self.oldest() => format!(",
        to: "            _ if oldest + 9 < self.oldest() => format!(",
        test: ("databases", "upgrade::sqlite_full::versions_that_can_not_share_locks_never_meet"),
    },
    Mutant {
        name: "an administrator upgrades beside programs that can't share locks, in PostgreSQL",
        file: "crates/polylock-sql/src/postgres/statements/meta.sql",
        from: "RAISE EXCEPTION 'programs of",
        to: "RAISE NOTICE 'programs of",
        test: ("databases", "upgrade::postgres::versions_that_can_not_share_locks_never_meet"),
    },
    Mutant {
        name: "an administrator upgrades beside programs that can't share locks, in MySQL",
        file: "crates/polylock-sql/src/mysql/statements/meta.sql",
        from: "WHERE name = 'oldest' AND value < {oldest};",
        to: "WHERE name = 'youngest' AND value < {oldest};",
        test: ("databases", "upgrade::mariadb::versions_that_can_not_share_locks_never_meet"),
    },
    Mutant {
        name: "a step can't be repeated, in PostgreSQL",
        file: "crates/polylock-sql/src/postgres/statements.rs",
        from: "\"ADD COLUMN IF NOT EXISTS\"",
        to: "\"ADD COLUMN\"",
        test: ("databases", "upgrade::postgres::an_upgrade_that_was_interrupted_is_completed"),
    },
    Mutant {
        name: "a step can't be repeated, in MySQL",
        file: "crates/polylock-sql/src/mysql/statements/add.sql",
        from: "> 0, 'DO 0'",
        to: "> 9, 'DO 0'",
        test: ("databases", "upgrade::mariadb::an_upgrade_that_was_interrupted_is_completed"),
    },
    Mutant {
        name: "a step can't be repeated, in SQLite",
        file: "crates/polylock-sql/src/sqlite/statements.rs",
        from: "if is_there(added) { String::new() }",
        to: "if is_there(added) && self.prefix.is_empty() { String::new() }",
        test: (
            "databases",
            "upgrade::sqlite_full::tables_of_the_new_version_that_were_emptied_are_completed",
        ),
    },
    Mutant {
        name: "an old program takes the version back, in MySQL",
        file: "crates/polylock-sql/src/mysql/statements/installed.sql",
        from: "value = greatest(value, {version});",
        to: "value = {version};",
        test: (
            "databases",
            "upgrade::mariadb::a_program_of_the_old_version_uses_tables_that_the_new_one_made",
        ),
    },
    Mutant {
        name: "functions of other versions count as those of this one, in PostgreSQL",
        file: "crates/polylock-sql/src/postgres/open.rs",
        from: "count < statements::tables(config).routines.len()",
        to: "count < statements::tables(config).routines.len() - 5",
        test: (
            "databases",
            "upgrade::postgres::a_program_of_the_old_version_uses_tables_that_the_new_one_made",
        ),
    },
    Mutant {
        name: "a certificate that is not accepted counts as an outage, in PostgreSQL",
        file: "crates/polylock-sql/src/engine/pool.rs",
        from: "cause.kind() == ErrorKind::InvalidData =>",
        to: "cause.kind() == ErrorKind::InvalidInput =>",
        test: ("databases", "tls::modes_of_postgres"),
    },
    Mutant {
        name: "an authority that checks nothing is taken, in MySQL",
        file: "crates/polylock-sql/src/engine/config.rs",
        from: "        Some(key) if !verified => {",
        to: "        Some(key) if !verified && instead.is_empty() => {",
        test: ("databases", "tls::modes_of_mariadb"),
    },
    Mutant {
        name: "a full disk is not told from other errors, in SQLite",
        file: "crates/polylock-sql/src/sqlite/error.rs",
        from: "        FULL => Some(\"the disk is full\"),",
        to: "        FULL => None,",
        test: ("sqlite", "full::a_full_disk_grants_nothing_and_harms_nothing"),
    },
    Mutant {
        name: "a listener in a session of a pooler, in PostgreSQL",
        file: "crates/polylock-sql/src/postgres/listener.rs",
        from: "const PROBES: u32 = 3;",
        to: "const PROBES: u32 = 0;",
        test: ("databases", "without_listener::processes_behind_a_pooler_hand_over_quickly"),
    },
    Mutant {
        name: "PostgreSQL: breaks that came before the listener are not looked for",
        file: "crates/polylock-sql/src/postgres/listener.rs",
        from: "        self.find_broken().await;
",
        to: "",
        test: ("conformance", "postgres::breaking::reaches_the_holder_at_once"),
    },
    Mutant {
        name: "PostgreSQL: the functions leave the search path to their caller",
        file: "crates/polylock-sql/src/postgres/statements.rs",
        from: "const PINNED: &str = \"SET search_path = pg_catalog, pg_temp\";",
        to: "const PINNED: &str = \"\";",
        test: ("databases", "search_path::every_function_pins_its_own_search_path"),
    },
    Mutant {
        name: "PostgreSQL: messages leave the search path to the role",
        file: "crates/polylock-sql/src/postgres/statements.rs",
        from: "const PIN: &str = \"SET LOCAL search_path = pg_catalog, pg_temp;\";",
        to: "const PIN: &str = \"\";",
        test: ("databases", "search_path::what_others_create_in_a_schema_of_the_search_path_is_never_run"),
    },
    Mutant {
        name: "PostgreSQL: a call fits overloads of its function",
        file: "crates/polylock-sql/src/postgres/statements/release.sql",
        from: "($1::bytea, $2::bytea, $3::text)",
        to: "($1, $2, $3)",
        test: ("databases", "search_path::what_others_create_in_a_schema_of_the_search_path_is_never_run"),
    },
    Mutant {
        name: "SQL: a release reports success whatever it found",
        file: "crates/polylock-sql/src/engine/rows.rs",
        from: "Ok(if found || (reply_lost && notice.is_none()) {",
        to: "Ok(if found || first < 9 {",
        test: ("conformance", "postgres::release::of_a_superseded_hold_is_an_error"),
    },
    Mutant {
        name: "SQL: one strange row fails a list",
        file: "crates/polylock-sql/src/engine/rows.rs",
        from: "Err(error) if strict => return Err(error),",
        to: "Err(error) if strict || !rows.is_empty() => return Err(error),",
        test: ("databases", "foreign_rows::postgres::a_strange_row_hides_no_other"),
    },
    Mutant {
        name: "pessimistic: a release does not look whether the session had ended before",
        file: "crates/polylock-sql/src/pessimistic/store.rs",
        from: "if self.confirmed(&mut session, request, self.host.patience()).await == Confirmed::No {
                    self.end_adrift(",
        to: "if self.host.patience().is_zero() {
                    self.end_adrift(",
        test: (
            "databases",
            "pessimistic::on_mariadb::a_release_after_the_connection_was_ended_reports_the_loss",
        ),
    },
    Mutant {
        name: "pessimistic: a session of MySQL is identified by its connection's number",
        file: "crates/polylock-sql/src/mysql/pessimistic.rs",
        from: "let entering = [(\"{session}\", session(\"$3\", \"$4\")), (\"{identity}\", \"$3, $4\".to_owned())];",
        to: "let entering = [
        (\"{session}\", session(\"connection_id()\", \"0\")),
        (\"{identity}\", \"CAST(connection_id() AS SIGNED), 0\".to_owned()),
    ];",
        test: ("databases", "pessimistic::mariadb::the_clean_up_after_a_restart_ends_no_other_session"),
    },
    Mutant {
        name: "pessimistic: the mark of a broken hold is not seen",
        file: "crates/polylock-sql/src/postgres/statements/pessimistic/confirm.sql",
        from: "AND request = $5 AND notice IS NOT NULL;",
        to: "AND request = $5 AND notice IS NULL AND token < 0;",
        test: ("conformance", "postgres_pessimistic::breaking::ends_with_the_lease"),
    },
    Mutant {
        name: "pessimistic: a token counts though the lock was lost before it was drawn",
        file: "crates/polylock-sql/src/pessimistic/store.rs",
        from: "if self.confirmed(&mut session, request, self.host.patience()).await == Confirmed::No {
            *stage",
        to: "if self.host.patience().is_zero() {
            *stage",
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
        name: "a retried release that reports the loss of its own first attempt",
        file: "crates/polylock-core/src/engine/shared.rs",
        from: "            Release::Lost(_) if attempts > 1 => ",
        to: "            Release::Lost(_) if attempts > 9 => ",
        test: ("conformance", "memory::release::with_its_first_reply_lost_succeeds"),
    },
    Mutant {
        name: "a release that reports success whatever it finds",
        file: "crates/polylock-core/src/engine/hold.rs",
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
        from: "    if hold.is_broken() {",
        to: "    if false {",
        test: ("conformance", "memory::breaking::waits_for_the_holder"),
    },
    Mutant {
        name: "a grant kept for an acquire that nobody polls",
        file: "crates/polylock-core/src/engine/keeper/due.rs",
        from: "(self.receive_by() <= now && self.hold.pass_on())",
        to: "(self.receive_by() <= now && false)",
        test: ("conformance", "memory::wait::an_acquire_that_is_not_polled_is_passed_on"),
    },
    Mutant {
        name: "a try that waits for another task of its owner",
        file: "crates/polylock-core/src/engine/acquisition.rs",
        from: "            let cell = if self.request.queues {",
        to: "            let cell = if true {",
        test: ("conformance", "memory::reentrancy::a_try_never_waits"),
    },
    Mutant {
        name: "run that waits for its release as long as the lease lasts",
        file: "crates/polylock-core/src/guard.rs",
        from: "self.release_within(Some(RUN_RELEASE))",
        to: "self.release_within(None)",
        test: ("conformance", "memory::lost::run_returns_when_the_work_is_done"),
    },
    Mutant {
        name: "claim dropped mid-flight",
        file: "crates/polylock-core/src/engine/acquire.rs",
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
        file: "crates/polylock-redis/src/queue/scripts/release_at_once.lua",
        from: "local removed = redis.call('HDEL', KEYS[1], ARGV[1])",
        to: "local removed = redis.call('DEL', KEYS[1])",
        test: ("conformance", "redis::idempotence::a_release_of_anothers_changes_nothing"),
    },
    Mutant {
        name: "claims that come after their release not noted, in Redis",
        file: "crates/polylock-redis/src/queue/backend.rs",
        from: "unanswered.is_answered = !may_come_late;",
        to: "unanswered.is_answered = may_come_late || !may_come_late;",
        test: ("redis", "late::a_claim_that_comes_after_its_release_takes_nothing"),
    },
    Mutant {
        name: "claims that do not expire, in Redis",
        file: "crates/polylock-redis/src/queue/backend.rs",
        from: "const VALIDITY: Duration = Duration::from_secs(1);",
        to: "const VALIDITY: Duration = Duration::from_secs(3600);",
        test: ("redis", "late::a_claim_that_is_delivered_after_seconds_has_expired"),
    },
    Mutant {
        name: "tokens beyond what a server counts exactly, in Redis",
        file: "crates/polylock-redis/src/queue/scripts/claim_at_once.lua",
        from: " and number < 9007199254740991",
        to: "",
        test: ("redis", "tokens::without_a_greater_number_nobody_is_granted_and_the_error_says_what_to_do"),
    },
    Mutant {
        name: "a broken hold that is extended, in Redis",
        file: "crates/polylock-redis/src/queue/scripts/keep_alive.lua",
        from: "if entry[8] then",
        to: "if false then",
        test: ("conformance", "redis::breaking::ends_with_the_lease"),
    },
    Mutant {
        name: "channels that all prefixes share, in Redis",
        file: "crates/polylock-redis/src/link.rs",
        from: "    format!(\"polylock:{prefix}:{client}\")",
        to: "    drop(prefix.to_owned());
    format!(\"polylock:{client}\")",
        test: ("redis", "access::a_user_who_may_do_what_the_store_needs_and_no_more"),
    },
    Mutant {
        name: "certificates that are not to be verified, in Redis",
        file: "crates/polylock-redis/src/driver_keys.rs",
        from: "&[\"required\", \"CERT_REQUIRED\"]",
        to: "&[\"required\", \"CERT_REQUIRED\", \"none\"]",
        test: ("redis", "clients::keys_of_other_drivers_are_applied"),
    },
    Mutant {
        name: "a hold that was deleted is renewed, in Redis",
        file: "crates/polylock-redis/src/queue/scripts/keep_alive.lua",
        from: "return notice_for(id) or 0",
        to: "return notice_for(id) or 1",
        test: ("conformance", "redis::recovery::after_the_store_was_emptied"),
    },
    Mutant {
        name: "a queue entry that has expired is revived, in Redis",
        file: "crates/polylock-redis/src/queue/scripts/keep_alive.lua",
        from: "if entry and entry[4] > now then",
        to: "if entry then",
        test: ("redis", "keeping::an_entry_that_has_expired_is_not_revived"),
    },
    Mutant {
        name: "the key of a queue expires though its entries are kept alive, in Redis",
        file: "crates/polylock-redis/src/queue/scripts/keep_alive.lua",
        from: "        prolong(QUEUE, place_ttl)
",
        to: "",
        test: ("redis", "keeping::entries_outlive_the_first_expiry_of_their_keys_without_a_claim"),
    },
    Mutant {
        name: "each waiter of a client that is gone is granted and taken back, in Redis",
        file: "crates/polylock-redis/src/queue/scripts/common.lua",
        from: "absent[waiter[5]] = true",
        to: "",
        test: ("redis", "dead::many_waiters_of_a_client_that_is_cut_off_are_passed_over_with_one_message"),
    },
    Mutant {
        name: "a full server refuses to keep a queue entry alive, in Redis",
        file: "crates/polylock-redis/src/queue/scripts/keep_alive.lua",
        from: "        prolong(QUEUE, place_ttl)
        prolong(WAITERS, place_ttl)
        redis.call('HSET', WAITERS, id, cmsgpack.pack(entry))
",
        to: "        redis.call('HSET', WAITERS, id, cmsgpack.pack(entry))
        prolong(QUEUE, place_ttl)
        prolong(WAITERS, place_ttl)
",
        test: ("redis", "keeping::a_server_that_is_full_keeps_holds_and_queue_entries_alive"),
    },
    Mutant {
        name: "Redis Cluster: MOVED is not followed",
        file: "crates/polylock-redis/src/cluster/nodes.rs",
        from: "Step::Moved(address) => self.moved(bucket, &address, &link),",
        to: "Step::Moved(_) => false,",
        test: ("redis_cluster", "moving::a_hold_is_kept_while_its_slot_moves_and_waiters_are_served_after_that"),
    },
    Mutant {
        name: "Redis Cluster: ASK without ASKING",
        file: "crates/polylock-redis/src/cluster/nodes.rs",
        from: "let via = Via { asking: asked.is_some(),",
        to: "let via = Via { asking: false,",
        test: ("redis_cluster", "moving::a_hold_is_kept_while_its_slot_moves_and_waiters_are_served_after_that"),
    },
    Mutant {
        name: "Redis Cluster: a hold whose slot moves is not renewed",
        file: "crates/polylock-redis/src/cluster/keep_alive.rs",
        from: "Err((_, cause)) if is_being_moved(&cause) => {",
        to: "Err((_, cause)) if is_being_moved(&cause) && timeout.is_zero() => {",
        test: ("redis_cluster", "moving::a_hold_is_kept_while_its_slot_moves_and_waiters_are_served_after_that"),
    },
    Mutant {
        name: "Redis Cluster: a batch is sent to one node alone",
        file: "crates/polylock-redis/src/cluster/keep_alive.rs",
        from: "self.by_owner(requests).into_iter().enumerate() {",
        to: "self.by_owner(requests).into_iter().enumerate().take(1) {",
        test: ("redis_cluster", "keeping::a_batch_extends_holds_at_all_primaries_and_returns_an_outcome_for_each"),
    },
    Mutant {
        name: "Redis Cluster: a silent node delays the renewals at the others",
        file: "crates/polylock-redis/src/cluster/keep_alive.rs",
        from: "if under_way.iter().all(",
        to: "if shortest.is_zero() && under_way.iter().all(",
        test: ("redis_cluster", "keeping::a_node_that_does_not_reply_delays_no_outcome_of_the_others"),
    },
    Mutant {
        name: "Redis Cluster: the table is not looked at again",
        file: "crates/polylock-redis/src/cluster/nodes.rs",
        from: "Step::LookAgain if !looked => {",
        to: "Step::LookAgain if !looked && timeout.is_zero() => {",
        test: ("redis_cluster", "failover::a_primary_that_stands_still_delays_no_other_and_is_replaced"),
    },
    Mutant {
        name: "Redis Cluster: messages that only clients of the same node count as received",
        file: "crates/polylock-redis/src/queue/scripts/common.lua",
        from: "is_in_slot and 'SPUBLISH' or 'PUBLISH'",
        to: "is_in_slot and 'PUBLISH' or 'PUBLISH'",
        test: ("redis_cluster", "routing::a_release_notifies_the_next_waiter_in_another_process"),
    },
    Mutant {
        name: "Redis Cluster: locks are listed of one node alone",
        file: "crates/polylock-redis/src/cluster/nodes.rs",
        from: "let found = links.iter().map(|link|",
        to: "let found = links.iter().take(1).map(|link|",
        test: ("redis_cluster", "routing::locks_are_spread_over_the_primaries_each_in_the_slot_of_its_bucket"),
    },
    Mutant {
        name: "Redis Sentinel: the first primary is kept for ever",
        file: "crates/polylock-redis/src/link.rs",
        from: "                for client in sentinels.primary().await? {",
        to: "                static FIRST: tokio::sync::OnceCell<Vec<Client>> = tokio::sync::OnceCell::const_new();
                for client in FIRST.get_or_try_init(|| sentinels.primary()).await?.clone() {",
        test: ("redis_sentinel", "a_failover_is_followed_by_holders_and_waiters_and_tokens_grow"),
    },
    Mutant {
        name: "Redis Sentinel: a server that is no primary any more is used",
        file: "crates/polylock-redis/src/checkup.rs",
        from: "            Expected::ClusterNode | Expected::NamedPrimary => Err(Cause::Unusable(",
        to: "            Expected::NamedPrimary => Ok(Health::default()),
            Expected::ClusterNode => Err(Cause::Unusable(",
        test: ("redis_sentinel", "a_server_that_is_no_primary_any_more_is_not_used"),
    },
    Mutant {
        name: "Redlock: a majority of those that answer",
        file: "crates/polylock-redis/src/redlock/tally.rs",
        from: "        let quorum = quorum(self.replies.len());
        numbers.into_iter().find(|number| votes(*number) >= quorum)
    }

    /// Whether further replies cannot change the outcome.
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
        to: "        if record.phase != Phase::Claims {
            return Some(Sent { request: RequestId::from_bytes([0; 16]), server, number });
        }
        record.servers[server].sends(number);
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
        from: "        observed == Observed::Counts
    }",
        to: "        true
    }",
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
        file: "crates/polylock-redis/src/redlock/scripts/keep_alive.lua",
        from: "if entry[5] then",
        to: "if false then",
        test: ("conformance", "redlock3::breaking::ends_with_the_lease"),
    },
    Mutant {
        name: "Redlock: a lock of which nothing is known fails its batch",
        file: "crates/polylock-redis/src/redlock/keep_alive.rs",
        from: "if unknown == outcomes.len() {",
        to: "if unknown > 0 {",
        test: ("redlock", "keeping::a_lock_of_which_nothing_is_known_does_not_fail_the_others_of_its_batch"),
    },
    Mutant {
        name: "Redlock: a renewal without a majority counts",
        file: "crates/polylock-redis/src/redlock/keep_alive.rs",
        from: "None => KeepAlive::Unknown,",
        to: "None => KeepAlive::Held { lease: request.ttl },",
        test: ("redlock", "keeping::a_lock_of_which_nothing_is_known_does_not_fail_the_others_of_its_batch"),
    },
    Mutant {
        name: "Redlock: a message for each renewal",
        file: "crates/polylock-redis/src/redlock/open.rs",
        from: "    capabilities.queue_lease = QueueLease::Absent;
",
        to: "    capabilities.queue_lease = QueueLease::Absent;
    capabilities.keep_alive_batch = 1;
",
        test: ("redlock", "keeping::of_many_locks_none_is_lost_while_the_servers_are_well"),
    },
    Mutant {
        name: "Redis: a time-out that measures this client's own queue",
        file: "crates/polylock-redis/src/flow.rs",
        from: "let next = (replied + timeout).max(",
        to: "let next = (replied.min(self.sent_at) + timeout).max(",
        test: (
            "units of library polylock_redis",
            "flow::tests::a_server_that_replies_to_others_is_not_silent",
        ),
    },
    Mutant {
        name: "Redis: claims before releases",
        file: "crates/polylock-redis/src/flow.rs",
        from: "places.waiting.iter_mut().find_map(",
        to: "places.waiting.iter_mut().rev().find_map(",
        test: (
            "units of library polylock_redis",
            "flow::tests::places_go_to_releases_first_and_to_nobody_who_has_left",
        ),
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
        file: "crates/polylock-zookeeper/src/making.rs",
        from: "Outcome::Unknown => match find(&session, config, path, guid).await? {",
        to: "Outcome::Unknown => match find(&session, config, path, guid).await?.filter(|_| false) {",
        test: ("zookeeper", "lost_answers::of_any_kind_leave_no_ghost"),
    },
    Mutant {
        name: "ZooKeeper: the end of a lock's numbers is not seen",
        file: "crates/polylock-zookeeper/src/making.rs",
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
        name: "ZooKeeper: a lost create is looked for behind a sync, which needs no majority",
        file: "crates/polylock-zookeeper/src/making.rs",
        from: "session.children_after_commit(config, directory)",
        to: "session.children_now(Some(directory).filter(|_| !config.root.is_empty()).unwrap_or_default())",
        test: (
            "zookeeper",
            "orphans::a_create_is_not_given_up_for_lost_on_the_word_of_a_leader_without_followers",
        ),
    },
    Mutant {
        name: "ZooKeeper: a node of the session that no request uses stays",
        file: "crates/polylock-zookeeper/src/session.rs",
        from: "one.guid.is_of_session(self.guid) && !self.knows(one.guid)",
        to: "one.guid.is_of_session(self.guid) && !self.knows(one.guid) && directory.is_empty()",
        test: (
            "zookeeper",
            "orphans::a_node_that_no_request_uses_is_deleted_by_whoever_of_its_session_wants_the_lock",
        ),
    },
    Mutant {
        name: "ZooKeeper: a node of the session is taken for an orphan though a request uses it",
        file: "crates/polylock-zookeeper/src/session.rs",
        from: "one.guid.is_of_session(self.guid) && !self.knows(one.guid)",
        to: "one.guid.is_of_session(self.guid) && (!self.knows(one.guid) || requests.len() > 1)",
        test: ("zookeeper", "orphans::a_node_that_no_request_uses_is_deleted_alone"),
    },
    Mutant {
        name: "ZooKeeper: a release that finds no node is taken for one that has deleted it",
        file: "crates/polylock-zookeeper/src/making.rs",
        from: "Removal::Absent => Release::Lost(self.why_gone().await),",
        to: "Removal::Absent => Release::Released,",
        test: ("conformance", "zookeeper::breaking::by_force_is_reported_by_the_release"),
    },
    Mutant {
        name: "ZooKeeper: a deletion whose reply was lost is not remembered",
        file: "crates/polylock-zookeeper/src/session.rs",
        from: "may_be_done = true;",
        to: "may_be_done = false;",
        test: ("zookeeper", "lost_answers::of_any_kind_leave_no_ghost"),
    },
    Mutant {
        name: "ZooKeeper: a broken hold is extended",
        file: "crates/polylock-zookeeper/src/making.rs",
        from: "Ok(NodeData::parse(&data).and_then(|data| data.broken).map(LostReason::Broken))",
        to: "Ok(NodeData::parse(&data).and_then(|data| data.broken.filter(|_| false)).map(LostReason::Broken))",
        test: ("conformance", "zookeeper::breaking::ends_with_the_lease"),
    },
    Mutant {
        name: "ZooKeeper: a hold that its process does not release lasts for as long as its session",
        file: "crates/polylock-zookeeper/src/claims.rs",
        from: "            slot.expire();
",
        to: "            drop(slot);
",
        test: ("zookeeper", "breaking::a_holder_that_does_not_stop_has_the_lock_to_the_end_of_its_lease"),
    },
    Mutant {
        name: "ZooKeeper: a second break overwrites the notice of the first",
        file: "crates/polylock-zookeeper/src/break_lock.rs",
        from: "writer.add_set_data(&holder.path, &marked, Some(holder.version))?;",
        to: "writer.add_set_data(&holder.path, &marked, None)?;",
        test: ("zookeeper", "breaking::of_two_at_once_one_notice_counts_for_both"),
    },
    Mutant {
        name: "ZooKeeper: a break that is not announced",
        file: "crates/polylock-zookeeper/src/break_lock.rs",
        from: "        if announces {",
        to: "        if announces && order.force {",
        test: ("conformance", "zookeeper::breaking::reaches_the_holder_at_once"),
    },
    Mutant {
        name: "ZooKeeper: a node with foreign data is not shown",
        file: "crates/polylock-zookeeper/src/inspect.rs",
        from: "        None => NodeData {",
        to: "        None if stat.czxid > 0 => return None,
        None => NodeData {",
        test: (
            "zookeeper",
            "breaking::a_node_that_only_looks_like_a_request_is_shown_and_deleted_by_force_alone",
        ),
    },
    Mutant {
        name: "ZooKeeper: a request is granted though no list has shown it",
        file: "crates/polylock-zookeeper/src/directory.rs",
        from: "return own.is_listed().then_some(Position::First)",
        to: "return own.is_listed().then_some(Position::First).or(Some(Position::First))",
        test: ("zookeeper", "lock_nodes::that_were_made_anew_are_listed_before_a_grant"),
    },
    Mutant {
        name: "ZooKeeper: a list that was sent before another is applied after it",
        file: "crates/polylock-zookeeper/src/directory.rs",
        from: "if number < state.applied {",
        to: "if number < state.applied.min(1) {",
        test: (
            "units of library polylock_zookeeper",
            "directory::tests::nobody_is_first_who_is_not_and_everybody_is_at_last",
        ),
    },
    Mutant {
        name: "ZooKeeper: a request whose node is gone is granted after an earlier list",
        file: "crates/polylock-zookeeper/src/making.rs",
        from: "return Ok(if self.is_there().await? { position } else { Position::Gone });",
        to: "return Ok(if self.is_there().await? || counts == counts { position } else { Position::Gone });",
        test: ("zookeeper", "lock_nodes::of_which_one_has_lost_a_request_do_not_grant_it"),
    },
    Mutant {
        name: "ZooKeeper: the break of a holder is taken for its departure",
        file: "crates/polylock-zookeeper/src/claims.rs",
        from: "event_type == EventType::NodeDeleted",
        to: "event_type != EventType::NodeCreated",
        test: ("zookeeper", "breaking::does_not_let_a_waiter_pass_before_the_holder_stops"),
    },
    Mutant {
        name: "ZooKeeper: a request whose node is being deleted is granted",
        file: "crates/polylock-zookeeper/src/claims.rs",
        from: "let stays = !matches!(*now, Stage::Leaving(_));",
        to: "let stays = true;",
        test: ("zookeeper", "orphans::a_claim_is_not_granted_with_a_node_that_is_being_deleted"),
    },
    Mutant {
        name: "ZooKeeper: the empty nodes of locks are left to the servers",
        file: "crates/polylock-zookeeper/src/making.rs",
        from: "if missing && above.is_ok() {",
        to: "if missing && above.is_err() {",
        test: ("zookeeper", "lock_nodes::that_were_left_empty_are_deleted_without_the_servers_reaper"),
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
    Mutant {
        name: "Azure: a lease that comes late is released after a while only",
        file: "crates/polylock-azure/src/backend.rs",
        from: "(Duration::from_millis(100), Duration::from_millis(700));",
        to: "(Duration::from_secs(20), Duration::from_secs(20));",
        test: ("azure", "late::an_acquisition_that_comes_late_is_released_within_a_second_of_its_arrival"),
    },
    Mutant {
        name: "Azure: a release that is refused is taken for one",
        file: "crates/polylock-azure/src/backend.rs",
        from: "match queued || trouble.may_have_been_done() {",
        to: "match queued || trouble.refusal().is_some() {",
        test: ("conformance", "azure::release::of_a_superseded_hold_is_an_error"),
    },
    Mutant {
        name: "Azure: a release that was sent twice is judged by the second answer",
        file: "crates/polylock-azure/src/backend.rs",
        from: "match queued || trouble.may_have_been_done() {",
        to: "match queued {",
        test: ("azure", "answers::of_a_release_leave_no_lease"),
    },
    Mutant {
        name: "Azure: a lease that was broken by force is left to its former holder",
        file: "crates/polylock-azure/src/breaks.rs",
        from: "                    self.take_away(name).await;
",
        to: "",
        test: ("conformance", "azure::breaking::by_force_is_reported_by_the_release"),
    },
    Mutant {
        name: "Azure: a break that waits for nobody",
        file: "crates/polylock-azure/src/blobs.rs",
        from: "break_period: now.then_some(0),",
        to: "break_period: Some(i32::from(now) * 0),",
        test: ("conformance", "azure::breaking::waits_for_the_holder"),
    },
    Mutant {
        name: "Azure: a second break overwrites the notice of the first",
        file: "crates/polylock-azure/src/breaks.rs",
        from: "Some((earlier, _)) if earlier.grant == broken.grant =>",
        to: "Some((earlier, _)) if earlier.notice == broken.notice =>",
        test: ("conformance", "azure::breaking::keeps_the_first_notice"),
    },
    Mutant {
        name: "Azure: a notice is taken for that of any grant",
        file: "crates/polylock-azure/src/breaks.rs",
        from: "found.filter(|(broken, _)| broken.grant == *grant)",
        to: "found.filter(|(broken, _)| broken.grant == *grant || !self.place.is_empty())",
        test: ("azure", "breaking::a_notice_is_for_one_grant_alone"),
    },
    Mutant {
        name: "Azure: notices that nobody reads stay",
        file: "crates/polylock-azure/src/breaks.rs",
        from: "age(now, properties.last_modified) > OLD",
        to: "age(now, properties.last_modified) > OLD * 10",
        test: ("azure", "breaking::notices_that_nobody_read_are_deleted_by_a_later_break"),
    },
    Mutant {
        name: "Azure: the first token of a blob is a whole second",
        file: "crates/polylock-azure/src/tokens.rs",
        from: "Some(micros.div_euclid(SECOND)) == modified",
        to: "Some(micros.div_euclid(SECOND)) == modified && *micros < 0",
        test: (
            "azure",
            "leases::has_a_greater_token_though_the_blob_was_deleted_in_the_second_of_its_first_grant",
        ),
    },
    Mutant {
        name: "command line: a process is signalled by its bare number",
        file: "crates/polylock-cli/src/run/processes/process.rs",
        from: "Identity::Descriptor(fd) => rustix::process::pidfd_send_signal(fd, signal),",
        to: "Identity::Descriptor(_) => kill_process(self.id, signal),",
        test: ("cli_pid_reuse", "the_numbers_that_a_replaced_warden_knows"),
    },
    Mutant {
        name: "command line: a group is signalled by its bare number",
        file: "crates/polylock-cli/src/run/processes/mod.rs",
        from: "self.id != Pid::INIT && self.exists()",
        to: "self.id != Pid::INIT && (self.exists() || true)",
        test: ("units of polylock", "run::processes::tests::a_group_without_a_known_member_is_not_signalled"),
    },
    Mutant {
        name: "command line: all processes of the machine are read before the group is killed",
        file: "crates/polylock-cli/src/run/processes/mod.rs",
        from: "        // One signal, before anything is read:",
        to: "        drop(Kinship::table());
        // One signal, after everything was read:",
        test: ("cli_takeover", "on_a_machine_that_runs_thousands_of_processes"),
    },
    Mutant {
        name: "command line: processes that have lost their parents are left to others",
        file: "crates/polylock-cli/src/run/processes/mod.rs",
        from: "rustix::process::set_child_subreaper(Some(getpid())).ok();",
        to: "rustix::process::set_child_subreaper(None).ok();",
        test: ("cli_takeover", "a_daemon_by_setsid_f"),
    },
    Mutant {
        name: "command line: a lock is released before everything that the command has started is dead",
        file: "crates/polylock-cli/src/run/supervise.rs",
        from: "Some(stop) => self.finish_stop(self.kill_at(Some(stop), lease), lease, signals).await,",
        to: "Some(stop) if stop.kill_at < Moment::default() => {
                self.finish_stop(self.kill_at(Some(stop), lease), lease, signals).await
            }
            Some(_) => None,",
        test: ("cli_takeover", "a_daemon_that_is_started_when_the_command_is_asked_to_stop"),
    },
    Mutant {
        name: "command line: a process that can't be killed is taken for a dying one",
        file: "crates/polylock-cli/src/run/processes/mod.rs",
        from: "Err(Errno::PERM) => remaining.refused.push(process),",
        to: "Err(Errno::PERM) => remaining.dying.push(process),",
        test: (
            "cli_unkillable",
            "a_command_that_runs_as_another_user_is_reported_at_once_and_when_it_outlives_the_lock",
        ),
    },
    Mutant {
        name: "command line: a release that finds no lock is a success",
        file: "crates/polylock-cli/src/run/finish.rs",
        from: "Some(Err(error @ Error::Lost { .. })) => return Err(error),",
        to: "Some(Err(Error::Lost { .. })) => return Ok(()),",
        test: ("cli_lost_release", "sqlite_full::the_release_of_a_lock_that_was_taken_away_is_a_loss"),
    },
    Mutant {
        name: "command line: a line of output is waited for",
        file: "crates/polylock-cli/src/output/writer.rs",
        from: "        queue.lines.push_back(line);
        self.0.changed.notify_all();
",
        to: "        queue.lines.push_back(line);
        self.0.changed.notify_all();
        drop(queue);
        while !self.is_idle() {
            thread::yield_now();
        }
",
        test: ("unread", "a_run_outlives_pipes_that_nobody_reads_and_heeds_a_signal_at_once"),
    },
    Mutant {
        name: "command line: a run inside a run uses the default store",
        file: "crates/polylock-cli/src/store.rs",
        from: "} else if let Some(outer) = nested::outer_store()? {",
        to: "} else if let Some(outer) = nested::outer_store()?.filter(|_| false) {",
        test: ("environment", "a_run_inside_a_run_uses_the_same_store"),
    },
    Mutant {
        name: "command line: a run inside a run guesses its store",
        file: "crates/polylock-cli/src/store/nested.rs",
        from: "        hidden => {",
        to: "        _ if true => return Ok(None),
        hidden => {",
        test: ("environment", "a_run_inside_a_run_whose_url_holds_a_password_must_name_its_store"),
    },
    Mutant {
        name: "command line: an empty variable is no variable",
        file: "crates/polylock-cli/src/store.rs",
        from: "Ok(text) if text.is_empty() => \"empty\",",
        to: "Ok(text) if text.is_empty() => return Ok(None),",
        test: ("environment", "a_variable_that_is_empty_or_no_text_names_no_store"),
    },
    Mutant {
        name: "command line: a command that was cut off is a success",
        file: "crates/polylock-cli/src/run/finish.rs",
        from: "Verdict::new(\"max_hold\", MAX_HOLD)",
        to: "Verdict::new(\"max_hold\", code)",
        test: ("signals", "max_hold_stops_the_command_and_frees_the_lock"),
    },
    Mutant {
        name: "command line: a second signal is not heeded",
        file: "crates/polylock-cli/src/run/mod.rs",
        from: "signal = signals.next_end() => leave_at_once(log, output, signal),",
        to: "signal = std::future::pending::<Signal>() => leave_at_once(log, output, signal),",
        test: ("exit_codes", "a_second_signal_ends_a_waiter_at_once_though_the_store_hangs"),
    },
    Mutant {
        name: "command line: the session of ZooKeeper has a time-out of its own",
        file: "crates/polylock-cli/src/run/mod.rs",
        from: "connecting = connecting.ttl(ttl);",
        to: "connecting = connecting.ttl(ttl.max(std::time::Duration::from_secs(20)));",
        test: ("cli_patience", "on_zookeeper_the_ttl_of_a_run_is_the_time_out_of_its_session"),
    },
    Mutant {
        name: "a store that is away is not tried again",
        file: "crates/polylock-core/src/engine/connect.rs",
        from: "if !error.is_temporary() || now >= until {",
        to: "if !error.is_temporary() || now >= until || now > began {",
        test: ("exit_codes", "a_store_that_is_away_at_the_start"),
    },
    Mutant {
        name: "a hold that ends with the process is left to itself",
        file: "crates/polylock-core/src/engine/tenure.rs",
        from: "Carrier::Connection => (Duration::MAX, Duration::ZERO),",
        to: "Carrier::Connection => (Duration::ZERO, Duration::MAX),",
        test: ("engine", "a_release_after_a_delay_keeps_a_hold_that_would_end_with_the_process"),
    },
    Mutant {
        name: "a last renewal for a whole lease",
        file: "crates/polylock-core/src/engine/shared.rs",
        from: "(self.clone(), end.since(self.now()).max(shortest));",
        to: "(self.clone(), end.since(self.now()).min(shortest).max(request.ttl));",
        test: ("engine", "a_release_after_a_delay_leaves_a_lease_of_just_that"),
    },
    Mutant {
        name: "queue entries are not kept alive",
        file: "crates/polylock-core/src/engine/acquisition.rs",
        from: "        shared.keeper.wait(shared, request, &waiting.entry, sent);
",
        to: "",
        test: ("conformance", "memory::keep_alive::keeps_a_waiter_in_its_place"),
    },
    Mutant {
        name: "PostgreSQL: queue entries are not kept alive",
        file: "crates/polylock-sql/src/postgres/statements/routines/keep_alive.sql",
        from: "UPDATE {p}_waiters SET expires_at = v_now + ttl FROM",
        to: "UPDATE {p}_waiters SET expires_at = expires_at FROM",
        test: ("conformance", "postgres::keep_alive::keeps_a_waiter_in_its_place"),
    },
    Mutant {
        name: "SQL: claims that hang take all connections",
        file: "crates/polylock-sql/src/engine/gate.rs",
        from: "Self::Claim => 2,",
        to: "Self::Claim => 0,",
        test: ("databases", "precedence::postgres_keeps_a_lock_while_claims_hang"),
    },
    Mutant {
        name: "SQLite: a hand-over passes a waiter that conflicts",
        file: "crates/polylock-sql/src/sqlite/statements/next.sql",
        from: "WHERE walk.mode & walk.ahead = 0 AND",
        to: "WHERE",
        test: ("sqlite", "order::grants_are_those_of_the_rule"),
    },
    Mutant {
        name: "SQLite: a waiter that leaves while it is granted the lock keeps it",
        file: "crates/polylock-sql/src/sqlite/backend.rs",
        from: "if self.hand_over(request, hub).await? {
            return Ok(Release::Released);
        }
        hub.ring(request.id);",
        to: "if hub.is_watched(request.id) && self.hand_over(request, hub).await? {
            return Ok(Release::Released);
        }
        hub.ring(request.id);",
        test: ("sqlite", "order::a_waiter_that_leaves_while_it_is_granted_the_lock_keeps_nothing"),
    },
    Mutant {
        name: "SQLite: a withdrawn waiter is granted the lock",
        file: "crates/polylock-sql/src/sqlite/statements/hand_over.sql",
        from: "DELETE FROM {p}_waiters WHERE name = ?1 AND request = ?2 RETURNING 1;",
        to: "SELECT 1;",
        test: ("sqlite", "order::grants_are_those_of_the_rule"),
    },
    Mutant {
        name: "MySQL: queue entries are not kept alive",
        file: "crates/polylock-sql/src/mysql/statements/routines/keep_alive.sql",
        from: "        UPDATE {p}_waiters SET expires_at = v_now + v_place_ttl
",
        to: "        UPDATE {p}_waiters SET expires_at = expires_at
",
        test: ("conformance", "mariadb::keep_alive::keeps_a_waiter_in_its_place"),
    },
    Mutant {
        name: "a hold that a batch reports as unknown is lost",
        file: "crates/polylock-core/src/engine/keeper.rs",
        from: "        if outcome == KeepAlive::Unknown {",
        to: "        if false {",
        test: ("keep_alive", "a_keep_alive_without_a_result_is_retried"),
    },
    Mutant {
        name: "the lease of a notified grant counts from the notification",
        file: "crates/polylock-core/src/engine/acquisition.rs",
        from: "sent: waiting.entry.granted_after(sent)",
        to: "sent: shared.now()",
        test: (
            "keep_alive",
            "the_lease_of_a_notified_grant_counts_from_the_last_keep_alive_of_the_queue_entry",
        ),
    },
    Mutant {
        name: "what a caller drops half-way is not handed over",
        file: "crates/polylock-core/src/engine/foreground.rs",
        from: "        let work = self.0.lock().take();
        if let Some(work) = work {",
        to: "        let work = self.0.lock().take();
        if let Some(work) = work.filter(|_| false) {",
        test: ("foreground", "what_a_caller_drops_half_way_is_undone_or_ended"),
    },
    Mutant {
        name: "a connection of the parent is used after a fork",
        file: "crates/polylock-core/src/engine/foreground.rs",
        from: "if !shared.is_own_process() || shared.now()",
        to: "if shared.now()",
        test: ("fork", "use_after_a_fork_is_an_error_at_once_and_harms_nothing"),
    },
    Mutant {
        name: "nobody takes over a connection of a caller that is not polled",
        file: "crates/polylock-core/src/engine/foreground.rs",
        from: "        self.watch(shared, operation, Arc::downgrade(&site) as _);
",
        to: "        drop((shared, operation));
",
        test: ("foreground", "moving::a_caller_that_is_not_polled_keeps_no_connection"),
    },
    Mutant {
        name: "an operation that the caller drops half-way ends there",
        file: "crates/polylock-core/src/io.rs",
        from: "    fn drop(&mut self) {
        self.go_on();",
        to: "    fn drop(&mut self) {
        self.future = None;",
        test: ("foreground", "moving::what_is_dropped_half_way_goes_on_and_is_undone"),
    },
    Mutant {
        name: "a late reply about a queue entry ends the hold",
        file: "crates/polylock-core/src/engine/keeper.rs",
        from: "        if sent < kept.since && !matches!",
        to: "        if sent > now && !matches!",
        test: ("keep_alive", "a_reply_from_the_time_in_the_queue_does_not_end_a_hold"),
    },
    Mutant {
        name: "nobody takes over what a caller does not poll",
        file: "crates/polylock-core/src/engine/foreground.rs",
        from: "if shared.foreground.take_over(now) {",
        to: "if shared.foreground.take_over(Moment::default()) {",
        test: ("foreground", "a_lock_whose_caller_is_not_polled_is_passed_on"),
    },
    Mutant {
        name: "a claim that the caller has dropped is not withdrawn",
        file: "crates/polylock-core/src/engine/acquire.rs",
        from: "may_have_entry: !matches!(first, FirstClaim::NotSent),",
        to: "may_have_entry: false,",
        test: ("foreground", "what_a_caller_drops_half_way_is_undone_or_ended"),
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use polylock_integration_tests::cargo::workspace;

    /// So that a change of the text is noticed with the next test run, not with the next run of the mutants.
    #[test]
    fn every_bug_can_still_be_planted() {
        let mut stale = Vec::new();
        for mutant in MUTANTS {
            let text = std::fs::read_to_string(workspace().join(mutant.file)).unwrap_or_default();
            match mutant.planted(&text) {
                Ok(planted) => assert_ne!(planted, text, "{}", mutant.name),
                Err(error) => stale.push(format!("{}: {error}", mutant.name)),
            }
        }
        assert!(stale.is_empty(), "{}", stale.join("\n"));
    }

    #[test]
    fn what_does_not_stand_there_exactly_once_is_not_planted() {
        let mutant = &MUTANTS[0];
        assert!(mutant.planted("something else").is_err());
        assert!(mutant.planted(&mutant.from.repeat(2)).is_err());
    }
}
