//! Only processes of the command are signalled, even if another process has the reused pid of one that has ended.
//!
//! The scripts give such pids to uninvolved ("innocent") processes, in a process namespace of their own.

use polylock_integration_tests::{cargo::polylock, pid_namespace};

/// Runs `script`, and returns its lines about innocent processes; none on a system without namespaces.
fn run_script(script: &str) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", directory.path().join("locks.db").display());
    let variables =
        [("P", polylock().to_str().unwrap()), ("POLYLOCK_STORE", &url), ("POLYLOCK_CONFIG", "/dev/null")];
    let text = pid_namespace::run(script, directory.path(), &variables).unwrap_or_default();
    println!("{text}");
    let lines = text.lines().map(str::to_owned);
    lines.filter(|line| line.starts_with("innocent")).collect()
}

#[track_caller]
fn assert_all_alive(lines: &[String]) {
    assert!(lines.iter().all(|line| line.ends_with("alive")), "{lines:#?}");
}

/// The command has ended, and a process that it has started has not: polylock waits for it until the end of the grace period. The command
/// has three seconds to write its number and to set its traps.
#[test]
fn the_reused_pid_of_a_command_that_ended_in_the_grace_period() {
    assert_all_alive(&run_script(
        r#"
        "$P" -q run --ttl 30 --grace 2 --max-hold 3 x -- \
            sh -c 'echo $$ > command; (trap "" TERM; exec sleep 100) & trap "exit 0" TERM; wait' &
        polylock=$!
        wait_for test -s command; command=$(cat command)
        wait_for dead "$command"
        sleeper "$command"; innocent=$!
        wait "$polylock"
        survives "$innocent" && state=alive || state=killed
        echo "innocent $innocent, the command was $command: $state"
        "#,
    ));
}

/// The same, but polylock is killed before the end of the grace period.
#[test]
fn the_reused_pid_of_an_ended_command_when_polylock_is_killed() {
    assert_all_alive(&run_script(
        r#"
        "$P" -q run --ttl 30 --grace 10 --max-hold 3 x -- \
            sh -c 'echo $$ > command; (trap "" TERM; echo > started; exec sleep 100) & trap "exit 0" TERM; wait' &
        polylock=$!
        wait_for test -s command; command=$(cat command)
        warden=$(child "$polylock" __warden)
        wait_for dead "$command"
        # An earlier version reaped it now.
        for i in 1 2 3 4 5 6 7 8 9 10; do test -e "/proc/$command" && sleep 0.05; done
        sleeper "$command"; innocent=$!
        kill -KILL "$polylock"
        wait_for dead "$warden"
        survives "$innocent" && state=alive || state=killed
        echo "innocent $innocent, the command was $command: $state"
        "#,
    ));
}

/// 1. polylock is stopped.
/// 2. The command and all its processes end.
/// 3. Innocent processes get the pid of the command and the id of its group, if these are free.
/// 4. polylock is killed, and its warden kills the processes that it knows.
#[test]
fn the_reused_ids_of_an_ended_command_and_its_group_when_polylock_is_killed() {
    assert_all_alive(&run_script(
        r#"
        "$P" -q run --ttl 30 x -- sh -c 'echo $$ > command; until test -e end; do sleep 0.01; done' &
        polylock=$!
        wait_for test -s command; command=$(cat command)
        group=$(ps -o pgid= -p "$command" | tr -d " ")
        warden=$(child "$polylock" __warden)
        kill -STOP "$polylock"
        touch end
        wait_for dead "$command"
        sleeper "$command"; first=$!
        sleeper "$group"; second=$!
        kill -KILL "$polylock"
        wait_for dead "$warden"
        for innocent in $first $second; do
            survives "$innocent" && state=alive || state=killed
            echo "innocent $innocent, the command was $command, its group $group: $state"
        done
        "#,
    ));
}

/// The same with a replacement warden. It is not the parent of the command, so it does not prevent the reuse of the ids: it is stopped
/// while all processes end and the ids are reused.
#[test]
fn the_reused_ids_that_a_replacement_warden_knows() {
    assert_all_alive(&run_script(
        r#"
        "$P" -q run --ttl 30 x -- sh -c 'echo $$ > command; until test -e end; do sleep 0.01; done' &
        polylock=$!
        wait_for test -s command; command=$(cat command)
        group=$(ps -o pgid= -p "$command" | tr -d " ")
        first=$(child "$polylock" __warden)
        kill -KILL "$first"
        replaced() { second=$(child "$polylock" __warden) && test "$second" != "$first"; }
        wait_for replaced
        # It has read its orders when it waits for more.
        waits() { grep -q poll "/proc/$second/wchan"; }
        wait_for waits
        kill -STOP "$second"
        kill -KILL "$polylock"
        touch end
        # They are children of this shell now, which reaps them.
        gone() { test ! -e "/proc/$command" && test ! -e "/proc/$group"; }
        wait_for gone
        sleeper "$command"; first=$!
        sleeper "$group"; second_innocent=$!
        test "$first" = "$command" && test "$second_innocent" = "$group" || { echo "the pids could not be reused" >&2; exit 1; }
        kill -CONT "$second"
        wait_for dead "$second"
        for innocent in $first $second_innocent; do
            survives "$innocent" && state=alive || state=killed
            echo "innocent $innocent, the command was $command, its group $group: $state"
        done
        "#,
    ));
}

/// A replacement warden never mistakes the first process of the machine for its polylock: the orphans of all programs are children of
/// the first process.
#[test]
fn orphans_of_other_programs_survive_a_killed_polylock_and_its_warden() {
    let lines = run_script(
        r#"
        for i in 1 2 3 4 5 6 7 8; do
            setsid -f sleep 3600
            rm -f command
            "$P" -q run --ttl 30 x$i -- sh -c 'echo $$ > command; exec sleep 3600' &
            polylock=$!
            wait_for test -s command; command=$(cat command)
            first=$(child "$polylock" __warden)
            kill -KILL "$first"
            # Only shell built-ins, which are fast: the new warden has not read its orders when polylock is killed.
            second=
            while test -z "$second"; do
                read -r children < "/proc/$polylock/task/$polylock/children"
                for one in $children; do test "$one" -gt "$command" && second=$one; done
            done
            kill -KILL "$polylock"
            wait_for dead "$second"
            dead "$command" || { echo "the command is alive" >&2; exit 1; }
        done
        for innocent in $(cat /proc/1/task/1/children); do
            grep -qz "^3600" "/proc/$innocent/cmdline" 2>/dev/null && echo "innocent $innocent: alive"
        done
        true
        "#,
    );
    assert!(lines.is_empty() || lines.len() == 8, "{lines:#?}");
}
