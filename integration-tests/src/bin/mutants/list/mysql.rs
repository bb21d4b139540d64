//! Bugs of the MySQL and MariaDB store.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "MySQL: an expired claim is executed",
        file: "crates/polylock-sql/src/mysql/statements/routines/claim.sql",
        from: "IF v_now > a_expiry THEN",
        to: "IF v_now < 0 THEN",
        test: ("processes", "late_claims::mariadb::a_late_claim_leaves_no_waiter"),
    },
    Mutant {
        name: "MySQL: a grant leaves the expired entries that it overrides",
        file: "crates/polylock-sql/src/mysql/statements/routines/claim.sql",
        from: "    SELECT EXISTS (SELECT 1 FROM {p}_holds WHERE name = a_name)
        OR EXISTS (SELECT 1 FROM {p}_waiters WHERE name = a_name)
",
        to: "    SELECT EXISTS (SELECT 1 FROM {p}_holds WHERE name = a_name AND expires_at > v_now)
        OR EXISTS (SELECT 1 FROM {p}_waiters WHERE name = a_name AND expires_at > v_now)
",
        test: ("scenarios", "databases::foreign_rows::mariadb::a_grant_removes_the_expired_entries_that_it_replaces"),
    },
    Mutant {
        name: "MySQL: a broken hold is extended",
        file: "crates/polylock-sql/src/mysql/statements/routines/keep_alive.sql",
        from: " AND expires_at > v_now AND notice IS NULL;
            SET v_extended",
        to: " AND expires_at > v_now;
            SET v_extended",
        test: ("conformance", "mariadb::breaking::ends_with_the_lease"),
    },
    Mutant {
        name: "a gate that was lost begins with zero, in MySQL",
        file: "crates/polylock-sql/src/mysql/statements/routines/claim.sql",
        from: "VALUES (v_shard, {now});",
        to: "VALUES (v_shard, 0);",
        test: ("conformance", "mariadb::recovery::after_the_store_was_emptied"),
    },
    Mutant {
        name: "an administrator upgrades beside programs that can't share locks, in MySQL",
        file: "crates/polylock-sql/src/mysql/statements/meta.sql",
        from: "WHERE name = 'oldest' AND value < {oldest};",
        to: "WHERE name = 'youngest' AND value < {oldest};",
        test: ("scenarios", "databases::upgrade::mariadb::incompatible_versions_never_use_the_same_tables"),
    },
    Mutant {
        name: "a step can't be repeated, in MySQL",
        file: "crates/polylock-sql/src/mysql/statements/add.sql",
        from: "> 0, 'DO 0'",
        to: "> 9, 'DO 0'",
        test: ("scenarios", "databases::upgrade::mariadb::an_interrupted_upgrade_is_completed"),
    },
    Mutant {
        name: "an old program takes the version back, in MySQL",
        file: "crates/polylock-sql/src/mysql/statements/installed.sql",
        from: "value = greatest(value, {version});",
        to: "value = {version};",
        test: (
            "scenarios",
            "databases::upgrade::mariadb::an_old_program_uses_tables_created_by_a_new_one",
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
        test: ("scenarios", "databases::pessimistic::mariadb::the_clean_up_after_a_restart_ends_no_other_session"),
    },
    Mutant {
        name: "pessimistic: a release leaves its rows",
        file: "crates/polylock-sql/src/mysql/statements/pessimistic/clear.sql",
        from: "DELETE FROM {p}_rows WHERE name = $1;",
        to: "",
        test: (
            "scenarios",
            "databases::pessimistic::on_mariadb::cycles_leave_no_row_no_transaction_and_few_connections",
        ),
    },
    Mutant {
        name: "MySQL: a release hands the lock to a waiter that has died",
        file: "crates/polylock-sql/src/mysql/statements/routines/release.sql",
        from: "        IF v_until <= v_now THEN",
        to: "        IF v_until <= 0 THEN",
        test: ("scenarios", "databases::mariadb::hand_over::a_release_grants_the_lock_to_the_next_waiters"),
    },
    Mutant {
        name: "MySQL: a release hands the lock over beside a conflicting hold",
        file: "crates/polylock-sql/src/mysql/statements/routines/release.sql",
        from: "    SELECT coalesce(bit_or({conflicts mode}), 0) INTO v_ahead FROM {p}_holds WHERE name = a_name;",
        to: "    SET v_ahead = 0;",
        test: ("scenarios", "databases::mariadb::hand_over::a_release_grants_the_lock_to_the_next_waiters"),
    },
    Mutant {
        name: "MySQL: a hand-over passes a waiter that conflicts",
        file: "crates/polylock-sql/src/mysql/statements/routines/release.sql",
        from: "        SET v_ahead = v_ahead | {conflicts v_mode};
",
        to: "",
        test: ("scenarios", "databases::mariadb::hand_over::grants_follow_the_queue_rule"),
    },
    Mutant {
        name: "MySQL: the tokens of hand-overs are given again",
        file: "crates/polylock-sql/src/mysql/statements/routines/release.sql",
        from: "        UPDATE {p}_gates SET token = v_token WHERE shard = v_shard;
",
        to: "        DO 0;
",
        test: ("scenarios", "databases::mariadb::hand_over::a_release_grants_the_lock_to_the_next_waiters"),
    },
    Mutant {
        name: "MySQL: a withdrawn waiter is granted the lock",
        file: "crates/polylock-sql/src/mysql/statements/routines/release.sql",
        from: "        DELETE FROM {p}_waiters WHERE name = a_name AND request = a_request;
        SET v_found = row_count();
",
        to: "        SET v_found = (SELECT count(*) FROM {p}_waiters WHERE name = a_name AND request = a_request);
",
        test: ("scenarios", "databases::mariadb::hand_over::grants_follow_the_queue_rule"),
    },
    Mutant {
        name: "MySQL: waiters behind a hold of their process are polled",
        file: "crates/polylock-sql/src/mysql/watch.rs",
        from: "        waiters.retain(|waiter| !local.is_claimed(waiter.watches));
",
        to: "        let _ = local;
",
        test: ("scenarios", "databases::mariadb::hand_over::waiters_behind_a_hold_of_their_process_are_not_polled"),
    },
    Mutant {
        name: "MySQL: queue entries are not kept alive",
        file: "crates/polylock-sql/src/mysql/statements/routines/keep_alive.sql",
        from: "        UPDATE {p}_waiters SET expires_at = greatest(expires_at, v_now + v_place_ttl)
",
        to: "        UPDATE {p}_waiters SET expires_at = expires_at
",
        test: ("conformance", "mariadb::keep_alive::keeps_the_queue_position_of_a_waiter"),
    },
    Mutant {
        name: "MySQL: the tokens to break are bytes, whatever the character set of the database is",
        file: "crates/polylock-sql/src/mysql/statements/break.sql",
        from: "CONVERT($2 USING utf8mb4)",
        to: "$2",
        test: (
            "scenarios",
            "databases::mariadb::settings::names_are_byte_exact_under_odd_modes_and_character_sets",
        ),
    },
];
