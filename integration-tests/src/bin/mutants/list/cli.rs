//! Bugs of the command line.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "command line: a process is signalled by its bare pid",
        file: "crates/polylock-cli/src/run/processes/process.rs",
        from: "Identity::Descriptor(fd) => rustix::process::pidfd_send_signal(fd, signal),",
        to: "Identity::Descriptor(_) => kill_process(self.id, signal),",
        test: ("processes", "cli::pid_reuse::the_reused_ids_that_a_replacement_warden_knows"),
    },
    Mutant {
        name: "command line: a group is signalled by its bare id",
        file: "crates/polylock-cli/src/run/processes/mod.rs",
        from: "self.id != Pid::INIT && self.exists()",
        to: "self.id != Pid::INIT && (self.exists() || true)",
        test: (
            "units of library polylock_cli",
            "run::processes::tests::a_group_without_a_known_member_is_not_signalled",
        ),
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
        test: ("processes", "cli::takeover::a_daemon_by_setsid_f"),
    },
    Mutant {
        name: "command line: a lock is released before all processes of the command are dead",
        file: "crates/polylock-cli/src/run/supervise.rs",
        from: "Some(stop) => self.finish_stop(self.kill_at(Some(stop), lease), lease, signals).await,",
        to: "Some(stop) if stop.kill_at < Moment::default() => {
                self.finish_stop(self.kill_at(Some(stop), lease), lease, signals).await
            }
            Some(_) => None,",
        test: ("processes", "cli::takeover::a_daemon_that_is_started_when_the_command_gets_the_signal"),
    },
    Mutant {
        name: "command line: a process that can't be killed is treated as a dying one",
        file: "crates/polylock-cli/src/run/processes/mod.rs",
        from: "Err(Errno::PERM) => remaining.refused.push(process),",
        to: "Err(Errno::PERM) => remaining.dying.push(process),",
        test: (
            "processes",
            "cli::unkillable::a_command_of_another_user_is_reported_at_once_and_when_the_lock_is_lost",
        ),
    },
    Mutant {
        name: "command line: a release of a lost lock is a success",
        file: "crates/polylock-cli/src/run/finish.rs",
        from: "Some(Err(Error::Lost { name, reason })) => return Err(Lost { name, reason }),",
        to: "Some(Err(Error::Lost { .. })) => return Ok(None),",
        test: (
            "processes",
            "cli::lost_release::sqlite_full::the_release_of_a_lock_that_was_lost_reports_the_loss",
        ),
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
        test: ("cli", "unread::unread_pipes_delay_neither_the_command_nor_a_signal_nor_the_release"),
    },
    Mutant {
        name: "command line: a FIFO for the events must have a reader before the command starts",
        file: "crates/polylock-cli/src/output/sink.rs",
        from: "if !is_fifo(&path) {",
        to: "if !is_fifo(&path) || path.exists() {",
        test: ("cli", "fifo::a_status_fifo_without_a_reader_delays_nothing"),
    },
    Mutant {
        name: "command line: a command that may have begun is started again",
        file: "crates/polylock-cli/src/run/warden/start.rs",
        from: "io::ErrorKind::UnexpectedEof => Some(Self::AfterAllOrders),",
        to: "io::ErrorKind::UnexpectedEof => Some(Self::WithUnreadOrders),",
        test: ("processes", "cli::warden_end::a_command_that_may_have_begun_is_killed_and_not_started_again"),
    },
    Mutant {
        name: "command line: a command whose warden was killed survives beside other children of polylock",
        file: "crates/polylock-cli/src/run/warden/start.rs",
        from: "tree.outside = mark.iter().flat_map(|mark| children_with(mark)).collect();",
        to: "tree.outside = mark.iter().take(0).flat_map(|mark| children_with(mark)).collect();",
        test: ("processes", "cli::warden_end::a_command_that_may_have_begun_is_killed_and_not_started_again"),
    },
    Mutant {
        name: "command line: a nested run uses the default store",
        file: "crates/polylock-cli/src/store.rs",
        from: "} else if let Some(outer) = nested::outer_store(variable(outer_run::STORE)?)? {",
        to: "} else if let Some(outer) = nested::outer_store(variable(outer_run::STORE)?)?.filter(|_| false) {",
        test: ("cli", "environment::a_nested_run_uses_the_same_store"),
    },
    Mutant {
        name: "command line: a nested run without a store is not refused",
        file: "crates/polylock-cli/src/store/nested.rs",
        from: "        redacted => {",
        to: "        _ if true => return Ok(None),
        redacted => {",
        test: ("cli", "environment::a_nested_run_must_name_a_store_with_a_password"),
    },
    Mutant {
        name: "command line: the variables of an outer run are a proof that it supervises this process",
        file: "crates/polylock-cli/src/run/outer_warden.rs",
        from: "if !has_ancestor(id, started) {",
        to: "if !has_ancestor(id, started) && owner.is_empty() {",
        test: ("cli", "nested::a_process_that_only_has_the_variables_of_a_run_does_not_run_under_its_hold"),
    },
    Mutant {
        name: "command line: a process that has the reused pid of a warden counts as it",
        file: "crates/polylock-cli/src/run/processes/ancestry.rs",
        from: "(parent.id, parent.started) == (ancestor, started)",
        to: "parent.id == ancestor && started > 0",
        test: (
            "units of library polylock_cli",
            "run::processes::ancestry::tests::only_the_process_with_the_pid_and_the_start_time_is_an_ancestor",
        ),
    },
    Mutant {
        name: "command line: polylock counts as the supervisor of what an earlier command has left",
        file: "crates/polylock-cli/src/run/outer_warden.rs",
        from: "(Some(stat), Ok(owner)) = (Stat::of(getpid()), env::var(OWNER))",
        to: "(Some(stat), Ok(owner)) =
            (rustix::process::getppid().and_then(Stat::of), env::var(OWNER))",
        test: ("cli", "nested::a_process_of_an_earlier_term_does_not_run_under_the_hold_of_the_next"),
    },
    Mutant {
        name: "command line: the numbers in the /proc of another namespace are taken for pids",
        file: "crates/polylock-cli/src/run/processes/mod.rs",
        from: "numbers.filter_map(numbers::pid_of).collect::<Vec<_>>()",
        to: "numbers.collect::<Vec<_>>()",
        test: (
            "processes",
            "cli::namespaces::with_the_proc_of_another_namespace_all_processes_of_the_command_are_killed",
        ),
    },
    Mutant {
        name: "command line: a command starts where its processes can't be found",
        file: "crates/polylock-cli/src/run/processes/numbers.rs",
        from: "if !shows_this_process() {",
        to: "if !shows_this_process() && NO_PROC.is_empty() {",
        test: ("processes", "cli::namespaces::without_a_proc_of_its_processes_a_run_is_refused"),
    },
    Mutant {
        name: "command line: an empty variable counts as unset",
        file: "crates/polylock-cli/src/store.rs",
        from: "Ok(text) if text.is_empty() => \"empty\",",
        to: "Ok(text) if text.is_empty() => return Ok(None),",
        test: ("cli", "environment::an_empty_or_undecodable_store_variable_is_an_error"),
    },
    Mutant {
        name: "command line: a command that --max-hold stopped is a success",
        file: "crates/polylock-cli/src/run/finish.rs",
        from: "Verdict::new(\"max_hold\", MAX_HOLD)",
        to: "Verdict::new(\"max_hold\", code)",
        test: ("cli", "signals::max_hold_stops_the_command_and_frees_the_lock"),
    },
    Mutant {
        name: "command line: a signal during a release does not end an election",
        file: "crates/polylock-cli/src/run/finish.rs",
        from: "Ok(interrupted) => is_final || interrupted.is_some(),",
        to: "Ok(_) => is_final,",
        test: ("cli", "elect::a_signal_during_a_release_ends_polylock"),
    },
    Mutant {
        name: "command line: a second signal is ignored",
        file: "crates/polylock-cli/src/run/mod.rs",
        from: "signal = self.signals.next_termination() => exit_at_once(log, self.output, signal),",
        to: "signal = std::future::pending::<Signal>() => exit_at_once(log, self.output, signal),",
        test: ("cli", "exit_codes::a_second_signal_ends_a_waiter_at_once_while_the_store_hangs"),
    },
    Mutant {
        name: "command line: the ZooKeeper session does not use the TTL as its timeout",
        file: "crates/polylock-cli/src/run/mod.rs",
        from: "builder = builder.ttl(ttl);",
        to: "builder = builder.ttl(ttl.max(std::time::Duration::from_secs(20)));",
        test: ("processes", "cli::outage::on_zookeeper_the_ttl_of_a_run_is_the_session_timeout"),
    },
    Mutant {
        name: "command line: a negative pid in a message of the warden is accepted",
        file: "crates/polylock-cli/src/run/warden/message.rs",
        from: "text.parse().ok().filter(|number| *number >= 0).map(Pid::from_raw)",
        to: "text.parse().ok().map(Pid::from_raw)",
        test: ("units of library polylock_cli", "run::warden::fuzz::tests::messages"),
    },
    Mutant {
        name: "completion: a store that does not reply delays the prompt",
        file: "crates/polylock-cli/src/completion/mod.rs",
        from: "names.recv_timeout(time_limit())",
        to: "names.recv_timeout(time_limit() * 100)",
        test: ("cli", "completion::a_store_that_does_not_reply_delays_no_completion"),
    },
    Mutant {
        name: "completion: a SQLite file is created",
        file: "crates/polylock-cli/src/completion/mod.rs",
        from: "url.scheme() == \"sqlite\" && ",
        to: "url.scheme() == \"sqlite3\" && ",
        test: ("cli", "completion::a_completion_creates_nothing"),
    },
    Mutant {
        name: "completion: a name that a shell would interpret is inserted",
        file: "crates/polylock-cli/src/completion/mod.rs",
        from: "locks.iter().filter(|lock| is_plain(lock.name.as_str())).map(candidate)",
        to: "locks.iter().map(candidate)",
        test: ("cli", "completion::the_names_of_the_store_of_the_command_line_are_completed"),
    },
    Mutant {
        name: "command line: top breaks a lock without a confirmation",
        file: "crates/polylock-cli/src/top/app.rs",
        from: "                self.prompt = Prompt::Confirm(order);
                return Action::None;",
        to: "                self.prompt = Prompt::Confirm(order.clone());
                return Action::Break(order);",
        test: (
            "units of library polylock_cli",
            "top::app::tests::a_break_needs_a_confirmation_and_keeps_its_lock",
        ),
    },
    Mutant {
        name: "command line: an attempt to open the store that is not answered outlasts --outage",
        file: "crates/polylock-core/src/engine/connect.rs",
        from: "if limit.is_zero() { Moment::NEVER }",
        to: "if !limit.is_zero() { Moment::NEVER }",
        test: ("cli", "mistakes::a_server_that_does_not_reply_is_given_up_after_the_outage"),
    },
];
