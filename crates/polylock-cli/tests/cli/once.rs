//! `polylock once`: a command that runs once per period.

use std::time::{Duration, UNIX_EPOCH};

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

/// The clock of India is 5:30 hours ahead of UTC all year round.
#[test]
fn the_days_are_those_of_a_time_zone() {
    let workspace = Workspace::new();
    let script = format!("{RUN}; echo $POLYLOCK_PERIOD_BEGIN_MS >begin");
    let call = |zone: &str| {
        let mut command = workspace.polylock();
        command.args(["once", "--every", "1000d", "--at", "02:00", "--time-zone", zone]);
        command.args(["x", "sh", "-c", &script]).env("TZ", "Asia/Kolkata");
        Running::spawn(command)
    };
    assert_eq!(call("Asia/Kolkata").code(), Some(0));
    let begin: u64 = workspace.read("begin").trim().parse().unwrap();
    assert_eq!(begin % (24 * 3_600_000), 20 * 3_600_000 + 1_800_000);
    assert_eq!(call("local").code(), Some(0));
    assert_eq!(runs(&workspace), 1, "both callers have the same zone");
}

/// The record is that of another period, which is over by then.
#[test]
fn the_next_period_is_that_of_the_caller() {
    let workspace = Workspace::new();
    assert_eq!(once(&workspace, "--every 1s", RUN).code(), Some(0));
    let started = workspace.status("x")["last_run"]["started_at_ms"].as_u64().unwrap();
    let skipped = stderr(&once(&workspace, "-v --every 1000d", RUN).finish());
    let period = Duration::from_secs(1000 * 24 * 3600);
    let number = Duration::from_millis(started).as_secs() / period.as_secs();
    let next = UNIX_EPOCH + period * u32::try_from(number + 1).unwrap();
    let expected = format!("the next period begins at {}", humantime::format_rfc3339_seconds(next));
    assert!(skipped.contains(&expected), "{skipped}{expected}");
}

#[test]
fn a_period_without_a_meaning_and_a_store_without_records_are_refused() {
    let workspace = Workspace::new();
    for (options, code, text) in [
        ("--every 7h --at 02:00", 64, "--at: has no meaning for periods of 7h"),
        ("--every 500ms", 64, "--every: must be 1s to "),
        (
            "--every 6h --time-zone Asia/Kolkata",
            64,
            "--time-zone: has no meaning for periods of 6h: set a period of whole days",
        ),
        ("--time-zone Europe/Lodnon", 64, "no time zone \"Europe/Lodnon\"; did you mean Europe/London?"),
        ("--at 2am", 64, "not a time of day"),
        ("-S redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3 --outage 0", 69, ""),
    ] {
        let output = once(&workspace, options, RUN).finish();
        assert_eq!(output.status.code(), Some(code), "{options}: {}", stderr(&output));
        assert!(stderr(&output).contains(text), "{options}: {}", stderr(&output));
    }
    assert_eq!(runs(&workspace), 0);
}
