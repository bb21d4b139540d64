//! `polylock run` in a PID namespace: with the `/proc` of the namespace around it, without one, and inside a run outside of it.
//!
//! Each script is the first process of a namespace A. In it, `unshare --pid --fork` begins a namespace B with the `/proc` of A.

use polylock_integration_tests::{cargo::polylock, pid_namespace};

fn run(script: &str) -> Option<String> {
    let directory = tempfile::tempdir().unwrap();
    let variables = [
        ("P", polylock().to_str().unwrap()),
        ("POLYLOCK_STORE", "sqlite:locks.db"),
        ("POLYLOCK_CONFIG", "/dev/null"),
    ];
    let text = pid_namespace::run(script, directory.path(), &variables);
    if let Some(text) = &text {
        println!("{text}");
    }
    text
}

/// The first process of B stays until the processes are counted, since all of B ends with it.
#[test]
fn with_the_proc_of_another_namespace_all_processes_of_the_command_are_killed() {
    let script = r#"
        export COMMAND='trap "" TERM; (setsid sh -c "trap \"\" TERM; sleep 3600 & sleep 3600" &)
            setsid sleep 3600 & echo > started; wait; sleep 3600'
        sleepers() { pgrep -c -f '^sleep 3600'; }
        all_started() { test "$(sleepers)" -ge 3; }
        none() { test "$(sleepers)" = 0; }
        for fault in max-hold kill replaced; do
            rm -f started ended counted
            unshare --pid --fork bash -c '
                "$P" -q run --ttl 20 --grace 0.2 --max-hold 2 x -- sh -c "$COMMAND" 2> errors
                echo "$0: code $?"; touch ended
                until test -e counted; do sleep 0.01; done' $fault &
            wait_for test -e started; wait_for all_started
            polylock=$(pgrep -x -o polylock)
            warden=$(child "$polylock" __warden)
            case $fault in
                kill) kill -KILL "$polylock";;
                replaced) kill -KILL "$warden";;
            esac
            wait_for test -e ended
            # A warden continues without its polylock.
            [ $fault = kill ] && { wait_for none; }
            echo "$fault: $(sleepers) left"
            touch counted; wait
        done
    "#;
    if let Some(text) = run(script) {
        let expected = ["max-hold: code 124", "kill: code 137", "replaced: code 124"];
        for (line, fault) in expected.iter().zip(["max-hold", "kill", "replaced"]) {
            assert!(text.contains(&format!("{line}\n{fault}: 0 left\n")), "{line}");
        }
    }
}

/// 1. A process of A gets the number that the warden has in B. It has a child.
/// 2. An innocent process of B gets the number that the child has in A.
/// 3. polylock is killed, and its warden kills the processes of the command.
#[test]
fn with_the_proc_of_another_namespace_no_process_with_an_equal_number_is_signalled() {
    let script = r#"
        mkfifo to_b
        unshare --pid --fork bash -c '
            echo 500 > /proc/sys/kernel/ns_last_pid
            "$P" -q run --ttl 30 x -- sh -c "echo > started; sleep 3600; exit" &
            # Each process of B takes a number of A, too: B begins none while A chooses one.
            read -r number < to_b
            sleeper() { echo $(($1 - 1)) > /proc/sys/kernel/ns_last_pid; setsid sleep 3601 & }
            sleeper "$number"
            test $! = "$number" || echo "the number $number could not be chosen: $!" >&2
            echo > chosen
            until test -e counted; do sleep 0.01; done' &
        wait_for test -e started
        polylock=$(pgrep -x -o polylock)
        warden=$(child "$polylock" __warden)
        in_b=$(sed -n "s/^NSpid:\t[0-9]*\t//p" "/proc/$warden/status")
        echo $((in_b - 1)) > /proc/sys/kernel/ns_last_pid
        setsid bash -c 'echo 900 > /proc/sys/kernel/ns_last_pid; sleep 3602 & echo $! > number; cat number > to_b; wait' &
        test $! = "$in_b" || { echo "the number $in_b could not be chosen: $!" >&2; exit 1; }
        wait_for test -e chosen
        # Its process may not be `sleep` yet.
        wait_for eval 'pgrep -f "^sleep 3601" > innocent'
        innocent=$(pgrep -f "^sleep 3601")
        kill -KILL "$polylock"
        wait_for dead "$warden"
        survives "$innocent" && echo "innocent: alive"
        survives "$(cat number)" && echo "outside: alive"
        pgrep -f "^sleep 3600" || echo "command: dead"
        touch counted
    "#;
    if let Some(text) = run(script) {
        assert_eq!(text, "innocent: alive\noutside: alive\ncommand: dead\n");
    }
}

#[test]
fn without_a_proc_of_its_processes_a_run_is_refused() {
    let script = r#"
        try() { "$P" "$1" x -- touch ran; echo "$1: code $?"; }
        export -f try
        unshare --mount bash -c 'mount -t tmpfs none /proc; try run; try elect; try once' 2>&1
        unshare --pid "$P" run x -- touch ran 2>&1
        echo "without --fork: code $?"
        "$P" status x
        test ! -e ran
    "#;
    if let Some(text) = run(script) {
        for command in ["run", "elect", "once"] {
            assert!(text.contains(&format!("{command}: code 78\n")));
        }
        assert_eq!(text.matches("/proc does not show the processes of this PID namespace").count(), 3);
        assert_eq!(text.matches("unshare --mount-proc").count(), 3);
        assert!(text.contains("also write `--fork`\nwithout --fork: code 78\n"));
    }
}

#[test]
fn a_nested_run_enters_the_hold_of_a_run_in_its_own_namespace_only() {
    let script = r#"
        "$P" -q run x -- "$P" run --reentrant x echo "entered in A"
        for proc in --mount-proc "--mount"; do
            "$P" -q run x -- unshare --pid --fork $proc "$P" run --reentrant x echo "entered in B" 2>&1
            echo "$proc: code $?"
        done
        # Both processes are in B.
        unshare --pid --fork "$P" -q run x -- "$P" run --reentrant x echo "entered with the /proc of A"
        exec "$P" -q run x -- "$P" run --reentrant x echo "entered under the first process"
    "#;
    if let Some(text) = run(script) {
        assert!(text.starts_with("entered in A\n"));
        assert!(text.contains("--mount-proc: code 64\n") && text.contains("--mount: code 64\n"));
        assert_eq!(text.matches("this process is in another PID namespace").count(), 2);
        assert!(text.ends_with("entered with the /proc of A\nentered under the first process\n"));
    }
}
