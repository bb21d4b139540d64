//! Bugs of the SQLite store.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "release without owner check in SQLite",
        file: "crates/polylock-sql/src/sqlite/statements/release.sql",
        from: "name = ?1 AND request = ?2\nAND NOT",
        to: "name = ?1 AND ?2 IS NOT NULL\nAND NOT",
        test: ("conformance", "sqlite_full::idempotence::a_release_by_another_request_changes_nothing"),
    },
    Mutant {
        name: "SQLite: a grant leaves the expired entries that it overrides",
        file: "crates/polylock-sql/src/sqlite/statements/schema.sql",
        from: "    DELETE FROM {p}_waiters WHERE name = new.name AND expires_at <= {now};
    DELETE FROM {p}_holds WHERE name = new.name AND expires_at <= {now};
",
        to: "",
        test: (
            "scenarios",
            "databases::foreign_rows::sqlite::a_grant_removes_the_expired_entries_that_it_replaces",
        ),
    },
    Mutant {
        name: "SQLite: a broken hold is extended",
        file: "crates/polylock-sql/src/sqlite/statements/keep_alive.sql",
        from: " AND expires_at > {now} AND notice IS NULL;",
        to: " AND expires_at > {now};",
        test: ("conformance", "sqlite_full::breaking::ends_with_the_lease"),
    },
    Mutant {
        name: "tokens of a new file begin with one, in SQLite",
        file: "crates/polylock-sql/src/sqlite/statements/schema.sql",
        from: "SET seq = max(seq, {now})",
        to: "SET seq = max(seq, 0)",
        test: ("scenarios", "databases::dropped::sqlite_begins_with_greater_tokens"),
    },
    Mutant {
        name: "a step can't be repeated, in SQLite",
        file: "crates/polylock-sql/src/sqlite/statements.rs",
        from: "if is_there(added) { String::new() }",
        to: "if is_there(added) && self.prefix.is_empty() { String::new() }",
        test: (
            "scenarios",
            "databases::upgrade::sqlite_full::emptied_tables_of_the_new_version_are_completed",
        ),
    },
    Mutant {
        name: "SQLite: a full disk is not distinguished from other errors",
        file: "crates/polylock-sql/src/sqlite/error.rs",
        from: "        FULL => Some(\"the disk is full\"),",
        to: "        FULL => None,",
        test: ("sqlite", "full::a_full_disk_grants_no_lock_and_loses_none"),
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
        file: "crates/polylock-sql/src/sqlite/dialect.rs",
        from: "if self.hand_over(&request.name, request.id, None, wakeups).await? {
            return Ok(Release::Released);
        }
        wakeups.notify(request.id);",
        to: "if wakeups.is_watched(request.id)
            && self.hand_over(&request.name, request.id, None, wakeups).await?
        {
            return Ok(Release::Released);
        }
        wakeups.notify(request.id);",
        test: ("sqlite", "order::a_waiter_withdrawn_while_it_is_granted_the_lock_keeps_no_row"),
    },
    Mutant {
        name: "SQLite: a withdrawn waiter is granted the lock",
        file: "crates/polylock-sql/src/sqlite/statements/hand_over.sql",
        from: "DELETE FROM {p}_waiters WHERE name = ?1 AND request = ?2 AND (?3 IS NULL OR process = ?3) RETURNING 1;",
        to: "SELECT 1;",
        test: ("sqlite", "order::grants_follow_the_queue_rule"),
    },
    Mutant {
        name: "SQLite: a process on another kernel counts as dead",
        file: "crates/polylock-sql/src/sqlite/process_lock.rs",
        from: "file == own_file && position != own_position && own.is_unlocked(position)",
        to: "file.len() == own_file.len() && position != own_position && own.is_unlocked(position)",
        test: (
            "units of library polylock_sql",
            "sqlite::process_lock::tests::a_process_has_ended_only_if_that_is_certain",
        ),
    },
    Mutant {
        name: "SQLite: the children of a holder do not count as part of it",
        file: "crates/polylock-sql/src/sqlite/process_lock.rs",
        from: "            rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty())?;\n",
        to: "",
        test: ("processes", "dead_holders::a_killed_holder_is_not_superseded_while_its_child_runs"),
    },
    Mutant {
        name: "SQLite: a stopped holder counts as dead",
        file: "crates/polylock-sql/src/sqlite/process_lock.rs",
        from: "i32::from(found.l_type) == libc::F_UNLCK",
        to: "found.l_len == 1",
        test: ("processes", "dead_holders::a_stopped_holder_is_not_superseded"),
    },
    Mutant {
        name: "SQLite: a waiter does not find that the holder has died meanwhile",
        file: "crates/polylock-sql/src/sqlite/dialect.rs",
        from: "            self.blockers.add(blocker);\n",
        to: "            drop(blocker);\n",
        test: ("sqlite", "dead_processes::a_waiter_is_granted_the_lock_of_a_process_that_ends"),
    },
    Mutant {
        name: "SQLite: a hold that may outlive its process ends with it",
        file: "crates/polylock-sql/src/sqlite/claim.rs",
        from: ".filter(|_| !request.outlives_process)",
        to: "",
        test: ("sqlite", "dead_processes::a_hold_that_may_outlive_its_process_ends_with_its_lease"),
    },
    Mutant {
        name: "SQLite: an entry is deleted that was excepted from the end of its process",
        file: "crates/polylock-sql/src/sqlite/statements/hand_over.sql",
        from: "((request = ?2 AND (?3 IS NULL OR process = ?3)) OR expires_at <= {now})",
        to: "(request = ?2 OR expires_at <= {now})",
        test: ("sqlite", "dead_processes::a_keep_alive_makes_a_hold_outlive_its_process"),
    },
    Mutant {
        name: "SQLite: a file with a hard link is opened",
        file: "crates/polylock-sql/src/sqlite/names.rs",
        from: "(found.stx_nlink > 1).then_some(LINKED)",
        to: "None",
        test: ("sqlite", "names::a_file_with_a_hard_link_is_refused"),
    },
    Mutant {
        name: "SQLite: a file that is a mount is opened",
        file: "crates/polylock-sql/src/sqlite/names.rs",
        from: "is_mount.then_some(MOUNTED)",
        to: "None",
        test: ("sqlite", "names::a_file_that_is_a_mount_is_refused"),
    },
    Mutant {
        name: "SQLite: the file of the holders is beside a link",
        file: "crates/polylock-sql/src/sqlite/process_lock.rs",
        from: "let database = std::fs::canonicalize(given)?;",
        to: "let database = given;",
        test: ("sqlite", "names::a_dead_holder_behind_a_symbolic_link_blocks_nobody"),
    },
    Mutant {
        name: "SQLite: a file in the directory of a group is for its creator alone",
        file: "crates/polylock-sql/src/sqlite/file.rs",
        from: "if is_shared(path.parent().unwrap_or(&path)) { 0o660 } else { 0o600 }",
        to: "0o600",
        test: ("processes", "sqlite_users::users_of_a_directory_of_their_group_lose_no_increment"),
    },
    Mutant {
        name: "SQLite: the umask takes rights from the group",
        file: "crates/polylock-sql/src/sqlite/process_lock.rs",
        from: "file.set_permissions(Permissions::from_mode(mode)).ok();",
        to: "Some(Permissions::from_mode(mode));",
        test: ("processes", "sqlite_users::a_killed_holder_of_any_user_is_superseded_at_once"),
    },
    Mutant {
        name: "SQLite: the file of the holders stays that of root",
        file: "crates/polylock-sql/src/sqlite/process_lock.rs",
        from: "if found.uid() != database.uid() {",
        to: "if false {",
        test: ("processes", "sqlite_users::root_is_the_first_user_of_a_file_that_belongs_to_another_one"),
    },
    Mutant {
        name: "SQLite: other code that runs with each change is accepted",
        file: "crates/polylock-sql/src/sqlite/tables.rs",
        from: "if found.is_empty() {",
        to: "if true {",
        test: ("sqlite", "faults::tables_on_which_other_code_runs_are_refused"),
    },
];
