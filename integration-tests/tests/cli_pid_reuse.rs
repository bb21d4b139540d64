//! No process outside the command's is signalled, also when it has got the number of one that has ended.
//!
//! The scripts force such numbers upon innocent processes, in a process namespace of their own.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use polylock_integration_tests::{cargo, namespace};

/// The lines that `script` writes about its innocent processes; none where there are no namespaces.
fn innocents(script: &str) -> Vec<String> {
    let polylock = cargo::program("polylock-cli", "polylock", Path::new(env!("CARGO_BIN_EXE_worker")));
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", directory.path().join("locks.db").display());
    let variables =
        [("P", polylock.to_str().unwrap()), ("POLYLOCK_STORE", &url), ("POLYLOCK_CONFIG", "/dev/null")];
    let text = namespace::run(script, directory.path(), &variables).unwrap_or_default();
    println!("{text}");
    let lines = text.lines().map(str::to_owned);
    lines.filter(|line| line.starts_with("innocent")).collect()
}

#[track_caller]
fn all_alive(innocents: &[String]) {
    assert!(innocents.iter().all(|line| line.ends_with("alive")), "{innocents:#?}");
}

/// The command has ended and something that it has started has not: that has until the end of the grace.
#[test]
fn the_number_of_a_command_that_has_ended_during_its_grace() {
    all_alive(&innocents(
        r#"
        "$P" -q run --ttl 30 --grace 2 --max-hold 0.3 x -- \
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

/// The same, and polylock is killed before the grace is over.
#[test]
fn the_number_of_a_command_that_has_ended_when_polylock_is_killed() {
    all_alive(&innocents(
        r#"
        "$P" -q run --ttl 30 --grace 10 --max-hold 0.3 x -- \
            sh -c 'echo $$ > command; (trap "" TERM; echo > deaf; exec sleep 100) & trap "exit 0" TERM; wait' &
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
/// 2. The command ends, and nothing is left of it.
/// 3. Innocent processes get the numbers of the command and of its group, if those are free.
/// 4. polylock is killed, and its warden kills what it still knows.
#[test]
fn the_numbers_of_a_command_and_its_group_whose_polylock_is_killed() {
    all_alive(&innocents(
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

/// The same with a warden that has taken another's place, which is nobody's parent and so keeps no number taken: it is stopped while
/// everything ends and the numbers are given away.
#[test]
fn the_numbers_that_a_replaced_warden_knows() {
    all_alive(&innocents(
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
        test "$first" = "$command" && test "$second_innocent" = "$group" || { echo "the numbers were not to be had" >&2; exit 1; }
        kill -CONT "$second"
        wait_for dead "$second"
        for innocent in $first $second_innocent; do
            survives "$innocent" && state=alive || state=killed
            echo "innocent $innocent, the command was $command, its group $group: $state"
        done
        "#,
    ));
}

/// A warden that takes another's place never takes the first process of the machine for its polylock: that one has the orphans of all
/// programs for children.
#[test]
fn the_orphans_of_others_when_polylock_is_killed_together_with_its_warden() {
    let lines = innocents(
        r#"
        for i in 1 2 3 4 5 6 7 8; do
            setsid -f sleep 3600
            rm -f command
            "$P" -q run --ttl 30 x$i -- sh -c 'echo $$ > command; exec sleep 3600' &
            polylock=$!
            wait_for test -s command; command=$(cat command)
            first=$(child "$polylock" __warden)
            kill -KILL "$first"
            # Without a program that takes its time: the new warden has not read its orders when polylock is killed.
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
