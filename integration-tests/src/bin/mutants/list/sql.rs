//! Bugs of the parts that all databases share, of the pessimistic strategy and of the optimistic helpers.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "SQL: a claim expires after its client's timeout",
        file: "crates/polylock-sql/src/engine/server/pool.rs",
        from: "self.clock().expiry_us(deadline.since(sent))",
        to: "self.clock().expiry_us(deadline.since(sent) * 60)",
        test: ("processes", "late_claims::postgres::a_late_claim_of_a_lock_that_was_released_grants_nothing"),
    },
    Mutant {
        name: "SQL: a claim that is refused because the clock was set is not retried",
        file: "crates/polylock-sql/src/engine/server/pool.rs",
        from: "const EXPIRIES: u32 = 4;",
        to: "const EXPIRIES: u32 = 1;",
        test: (
            "scenarios",
            "databases::postgres::a_step_of_the_servers_clock_costs_a_claim_only_one_round_trip",
        ),
    },
    Mutant {
        name: "tables for later programs alone are used, in PostgreSQL",
        file: "crates/polylock-sql/src/engine/version.rs",
        from: "            _ if oldest > own => format!(",
        to: "            _ if oldest > own + 9 => format!(",
        test: ("scenarios", "databases::upgrade::postgres::incompatible_versions_never_use_the_same_tables"),
    },
    Mutant {
        name: "an upgrade beside programs that can't share locks, in SQLite",
        file: "crates/polylock-sql/src/engine/version.rs",
        from: "            _ if oldest < self.oldest() => format!(",
        to: "            _ if oldest + 9 < self.oldest() => format!(",
        test: (
            "scenarios",
            "databases::upgrade::sqlite_full::incompatible_versions_never_use_the_same_tables",
        ),
    },
    Mutant {
        name: "a certificate that is not accepted counts as an outage, in PostgreSQL",
        file: "crates/polylock-sql/src/engine/server/driver.rs",
        from: "cause.kind() == ErrorKind::InvalidData =>",
        to: "cause.kind() == ErrorKind::InvalidInput =>",
        test: ("scenarios", "databases::tls::modes_of_postgres"),
    },
    Mutant {
        name: "MySQL: a certificate authority that has no effect is accepted",
        file: "crates/polylock-sql/src/engine/config.rs",
        from: "        Some(key) if !verified => {",
        to: "        Some(key) if !verified && remedy.is_empty() => {",
        test: ("scenarios", "databases::tls::modes_of_mariadb"),
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
        test: ("scenarios", "databases::foreign_rows::postgres::an_invalid_row_hides_no_other_row"),
    },
    Mutant {
        name: "pessimistic: a release does not check that the session is alive",
        file: "crates/polylock-sql/src/pessimistic/backend.rs",
        from: "if self.confirm(&mut session, request, self.server.timeout()).await == SessionState::Lost {
                    self.end_orphaned(",
        to: "if self.server.timeout().is_zero() {
                    self.end_orphaned(",
        test: (
            "scenarios",
            "databases::pessimistic::on_mariadb::a_release_after_the_connection_was_closed_reports_the_loss",
        ),
    },
    Mutant {
        name: "pessimistic: a token is valid although the lock was lost before it was drawn",
        file: "crates/polylock-sql/src/pessimistic/backend.rs",
        from: "if self.confirm(&mut session, request, self.server.timeout()).await == SessionState::Lost {
            *stage",
        to: "if self.server.timeout().is_zero() {
            *stage",
        test: (
            "scenarios",
            "databases::pessimistic::postgres::a_token_drawn_after_the_lock_was_lost_is_discarded",
        ),
    },
    Mutant {
        name: "pessimistic: rows in use at the end of their hold stay, in PostgreSQL",
        file: "crates/polylock-sql/src/postgres/statements/pessimistic/clear.sql",
        from: "SELECT 3::bigint, 0::bigint",
        to: "SELECT 0::bigint, 0::bigint",
        test: (
            "scenarios",
            "databases::pessimistic::on_postgres::rows_in_use_when_their_hold_ends_are_deleted_later",
        ),
    },
    Mutant {
        name: "pessimistic: rows in use at the end of their hold stay, in MariaDB",
        file: "crates/polylock-sql/src/pessimistic/backend.rs",
        from: "for pause in LATER_CLEAR_PAUSES {",
        to: "for pause in LATER_CLEAR_PAUSES.into_iter().take(0) {",
        test: (
            "scenarios",
            "databases::pessimistic::on_mariadb::rows_in_use_when_their_hold_ends_are_deleted_later",
        ),
    },
    Mutant {
        name: "pessimistic: a hold that was left to expire keeps its connection",
        file: "crates/polylock-sql/src/pessimistic/backend.rs",
        from: "Stage::Held(Hold { until, .. }) | Stage::Orphaned(_, until) => until > now,",
        to: "Stage::Orphaned(_, until) => until > now,
                Stage::Held(Hold { .. }) => true,",
        test: (
            "scenarios",
            "databases::pessimistic::on_postgres::holds_left_to_expire_return_their_connections",
        ),
    },
    Mutant {
        name: "pessimistic: the rows of a claim that is delivered late stay",
        file: "crates/polylock-sql/src/pessimistic/session.rs",
        from: "may_leave_rows.swap(true, Ordering::Relaxed)",
        to: "may_leave_rows.swap(false, Ordering::Relaxed)",
        test: ("processes", "late_claims::postgres_pessimistic::a_late_try_grants_nothing"),
    },
    Mutant {
        name: "pessimistic: the rows of the first copy of a claim stay",
        file: "crates/polylock-sql/src/pessimistic/session.rs",
        from: "is_late = true;",
        to: "",
        test: (
            "processes",
            "late_claims::mariadb_pessimistic::a_late_copy_of_a_try_that_was_refused_grants_nothing",
        ),
    },
    Mutant {
        name: "a row accepts a stale token",
        file: "crates/polylock-sql/src/optimistic/fenced.rs",
        from: "operator: \"<=\", value",
        to: "operator: \"<>\", value: -1 - 0 * value",
        test: ("scenarios", "optimistic::updates::sqlite::a_row_refuses_a_smaller_token"),
    },
    Mutant {
        name: "fence read from an old snapshot in MySQL",
        file: "crates/polylock-sql/src/optimistic/statements/raised.mysql.sql",
        from: " FOR UPDATE",
        to: "",
        test: ("scenarios", "optimistic::fences::mysql::an_old_snapshot_never_accepts_a_stale_token"),
    },
    Mutant {
        name: "SQL: hung claims use all connections",
        file: "crates/polylock-sql/src/engine/gate.rs",
        from: "[0, 1, 2].map(|reserve: usize|",
        to: "[0, 1, 0].map(|reserve: usize|",
        test: ("scenarios", "databases::precedence::postgres_keeps_a_lock_while_claims_hang"),
    },
    Mutant {
        name: "SQL: a release is not repeated after a claim that may be executed late",
        file: "crates/polylock-sql/src/engine/backend.rs",
        from: "if let Some(until) = self.inner.dialect.late_until(request.id) {",
        to: "if let (Some(until), false) = (self.inner.dialect.late_until(request.id), true) {",
        test: ("scenarios", "databases::callers::mariadb_a_claim_of_a_dropped_acquisition_takes_no_lock"),
    },
    Mutant {
        name: "SQL: a late copy of a refused claim is not reported",
        file: "crates/polylock-sql/src/engine/backend.rs",
        from: "may_be_granted_late(is_late)",
        to: "may_be_granted_late(is_late && false)",
        test: ("processes", "late_claims::postgres::a_late_copy_of_a_try_that_was_refused_grants_nothing"),
    },
    Mutant {
        name: "SQL: a claim that its caller dropped is not recorded as late",
        file: "crates/polylock-sql/src/engine/server/pool.rs",
        from: "std::mem::replace(&mut in_flight.is_unanswered, true);",
        to: "in_flight.is_unanswered;",
        test: ("scenarios", "databases::callers::postgres_a_claim_of_a_dropped_acquisition_takes_no_lock"),
    },
    Mutant {
        name: "SQL: each runtime has its own limit of connections",
        file: "crates/polylock-sql/src/engine/server/limit.rs",
        from: "connections: Arc::new(Semaphore::new(size)),",
        to: "connections: Arc::new(Semaphore::new(2 * size)),",
        test: (
            "scenarios",
            "databases::callers::mariadb_all_runtimes_together_keep_the_limit_of_connections",
        ),
    },
    Mutant {
        name: "SQL: a text is written into a statement as it is",
        file: "crates/polylock-sql/src/engine/server/literal.rs",
        from: "Some(Arg::Text(words)) => L::text(&mut text, &hex(words.as_bytes())),",
        to: "Some(Arg::Text(words)) => L::text(&mut text, words),",
        test: ("units of library polylock_sql", "engine::fuzz::tests::arguments"),
    },
];
