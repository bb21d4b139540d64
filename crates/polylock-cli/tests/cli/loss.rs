//! A lost lock: the command is dead before another process can have the lock, and the exit code is never 0.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use sqlx::Connection;

use crate::support::{Running, Workspace, eventually, is_alive, lines, now, stderr, stdout, warden_of};

/// Writes its own pid and that of a child, and continues to work.
const WITH_CHILD: &str = "sleep 60 & echo $! > grandchild; echo $$ > child; wait";
/// A command that is killed at once is dead long before the end of this lease, also on a busy machine.
const TTL: Duration = Duration::from_secs(6);

/// Runs `x` as soon as it is free and records which of `pids` are alive then.
fn next_holder(workspace: &Workspace, pids: &[Pid]) -> Running {
    let look = |pid: &Pid| {
        format!("if grep -q '^State:.[^ZX]' /proc/{pid}/status 2>/dev/null; then echo {pid} >> alive; fi;")
    };
    let script: String = pids.iter().map(look).collect();
    workspace.start("x", &format!("{script} echo >> next"))
}

#[test]
fn the_command_dies_with_a_killed_polylock_and_the_lock_becomes_free() {
    let workspace = Workspace::new();
    let run = workspace.start("--ttl 6s x", WITH_CHILD);
    let (child, grandchild) = (workspace.wait_for_pid("child"), workspace.wait_for_pid("grandchild"));
    let warden = warden_of(run.pid());
    let next = next_holder(&workspace, &[child, grandchild]);
    workspace.wait_for_waiters("x", 1);

    let killed = now();
    run.signal(Signal::KILL);
    eventually("the death of the command", || !is_alive(child) && !is_alive(grandchild));
    let dead_after = now().since(killed);
    eventually("the end of the warden", || !is_alive(warden));
    workspace.wait_for_file("next");
    let free_after = now().since(killed);
    println!("dead after {dead_after:?}, free after {free_after:?}");
    // The rest of the lease is at least two thirds of it.
    assert!(dead_after < TTL / 3, "{dead_after:?}");
    assert!(free_after < TTL + Duration::from_secs(2), "{free_after:?}");
    assert_eq!(workspace.read("alive"), "");
    assert_eq!(next.code(), Some(0));
}

#[test]
fn the_command_of_a_stopped_polylock_dies_before_the_lock_is_lost() {
    let workspace = Workspace::new();
    let run = workspace.start("--ttl 3s --grace 200ms --status-file status x", WITH_CHILD);
    let (child, grandchild) = (workspace.wait_for_pid("child"), workspace.wait_for_pid("grandchild"));
    let next = next_holder(&workspace, &[child, grandchild]);
    workspace.wait_for_waiters("x", 1);

    run.signal(Signal::STOP);
    workspace.wait_for_file("next");
    assert_eq!(workspace.read("alive"), "", "the command was alive beside the next holder");
    assert_eq!(next.code(), Some(0));
    run.signal(Signal::CONT);
    assert_eq!(run.code(), Some(79));
    let verdict = lines(&workspace.read("status")).pop().unwrap();
    assert_eq!((verdict["verdict"].as_str(), verdict["exit_code"].as_u64()), (Some("lost"), Some(79)));
}

#[test]
fn a_short_stop_does_not_lose_the_lock() {
    let workspace = Workspace::new();
    let run = workspace.start("--ttl 10s x", "echo > held; until [ -e end ]; do sleep 0.05; done; exit 4");
    workspace.wait_for_file("held");
    run.signal(Signal::STOP);
    run.signal(Signal::CONT);
    std::fs::write(workspace.path("end"), "").unwrap();
    assert_eq!(run.code(), Some(4));
}

#[test]
fn a_broken_lock_is_granted_again_when_the_command_has_ended() {
    let workspace = Workspace::new();
    // The command reports success when it is requested to stop; the exit code shows the loss all the same.
    let script = "trap 'echo > signalled; until [ -e end ]; do sleep 0.02; done; echo > ended; exit 0' TERM; \
                  sleep 60 & echo $! > grandchild; echo $$ > child; while :; do wait; done";
    let run = workspace.start("--ttl 9s --grace 4500ms --label job --status-file status x", script);
    let grandchild = workspace.wait_for_pid("grandchild");
    workspace.wait_for_file("child");
    let next = workspace.start("x", "[ -e ended ] || echo > early");
    workspace.wait_for_waiters("x", 1);
    let broken = workspace.call("break --yes --reason stuck x");
    assert!(broken.status.success(), "{}", stderr(&broken));
    let text = stdout(&broken);
    assert!(
        text.starts_with("x: requested ")
            && text.contains("(job) to stop; the lock is free when it has stopped, in "),
        "{text}"
    );
    let status = workspace.status("x");
    assert_eq!(status["holders"][0]["broken"]["reason"], "stuck", "{status}");
    let table = stdout(&workspace.call("status x"));
    assert!(table.contains("; broken by ") && table.contains(" (stuck), until it has stopped, "), "{table}");
    std::fs::write(workspace.path("end"), "").unwrap();

    assert_eq!(next.code(), Some(0));
    assert!(!workspace.path("early").exists(), "the next one began before the command had ended");
    let output = run.finish();
    assert_eq!(output.status.code(), Some(79));
    assert!(stderr(&output).contains(": stuck; stopping the command"), "{}", stderr(&output));
    workspace.wait_for_file("signalled");
    assert!(!is_alive(grandchild));
    let lines = lines(&workspace.read("status"));
    let [.., lost, verdict] = lines.as_slice() else { panic!("{lines:?}") };
    assert_eq!(
        (&lines[0]["event"], &lost["event"], &verdict["event"]),
        (&"acquired".into(), &"lost".into(), &"verdict".into())
    );
    assert_eq!(lost["broken_reason"], "stuck");
    assert!(lost["by"].as_str().unwrap().contains('@'), "{lost}");
    assert!(lost["reason"].as_str().unwrap().ends_with(": stuck"), "{lost}");
}

/// Processes that have left the group, ignore signals or were started in the last moment are waited for, too.
#[test]
fn a_broken_lock_is_granted_again_when_all_processes_of_the_command_have_ended() {
    let workspace = Workspace::new();
    let script = "trap 'setsid -f sh -c \"trap \\\"\\\" TERM; echo \\$\\$ > daemon; exec sleep 60\"; exit 0' TERM; \
                  echo > held; while :; do sleep 0.02; done";
    // The daemon needs a while to start on a busy machine.
    let run = workspace.start("--ttl 6s --grace 2500ms x", script);
    workspace.wait_for_file("held");
    let next = workspace.start(
        "x",
        "[ -s daemon ] || echo > early; grep -q '^State:.[^ZX]' /proc/$(cat daemon)/status 2>/dev/null && echo > beside; true",
    );
    workspace.wait_for_waiters("x", 1);
    workspace.call("break --yes x");
    assert_eq!(run.code(), Some(79));
    assert_eq!(next.code(), Some(0));
    assert!(!workspace.path("early").exists() && !workspace.path("beside").exists());
}

#[test]
fn a_break_by_force_does_not_wait() {
    let workspace = Workspace::new();
    let run = workspace.start("--ttl 20s x", "echo > held; exec sleep 60");
    workspace.wait_for_file("held");
    let broken = workspace.call("break --yes --force --output jsonl --reason gone x");
    let event = &lines(&stdout(&broken))[0];
    assert_eq!(
        (&event["event"], &event["forced"], &event["reason"]),
        (&"broken".into(), &true.into(), &"gone".into())
    );
    assert!(event["by"].as_str().unwrap().contains('@'), "{event}");
    // The signal comes long before the next renewal.
    let start = now();
    assert_eq!(workspace.call("run --wait 5 x true").status.code(), Some(0));
    assert!(now().since(start) < Duration::from_secs(3));
    drop(run);
}

#[test]
fn break_waits_until_the_holder_has_stopped_or_the_wait_times_out() {
    let workspace = Workspace::new();
    assert_eq!(workspace.call("break --yes --wait 1 x").status.code(), Some(0));
    let script = "trap 'until [ -e end ]; do sleep 0.02; done; exit 0' TERM; echo > held; while :; do sleep 0.02; done";
    let run = workspace.start("--ttl 20s --grace 10s x", script);
    workspace.wait_for_file("held");
    let early = workspace.call("break --yes --wait 300ms x");
    assert_eq!(early.status.code(), Some(75));
    assert!(stderr(&early).contains("x is still held by "), "{}", stderr(&early));
    std::fs::write(workspace.path("end"), "").unwrap();
    assert_eq!(workspace.call("break --yes --wait 20 x").status.code(), Some(0));
    assert_eq!(workspace.status("x")["state"], "free");
    assert_eq!(run.code(), Some(79));
}

/// The command ends before the next renewal: the release shows that another process may have held the lock meanwhile.
#[tokio::test]
async fn a_loss_that_is_detected_at_the_release_is_a_loss() {
    for how in ["row", "break"] {
        let workspace = Workspace::new();
        let script = "echo > held; until [ -e end ]; do sleep 0.02; done; exit 0";
        let run = workspace.start("--ttl 30s --status-file status x", script);
        workspace.wait_for_file("held");
        if how == "row" {
            let mut store = sqlx::SqliteConnection::connect(&workspace.url()).await.unwrap();
            let gone = sqlx::query("DELETE FROM polylock_holds").execute(&mut store).await.unwrap();
            assert_eq!(gone.rows_affected(), 1);
        } else {
            assert!(workspace.call("break --yes --force --reason stuck x").status.success());
        }
        assert_eq!(workspace.call("run -n x true").status.code(), Some(0), "another holds it meanwhile");
        std::fs::write(workspace.path("end"), "").unwrap();
        let output = run.finish();
        assert_eq!(output.status.code(), Some(79), "{how}: {}", stderr(&output));
        assert!(stderr(&output).contains("lock x lost: "), "{how}: {}", stderr(&output));
        let lines = lines(&workspace.read("status"));
        let [.., lost, verdict] = lines.as_slice() else { panic!("{lines:?}") };
        assert_eq!((&lost["event"], &verdict["verdict"]), (&"lost".into(), &"lost".into()));
        if how == "break" {
            assert_eq!(lost["broken_reason"], "stuck", "{lost}");
        }
    }
}

#[tokio::test]
async fn an_unresponsive_store_stops_the_command_before_the_end_of_the_lease() {
    let workspace = Workspace::new();
    let (ttl, grace) = (Duration::from_secs(9), Duration::from_secs(3));
    let script = "trap 'echo > signalled' TERM; echo $$ > child; while :; do sleep 0.05; done";
    let run = workspace.start("--ttl 9s --grace 3s --status-file status x", script);
    let child = workspace.wait_for_pid("child");
    // Then the lease ends more than a second before a whole lease has passed, which is the limit below.
    eventually("a part of the lease has passed", || {
        workspace.status("x")["holders"][0]["expires_in_ms"].as_u64().unwrap() < 7400
    });

    // No other connection can write to the file from here on, so no renewal is acknowledged.
    let mut blocker = sqlx::SqliteConnection::connect(&workspace.url()).await.unwrap();
    sqlx::query("BEGIN IMMEDIATE").execute(&mut blocker).await.unwrap();
    let blocked = now();
    workspace.wait_for_file("signalled");
    let signalled_after = now().since(blocked);
    eventually("the kill", || !is_alive(child));
    let killed_after = now().since(blocked);
    println!("signalled after {signalled_after:?}, killed after {killed_after:?}");
    // The last renewal may be older than a third of the lease.
    assert!(signalled_after > Duration::from_secs(1), "{signalled_after:?}");
    // The signal is seen late on a busy machine.
    assert!(killed_after - signalled_after > grace / 3, "no grace");
    assert!(killed_after < ttl, "{killed_after:?}");

    sqlx::query("ROLLBACK").execute(&mut blocker).await.unwrap();
    assert_eq!(run.code(), Some(79));
    assert_eq!(lines(&workspace.read("status")).pop().unwrap()["verdict"], "lost");
}

#[test]
fn a_command_that_ignores_the_signal_is_killed_after_the_grace_period() {
    let workspace = Workspace::new();
    let script = "trap '' TERM; (trap '' TERM; echo > started; while :; do sleep 60; done) & \
                echo $! > grandchild; echo $$ > child; wait; while :; do wait; done";
    let run = workspace.start("--ttl 3s --grace 500ms x", script);
    let (child, grandchild) = (workspace.wait_for_pid("child"), workspace.wait_for_pid("grandchild"));
    workspace.call("break -y x");
    assert_eq!(run.code(), Some(79));
    assert!(!is_alive(child) && !is_alive(grandchild));
}

#[test]
fn a_process_that_has_left_the_group_is_killed() {
    let workspace = Workspace::new();
    let run = workspace.start(
        "--ttl 3s --grace 500ms x",
        "setsid sh -c 'echo $$ > daemon; exec sleep 60' & echo $$ > child; wait",
    );
    let daemon = workspace.wait_for_pid("daemon");
    workspace.wait_for_file("child");
    workspace.call("break -y x");
    assert_eq!(run.code(), Some(79));
    eventually("the end of the daemon", || !is_alive(daemon));
}

#[test]
fn on_lost_kill_sends_no_signal_first() {
    let workspace = Workspace::new();
    let script = "trap 'echo > signalled' TERM; echo > held; sleep 60 & wait; wait";
    let run = workspace.start("-q --ttl 3s --on-lost kill x", script);
    workspace.wait_for_file("held");
    workspace.call("break -y x");
    let output = run.finish();
    assert_eq!(output.status.code(), Some(79));
    // A loss is reported even with `--quiet`.
    assert!(stderr(&output).contains("lock x lost: "), "{}", stderr(&output));
    assert!(!workspace.path("signalled").exists());
}

#[test]
fn on_lost_continue_does_not_stop_the_command_and_reports_the_loss() {
    let workspace = Workspace::new();
    let script = "echo > held; until [ -e end ]; do sleep 0.05; done; echo > done; exit 0";
    let run =
        workspace.start("--ttl 1s --on-lost continue --lost-exit-code 42 --status-file status x", script);
    workspace.wait_for_file("held");
    workspace.call("break -y x");
    eventually("the report of the loss", || workspace.read("status").contains("\"lost\""));
    std::fs::write(workspace.path("end"), "").unwrap();
    assert_eq!(run.code(), Some(42));
    assert!(workspace.path("done").exists());
}

#[test]
fn a_killed_warden_is_replaced() {
    let workspace = Workspace::new();
    let run = workspace.start("--ttl 3s --grace 200ms --status-file status x", WITH_CHILD);
    let (child, grandchild) = (workspace.wait_for_pid("child"), workspace.wait_for_pid("grandchild"));
    eventually("a renewal", || workspace.read("status").contains("renewed"));
    let first = warden_of(run.pid());
    kill_process(first, Signal::KILL).unwrap();
    let mut second = first;
    eventually("another warden", || {
        second = warden_of(run.pid());
        second != first
    });
    run.signal(Signal::KILL);
    eventually("the death of the command", || !is_alive(child) && !is_alive(grandchild));
    eventually("the end of the warden", || !is_alive(second));
}

#[test]
fn short_leases_are_renewed_in_time() {
    let workspace = Workspace::new();
    // Several renewals take place, and none of them may end the command.
    let runs: Vec<_> =
        (0..8).map(|i| workspace.start(&format!("--ttl 3s --grace 200ms x{i}"), "exec sleep 7")).collect();
    for run in runs {
        assert_eq!(run.code(), Some(0));
    }
}

#[test]
fn a_command_killed_by_another_program_is_not_a_loss() {
    let workspace = Workspace::new();
    let run = workspace.start("--ttl 5s x", "echo $$ > child; exec sleep 60");
    let child = workspace.wait_for_pid("child");
    kill_process(child, Signal::KILL).unwrap();
    assert_eq!(run.code(), Some(137));
    assert_eq!(workspace.status("x")["state"], "free");
}
