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
        file: "crates/polylock-sql/src/postgres/connect.rs",
        from: "Err(at.advise(Fault::Temporary, advice))",
        to: "Err(at.advise(Fault::Permanent, advice))",
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
        file: "crates/polylock-sql/src/mysql/connect.rs",
        from: "if !matches!(self.get(\"completion_type\"), \"\" | \"NO_CHAIN\" | \"0\") {",
        to: "if false {",
        test: ("scenarios", "databases::mariadb::settings::unusable_servers_are_refused_with_a_remedy"),
    },
    Mutant {
        name: "PostgreSQL: a sequence with a cache is accepted",
        file: "crates/polylock-sql/src/postgres/connect.rs",
        from: "if number(14)? > 1 {",
        to: "if false {",
        test: ("scenarios", "databases::postgres::settings::unusable_servers_are_refused_with_a_remedy"),
    },
    Mutant {
        name: "PostgreSQL: rows that are hidden from the user are locks that are free",
        file: "crates/polylock-sql/src/postgres/connect.rs",
        from: "if !hidden.is_empty() {",
        to: "if false {",
        test: ("scenarios", "databases::postgres::settings::unusable_servers_are_refused_with_a_remedy"),
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
];
