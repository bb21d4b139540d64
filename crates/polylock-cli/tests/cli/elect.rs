//! `polylock elect`: one process of several runs the command.

use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use sqlx::Connection;

use crate::support::{Running, Workspace, eventually, is_alive, lines, warden_of};

/// Adds the number of its process and its token to the file `led`, and runs until the file `end` exists.
const LEAD: &str = "echo $$ $POLYLOCK_FENCING_TOKEN >>led; until [ -e end ]; do sleep 0.02; done; exit 3";

/// Starts a candidate with these options and this script.
fn candidate(workspace: &Workspace, options: &str, script: &str) -> Running {
    let mut command = workspace.polylock();
    command.arg("elect").args(options.split(' ')).args(["x", "sh", "-c", script]);
    Running::spawn(command)
}

/// The terms so far: the process of the command, and the token.
fn terms(workspace: &Workspace) -> Vec<(i32, u64)> {
    let text = workspace.read("led");
    let complete = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    let numbers = |line: &str| {
        let (process, token) = line.split_once(' ').unwrap();
        (process.parse().unwrap(), token.parse().unwrap())
    };
    complete.map(numbers).collect()
}

fn wait_for_terms(workspace: &Workspace, count: usize) -> Vec<(i32, u64)> {
    eventually("a term", || terms(workspace).len() >= count);
    terms(workspace)
}

#[test]
fn the_command_runs_on_one_candidate_and_then_on_the_next() {
    let workspace = Workspace::new();
    let first = candidate(&workspace, "--ttl 20s", LEAD);
    wait_for_terms(&workspace, 1);
    let second = candidate(&workspace, "--label next", LEAD);
    workspace.wait_for_waiters("x", 1);
    assert_eq!(workspace.status("x")["waiters"][0]["label"], "next");
    first.signal(Signal::TERM);
    assert_eq!(first.code(), Some(143));
    let led = wait_for_terms(&workspace, 2);
    assert!(led[1].1 > led[0].1, "{led:?}");
    std::fs::write(workspace.path("end"), "").unwrap();
    assert_eq!(second.code(), Some(3));
    assert_eq!(workspace.status("x")["state"], "free");
}

/// A command that exits leads again only if `--restart` says so.
#[test]
fn the_exit_of_the_command_ends_polylock_unless_it_is_to_be_restarted() {
    let workspace = Workspace::new();
    // It fails twice, and then succeeds.
    let script = "echo >>runs; [ $(wc -l <runs) -ge 3 ] || exit 5";
    let runs = || workspace.read("runs").lines().count();
    assert_eq!(candidate(&workspace, "--restart no", script).code(), Some(5));
    assert_eq!(runs(), 1);
    let options = "--restart on-failure --restart-delay 0 --status-file status";
    assert_eq!(candidate(&workspace, options, script).code(), Some(0));
    assert_eq!(runs(), 3);
    let events = lines(&workspace.read("status"));
    let of = |kind: &str| events.iter().filter(|event| event["event"] == kind).count();
    assert_eq!((of("acquired"), of("released"), of("verdict")), (2, 2, 1), "{events:?}");

    let always = candidate(&workspace, "--restart always --restart-delay 10ms", "echo >>runs");
    eventually("three more runs", || runs() >= 6);
    // It waits or runs: both end at once.
    always.signal(Signal::TERM);
    let code = always.code();
    assert!(code == Some(143) || code == Some(0), "{code:?}");
    assert_eq!(workspace.status("x")["state"], "free");
}

/// The lock of the leader is broken: its command stops, the other candidate leads, and the former leader campaigns behind it.
#[test]
fn a_leader_that_loses_the_lock_stops_the_command_and_campaigns_again() {
    let workspace = Workspace::new();
    let candidates = ["first", "second"].map(|label| {
        let candidate = candidate(&workspace, &format!("--ttl 4s --grace 100ms --label {label}"), LEAD);
        eventually("the candidate campaigns", || {
            let status = workspace.status("x").to_string();
            status.contains(label)
        });
        candidate
    });
    for term in 1..4 {
        let led = wait_for_terms(&workspace, term);
        let before = Pid::from_raw(led[term - 1].0).unwrap();
        workspace.wait_for_waiters("x", 1);
        assert!(workspace.call("break --yes x").status.success());
        let led = wait_for_terms(&workspace, term + 1);
        assert!(!is_alive(before), "both commands run");
        assert!(led[term].1 > led[term - 1].1, "{led:?}");
    }
    for candidate in &candidates {
        candidate.signal(Signal::TERM);
    }
    assert_eq!(candidates.map(Running::code), [Some(143), Some(143)]);
}

/// The warden stops the command of a leader that does not run, and the leader campaigns again when it does.
#[test]
fn a_stopped_leader_does_not_run_beside_the_next_one() {
    let workspace = Workspace::new();
    let first = candidate(&workspace, "--ttl 2s --restart always", LEAD);
    let led = wait_for_terms(&workspace, 1);
    let second = candidate(&workspace, "--ttl 2s", LEAD);
    workspace.wait_for_waiters("x", 1);
    first.signal(Signal::STOP);
    let command = Pid::from_raw(led[0].0).unwrap();
    wait_for_terms(&workspace, 2);
    assert!(!is_alive(command), "both commands run");
    first.signal(Signal::CONT);
    workspace.wait_for_waiters("x", 1);
    second.signal(Signal::TERM);
    assert_eq!(second.code(), Some(143));
    let led = wait_for_terms(&workspace, 3);
    // A killed polylock leaves no command behind either.
    let warden = warden_of(first.pid());
    first.signal(Signal::KILL);
    let command = Pid::from_raw(led[2].0).unwrap();
    eventually("the end of the command", || !is_alive(command) && !is_alive(warden));
}

#[test]
fn a_signal_ends_polylock_although_the_command_is_to_be_restarted() {
    let workspace = Workspace::new();
    let script = "trap 'exit 0' TERM; echo $$ 1 >>led; while :; do sleep 0.02; done";
    let leader = candidate(&workspace, "--restart always --restart-delay 10ms", script);
    wait_for_terms(&workspace, 1);
    // A waiting candidate leaves the queue.
    let follower = candidate(&workspace, "--restart always", script);
    workspace.wait_for_waiters("x", 1);
    follower.signal(Signal::INT);
    assert_eq!(follower.code(), Some(130));
    workspace.wait_for_waiters("x", 0);
    leader.signal(Signal::TERM);
    assert_eq!(leader.code(), Some(0));
    assert_eq!(terms(&workspace).len(), 1);
}

/// The command has ended, and the store does not confirm the release yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_during_a_release_ends_polylock() {
    let workspace = Workspace::new();
    let leader = candidate(&workspace, "--restart always --restart-delay 10ms", LEAD);
    wait_for_terms(&workspace, 1);
    let warden = warden_of(leader.pid());
    let mut store = sqlx::SqliteConnection::connect(&workspace.url()).await.unwrap();
    sqlx::query("BEGIN EXCLUSIVE").execute(&mut store).await.unwrap();
    std::fs::write(workspace.path("end"), "").unwrap();
    // A process that has ended stays there until its parent has noticed that.
    eventually("the end of the command is noticed", || !Path::new(&format!("/proc/{warden}")).exists());
    leader.signal(Signal::TERM);
    assert_eq!(leader.code(), Some(3));
    sqlx::query("ROLLBACK").execute(&mut store).await.unwrap();
    assert_eq!(terms(&workspace).len(), 1);
}

/// A command that treats a hang-up as a request to read its settings again stays under the rule.
#[test]
fn a_hang_up_that_the_command_survives_does_not_end_the_election() {
    let workspace = Workspace::new();
    let script = "trap 'echo >>hups' HUP; echo $$ 1 >>led; until [ -e end ]; do sleep 0.02; done; exit 4";
    let leader = candidate(&workspace, "--restart on-failure --restart-delay 10ms", script);
    let led = wait_for_terms(&workspace, 1);
    leader.signal(Signal::HUP);
    workspace.wait_for_file("hups");
    let command = Pid::from_raw(led[0].0).unwrap();
    kill_process(command, Signal::KILL).unwrap();
    wait_for_terms(&workspace, 2);
    // This one is ended by it.
    let other = candidate(&workspace, "--restart always", "exec sleep 60");
    workspace.wait_for_waiters("x", 1);
    leader.signal(Signal::TERM);
    std::fs::write(workspace.path("end"), "").unwrap();
    let code = leader.code();
    assert!(code == Some(143) || code == Some(4), "{code:?}");
    eventually("the other leads", || workspace.status("x")["waiters"].as_array().unwrap().is_empty());
    warden_of(other.pid());
    other.signal(Signal::HUP);
    assert_eq!(other.code(), Some(129));
}

#[test]
fn a_command_that_does_not_exist_ends_polylock() {
    let workspace = Workspace::new();
    let output = workspace.call("elect --restart always x ./no-such-command");
    assert_eq!(output.status.code(), Some(127));
    assert_eq!(workspace.status("x")["state"], "free");
    assert_eq!(workspace.call("elect --ttl 4s --grace 3s x true").status.code(), Some(64));
    // Under the lock of the election, it would wait for itself.
    let mut nested = workspace.polylock();
    nested.args(["elect", "x", env!("CARGO_BIN_EXE_polylock"), "elect", "x", "true"]);
    assert_eq!(Running::spawn(nested).code(), Some(64));
}

/// A wait has no limit, whatever the URL says.
#[test]
fn a_candidate_waits_without_a_limit() {
    let workspace = Workspace::new();
    let leader = workspace.start("x", LEAD);
    wait_for_terms(&workspace, 1);
    let url = format!("{}?polylock.wait=100ms&polylock.outage=0s", workspace.url());
    let mut command = workspace.polylock_without_store();
    command.args(["elect", "-S", &url, "x", "true"]);
    let candidate = Running::spawn(command);
    workspace.wait_for_waiters("x", 1);
    // The age of the queue entry shows that the limit has passed.
    eventually("a wait beyond the limit", || {
        workspace.status("x")["waiters"][0]["age_ms"].as_u64().is_some_and(|age| age > 400)
    });
    std::fs::write(workspace.path("end"), "").unwrap();
    assert_eq!(leader.code(), Some(3));
    assert_eq!(candidate.code(), Some(0));
}
