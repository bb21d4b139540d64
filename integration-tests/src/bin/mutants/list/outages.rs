//! Bugs in what counts as an outage, and in what waits for its end.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "a try with an outage of its own fails with the first error",
        file: "crates/polylock-core/src/options.rs",
        from: "if is_try && !self.tries_wait_for_store {",
        to: "if is_try {",
        test: ("outages", "a_try_waits_for_the_store_if_it_has_an_outage_of_its_own"),
    },
    Mutant {
        name: "a try waits for the store although nobody has asked for that",
        file: "crates/polylock-core/src/options.rs",
        from: "if is_try && !self.tries_wait_for_store {",
        to: "if false {",
        test: ("outages", "a_try_waits_for_the_store_if_it_has_an_outage_of_its_own"),
    },
    Mutant {
        name: "a try waits for as long as the store states",
        file: "crates/polylock-core/src/lock.rs",
        from: "if !queues && !outage.is_zero() {",
        to: "if false {",
        test: ("outages", "a_try_waits_no_longer_than_its_outage_for_a_store_that_states_a_delay"),
    },
    Mutant {
        name: "a user who was accepted before is not waited for",
        file: "crates/polylock-core/src/engine/context.rs",
        from: "self.was_accepted.load(Ordering::Relaxed)",
        to: "false",
        test: ("outages", "a_user_who_was_accepted_before_waits_for_the_end_of_the_refusal"),
    },
    Mutant {
        name: "a user who was never accepted waits for the end of the outage",
        file: "crates/polylock-core/src/engine/context.rs",
        from: "self.was_accepted.load(Ordering::Relaxed)",
        to: "true",
        test: ("outages", "a_user_who_was_never_accepted_is_told_at_once"),
    },
    Mutant {
        name: "PostgreSQL: a replica that is not promoted yet is a permanent failure",
        file: "crates/polylock-sql/src/postgres/checkup.rs",
        from: "return refused(Fault::Temporary, advice);",
        to: "return refused(Fault::Permanent, advice);",
        test: ("scenarios", "faults::failover::postgres::nobody_ends_while_a_server_accepts_no_writes"),
    },
    Mutant {
        name: "PostgreSQL: a write to a replica is a lack of rights",
        file: "crates/polylock-sql/src/postgres/error.rs",
        from: "\"25006\" => Fault::Temporary,",
        to: "\"25006\" => Fault::Denied,",
        test: ("scenarios", "faults::failover::postgres::nobody_ends_while_a_server_accepts_no_writes"),
    },
    Mutant {
        name: "MySQL: a write to a read-only server is permanent",
        file: "crates/polylock-sql/src/mysql/error.rs",
        from: "Some(_) if is_read_only(error) => Fault::Temporary,",
        to: "Some(_) if is_read_only(error) => Fault::Permanent,",
        test: ("scenarios", "faults::failover::mariadb::nobody_ends_while_a_server_accepts_no_writes"),
    },
    Mutant {
        name: "MySQL: sessions whose transactions are chained are accepted",
        file: "crates/polylock-sql/src/mysql/checkup.rs",
        from: "if !matches!(self.get(\"completion_type\"), \"\" | \"NO_CHAIN\" | \"0\") {",
        to: "if false {",
        test: ("processes", "settings::mariadb::is_refused_by_name_where_locks_can_not_be_kept"),
    },
    Mutant {
        name: "PostgreSQL: a sequence with a cache is accepted",
        file: "crates/polylock-sql/src/postgres/checkup.rs",
        from: "if self.sequence_cache > 1 {",
        to: "if false {",
        test: ("processes", "settings::postgres::is_refused_by_name_where_locks_can_not_be_kept"),
    },
    Mutant {
        name: "PostgreSQL: rows that are hidden from the user are locks that are free",
        file: "crates/polylock-sql/src/postgres/checkup.rs",
        from: "if !self.hidden_tables.is_empty() {",
        to: "if false {",
        test: ("processes", "settings::postgres::is_refused_by_name_where_locks_can_not_be_kept"),
    },
    Mutant {
        name: "PostgreSQL: other code that runs with each change is accepted",
        file: "crates/polylock-sql/src/postgres/checkup.rs",
        from: "if !self.foreign_code.is_empty() {",
        to: "if false {",
        test: ("processes", "settings::postgres::is_refused_by_name_where_locks_can_not_be_kept"),
    },
    Mutant {
        name: "PostgreSQL: what the database makes of new tables is not looked at",
        file: "crates/polylock-sql/src/postgres/connect.rs",
        from: "if !checkup.has_tables {",
        to: "if false {",
        test: ("processes", "settings::postgres::is_refused_by_name_where_locks_can_not_be_kept"),
    },
    Mutant {
        name: "MySQL: tables without transactions are accepted",
        file: "crates/polylock-sql/src/mysql/statements/foreign.sql",
        from: "coalesce(engine, '') <> 'InnoDB'",
        to: "false",
        test: ("processes", "settings::mariadb::is_refused_by_name_where_locks_can_not_be_kept"),
    },
    Mutant {
        name: "Redis: a server that can't save its data is a permanent failure",
        file: "crates/polylock-redis/src/error.rs",
        from: "\"OOM\" | \"MISCONF\" | \"BUSY\"",
        to: "\"OOM\" | \"BUSY\"",
        test: ("scenarios", "faults::failover::redis::nobody_ends_while_a_server_accepts_no_writes"),
    },
    Mutant {
        name: "Redis: a replica is a permanent failure",
        file: "crates/polylock-redis/src/checkup.rs",
        from: "let not_yet = |advice: String| Err(Cause::Unusable(Fault::Temporary, advice));",
        to: "let not_yet = |advice: String| Err(Cause::Unusable(Fault::Permanent, advice));",
        test: ("scenarios", "faults::failover::redis::nobody_ends_while_a_server_accepts_no_writes"),
    },
    Mutant {
        name: "SQL: idle connections that the server closes are not kept open",
        file: "crates/polylock-sql/src/engine/server/keeper.rs",
        from: "        keeper.try_some(&pool).await;
",
        to: "        let _unused = || keeper.try_some(&pool);
",
        test: (
            "scenarios",
            "faults::idle::mariadb::a_connection_that_is_closed_again_while_it_is_idle_is_replaced_before_the_next_operation",
        ),
    },
    Mutant {
        name: "SQL: a connection that may have been closed is used without a try",
        file: "crates/polylock-sql/src/engine/server/connection.rs",
        from: "if time.suspect().is_none_or(|suspect| idle < suspect) {",
        to: "if time.suspect().is_none_or(|suspect| idle < suspect * 1000) {",
        test: (
            "scenarios",
            "faults::idle::mariadb::a_connection_that_is_closed_again_while_it_is_idle_is_replaced_before_the_next_operation",
        ),
    },
    Mutant {
        name: "Redis: a connection that ends is replaced by the next call",
        file: "crates/polylock-redis/src/link.rs",
        from: "                link.replace(attempt);",
        to: "                link.discard_attempt(attempt);",
        test: (
            "scenarios",
            "faults::idle::redis::a_connection_that_is_closed_again_while_it_is_idle_is_replaced_before_the_next_operation",
        ),
    },
];
