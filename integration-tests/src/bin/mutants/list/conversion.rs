//! Bugs of conversions of holds.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "an upgrade waits without a limit for another one of its hold",
        file: "crates/polylock-core/src/engine/conversion.rs",
        from: "() = hold.context.until(wait.until) => return",
        to: "() = std::future::pending() => return",
        test: ("limits", "the_wait_of_an_upgrade_includes_that_for_another_one_of_the_same_hold"),
    },
    Mutant {
        name: "conversion: an upgrade that has failed is not undone",
        file: "crates/polylock-core/src/engine/conversion.rs",
        from: "            if outcome.is_err() {\n",
        to: "            if false {\n",
        test: ("conformance", "memory::conversion::an_upgrade_that_times_out_changes_nothing"),
    },
    Mutant {
        name: "conversion: an upgrade goes on without its caller",
        file: "crates/polylock-core/src/engine/conversion.rs",
        from: "                _ = &mut dropped => Err(conversions.not_converted(NotAcquired::Busy)),\n",
        to: "",
        test: ("conformance", "memory::conversion::at_every_poll_of_an_upgrade"),
    },
    Mutant {
        name: "conversion: an upgrade lasts although its caller was dropped before it knew of it",
        file: "crates/polylock-core/src/engine/conversion.rs",
        from: "            if !is_received {\n",
        to: "            if false {\n",
        test: ("nobody", "an_upgrade_that_is_dropped_after_its_grant_is_undone"),
    },
    Mutant {
        name: "conversion: the new token is not used",
        file: "crates/polylock-core/src/engine/hold.rs",
        from: "*lock(&self.terms) = HoldTerms::new(token, mode);",
        to: "lock(&self.terms).mode = mode;",
        test: ("conformance", "memory::conversion::an_upgrade_excludes_all_others"),
    },
    Mutant {
        name: "conversion: in memory, a downgrade wakes nobody",
        file: "crates/polylock-core/src/memory.rs",
        from: "                    self.wakeups.notify(entry.id);\n                    ConversionOutcome",
        to: "                    ConversionOutcome",
        test: ("conformance", "memory::conversion::a_downgrade_is_faster_than_the_recheck"),
    },
    Mutant {
        name: "conversion: in SQLite, the token is not compared",
        file: "crates/polylock-sql/src/sqlite/statements/convert.sql",
        from: "WHERE name = ?1 AND request = ?2 AND token = ?3 AND notice IS NULL\nAND NOT EXISTS (SELECT",
        to: "WHERE name = ?1 AND request = ?2 AND notice IS NULL\nAND NOT EXISTS (SELECT",
        test: ("conformance", "sqlite_full::conversion::a_late_copy_changes_nothing"),
    },
    Mutant {
        name: "conversion: in PostgreSQL, the conflicts of a hold that waits are not stored",
        file: "crates/polylock-sql/src/postgres/statements/routines/convert.sql",
        from: "SET mode = a_waiting, conflicts = a_conflicts",
        to: "SET mode = a_waiting",
        test: ("conformance", "postgres::conversion::an_upgrade_is_ahead_of_new_requests"),
    },
    Mutant {
        name: "conversion: in MariaDB, a hold that waits conflicts with nothing",
        file: "crates/polylock-sql/src/mysql/statements.rs",
        from: "WHEN {of} >= {} THEN",
        to: "WHEN {of} = {} THEN",
        test: ("conformance", "mariadb::conversion::an_upgrade_is_ahead_of_new_requests"),
    },
    Mutant {
        name: "conversion: in Redis, a second upgrader waits",
        file: "crates/polylock-redis/src/queue/scripts/convert.lua",
        from: "    return {4, 0}\n",
        to: "    return {3, 1000000}\n",
        test: ("conformance", "redis::conversion::a_second_upgrader_is_in_a_deadlock"),
    },
    Mutant {
        name: "conversion: in a server's database, a downgrade grants the lock to nobody",
        file: "crates/polylock-sql/src/engine/convert.rs",
        from: "if let Err(error) = dialect.release(&without_entry, self.wakeups()).await {",
        to: "if let Err::<(), polylock_core::Error>(error) = { drop(without_entry); Ok(()) } {",
        test: ("conformance", "postgres::conversion::a_downgrade_is_faster_than_the_recheck"),
    },
];
