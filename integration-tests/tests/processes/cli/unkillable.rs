//! A command that has become another user can't be killed without that user's rights. polylock reports it.
//!
//! polylock runs as `nobody`, and the command through a copy of `setpriv` that belongs to root and has the setuid bit,
//! like `sudo`.

use std::{fs, path::Path};

use polylock_integration_tests::{cargo::polylock, pid_namespace};

/// Returns the output of `script`; `None`, with a message, if this user is not root. In the script, `$nobody` and `$ROOT` before a
/// command change the user.
fn run(script: &str) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can create a setuid program of another user");
        return None;
    }
    let takeover = Path::new(env!("CARGO_BIN_EXE_takeover"));
    let directory = tempfile::tempdir().unwrap();
    // The user may not reach the directory where they were built.
    for program in [takeover, polylock()] {
        fs::copy(program, directory.path().join(program.file_name().unwrap())).unwrap();
    }
    let prelude = r#"
        cp "$(command -v setpriv)" as_root && chmod 4755 as_root && chmod 777 . || exit 1
        nobody="setpriv --reuid=65534 --regid=65534 --clear-groups"
        export POLYLOCK_STORE=sqlite:locks.db POLYLOCK_CONFIG=/dev/null ROOT="./as_root --reuid=0 --regid=0 --clear-groups"
        pid_of_root() { wait_for test -s life; pid=$(pgrep -x takeover); test "$(stat -c %u /proc/$pid)" = 0 || exit 1; }
    "#;
    let text = pid_namespace::run(&format!("{prelude}{script}"), directory.path(), &[]);
    if let Some(text) = &text {
        println!("{text}");
    }
    text
}

#[test]
fn a_command_of_another_user_is_reported_at_once_and_when_the_lock_is_lost() {
    let Some(text) = run(r#"
        $nobody ./polylock run --ttl 3 --grace 0.3 --status-file status x -- $ROOT ./takeover beat life 2>errors &
        polylock=$!
        pid_of_root
        wait_for grep -q "can't be killed: if lock x is lost" errors
        echo "seen while the lock is held"
        $nobody ./polylock break --yes --force x
        wait_for grep -q "still alive: process $pid" errors
        survives $polylock && survives $pid && echo "both alive"
        kill -KILL $pid
        wait $polylock
        echo "code $?"
        cat errors status
    "#) else {
        return;
    };
    for part in [
        "seen while the lock is held",
        "both alive",
        "code 79",
        "of the command belongs to user 0 and can't be killed: if lock x is lost, it continues beside the next holder",
        "belongs to user 0 and can't be killed; the next holder of the lock may run beside it",
        "\"event\":\"unkillable\"",
        "\"verdict\":\"lost\",\"exit_code\":79",
    ] {
        assert!(text.contains(part), "{part}");
    }
}

#[test]
fn a_remaining_process_of_another_user_keeps_the_lock() {
    let Some(text) = run(r#"
        $nobody ./polylock run --ttl 3 --max-hold 3 --grace 0.3 --status-file status x -- sh -c "$ROOT ./takeover beat life & wait" 2>errors &
        polylock=$!
        pid_of_root
        wait_for grep -q "still alive: process $pid" errors
        # This is longer than a lease, so the lock is renewed.
        for i in $(seq 400); do alive $polylock || exit 1; sleep 0.01; done
        $nobody ./polylock status x
        kill -KILL $pid
        wait $polylock
        echo "code $?"
        $nobody ./polylock status x
        cat errors
    "#) else {
        return;
    };
    for part in ["x: held", "code 124", "x: free", "can't be killed; the lock is kept until it has ended"] {
        assert!(text.contains(part), "{part}");
    }
}

#[test]
fn the_warden_reports_an_unkillable_process_when_polylock_is_dead() {
    let Some(text) = run(r#"
        $nobody ./polylock run --ttl 10 x -- $ROOT ./takeover beat life 2>errors &
        pid_of_root
        kill -KILL $!
        wait_for grep -q "may run beside" errors
        cat errors
    "#) else {
        return;
    };
    assert!(
        text.contains("belongs to user 0 and can't be killed; the next holder of the lock may run beside it")
    );
}
