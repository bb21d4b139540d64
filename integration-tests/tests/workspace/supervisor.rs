//! The program that plants bugs leaves no process of a test behind.

use std::{path::Path, thread};

use polylock_integration_tests::process::Process;

/// Runs `script` as a test, and returns the id of the process that it prints, and true if the test succeeded.
fn supervise(script: &str) -> (String, bool) {
    let mut run = Process::start(env!("CARGO_BIN_EXE_mutants"), ["--supervise", "sh", "-c", script]);
    let id = run.expect_line("left").remove(0);
    assert!(Path::new("/proc").join(&id).exists(), "{script}: it has not started");
    run.send_line("end");
    (id, run.wait_for_exit().success())
}

#[test]
fn a_process_that_has_left_its_parents_is_ended_with_the_test() {
    let daemon =
        "setsid -f setsid -f sh -c 'trap \"\" TERM HUP; echo left $$; while :; do sleep 600; done'; read end";
    thread::scope(|scope| {
        for (end, succeeds) in [("exit 0", true), ("exit 1", false), ("kill -KILL $$", false)] {
            scope.spawn(move || {
                let (id, succeeded) = supervise(&format!("{daemon}; {end}"));
                assert!(!Path::new("/proc").join(&id).exists(), "{end}: process {id} is left");
                assert_eq!(succeeded, succeeds, "{end}");
            });
        }
    });
}
