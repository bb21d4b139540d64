//! Bugs of the PostgreSQL store.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "release without owner check in PostgreSQL",
        file: "crates/polylock-sql/src/postgres/statements/routines/release.sql",
        from: "WHERE name = a_name AND slot IN ('', a_request) AND request = a_request;",
        to: "WHERE name = a_name;",
        test: ("conformance", "postgres::idempotence::a_release_by_another_request_changes_nothing"),
    },
    Mutant {
        name: "PostgreSQL: a grant is not on the disk when it is reported",
        file: "crates/polylock-sql/src/postgres/statements.rs",
        from: "CASE WHEN a_durable THEN 'on' ELSE 'off' END",
        to: "CASE WHEN a_durable THEN 'off' ELSE 'off' END",
        test: ("scenarios", "faults::kill::kept::postgres::a_killed_server_keeps_holds_queue_and_tokens"),
    },
    Mutant {
        name: "PostgreSQL: an expired claim is executed",
        file: "crates/polylock-sql/src/postgres/statements/routines/claim.sql",
        from: "IF v_now > a_expiry THEN",
        to: "IF v_now < 0 THEN",
        test: ("processes", "late_claims::postgres::a_late_try_grants_nothing"),
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
        test: ("scenarios", "databases::foreign_rows::postgres::a_grant_removes_the_expired_entries_that_it_replaces"),
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
        name: "PostgreSQL: holders are not notified of a break",
        file: "crates/polylock-sql/src/postgres/statements/routines/break.sql",
        from: "    PERFORM pg_notify(a_channel, encode(a_name, 'hex'));
",
        to: "",
        test: ("scenarios", "databases::postgres::a_break_notifies_a_listening_holder"),
    },
    Mutant {
        name: "locks that were handed over are looked up by texts, in PostgreSQL",
        file: "crates/polylock-sql/src/postgres/statements.rs",
        from: "text.push_str(\"::bytea, \");",
        to: "text.push_str(\", \");",
        test: ("conformance", "postgres_listen_off::order"),
    },
    Mutant {
        name: "tokens of new tables begin with one, in PostgreSQL",
        file: "crates/polylock-sql/src/postgres/statements/schema.sql",
        from: "greatest(last_value, (",
        to: "greatest(last_value, 0 * (",
        test: ("scenarios", "databases::dropped::postgres_begins_with_greater_tokens"),
    },
    Mutant {
        name: "an administrator upgrades beside programs that can't share locks, in PostgreSQL",
        file: "crates/polylock-sql/src/postgres/statements/meta.sql",
        from: "RAISE EXCEPTION 'programs of",
        to: "RAISE NOTICE 'programs of",
        test: ("scenarios", "databases::upgrade::postgres::incompatible_versions_never_use_the_same_tables"),
    },
    Mutant {
        name: "a step can't be repeated, in PostgreSQL",
        file: "crates/polylock-sql/src/postgres/tables.rs",
        from: "\"ADD COLUMN IF NOT EXISTS\"",
        to: "\"ADD COLUMN\"",
        test: ("scenarios", "databases::upgrade::postgres::an_interrupted_upgrade_is_completed"),
    },
    Mutant {
        name: "functions of other versions count as those of this one, in PostgreSQL",
        file: "crates/polylock-sql/src/engine/server/tables.rs",
        from: "count < self.routines.len()",
        to: "count + 5 < self.routines.len()",
        test: (
            "scenarios",
            "databases::upgrade::postgres::an_old_program_uses_tables_created_by_a_new_one",
        ),
    },
    Mutant {
        name: "a listener in a session of a pooler, in PostgreSQL",
        file: "crates/polylock-sql/src/postgres/listener.rs",
        from: "const PROBES: u32 = 10;",
        to: "const PROBES: u32 = 0;",
        test: ("scenarios", "databases::without_listener::processes_behind_a_pooler_hand_over_quickly"),
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
        test: ("scenarios", "databases::search_path::every_function_pins_its_own_search_path"),
    },
    Mutant {
        name: "PostgreSQL: messages leave the search path to the role",
        file: "crates/polylock-sql/src/postgres/statements.rs",
        from: "const PIN: &str = \"SET LOCAL search_path = pg_catalog, pg_temp;\\n",
        to: "const PIN: &str = \"",
        test: ("scenarios", "databases::search_path::objects_of_others_in_a_schema_of_the_search_path_are_never_run"),
    },
    Mutant {
        name: "PostgreSQL: a call fits overloads of its function",
        file: "crates/polylock-sql/src/postgres/statements/release.sql",
        from: "($1::bytea, $2::bytea, $3::text, $4::bigint, $5::bigint)",
        to: "($1, $2, $3, $4, $5)",
        test: ("scenarios", "databases::search_path::objects_of_others_in_a_schema_of_the_search_path_are_never_run"),
    },
    Mutant {
        name: "pessimistic: the mark of a broken hold is ignored",
        file: "crates/polylock-sql/src/postgres/statements/pessimistic/confirm.sql",
        from: "AND request = $5 AND notice IS NOT NULL;",
        to: "AND request = $5 AND notice IS NULL AND token < 0;",
        test: ("conformance", "postgres_pessimistic::breaking::ends_with_the_lease"),
    },
    Mutant {
        name: "pessimistic: a suspended holder keeps its lock",
        file: "crates/polylock-sql/src/postgres/statements/pessimistic/confirm.sql",
        from: "idle_in_transaction_session_timeout = $1",
        to: "idle_in_transaction_session_timeout = 600000",
        test: ("scenarios", "databases::pessimistic::on_postgres::a_stopped_holder_loses_the_lock_by_the_servers_clock"),
    },
    Mutant {
        name: "pessimistic: rows in use are taken for unused",
        file: "crates/polylock-sql/src/postgres/statements/pessimistic/enter.sql",
        from: "part = 0 FOR SHARE;",
        to: "part = 0;",
        test: (
            "scenarios",
            "databases::pessimistic::on_postgres::rows_of_dead_holders_are_deleted_when_a_store_is_opened",
        ),
    },
    Mutant {
        name: "PostgreSQL: queue entries are not kept alive",
        file: "crates/polylock-sql/src/postgres/statements/routines/keep_alive.sql",
        from: "UPDATE {p}_waiters SET expires_at = greatest(expires_at, v_now + ttl) FROM",
        to: "UPDATE {p}_waiters SET expires_at = expires_at FROM",
        test: ("conformance", "postgres::keep_alive::keeps_the_queue_position_of_a_waiter"),
    },
];
