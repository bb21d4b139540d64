//! `polylock run` as the first process of a container, which becomes the parent of every process that has lost its own.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use polylock_integration_tests::{cargo, namespace};

#[test]
fn no_zombies_are_left_whoever_their_parents_were() {
    let polylock = cargo::program("polylock-cli", "polylock", Path::new(env!("CARGO_BIN_EXE_worker")));
    let directory = tempfile::tempdir().unwrap();
    let variables = [
        ("P", polylock.to_str().unwrap()),
        ("POLYLOCK_STORE", "sqlite:locks.db"),
        ("POLYLOCK_CONFIG", "/dev/null"),
    ];
    // Ten processes that others have started and forgotten, as in `docker exec`, and ten of the command.
    let script = r#"
        touch ended
        for i in 1 2 3 4 5 6 7 8 9 10; do (sleep 0.3 &); done
        exec "$P" -q run x -- sh -c '
            for i in 1 2 3 4 5 6 7 8 9 10; do (setsid sh -c "sleep 0.3; echo >> ended" &); done
            until [ "$(wc -l < ended)" = 10 ]; do sleep 0.02; done
            for i in $(seq 100); do
                zombies=$(cat /proc/[0-9]*/stat | grep -c ") Z ")
                sleepers=$(cat /proc/[0-9]*/stat | grep -c "(sleep)")
                [ "$zombies$sleepers" = 00 ] && break
                sleep 0.02
            done
            echo "first $(cat /proc/1/comm), zombies $zombies"
        ' 2>&1
    "#;
    if let Some(text) = namespace::run(script, directory.path(), &variables) {
        println!("{text}");
        assert!(text.ends_with("first polylock, zombies 0\n"), "{text}");
    }
}

/// A signal to the first process of a container has an effect only if that process handles it.
#[test]
fn the_containers_stop_reaches_the_command() {
    let polylock = cargo::program("polylock-cli", "polylock", Path::new(env!("CARGO_BIN_EXE_worker")));
    let directory = tempfile::tempdir().unwrap();
    let variables = [
        ("P", polylock.to_str().unwrap()),
        ("POLYLOCK_STORE", "sqlite:locks.db"),
        ("POLYLOCK_CONFIG", "/dev/null"),
    ];
    let script = r#"
        exec "$P" -q run x -- sh -c 'trap "echo asked; exit 0" TERM; kill -TERM 1; while :; do sleep 0.02; done'
    "#;
    if let Some(text) = namespace::run(script, directory.path(), &variables) {
        assert_eq!(text, "asked\n");
    }
}
