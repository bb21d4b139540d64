//! The planted bugs, and the tests that detect them.

/// A bug to plant.
pub(crate) struct Mutant {
    pub(crate) name: &'static str,
    pub(crate) file: &'static str,
    /// The text to replace, which must occur exactly once.
    from: &'static str,
    /// The replacement.
    to: &'static str,
    /// Test binary and name of the test that must fail; or `units of` a command or a `library`, and the name of the unit test.
    pub(crate) test: (&'static str, &'static str),
}

impl Mutant {
    /// Returns the file with the bug, or the reason why it can't be planted.
    pub(crate) fn planted(&self, text: &str) -> Result<String, String> {
        match text.matches(self.from).count() {
            1 => Ok(text.replace(self.from, self.to)),
            count => Err(format!(
                "{} contains the text {count} times instead of once: update the mutant",
                self.file
            )),
        }
    }
}

pub(crate) const MUTANTS: &[Mutant] = &[
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
        from: "context.keeper.apply(&context, sent, &batch, reply);",
        to: "context.keeper.apply(&context, context.now(), &batch, reply);",
        test: ("conformance", "memory::renew::the_deadline_counts_from_the_send_time"),
    },
    Mutant {
        name: "the deadline is not checked while a renewal hangs",
        file: "crates/polylock-core/src/engine/keeper/due.rs",
        from: "        if self.deadline() <= now {",
        to: "        if self.deadline() <= now && !self.in_flight {",
        test: ("watchdog", "a_hung_renewal_does_not_delay_the_loss_without_a_call_on_the_guard"),
    },
    Mutant {
        name: "a renewal that hangs is not followed by another",
        file: "crates/polylock-core/src/engine/keeper.rs",
        from: "self.renew_at = now + self.lease / 6;",
        to: "self.renew_at = Moment::NEVER;",
        test: ("watchdog", "a_hung_renewal_does_not_delay_the_loss_without_a_call_on_the_guard"),
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
        name: "release without owner check in SQLite",
        file: "crates/polylock-sql/src/sqlite/statements/release.sql",
        from: "name = ?1 AND request = ?2\nAND NOT",
        to: "name = ?1 AND ?2 IS NOT NULL\nAND NOT",
        test: ("conformance", "sqlite_full::idempotence::a_release_by_another_request_changes_nothing"),
    },
    Mutant {
        name: "release without owner check in PostgreSQL",
        file: "crates/polylock-sql/src/postgres/statements/routines/release.sql",
        from: "WHERE name = a_name AND slot IN ('', a_request) AND request = a_request;",
        to: "WHERE name = a_name;",
        test: ("conformance", "postgres::idempotence::a_release_by_another_request_changes_nothing"),
    },
    Mutant {
        name: "PostgreSQL: an expired claim is executed",
        file: "crates/polylock-sql/src/postgres/statements/routines/claim.sql",
        from: "IF v_now > a_expiry THEN",
        to: "IF v_now < 0 THEN",
        test: ("late_claims", "postgres::a_late_try_grants_nothing"),
    },
    Mutant {
        name: "MySQL: an expired claim is executed",
        file: "crates/polylock-sql/src/mysql/statements/routines/claim.sql",
        from: "IF v_now > a_expiry THEN",
        to: "IF v_now < 0 THEN",
        test: ("late_claims", "mariadb::a_late_claim_leaves_no_waiter"),
    },
    Mutant {
        name: "SQL: a claim expires after its client's timeout",
        file: "crates/polylock-sql/src/engine/pool.rs",
        from: "self.clock().expiry_us(deadline.since(sent))",
        to: "self.clock().expiry_us(deadline.since(sent) * 60)",
        test: ("late_claims", "postgres::a_late_claim_of_a_lock_that_was_released_grants_nothing"),
    },
    Mutant {
        name: "SQL: a claim that is refused because the clock was set is not retried",
        file: "crates/polylock-sql/src/engine/pool.rs",
        from: "const EXPIRIES: u32 = 4;",
        to: "const EXPIRIES: u32 = 1;",
        test: ("databases", "postgres::a_step_of_the_servers_clock_costs_a_claim_only_one_round_trip"),
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
        test: ("databases", "foreign_rows::mariadb::a_grant_removes_the_expired_entries_that_it_replaces"),
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
        test: ("databases", "foreign_rows::postgres::a_grant_removes_the_expired_entries_that_it_replaces"),
    },
    Mutant {
        name: "SQLite: a grant leaves the expired entries that it overrides",
        file: "crates/polylock-sql/src/sqlite/statements/schema.sql",
        from: "    DELETE FROM {p}_waiters WHERE name = new.name AND expires_at <= {now};
    DELETE FROM {p}_holds WHERE name = new.name AND expires_at <= {now};
",
        to: "",
        test: ("databases", "foreign_rows::sqlite::a_grant_removes_the_expired_entries_that_it_replaces"),
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
        test: ("databases", "postgres::a_break_notifies_a_listening_holder"),
    },
    Mutant {
        name: "locks that were handed over are looked up by texts, in PostgreSQL",
        file: "crates/polylock-sql/src/postgres/statements.rs",
        from: "text.push_str(\"::bytea, \");",
        to: "text.push_str(\", \");",
        test: ("conformance", "postgres_listen_off::order"),
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
        test: ("databases", "upgrade::postgres::incompatible_versions_never_use_the_same_tables"),
    },
    Mutant {
        name: "an upgrade beside programs that can't share locks, in SQLite",
        file: "crates/polylock-sql/src/engine/version.rs",
        from: "            _ if oldest < self.oldest() => format!(",
        to: "            _ if oldest + 9 < self.oldest() => format!(",
        test: ("databases", "upgrade::sqlite_full::incompatible_versions_never_use_the_same_tables"),
    },
    Mutant {
        name: "an administrator upgrades beside programs that can't share locks, in PostgreSQL",
        file: "crates/polylock-sql/src/postgres/statements/meta.sql",
        from: "RAISE EXCEPTION 'programs of",
        to: "RAISE NOTICE 'programs of",
        test: ("databases", "upgrade::postgres::incompatible_versions_never_use_the_same_tables"),
    },
    Mutant {
        name: "an administrator upgrades beside programs that can't share locks, in MySQL",
        file: "crates/polylock-sql/src/mysql/statements/meta.sql",
        from: "WHERE name = 'oldest' AND value < {oldest};",
        to: "WHERE name = 'youngest' AND value < {oldest};",
        test: ("databases", "upgrade::mariadb::incompatible_versions_never_use_the_same_tables"),
    },
    Mutant {
        name: "a step can't be repeated, in PostgreSQL",
        file: "crates/polylock-sql/src/postgres/statements.rs",
        from: "\"ADD COLUMN IF NOT EXISTS\"",
        to: "\"ADD COLUMN\"",
        test: ("databases", "upgrade::postgres::an_interrupted_upgrade_is_completed"),
    },
    Mutant {
        name: "a step can't be repeated, in MySQL",
        file: "crates/polylock-sql/src/mysql/statements/add.sql",
        from: "> 0, 'DO 0'",
        to: "> 9, 'DO 0'",
        test: ("databases", "upgrade::mariadb::an_interrupted_upgrade_is_completed"),
    },
    Mutant {
        name: "a step can't be repeated, in SQLite",
        file: "crates/polylock-sql/src/sqlite/statements.rs",
        from: "if is_there(added) { String::new() }",
        to: "if is_there(added) && self.prefix.is_empty() { String::new() }",
        test: (
            "databases",
            "upgrade::sqlite_full::emptied_tables_of_the_new_version_are_completed",
        ),
    },
    Mutant {
        name: "an old program takes the version back, in MySQL",
        file: "crates/polylock-sql/src/mysql/statements/installed.sql",
        from: "value = greatest(value, {version});",
        to: "value = {version};",
        test: (
            "databases",
            "upgrade::mariadb::an_old_program_uses_tables_created_by_a_new_one",
        ),
    },
    Mutant {
        name: "functions of other versions count as those of this one, in PostgreSQL",
        file: "crates/polylock-sql/src/postgres/open.rs",
        from: "count < statements::tables(config).routines.len()",
        to: "count < statements::tables(config).routines.len() - 5",
        test: (
            "databases",
            "upgrade::postgres::an_old_program_uses_tables_created_by_a_new_one",
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
        name: "MySQL: a certificate authority that has no effect is accepted",
        file: "crates/polylock-sql/src/engine/config.rs",
        from: "        Some(key) if !verified => {",
        to: "        Some(key) if !verified && remedy.is_empty() => {",
        test: ("databases", "tls::modes_of_mariadb"),
    },
    Mutant {
        name: "SQLite: a full disk is not distinguished from other errors",
        file: "crates/polylock-sql/src/sqlite/error.rs",
        from: "        FULL => Some(\"the disk is full\"),",
        to: "        FULL => None,",
        test: ("sqlite", "full::a_full_disk_grants_no_lock_and_loses_none"),
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
        test: ("conformance", "postgres::breaking::notifies_the_holder_at_once"),
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
        test: ("databases", "search_path::objects_of_others_in_a_schema_of_the_search_path_are_never_run"),
    },
    Mutant {
        name: "PostgreSQL: a call fits overloads of its function",
        file: "crates/polylock-sql/src/postgres/statements/release.sql",
        from: "($1::bytea, $2::bytea, $3::text)",
        to: "($1, $2, $3)",
        test: ("databases", "search_path::objects_of_others_in_a_schema_of_the_search_path_are_never_run"),
    },
    Mutant {
        name: "SQL: a release always reports success",
        file: "crates/polylock-sql/src/engine/rows.rs",
        from: "Ok(if found || (reply_lost && notice.is_none()) {",
        to: "Ok(if found || first < 9 {",
        test: ("conformance", "postgres::release::of_a_superseded_hold_is_an_error"),
    },
    Mutant {
        name: "SQL: one invalid row fails a list",
        file: "crates/polylock-sql/src/engine/rows.rs",
        from: "Err(error) if strict => return Err(error),",
        to: "Err(error) if strict || !rows.is_empty() => return Err(error),",
        test: ("databases", "foreign_rows::postgres::an_invalid_row_hides_no_other_row"),
    },
    Mutant {
        name: "pessimistic: a release does not check that the session is alive",
        file: "crates/polylock-sql/src/pessimistic/store.rs",
        from: "if self.confirm(&mut session, request, self.server.timeout()).await == SessionState::Lost {
                    self.end_orphaned(",
        to: "if self.server.timeout().is_zero() {
                    self.end_orphaned(",
        test: (
            "databases",
            "pessimistic::on_mariadb::a_release_after_the_connection_was_closed_reports_the_loss",
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
        name: "pessimistic: the mark of a broken hold is ignored",
        file: "crates/polylock-sql/src/postgres/statements/pessimistic/confirm.sql",
        from: "AND request = $5 AND notice IS NOT NULL;",
        to: "AND request = $5 AND notice IS NULL AND token < 0;",
        test: ("conformance", "postgres_pessimistic::breaking::ends_with_the_lease"),
    },
    Mutant {
        name: "pessimistic: a token is valid although the lock was lost before it was drawn",
        file: "crates/polylock-sql/src/pessimistic/store.rs",
        from: "if self.confirm(&mut session, request, self.server.timeout()).await == SessionState::Lost {
            *stage",
        to: "if self.server.timeout().is_zero() {
            *stage",
        test: ("databases", "pessimistic::postgres::a_token_drawn_after_the_lock_was_lost_is_discarded"),
    },
    Mutant {
        name: "pessimistic: a suspended holder keeps its lock",
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
            "pessimistic::on_postgres::rows_of_dead_holders_are_deleted_when_a_store_is_opened",
        ),
    },
    Mutant {
        name: "pessimistic: a release leaves its rows",
        file: "crates/polylock-sql/src/mysql/statements/pessimistic/clear.sql",
        from: "DELETE FROM {p}_rows WHERE name = $1;",
        to: "",
        test: (
            "databases",
            "pessimistic::on_mariadb::cycles_leave_no_row_no_transaction_and_few_connections",
        ),
    },
    Mutant {
        name: "a row accepts a stale token",
        file: "crates/polylock-sql/src/optimistic/fenced.rs",
        from: "operator: \"<=\", value",
        to: "operator: \"<>\", value: -1 - 0 * value",
        test: ("optimistic", "updates::sqlite::a_row_refuses_a_smaller_token"),
    },
    Mutant {
        name: "fence read from an old snapshot in MySQL",
        file: "crates/polylock-sql/src/optimistic/statements/raised.mysql.sql",
        from: " FOR UPDATE",
        to: "",
        test: ("optimistic", "fences::mysql::an_old_snapshot_never_accepts_a_stale_token"),
    },
    Mutant {
        name: "a retried release that reports the loss of its own first attempt",
        file: "crates/polylock-core/src/engine/context.rs",
        from: "            Release::Lost(_) if attempts > 1 => ",
        to: "            Release::Lost(_) if attempts > 9 => ",
        test: ("conformance", "memory::release::is_retried_after_a_lost_reply"),
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
        from: "self.release_within(Some(RUN_RELEASE))",
        to: "self.release_within(None)",
        test: ("conformance", "memory::lost::run_returns_when_the_work_is_done"),
    },
    Mutant {
        name: "claim dropped mid-flight",
        file: "crates/polylock-core/src/engine/acquire.rs",
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
        name: "the end of the program does not wait for releases",
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
        test: ("conformance", "redis::idempotence::a_release_by_another_request_changes_nothing"),
    },
    Mutant {
        name: "claims executed after their release are not recorded, in Redis",
        file: "crates/polylock-redis/src/queue/backend.rs",
        from: "pending.is_settled = !may_execute_late;",
        to: "pending.is_settled = may_execute_late || !may_execute_late;",
        test: ("redis", "late::a_claim_executed_after_its_release_grants_nothing"),
    },
    Mutant {
        name: "claims that do not expire, in Redis",
        file: "crates/polylock-redis/src/queue/backend.rs",
        from: "const VALIDITY: Duration = Duration::from_secs(1);",
        to: "const VALIDITY: Duration = Duration::from_secs(3600);",
        test: ("redis", "late::a_claim_delivered_after_seconds_has_expired"),
    },
    Mutant {
        name: "tokens beyond what a server counts exactly, in Redis",
        file: "crates/polylock-redis/src/queue/scripts/claim_at_once.lua",
        from: " and number < 9007199254740991",
        to: "",
        test: ("redis", "tokens::without_a_greater_number_claims_fail_with_a_remedy"),
    },
    Mutant {
        name: "a broken hold that is extended, in Redis",
        file: "crates/polylock-redis/src/queue/scripts/keep_alive.lua",
        from: "if entry[8] then",
        to: "if false then",
        test: ("conformance", "redis::breaking::ends_with_the_lease"),
    },
    Mutant {
        name: "all prefixes share their channels, in Redis",
        file: "crates/polylock-redis/src/link.rs",
        from: "    format!(\"polylock:{prefix}:{client}\")",
        to: "    drop(prefix.to_owned());
    format!(\"polylock:{client}\")",
        test: ("redis", "access::the_documented_rights_are_sufficient"),
    },
    Mutant {
        name: "certificates are not verified, in Redis",
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
        name: "each waiter of a disconnected client is granted and revoked, in Redis",
        file: "crates/polylock-redis/src/queue/scripts/common.lua",
        from: "absent[waiter[5]] = true",
        to: "",
        test: ("redis", "dead::waiters_of_a_disconnected_client_are_skipped_with_one_message"),
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
        test: ("redis", "keeping::a_full_server_keeps_holds_and_queue_entries_alive"),
    },
    Mutant {
        name: "Redis Cluster: MOVED is not followed",
        file: "crates/polylock-redis/src/cluster/nodes.rs",
        from: "Step::Moved(address) => self.apply_redirection(bucket, &address, &link),",
        to: "Step::Moved(_) => false,",
        test: ("redis_cluster", "moving::a_hold_survives_the_move_of_its_slot_and_waiters_are_granted_then"),
    },
    Mutant {
        name: "Redis Cluster: ASK without ASKING",
        file: "crates/polylock-redis/src/cluster/nodes.rs",
        from: "let routing = Routing { asking: target.is_some(),",
        to: "let routing = Routing { asking: false,",
        test: ("redis_cluster", "moving::a_hold_survives_the_move_of_its_slot_and_waiters_are_granted_then"),
    },
    Mutant {
        name: "Redis Cluster: a hold in a moving slot is not renewed",
        file: "crates/polylock-redis/src/cluster/keep_alive.rs",
        from: "Err((_, cause)) if is_being_moved(&cause) => {",
        to: "Err((_, cause)) if is_being_moved(&cause) && timeout.is_zero() => {",
        test: ("redis_cluster", "moving::a_hold_survives_the_move_of_its_slot_and_waiters_are_granted_then"),
    },
    Mutant {
        name: "Redis Cluster: a batch is sent to one node alone",
        file: "crates/polylock-redis/src/cluster/keep_alive.rs",
        from: "self.by_primary(requests).into_iter().enumerate() {",
        to: "self.by_primary(requests).into_iter().enumerate().take(1) {",
        test: ("redis_cluster", "keeping::a_batch_extends_holds_at_all_primaries_and_returns_an_outcome_for_each"),
    },
    Mutant {
        name: "Redis Cluster: an unresponsive node delays the renewals at the others",
        file: "crates/polylock-redis/src/cluster/keep_alive.rs",
        from: "if under_way.iter().all(",
        to: "if shortest.is_zero() && under_way.iter().all(",
        test: ("redis_cluster", "keeping::a_node_that_does_not_reply_delays_no_outcome_of_the_others"),
    },
    Mutant {
        name: "Redis Cluster: the slot table is not refreshed",
        file: "crates/polylock-redis/src/cluster/nodes.rs",
        from: "Step::Refresh if !refreshed => {",
        to: "Step::Refresh if !refreshed && timeout.is_zero() => {",
        test: ("redis_cluster", "failover::a_frozen_primary_delays_no_other_and_is_replaced"),
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
        name: "Redis Cluster: the end of a subscription is a reply to a claim",
        file: "crates/polylock-redis/src/link.rs",
        from: "                Some(_) if live.slots.is_garbled() => (false, Cause::SlotLeft),
",
        to: "",
        test: (
            "redis_cluster",
            "garbled::a_held_lock_is_not_granted_by_the_reply_to_another_claim",
        ),
    },
    Mutant {
        name: "Redis Cluster: the end of a subscription is a reply to a release",
        file: "crates/polylock-redis/src/link.rs",
        from: "            slots.mark_garbled();
",
        to: "",
        test: ("redis_cluster", "garbled::a_release_is_not_reported_lost_by_the_reply_to_another_release"),
    },
    Mutant {
        name: "Redis Cluster: the nodes behind the first are not encrypted",
        file: "crates/polylock-redis/src/config.rs",
        from: "            ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
",
        to: "            drop((insecure, tls_params));
            ConnectionAddr::Tcp(host, port)
",
        test: (
            "redis_cluster",
            "encrypted::locks_of_all_nodes_require_the_right_authority",
        ),
    },
    Mutant {
        name: "Redis Sentinel: the certificate of the primary is not checked with the authority of the URL",
        file: "crates/polylock-redis/src/sentinel/sentinels.rs",
        from: "            let client = self.settings.client(&server, ProtocolVersion::RESP3);
",
        to: "            let mut settings = self.settings.clone();
            settings.certificates = crate::config::Certificates::default();
            let client = settings.client(&server, ProtocolVersion::RESP3);
",
        test: (
            "redis_sentinel",
            "an_encrypted_primary_requires_the_right_authority",
        ),
    },
    Mutant {
        name: "Redis Sentinel: the first primary is used for ever",
        file: "crates/polylock-redis/src/link.rs",
        from: "                for client in sentinels.primary().await? {",
        to: "                static FIRST: tokio::sync::OnceCell<Vec<Client>> = tokio::sync::OnceCell::const_new();
                for client in FIRST.get_or_try_init(|| sentinels.primary()).await?.clone() {",
        test: ("redis_sentinel", "a_failover_is_followed_by_holders_and_waiters_and_tokens_grow"),
    },
    Mutant {
        name: "Redis Sentinel: a former primary is used",
        file: "crates/polylock-redis/src/checkup.rs",
        from: "            Expected::ClusterNode | Expected::NamedPrimary => Err(Cause::Unusable(",
        to: "            Expected::NamedPrimary => Ok(Health::default()),
            Expected::ClusterNode => Err(Cause::Unusable(",
        test: ("redis_sentinel", "a_former_primary_is_not_used"),
    },
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
        test: ("redlock", "quorum::only_the_majority_side_of_a_partition_is_granted_the_lock"),
    },
    Mutant {
        name: "Redlock: a release that accepts late proposals",
        file: "crates/polylock-redis/src/redlock/scripts/release.lua",
        from: "    accept(number + 1, keep)",
        to: "",
        test: ("redlock", "leftovers::a_proposal_executed_after_the_release_gets_no_vote"),
    },
    Mutant {
        name: "Redlock: votes of slow servers are not withdrawn",
        file: "crates/polylock-redis/src/redlock/withdrawals.rs",
        from: "        self.servers.repeat(self.server);",
        to: "",
        test: ("redlock", "leftovers::a_release_is_repeated_at_a_node_that_was_unreachable"),
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
            "redlock::proposals_tests::random_events_forget_no_vote_and_withdraw_no_live_vote",
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
        test: ("redlock", "runtimes::a_withdrawal_of_a_runtime_that_is_not_driven_is_repeated"),
    },
    Mutant {
        name: "Redlock: a caller's connection that leads to another server",
        file: "crates/polylock-redis/src/redlock/node.rs",
        from: "run.is_some() && io.link.run().as_deref() == run",
        to: "run.is_some() && io.link.run().is_some()",
        test: ("redlock", "runtimes::a_connection_that_leads_to_another_server_is_not_used"),
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
        test: (
            "redlock",
            "runtimes::a_runtime_that_ends_during_claims_leaves_no_vote",
        ),
    },
    Mutant {
        name: "Redlock: a waiter that arrives during a release of its process is not woken",
        file: "crates/polylock-redis/src/redlock/backend.rs",
        from: "        if is_last {
",
        to: "        if is_last && false {
",
        test: ("redlock", "waiting::a_waiter_that_arrives_during_a_release_of_its_process_is_woken"),
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
        test: (
            "redlock",
            "schedules::random_schedules_break_no_guarantee_and_leave_no_vote",
        ),
    },
    Mutant {
        name: "Redlock: a withdrawal that removes a later vote",
        file: "crates/polylock-redis/src/redlock/scripts/release.lua",
        from: "(number == 0 or entry[1] <= number)",
        to: "true",
        test: ("redlock", "stale::a_late_withdrawal_does_not_affect_a_later_proposal"),
    },
    Mutant {
        name: "Redlock: a server without a proposal confirms a release",
        file: "crates/polylock-redis/src/redlock/proposals.rs",
        from: "let reply = if server.open == 0 { Reply::Absent } else { Reply::Missing };",
        to: "let reply = if server.open == 0 { Reply::Removed } else { Reply::Missing };",
        test: ("redlock", "release::a_server_without_a_vote_confirms_no_release"),
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
        test: ("redlock", "release::a_restored_vote_is_withdrawn"),
    },
    Mutant {
        name: "Redlock: a release does not report the loss of most votes",
        file: "crates/polylock-redis/src/redlock/proposals.rs",
        from: "let had_vote = removed || may_be_repeated || server.is_uncertain;",
        to: "let had_vote = true;",
        test: ("redlock", "release::a_release_without_a_majority_of_votes_reports_the_loss"),
    },
    Mutant {
        name: "Redlock: votes of servers that have lost their data count",
        file: "crates/polylock-redis/src/redlock/node.rs",
        from: "        observed == Observed::Counts
    }",
        to: "        true
    }",
        test: ("redlock", "restart::a_server_that_has_lost_its_votes_elects_no_second_holder"),
    },
    Mutant {
        name: "Redlock: the delay of a server counts from the sending of a command",
        file: "crates/polylock-redis/src/redlock/node.rs",
        from: "        let now = SystemClock.now();
        let (was_sent",
        to:
            "        let now = reply.peer.as_ref().map_or_else(|| SystemClock.now(), |(_, sent_at)| *sent_at);
        let (was_sent",
        test: ("redlock", "restart::the_delay_does_not_count_from_the_sending_of_a_late_command"),
    },
    Mutant {
        name: "Redlock: a server that was not durable counts at once after a restart",
        file: "crates/polylock-redis/src/redlock/scripts/membership.lua",
        from: "not (was_durable == '1' and durable == '1')",
        to: "durable ~= '1'",
        test: (
            "redlock",
            "restart::a_server_that_was_not_durable_has_a_delay_after_its_restart",
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
        name: "Redlock: an unknown outcome fails its batch",
        file: "crates/polylock-redis/src/redlock/keep_alive.rs",
        from: "if unknown == outcomes.len() {",
        to: "if unknown > 0 {",
        test: ("redlock", "keeping::an_unknown_outcome_does_not_fail_the_rest_of_its_batch"),
    },
    Mutant {
        name: "Redlock: a renewal without a majority counts",
        file: "crates/polylock-redis/src/redlock/keep_alive.rs",
        from: "None => KeepAlive::Unknown,",
        to: "None => KeepAlive::Held { lease: request.ttl },",
        test: ("redlock", "keeping::an_unknown_outcome_does_not_fail_the_rest_of_its_batch"),
    },
    Mutant {
        name: "Redlock: a message for each renewal",
        file: "crates/polylock-redis/src/redlock/open.rs",
        from: "    capabilities.queue_lease = QueueLease::Absent;
",
        to: "    capabilities.queue_lease = QueueLease::Absent;
    capabilities.keep_alive_batch = 1;
",
        test: ("redlock", "keeping::many_locks_are_kept_while_the_servers_are_healthy"),
    },
    Mutant {
        name: "Redis: a timeout that measures this client's own queue",
        file: "crates/polylock-redis/src/flow.rs",
        from: "let next = (replied + timeout).max(",
        to: "let next = (replied.min(self.sent_at) + timeout).max(",
        test: (
            "units of library polylock_redis",
            "flow::tests::a_server_that_replies_to_other_calls_is_responsive",
        ),
    },
    Mutant {
        name: "obsolete records of requests are kept",
        file: "crates/polylock-core/src/requests.rs",
        from: "self.records.retain(|_, record| record.until > now);",
        to: "self.records.retain(|_, record| record.until > now || record.until <= now);",
        test: ("conformance", "memory::leaks::no_records_of_ended_requests"),
    },
    Mutant {
        name: "every insertion looks for obsolete records",
        file: "crates/polylock-core/src/requests.rs",
        from: "self.sweep_at = MIN_SWEEP.max(2 * self.records.len());",
        to: "self.sweep_at = MIN_SWEEP.max(self.records.len());",
        test: ("units of library polylock_core", "requests::tests::memory_and_time_are_bounded"),
    },
    Mutant {
        name: "pessimistic: a hold that was left to expire keeps its connection",
        file: "crates/polylock-sql/src/pessimistic/store.rs",
        from: "Stage::Held(Hold { until, .. }) | Stage::Orphaned(_, until) => until > now,",
        to: "Stage::Orphaned(_, until) => until > now,
                Stage::Held(Hold { .. }) => true,",
        test: ("databases", "pessimistic::on_postgres::holds_left_to_expire_return_their_connections"),
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
        name: "Redlock: a broken vote is restored",
        file: "crates/polylock-redis/src/redlock/scripts/break.lua",
        from: "    accept(number + 1, keep)",
        to: "",
        test: ("redlock", "breaking::a_broken_vote_is_not_restored"),
    },
    Mutant {
        name: "Redlock: marks on a minority end a hold",
        file: "crates/polylock-redis/src/redlock/tally.rs",
        from: "(self.replies.len() - lost < quorum)",
        to: "(lost > 0)",
        test: ("redlock", "breaking::a_break_at_a_minority_fails_and_does_not_end_the_hold"),
    },
    Mutant {
        name: "Redlock: a wrong number that is followed",
        file: "crates/polylock-redis/src/redlock/numbers.rs",
        from: "if far.len() <= spare {",
        to: "if far.is_empty() {",
        test: ("redlock", "tokens::the_wrong_number_of_one_node_is_not_followed"),
    },
    Mutant {
        name: "ZooKeeper: a session is trusted until the driver reports its end",
        file: "crates/polylock-zookeeper/src/session.rs",
        from: "self.timeout * 2 / 3",
        to: "self.timeout * 7 / 5",
        test: ("zookeeper", "partitions::a_holder_with_lost_requests_is_notified_in_time"),
    },
    Mutant {
        name: "ZooKeeper: a node with an unanswered create is not searched for",
        file: "crates/polylock-zookeeper/src/creation.rs",
        from: "Outcome::Unknown => match find_created(&session, config, path, guid).await? {",
        to: "Outcome::Unknown => match find_created(&session, config, path, guid).await?.filter(|_| false) {",
        test: ("zookeeper", "lost_replies::of_any_operation_leave_no_node"),
    },
    Mutant {
        name: "ZooKeeper: the end of the sequences is not detected",
        file: "crates/polylock-zookeeper/src/creation.rs",
        from: "self.child.sequence < 0 || self.child.sequence > LAST_SEQUENCE",
        to: "self.child.sequence < 0 && self.child.sequence > LAST_SEQUENCE",
        test: ("zookeeper", "sequence_overflow::requests_beyond_the_last_sequence_wait_for_an_empty_lock_node"),
    },
    Mutant {
        name: "ZooKeeper: a fence checks a node that always exists",
        file: "crates/polylock-zookeeper/src/fence.rs",
        from: "self.client.new_check_writer(&self.path, None)",
        to: "self.client.new_check_writer(\"/\", None)",
        test: ("zookeeper", "fence::a_released_lock_writes_nothing"),
    },
    Mutant {
        name: "ZooKeeper: a lost create is searched for after a sync, which needs no majority",
        file: "crates/polylock-zookeeper/src/creation.rs",
        from: "session.children_after_commit(config, directory)",
        to: "session.children_now(Some(directory).filter(|_| !config.root.is_empty()).unwrap_or_default())",
        test: (
            "zookeeper",
            "orphans::a_leader_without_followers_does_not_settle_a_lost_create",
        ),
    },
    Mutant {
        name: "ZooKeeper: an orphaned node of the session is not deleted",
        file: "crates/polylock-zookeeper/src/session.rs",
        from: "one.guid.is_of_session(self.guid) && !self.is_registered(one.guid)",
        to: "one.guid.is_of_session(self.guid) && !self.is_registered(one.guid) && directory.is_empty()",
        test: (
            "zookeeper",
            "orphans::an_orphaned_node_is_deleted_by_the_next_claim_of_its_session",
        ),
    },
    Mutant {
        name: "ZooKeeper: a node of the session is deleted as an orphan though a request uses it",
        file: "crates/polylock-zookeeper/src/session.rs",
        from: "one.guid.is_of_session(self.guid) && !self.is_registered(one.guid)",
        to: "one.guid.is_of_session(self.guid) && (!self.is_registered(one.guid) || requests.len() > 1)",
        test: ("zookeeper", "orphans::only_orphaned_nodes_are_deleted"),
    },
    Mutant {
        name: "ZooKeeper: a release that finds no node is reported as a success",
        file: "crates/polylock-zookeeper/src/creation.rs",
        from: "Removal::Absent => Release::Lost(self.gone_reason().await),",
        to: "Removal::Absent => Release::Released,",
        test: ("conformance", "zookeeper::breaking::by_force_is_reported_by_the_release"),
    },
    Mutant {
        name: "ZooKeeper: a deletion whose reply was lost is not remembered",
        file: "crates/polylock-zookeeper/src/session.rs",
        from: "may_be_deleted = true;",
        to: "may_be_deleted = false;",
        test: ("zookeeper", "lost_replies::of_any_operation_leave_no_node"),
    },
    Mutant {
        name: "ZooKeeper: a broken hold is extended",
        file: "crates/polylock-zookeeper/src/creation.rs",
        from: "Ok(NodeData::parse(&data).and_then(|data| data.broken).map(LostReason::Broken))",
        to: "Ok(NodeData::parse(&data).and_then(|data| data.broken.filter(|_| false)).map(LostReason::Broken))",
        test: ("conformance", "zookeeper::breaking::ends_with_the_lease"),
    },
    Mutant {
        name: "ZooKeeper: a hold without renewals lasts until its session ends",
        file: "crates/polylock-zookeeper/src/claims.rs",
        from: "            slot.expire();
",
        to: "            drop(slot);
",
        test: ("zookeeper", "breaking::a_holder_that_does_not_stop_keeps_the_lock_until_its_lease_ends"),
    },
    Mutant {
        name: "ZooKeeper: a second break overwrites the notice of the first",
        file: "crates/polylock-zookeeper/src/break_lock.rs",
        from: "writer.add_set_data(&holder.path, &marked, Some(holder.version))?;",
        to: "writer.add_set_data(&holder.path, &marked, None)?;",
        test: ("zookeeper", "breaking::two_concurrent_breaks_return_the_same_notice"),
    },
    Mutant {
        name: "ZooKeeper: a break that is not announced",
        file: "crates/polylock-zookeeper/src/break_lock.rs",
        from: "        if announces {",
        to: "        if announces && order.force {",
        test: ("conformance", "zookeeper::breaking::notifies_the_holder_at_once"),
    },
    Mutant {
        name: "ZooKeeper: a node with foreign data is not shown",
        file: "crates/polylock-zookeeper/src/inspect.rs",
        from: "        None => NodeData {",
        to: "        None if stat.czxid > 0 => return None,
        None => NodeData {",
        test: (
            "zookeeper",
            "breaking::a_node_with_foreign_data_is_listed_and_only_deleted_by_force",
        ),
    },
    Mutant {
        name: "ZooKeeper: a request is granted though no list has shown it",
        file: "crates/polylock-zookeeper/src/directory.rs",
        from: "return own.is_listed().then_some(Position::First)",
        to: "return own.is_listed().then_some(Position::First).or(Some(Position::First))",
        test: ("zookeeper", "lock_nodes::that_were_created_again_are_listed_before_a_grant"),
    },
    Mutant {
        name: "ZooKeeper: a list that was sent before another is applied after it",
        file: "crates/polylock-zookeeper/src/directory.rs",
        from: "if number < state.applied {",
        to: "if number < state.applied.min(1) {",
        test: (
            "units of library polylock_zookeeper",
            "directory::tests::only_admissible_requests_are_first_and_each_becomes_first",
        ),
    },
    Mutant {
        name: "ZooKeeper: a request whose node is gone is granted after an earlier list",
        file: "crates/polylock-zookeeper/src/creation.rs",
        from: "return Ok(if self.exists().await? { position } else { Position::Gone });",
        to: "return Ok(if self.exists().await? || counts == counts { position } else { Position::Gone });",
        test: ("zookeeper", "lock_nodes::with_a_deleted_request_do_not_grant_it"),
    },
    Mutant {
        name: "ZooKeeper: the break of a holder is treated as its release",
        file: "crates/polylock-zookeeper/src/claims.rs",
        from: "event_type == EventType::NodeDeleted",
        to: "event_type != EventType::NodeCreated",
        test: ("zookeeper", "breaking::waiters_are_granted_only_after_the_holder_stops"),
    },
    Mutant {
        name: "ZooKeeper: a request whose node is being deleted is granted",
        file: "crates/polylock-zookeeper/src/claims.rs",
        from: "let is_kept = !matches!(*current, Stage::Deleting(_));",
        to: "let is_kept = true;",
        test: ("zookeeper", "orphans::a_claim_is_not_granted_with_a_node_that_is_being_deleted"),
    },
    Mutant {
        name: "ZooKeeper: the empty nodes of locks are left to the servers",
        file: "crates/polylock-zookeeper/src/creation.rs",
        from: "if missing && parent.is_ok() {",
        to: "if missing && parent.is_err() {",
        test: ("zookeeper", "lock_nodes::that_are_empty_are_deleted_without_the_servers_reaper"),
    },
    Mutant {
        name: "Azure: the lease id in the reply to a renewal is not compared",
        file: "crates/polylock-azure/src/blobs.rs",
        from: "Ok(lease_id.as_deref() == Some(OWN_LEASE))",
        to: "Ok(lease_id.is_some())",
        test: ("azure", "lost_replies::a_renewal_reply_with_another_lease_id_is_a_loss"),
    },
    Mutant {
        name: "Azure: an acquisition without a reply is not released again",
        file: "crates/polylock-azure/src/backend.rs",
        from: "attempt.and_then(|attempt| attempt.unanswered)",
        to: "attempt.and_then(|attempt| attempt.unanswered).filter(|_| false)",
        test: ("azure", "late::an_acquisition_that_arrives_after_its_release_blocks_nobody"),
    },
    Mutant {
        name: "Azure: a cached token is used though another client has written since",
        file: "crates/polylock-azure/src/tokens.rs",
        from: "(Some(known) == etag).then(",
        to: "(Some(known) == etag || etag.is_some()).then(",
        test: ("azure", "leases::tokens_grow_across_processes"),
    },
    Mutant {
        name: "Azure: a lease that is granted late is released too late",
        file: "crates/polylock-azure/src/backend.rs",
        from: "(Duration::from_millis(100), Duration::from_millis(700));",
        to: "(Duration::from_secs(20), Duration::from_secs(20));",
        test: ("azure", "late::a_late_acquisition_is_released_within_a_second_of_its_arrival"),
    },
    Mutant {
        name: "Azure: a refused release is reported as a success",
        file: "crates/polylock-azure/src/backend.rs",
        from: "match queued || cause.may_have_been_executed() {",
        to: "match queued || cause.refusal().is_some() {",
        test: ("conformance", "azure::release::of_a_superseded_hold_is_an_error"),
    },
    Mutant {
        name: "Azure: the second reply to a release that was sent twice counts",
        file: "crates/polylock-azure/src/backend.rs",
        from: "match queued || cause.may_have_been_executed() {",
        to: "match queued {",
        test: ("azure", "lost_replies::of_a_release_leave_no_lease"),
    },
    Mutant {
        name: "Azure: a former holder can still release a lease that was broken by force",
        file: "crates/polylock-azure/src/breaks.rs",
        from: "                    self.revoke_broken_lease(name).await;
",
        to: "",
        test: ("conformance", "azure::breaking::by_force_is_reported_by_the_release"),
    },
    Mutant {
        name: "Azure: a cooperative break ends the lease at once",
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
        name: "Azure: a notice counts for every grant",
        file: "crates/polylock-azure/src/breaks.rs",
        from: "found.filter(|(broken, _)| broken.grant == *grant)",
        to: "found.filter(|(broken, _)| broken.grant == *grant || !self.endpoint.is_empty())",
        test: ("azure", "breaking::a_notice_is_for_one_grant_only"),
    },
    Mutant {
        name: "Azure: unread notices are not deleted",
        file: "crates/polylock-azure/src/breaks.rs",
        from: "age(now, properties.last_modified) > NOTICE_LIFETIME",
        to: "age(now, properties.last_modified) > NOTICE_LIFETIME * 10",
        test: ("azure", "breaking::unread_notices_are_deleted_by_a_later_break"),
    },
    Mutant {
        name: "Azure: the first token of a blob is a whole second",
        file: "crates/polylock-azure/src/tokens.rs",
        from: "Some(micros.div_euclid(SECOND)) == modified",
        to: "Some(micros.div_euclid(SECOND)) == modified && *micros < 0",
        test: (
            "azure",
            "leases::tokens_grow_if_the_blob_is_deleted_in_the_second_of_its_first_grant",
        ),
    },
    Mutant {
        name: "command line: a process is signalled by its bare pid",
        file: "crates/polylock-cli/src/run/processes/process.rs",
        from: "Identity::Descriptor(fd) => rustix::process::pidfd_send_signal(fd, signal),",
        to: "Identity::Descriptor(_) => kill_process(self.id, signal),",
        test: ("cli_pid_reuse", "the_reused_ids_that_a_replacement_warden_knows"),
    },
    Mutant {
        name: "command line: a group is signalled by its bare id",
        file: "crates/polylock-cli/src/run/processes/mod.rs",
        from: "self.id != Pid::INIT && self.exists()",
        to: "self.id != Pid::INIT && (self.exists() || true)",
        test: ("units of library polylock_cli", "run::processes::tests::a_group_without_a_known_member_is_not_signalled"),
    },
    Mutant {
        name: "command line: all processes of the machine are read before the group is killed",
        file: "crates/polylock-cli/src/run/processes/mod.rs",
        from: "        // One signal, before any process is looked up:",
        to: "        drop(ChildLookup::read());
        // One signal, after a lookup:",
        test: (
            "units of library polylock_cli",
            "run::processes::tests::the_group_is_killed_before_any_process_is_looked_up",
        ),
    },
    Mutant {
        name: "command line: polylock is not a child subreaper",
        file: "crates/polylock-cli/src/run/processes/mod.rs",
        from: "rustix::process::set_child_subreaper(Some(getpid())).ok();",
        to: "rustix::process::set_child_subreaper(None).ok();",
        test: ("cli_takeover", "a_daemon_by_setsid_f"),
    },
    Mutant {
        name: "command line: a lock is released before all processes of the command are dead",
        file: "crates/polylock-cli/src/run/supervise.rs",
        from: "Some(stop) => self.finish_stop(self.kill_at(Some(stop), lease), lease, signals).await,",
        to: "Some(stop) if stop.kill_at < Moment::default() => {
                self.finish_stop(self.kill_at(Some(stop), lease), lease, signals).await
            }
            Some(_) => None,",
        test: ("cli_takeover", "a_daemon_that_is_started_when_the_command_gets_the_signal"),
    },
    Mutant {
        name: "command line: a process that can't be killed is treated as a dying one",
        file: "crates/polylock-cli/src/run/processes/mod.rs",
        from: "Err(Errno::PERM) => remaining.refused.push(process),",
        to: "Err(Errno::PERM) => remaining.dying.push(process),",
        test: (
            "cli_unkillable",
            "a_command_of_another_user_is_reported_at_once_and_when_the_lock_is_lost",
        ),
    },
    Mutant {
        name: "command line: a release of a lost lock is a success",
        file: "crates/polylock-cli/src/run/finish.rs",
        from: "Some(Err(error @ Error::Lost { .. })) => return Err(error),",
        to: "Some(Err(Error::Lost { .. })) => return Ok(()),",
        test: ("cli_lost_release", "sqlite_full::the_release_of_a_lock_that_was_lost_reports_the_loss"),
    },
    Mutant {
        name: "command line: the program waits until a line is written",
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
        test: ("unread", "unread_pipes_delay_neither_the_command_nor_a_signal_nor_the_release"),
    },
    Mutant {
        name: "command line: a nested run uses the default store",
        file: "crates/polylock-cli/src/store.rs",
        from: "} else if let Some(outer) = nested::outer_store()? {",
        to: "} else if let Some(outer) = nested::outer_store()?.filter(|_| false) {",
        test: ("environment", "a_nested_run_uses_the_same_store"),
    },
    Mutant {
        name: "command line: a nested run without a store is not refused",
        file: "crates/polylock-cli/src/store/nested.rs",
        from: "        redacted => {",
        to: "        _ if true => return Ok(None),
        redacted => {",
        test: ("environment", "a_nested_run_must_name_a_store_with_a_password"),
    },
    Mutant {
        name: "command line: an empty variable counts as unset",
        file: "crates/polylock-cli/src/store.rs",
        from: "Ok(text) if text.is_empty() => \"empty\",",
        to: "Ok(text) if text.is_empty() => return Ok(None),",
        test: ("environment", "an_empty_or_undecodable_store_variable_is_an_error"),
    },
    Mutant {
        name: "command line: a command that --max-hold stopped is a success",
        file: "crates/polylock-cli/src/run/finish.rs",
        from: "Verdict::new(\"max_hold\", MAX_HOLD)",
        to: "Verdict::new(\"max_hold\", code)",
        test: ("signals", "max_hold_stops_the_command_and_frees_the_lock"),
    },
    Mutant {
        name: "command line: a second signal is ignored",
        file: "crates/polylock-cli/src/run/mod.rs",
        from: "signal = self.signals.next_termination() => exit_at_once(log, self.output, signal),",
        to: "signal = std::future::pending::<Signal>() => exit_at_once(log, self.output, signal),",
        test: ("exit_codes", "a_second_signal_ends_a_waiter_at_once_while_the_store_hangs"),
    },
    Mutant {
        name: "command line: the ZooKeeper session does not use the TTL as its timeout",
        file: "crates/polylock-cli/src/run/mod.rs",
        from: "builder = builder.ttl(ttl);",
        to: "builder = builder.ttl(ttl.max(std::time::Duration::from_secs(20)));",
        test: ("cli_outage", "on_zookeeper_the_ttl_of_a_run_is_the_session_timeout"),
    },
    Mutant {
        name: "an unavailable store is not retried",
        file: "crates/polylock-core/src/engine/connect.rs",
        from: "if !error.is_temporary() || now >= until {",
        to: "if !error.is_temporary() || now >= until || now > began {",
        test: ("exit_codes", "a_store_that_is_unreachable_at_the_start"),
    },
    Mutant {
        name: "a hold in a session is not renewed until its delayed release",
        file: "crates/polylock-core/src/engine/shared_hold.rs",
        from: "HoldLifetime::Session => (Duration::MAX, Duration::ZERO),",
        to: "HoldLifetime::Session => (Duration::ZERO, Duration::MAX),",
        test: ("engine", "a_release_after_a_delay_keeps_a_hold_that_would_end_with_the_process"),
    },
    Mutant {
        name: "a last renewal for a whole lease",
        file: "crates/polylock-core/src/engine/context.rs",
        from: "(self.clone(), end.since(self.now()).max(shortest));",
        to: "(self.clone(), end.since(self.now()).min(shortest).max(request.ttl));",
        test: ("engine", "a_release_after_a_delay_leaves_a_lease_of_that_delay"),
    },
    Mutant {
        name: "queue entries are not kept alive",
        file: "crates/polylock-core/src/engine/acquisition.rs",
        from: "        context.keeper.wait(context, request, &waiting.entry, sent);
",
        to: "",
        test: ("conformance", "memory::keep_alive::keeps_the_queue_position_of_a_waiter"),
    },
    Mutant {
        name: "PostgreSQL: queue entries are not kept alive",
        file: "crates/polylock-sql/src/postgres/statements/routines/keep_alive.sql",
        from: "UPDATE {p}_waiters SET expires_at = v_now + ttl FROM",
        to: "UPDATE {p}_waiters SET expires_at = expires_at FROM",
        test: ("conformance", "postgres::keep_alive::keeps_the_queue_position_of_a_waiter"),
    },
    Mutant {
        name: "SQL: hung claims use all connections",
        file: "crates/polylock-sql/src/engine/gate.rs",
        from: "[0, 1, 2].map(|reserve: usize|",
        to: "[0, 1, 0].map(|reserve: usize|",
        test: ("databases", "precedence::postgres_keeps_a_lock_while_claims_hang"),
    },
    Mutant {
        name: "SQLite: a hand-over skips a conflicting waiter",
        file: "crates/polylock-sql/src/sqlite/statements/next.sql",
        from: "WHERE walk.mode & walk.ahead = 0 AND",
        to: "WHERE",
        test: ("sqlite", "order::grants_follow_the_queue_rule"),
    },
    Mutant {
        name: "SQLite: a waiter withdrawn while it is granted the lock keeps it",
        file: "crates/polylock-sql/src/sqlite/backend.rs",
        from: "if self.hand_over(request, wakeups).await? {
            return Ok(Release::Released);
        }
        wakeups.notify(request.id);",
        to: "if wakeups.is_watched(request.id) && self.hand_over(request, wakeups).await? {
            return Ok(Release::Released);
        }
        wakeups.notify(request.id);",
        test: ("sqlite", "order::a_waiter_withdrawn_while_it_is_granted_the_lock_keeps_no_row"),
    },
    Mutant {
        name: "SQLite: a withdrawn waiter is granted the lock",
        file: "crates/polylock-sql/src/sqlite/statements/hand_over.sql",
        from: "DELETE FROM {p}_waiters WHERE name = ?1 AND request = ?2 RETURNING 1;",
        to: "SELECT 1;",
        test: ("sqlite", "order::grants_follow_the_queue_rule"),
    },
    Mutant {
        name: "MySQL: a release hands the lock to a waiter that has died",
        file: "crates/polylock-sql/src/mysql/statements/routines/release.sql",
        from: "        IF v_until <= v_now THEN",
        to: "        IF v_until <= 0 THEN",
        test: ("databases", "mariadb::hand_over::a_release_grants_the_lock_to_the_next_waiters"),
    },
    Mutant {
        name: "MySQL: a release hands the lock over beside a conflicting hold",
        file: "crates/polylock-sql/src/mysql/statements/routines/release.sql",
        from: "    SET v_ahead = (SELECT coalesce(bit_or({conflicts mode}), 0) FROM {p}_holds WHERE name = a_name);",
        to: "    SET v_ahead = 0;",
        test: ("databases", "mariadb::hand_over::a_release_grants_the_lock_to_the_next_waiters"),
    },
    Mutant {
        name: "MySQL: a hand-over passes a waiter that conflicts",
        file: "crates/polylock-sql/src/mysql/statements/routines/release.sql",
        from: "        SET v_ahead = v_ahead | {conflicts v_mode};
",
        to: "",
        test: ("databases", "mariadb::hand_over::grants_follow_the_queue_rule"),
    },
    Mutant {
        name: "MySQL: the tokens of hand-overs are given again",
        file: "crates/polylock-sql/src/mysql/statements/routines/release.sql",
        from: "        UPDATE {p}_gates SET token = v_token WHERE shard = v_shard;
",
        to: "        DO 0;
",
        test: ("databases", "mariadb::hand_over::a_release_grants_the_lock_to_the_next_waiters"),
    },
    Mutant {
        name: "MySQL: a withdrawn waiter is granted the lock",
        file: "crates/polylock-sql/src/mysql/statements/routines/release.sql",
        from: "        DELETE FROM {p}_waiters WHERE name = a_name AND request = a_request;
        SET v_found = row_count();
",
        to: "        SET v_found = (SELECT count(*) FROM {p}_waiters WHERE name = a_name AND request = a_request);
",
        test: ("databases", "mariadb::hand_over::grants_follow_the_queue_rule"),
    },
    Mutant {
        name: "MySQL: waiters behind a hold of their process are polled",
        file: "crates/polylock-sql/src/mysql/watch.rs",
        from: "        waiters.retain(|waiter| !local.is_claimed(waiter.watches));
",
        to: "        let _ = local;
",
        test: ("databases", "mariadb::hand_over::waiters_behind_a_hold_of_their_process_are_not_polled"),
    },
    Mutant {
        name: "MySQL: queue entries are not kept alive",
        file: "crates/polylock-sql/src/mysql/statements/routines/keep_alive.sql",
        from: "        UPDATE {p}_waiters SET expires_at = v_now + v_place_ttl
",
        to: "        UPDATE {p}_waiters SET expires_at = expires_at
",
        test: ("conformance", "mariadb::keep_alive::keeps_the_queue_position_of_a_waiter"),
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
        from: "        self.watch(context, operation, Arc::downgrade(&task) as _);
",
        to: "        drop((context, operation));
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
        file: "crates/polylock-core/src/engine/keeper.rs",
        from: "        if sent < kept.since && !matches!",
        to: "        if sent > now && !matches!",
        test: ("keep_alive", "a_reply_from_the_time_in_the_queue_does_not_end_a_hold"),
    },
    Mutant {
        name: "an operation that its caller does not poll is not taken over",
        file: "crates/polylock-core/src/engine/foreground.rs",
        from: "if context.foreground.take_over(now) {",
        to: "if context.foreground.take_over(Moment::default()) {",
        test: ("foreground", "a_lock_whose_caller_is_not_polled_is_passed_on"),
    },
    Mutant {
        name: "a claim that the caller has dropped is not withdrawn",
        file: "crates/polylock-core/src/engine/acquire.rs",
        from: "may_have_entry: !matches!(first, FirstClaim::NotSent),",
        to: "may_have_entry: false,",
        test: ("foreground", "an_operation_dropped_by_its_caller_is_rolled_back_or_completed"),
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
        name: "SQL: a release is not repeated after a claim that may be executed late",
        file: "crates/polylock-sql/src/engine/mod.rs",
        from: "if let Some(until) = self.inner.dialect.late_until(request.id) {",
        to: "if let (Some(until), false) = (self.inner.dialect.late_until(request.id), true) {",
        test: ("databases", "callers::mariadb_a_claim_of_a_dropped_acquisition_takes_no_lock"),
    },
    Mutant {
        name: "SQL: a claim that its caller dropped is not recorded as late",
        file: "crates/polylock-sql/src/engine/pool.rs",
        from: "std::mem::replace(&mut in_flight.is_unanswered, true);",
        to: "in_flight.is_unanswered;",
        test: ("databases", "callers::postgres_a_claim_of_a_dropped_acquisition_takes_no_lock"),
    },
    Mutant {
        name: "SQL: each runtime has its own limit of connections",
        file: "crates/polylock-sql/src/engine/limit.rs",
        from: "connections: Arc::new(Semaphore::new(size)),",
        to: "connections: Arc::new(Semaphore::new(2 * size)),",
        test: ("databases", "callers::mariadb_all_runtimes_together_keep_the_limit_of_connections"),
    },
    Mutant {
        name: "Redis: a claim of a caller that was dropped without a reply is not recorded",
        file: "crates/polylock-redis/src/queue/backend.rs",
        from: "        if !self.is_settled && expires_us != 0 {",
        to: "        if !self.is_settled && expires_us == 0 {",
        test: ("redis", "late::a_late_claim_of_a_dropped_acquisition_grants_nothing"),
    },
    Mutant {
        name: "Redis: the connection of a caller to another server is used",
        file: "crates/polylock-redis/src/queue/backend.rs",
        from: "link.run().as_ref() == Some(&run)",
        to: "link.run().is_some()",
        test: ("redis", "switched::a_caller_connected_to_the_former_server_claims_nothing_there"),
    },
    Mutant {
        name: "Redis: the connection of a caller to any server is used",
        file: "crates/polylock-redis/src/link.rs",
        from: "state.live.as_ref().filter(works)?.peer.health.run.clone()",
        to: "state.live.as_ref().filter(works)?.peer.health.run.as_ref().map(|_| std::sync::Arc::from(\"\"))",
        test: (
            "redis",
            "switched::a_caller_connected_to_the_new_server_too_early_claims_nothing",
        ),
    },
    Mutant {
        name: "Redis: the connection of a caller is replaced by one to another server",
        file: "crates/polylock-redis/src/link.rs",
        from: "let link = Self { reconnects: false, ..Self::for_caller(endpoint) };",
        to: "let link = Self::for_caller(endpoint);",
        test: (
            "redis",
            "switched::an_operation_sent_to_the_former_server_is_not_repeated_at_the_new",
        ),
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
