//! `polylock run` as the first process of a container, which becomes the parent of all orphans.

use polylock_integration_tests::{cargo::polylock, pid_namespace};

#[test]
fn orphans_of_the_command_and_of_other_programs_are_reaped() {
    let directory = tempfile::tempdir().unwrap();
    let variables = [
        ("P", polylock().to_str().unwrap()),
        ("POLYLOCK_STORE", "sqlite:locks.db"),
        ("POLYLOCK_CONFIG", "/dev/null"),
    ];
    // Ten orphans of another program, as after `docker exec`, and ten of the command.
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
    if let Some(text) = pid_namespace::run(script, directory.path(), &variables) {
        println!("{text}");
        assert!(text.ends_with("first polylock, zombies 0\n"), "{text}");
    }
}

/// A signal to the first process of a container has an effect only if that process handles it.
#[test]
fn the_stop_signal_of_the_container_is_forwarded_to_the_command() {
    let directory = tempfile::tempdir().unwrap();
    let variables = [
        ("P", polylock().to_str().unwrap()),
        ("POLYLOCK_STORE", "sqlite:locks.db"),
        ("POLYLOCK_CONFIG", "/dev/null"),
    ];
    let script = r#"
        exec "$P" -q run x -- sh -c 'trap "echo stopped; exit 0" TERM; kill -TERM 1; while :; do sleep 0.02; done'
    "#;
    if let Some(text) = pid_namespace::run(script, directory.path(), &variables) {
        assert_eq!(text, "stopped\n");
    }
}
