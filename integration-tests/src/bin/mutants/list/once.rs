//! Bugs of jobs that run once per period.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "once: the begin of an attempt is not recorded",
        file: "crates/polylock-core/src/once.rs",
        from: "let write = job.write(Some(&hold), &run, FIRST);",
        to: "let write = async { Ok::<(), Error>(()) };",
        test: ("conformance", "memory::once::an_attempt_without_an_end_counts_as_failed"),
    },
    Mutant {
        name: "once: a refused record is not noticed",
        file: "crates/polylock-core/src/once/job.rs",
        from: "        if stored.is_some_and(|stored| stored.version == version) {",
        to: "        if stored.is_some() {",
        test: ("conformance", "memory::once::a_process_that_lost_the_lock_does_not_begin"),
    },
    Mutant {
        name: "once: the record is read before the lock is held",
        file: "crates/polylock-core/src/once.rs",
        from: "        let guard = lock.acquire().await.map_err(|error| steps.failed(error))?;
        let hold = guard.shared_hold().hold().clone();
        let ttl = self.lock.options().ttl;
        let read = steps.retry(Some(&hold), progress, || job.read(steps.reply_by()));",
        to: "        let before = steps.retry(None, progress, || job.read(steps.reply_by())).await;
        let guard = lock.acquire().await.map_err(|error| steps.failed(error))?;
        let hold = guard.shared_hold().hold().clone();
        let ttl = self.lock.options().ttl;
        let read = async { before };",
        test: ("conformance", "memory::once::one_of_many_tasks_runs_the_job"),
    },
    Mutant {
        name: "once: the lock is kept by a caller that is not polled while the record is read",
        file: "crates/polylock-core/src/once.rs",
        from: "self.keep_while(guard, ttl.min(Request::MAX_QUEUE_LEASE), read)",
        to: "self.keep_while(guard, 1000 * ttl, read)",
        test: ("nobody", "a_job_that_is_not_polled_does_not_keep_its_lock"),
    },
    Mutant {
        name: "once: the lock is kept by a caller that is not polled while the record is written",
        file: "crates/polylock-core/src/once.rs",
        from: "self.keep_while(guard, ttl, write)",
        to: "self.keep_while(guard, 1000 * ttl, write)",
        test: ("nobody", "a_job_that_is_not_polled_does_not_keep_its_lock"),
    },
    Mutant {
        name: "once: a report by token changes whatever run is the last one",
        file: "crates/polylock-core/src/once.rs",
        from: "job.read(Moment::NEVER).await?.0.filter(|run| run.token == token);",
        to: "job.read(Moment::NEVER).await?.0;",
        test: ("conformance", "memory::once::another_process_reports_the_outcome_of_an_attempt"),
    },
    Mutant {
        name: "once: an attempt without an end may run again at once",
        file: "crates/polylock-core/src/once/last_run.rs",
        from: "        RunOutcome::Unfinished | RunOutcome::Failed { .. } if last.attempt <= retries => {",
        to: "        RunOutcome::Unfinished | RunOutcome::Failed { .. } => {",
        test: ("conformance", "memory::once::a_failed_attempt_is_repeated_as_often_as_configured"),
    },
    Mutant {
        name: "once: a run shortly before a period counts for the one before",
        file: "crates/polylock-core/src/once/period.rs",
        from: "now.saturating_add(MAX_LEAD.min(self.every / 10))",
        to: "now",
        test: ("units of library polylock_core", "once::period::tests::a_day_begins_at_the_time_of_day"),
    },
    Mutant {
        name: "once: a time that the clock shows twice is the second one",
        file: "crates/polylock-core/src/once/zone.rs",
        from: "ambiguous.earlier()",
        to: "ambiguous.later()",
        test: (
            "units of library polylock_core",
            "once::zone::tests::a_time_that_the_clock_shows_twice_is_the_first_one",
        ),
    },
    Mutant {
        name: "once: a time that the clock skips is later by the length of the gap",
        file: "crates/polylock-core/src/once/zone.rs",
        from: "self.0.following(before).next()?.timestamp()",
        to: "ambiguous.later().ok()?",
        test: (
            "units of library polylock_core",
            "once::zone::tests::a_time_that_the_clock_skips_is_the_end_of_the_gap",
        ),
    },
    Mutant {
        name: "once: a day of a time zone has 24 hours",
        file: "crates/polylock-core/src/once/zone.rs",
        from: "..since_1970(begin(number + 1)?)",
        to: "..since_1970(begin(number)? + days * 86_400_000)",
        test: ("units of library polylock_core", "once::zone::tests::days_have_23_and_25_hours"),
    },
    Mutant {
        name: "once: the next period of a skipped job is that of the record",
        file: "crates/polylock-core/src/once.rs",
        from: "let next_due = self.periods.due_after(last.period_begin, present);",
        to: "let next_due = last.next_due + self.periods.due_after(last.period_begin, present) * 0;",
        test: ("cli", "once::the_next_period_is_that_of_the_caller"),
    },
    Mutant {
        name: "once: the time of the machine decides",
        file: "crates/polylock-core/src/once/last_run.rs",
        from: "        return if last.period_begin <= present.end { Decision::Skip(last) } else { FIRST };",
        to: "        return FIRST;",
        test: (
            "units of library polylock_core",
            "once::last_run::tests::a_job_runs_until_it_has_succeeded_or_no_attempt_is_left",
        ),
    },
    Mutant {
        name: "once: SQLite replaces a later record",
        file: "crates/polylock-sql/src/sqlite/statements/write_record.sql",
        from: "WHERE (token, revision) < (excluded.token, excluded.revision);",
        to: ";",
        test: ("conformance", "sqlite_full::once::only_a_greater_version_replaces_a_record"),
    },
    Mutant {
        name: "once: PostgreSQL replaces a later record",
        file: "crates/polylock-sql/src/postgres/statements/write_record.sql",
        from: "WHERE (entry.token, entry.revision) < (excluded.token, excluded.revision);",
        to: ";",
        test: ("conformance", "postgres::once::only_a_greater_version_replaces_a_record"),
    },
    Mutant {
        name: "once: MySQL compares with the new version",
        file: "crates/polylock-sql/src/mysql/statements/write_record.sql",
        from: "    token = greatest(token, $2);",
        to: "    token = $2;",
        test: ("conformance", "mariadb::once::only_a_greater_version_replaces_a_record"),
    },
    Mutant {
        name: "once: Redis ignores the revision",
        file: "crates/polylock-redis/src/queue/scripts/record.lua",
        from: "token == new_token and revision < new_revision",
        to: "token == new_token",
        test: ("conformance", "redis::once::only_a_greater_version_replaces_a_record"),
    },
    Mutant {
        name: "once: a record is kept for ever",
        file: "crates/polylock-sql/src/sqlite/statements/read_record.sql",
        from: " AND entry.expires_at > {now}",
        to: "",
        test: ("conformance", "sqlite_full::once::a_record_is_absent_after_its_time"),
    },
    Mutant {
        name: "once: the outcome of a command is not recorded",
        file: "crates/polylock-cli/src/run/job.rs",
        from: "            (Some(0), _) => None,\n",
        to: "            (Some(0), _) => return,\n",
        test: ("cli", "once::the_command_runs_in_one_of_many_processes"),
    },
];
