//! `polylock once`: a command that runs once per period.

use rustix::process::Signal;

use crate::support::{Running, Workspace, eventually, lines, stderr, stdout};

/// Adds a line to the file `runs`.
const RUN: &str = "echo $POLYLOCK_FENCING_TOKEN >>runs";

fn once(workspace: &Workspace, options: &str, script: &str) -> Running {
    let mut command = workspace.polylock();
    command.arg("once").args(options.split(' ')).args(["x", "sh", "-c", script]);
    Running::spawn(command)
}

fn runs(workspace: &Workspace) -> usize {
    std::fs::read_to_string(workspace.path("runs")).unwrap_or_default().lines().count()
}

#[test]
fn the_command_runs_in_one_of_many_processes() {
    let workspace = Workspace::new();
    let script = format!("{RUN}; sleep 0.1");
    let calls: Vec<_> = (0..8).map(|_| once(&workspace, "--every 1000d --label nightly", &script)).collect();
    for call in calls {
        let output = call.finish();
        assert_eq!((output.status.code(), &*stderr(&output)), (Some(0), ""));
    }
    assert_eq!(runs(&workspace), 1);
    let last = &workspace.status("x")["last_run"];
    assert_eq!(
        (&last["outcome"], &last["label"], &last["attempt"]),
        (&"succeeded".into(), &"nightly".into(), &1.into())
    );
    assert!(last["ended_at_ms"].as_u64() >= last["started_at_ms"].as_u64(), "{last}");
    let text = stdout(&workspace.call("status x"));
    assert!(text.contains("x: free\n  last run by ") && text.contains(", attempt 1: began at 20"), "{text}");
    let again = once(&workspace, "-v --every 1000d --status-file status", RUN).finish();
    assert!(stderr(&again).contains("job x is not due: the run of "), "{}", stderr(&again));
    assert_eq!(lines(&workspace.read("status")).last().unwrap()["verdict"], "skipped");
}

#[test]
fn a_failed_command_runs_again_as_often_as_configured() {
    let workspace = Workspace::new();
    let failing = format!("{RUN}; exit 7");
    assert_eq!(once(&workspace, "--every 1000d --at 00:00", &failing).code(), Some(7));
    let last = workspace.status("x")["last_run"].clone();
    assert_eq!((&last["outcome"], &last["reason"]), (&"failed".into(), &"exit code 7".into()));
    assert_eq!(once(&workspace, "--every 1000d", RUN).code(), Some(0));
    assert_eq!(runs(&workspace), 1, "no attempt was left");
    let killed = format!("{RUN}; kill -TERM $$");
    assert_eq!(once(&workspace, "--every 1000d --retries 3", &killed).code(), Some(143));
    assert_eq!(workspace.status("x")["last_run"]["reason"], "SIGTERM");
    let missing = workspace.call("once --every 1000d --retries 3 x ./no-such-command");
    assert_eq!(missing.status.code(), Some(127), "{}", stderr(&missing));
    assert_eq!(once(&workspace, "--every 1000d --retries 3", RUN).code(), Some(0));
    let last = workspace.status("x")["last_run"].clone();
    assert_eq!((&last["outcome"], &last["attempt"]), (&"succeeded".into(), &4.into()));
    assert_eq!(runs(&workspace), 3);
}

/// The process that runs the job is killed: another one runs it after the lease, if there are retries.
#[test]
fn the_attempt_of_a_killed_process_counts_as_failed() {
    let workspace = Workspace::new();
    let first = once(&workspace, "--every 1000d --ttl 2s", &format!("{RUN}; exec sleep 60"));
    eventually("the first run", || runs(&workspace) == 1);
    let busy = once(&workspace, "-n -E 3 --every 1000d --retries 1", RUN).finish();
    assert_eq!(busy.status.code(), Some(3), "{}", stderr(&busy));
    assert!(stderr(&busy).contains("lock x not acquired"), "{}", stderr(&busy));
    let timed =
        once(&workspace, "--wait 0.1 --outage 9s --jitter 10ms --every 1000d --retries 1", RUN).finish();
    assert_eq!(timed.status.code(), Some(75), "{}", stderr(&timed));
    first.signal(Signal::KILL);
    drop(first);
    assert_eq!(once(&workspace, "--every 1000d", RUN).code(), Some(0));
    assert_eq!(runs(&workspace), 1, "without retries, the period has had its attempt");
    assert_eq!(once(&workspace, "--every 1000d --retries 1", RUN).code(), Some(0));
    assert_eq!(runs(&workspace), 2);
}

#[test]
fn each_period_has_a_run() {
    let workspace = Workspace::new();
    eventually("three periods", || {
        assert_eq!(once(&workspace, "--every 1s", RUN).code(), Some(0));
        runs(&workspace) >= 3
    });
}

#[test]
fn a_period_without_a_meaning_and_a_store_without_records_are_refused() {
    let workspace = Workspace::new();
    for (options, code, text) in [
        ("--every 7h --at 02:00", 78, "at: has no meaning for periods of 7h"),
        ("--every 10ms", 78, "every: must be "),
        ("--at 2am", 64, "not a time of day"),
        ("-S redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3 --outage 0", 69, ""),
    ] {
        let output = once(&workspace, options, RUN).finish();
        assert_eq!(output.status.code(), Some(code), "{options}: {}", stderr(&output));
        assert!(stderr(&output).contains(text), "{options}: {}", stderr(&output));
    }
    assert_eq!(runs(&workspace), 0);
}
