//! Forwarded signals, and holds that are shorter or longer than the command.

use std::{process::Command, time::Duration};

use rustix::process::Signal;

use crate::support::{Running, Workspace, eventually, is_alive, lines, now, stderr_without_waits};

#[test]
fn signals_are_forwarded_to_the_command() {
    let workspace = Workspace::new();
    for (signal, name) in [
        (Signal::HUP, "HUP"),
        (Signal::INT, "INT"),
        (Signal::QUIT, "QUIT"),
        (Signal::TERM, "TERM"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::CONT, "CONT"),
    ] {
        let script =
            format!("trap 'echo {name} > got; exit 5' {name}; echo > held; while :; do sleep 0.05; done");
        let run = workspace.start("x", &script);
        workspace.wait_for_file("held");
        run.signal(signal);
        assert_eq!(run.code(), Some(5), "{name}");
        assert_eq!(workspace.read("got").trim(), name);
        std::fs::remove_file(workspace.path("held")).unwrap();
    }
}

#[test]
fn a_signal_is_forwarded_to_grandchildren() {
    let workspace = Workspace::new();
    let run = workspace.start("x", "sleep 60 & echo $! > grandchild; wait");
    let grandchild = workspace.wait_for_pid("grandchild");
    run.signal(Signal::TERM);
    assert_eq!(run.code(), Some(143));
    eventually("the end of the grandchild", || !is_alive(grandchild));
    assert_eq!(workspace.status("x")["state"], "free");
}

#[test]
fn under_nohup_a_hang_up_has_no_effect() {
    let workspace = Workspace::new();
    let mut command = Command::new("sh");
    let script = format!(
        "trap '' HUP; exec {} run x sh -c 'echo > held; until [ -e end ]; do sleep 0.05; done; exit 6'",
        env!("CARGO_BIN_EXE_polylock")
    );
    command
        .args(["-c", &script])
        .env("POLYLOCK_STORE", workspace.url())
        .current_dir(workspace.directory.path());
    let run = Running::spawn(command);
    workspace.wait_for_file("held");
    run.signal(Signal::HUP);
    std::fs::write(workspace.path("end"), "").unwrap();
    assert_eq!(run.code(), Some(6));
}

/// Ctrl-C on a terminal goes to both, and polylock may receive it after the end of the command.
#[test]
fn a_signal_from_before_the_release_does_not_interrupt_it() {
    let workspace = Workspace::new();
    let run = workspace.start("x", "echo $$ > child; exec sleep 60");
    let child = workspace.wait_for_pid("child");
    run.signal(Signal::STOP);
    rustix::process::kill_process(child, Signal::INT).unwrap();
    run.signal(Signal::INT);
    eventually("the end of the command", || !is_alive(child));
    run.signal(Signal::CONT);
    let output = run.finish();
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(stderr_without_waits(&output), "");
    assert_eq!(workspace.status("x")["state"], "free");
}

#[test]
fn background_processes_of_an_ended_command_continue() {
    let workspace = Workspace::new();
    let run = workspace.start("x", "sleep 60 >/dev/null 2>&1 & echo $! > left");
    let left = workspace.wait_for_pid("left");
    assert_eq!(run.code(), Some(0));
    assert!(is_alive(left));
    rustix::process::kill_process(left, Signal::KILL).unwrap();
}

#[test]
fn the_signal_that_stops_a_command_can_be_chosen() {
    let workspace = Workspace::new();
    let script = "trap 'echo INT > got; exit 0' INT; trap '' TERM; echo > held; while :; do sleep 0.05; done";
    // The command needs a while for its traps on a busy machine.
    let run = workspace.start("--max-hold 3s --signal INT x", script);
    assert_eq!(run.code(), Some(124));
    assert_eq!(workspace.read("got"), "INT\n");
}

#[test]
fn max_hold_stops_the_command_and_frees_the_lock() {
    let workspace = Workspace::new();
    let run = workspace.start("--max-hold 300ms --status-file status x", "echo > held; exec sleep 60");
    assert_eq!(run.code(), Some(124));
    assert_eq!(lines(&workspace.read("status")).pop().unwrap()["verdict"], "max_hold");
    assert_eq!(workspace.status("x")["state"], "free");
    // A command that ignores the signal is killed after the grace period.
    let run = workspace.start("--max-hold 200ms --grace 200ms x", "trap '' TERM; while :; do sleep 60; done");
    assert_eq!(run.code(), Some(124));
    assert_eq!(workspace.status("x")["state"], "free");
    // A command that exits with 0 on request was stopped early all the same.
    let run = workspace.start("--max-hold 200ms x", "trap 'exit 0' TERM; while :; do sleep 0.05; done");
    assert_eq!(run.code(), Some(124));
}

#[test]
fn min_hold_keeps_the_lock_for_that_time_without_waiting_for_it() {
    let hold = Duration::from_secs(6);
    for ttl in ["30s", "3s"] {
        let workspace = Workspace::new();
        let start = now();
        let run = workspace.start(&format!("--ttl {ttl} --min-hold 6s --status-file status x"), "exit 3");
        assert_eq!(run.code(), Some(3));
        assert!(now().since(start) < hold * 3 / 4, "the run waited");
        assert_eq!(workspace.status("x")["state"], "held");
        let events = lines(&workspace.read("status"));
        let expired = &events[events.len() - 2];
        assert!(
            expired["event"] == "expired" && expired["expires_in_ms"].as_u64().unwrap() <= 6000,
            "{expired}"
        );
        assert_eq!(workspace.start("-w 20 x", "true").code(), Some(0));
        let free_after = now().since(start);
        println!("{ttl}: free after {free_after:?}");
        assert!(free_after >= hold, "{free_after:?}");
        // Waiters check at least once a second.
        assert!(free_after < hold + Duration::from_secs(3), "{free_after:?}");
    }
}

#[test]
fn min_hold_does_not_change_the_ttl() {
    let workspace = Workspace::new();
    let run = workspace.start("--ttl 3s --min-hold 1h x", "echo $POLYLOCK_TTL_MS > ttl; exec sleep 60");
    workspace.wait_for_file("ttl");
    assert_eq!(workspace.read("ttl"), "3000\n");
    run.signal(Signal::KILL);
    let killed = now();
    assert_eq!(workspace.start("-w 20 x", "true").code(), Some(0));
    assert!(now().since(killed) < Duration::from_secs(8), "{:?}", now().since(killed));
    // After a longer command no time is left.
    let run = workspace.start("--min-hold 100ms x", "sleep 0.3");
    assert_eq!(run.code(), Some(0));
    assert_eq!(workspace.status("x")["state"], "free");
}

#[test]
fn a_signal_ends_a_min_hold_that_needs_this_process() {
    let workspace = Workspace::new();
    let (mut command, messages) =
        (workspace.polylock(), std::fs::File::create(workspace.path("stderr")).unwrap());
    // This is longer than the longest lease of the store.
    command.args(["run", "--min-hold", "48h", "x", "sh", "-c", "exit 3"]).stderr(messages);
    let run = Running::spawn(command);
    eventually("the end of the command", || workspace.read("stderr").contains("is kept for another"));
    assert_eq!(workspace.status("x")["state"], "held");
    run.signal(Signal::TERM);
    assert_eq!(run.code(), Some(3));
    let text = workspace.read("stderr");
    assert!(text.contains("before the end of --min-hold"), "{text}");
    assert_eq!(workspace.status("x")["state"], "free");
}

#[test]
fn jitter_can_be_interrupted() {
    for command in ["run --jitter 48h x touch ran", "acquire --jitter 48h x"] {
        let workspace = Workspace::new();
        let mut polylock = workspace.polylock();
        polylock.args(command.split(' '));
        let waiting = Running::spawn(polylock);
        // It has opened the store, so it receives signals.
        eventually("the store", || workspace.path("locks.db").exists());
        waiting.signal(Signal::TERM);
        assert_eq!(waiting.code(), Some(143), "{command}");
        assert!(!workspace.path("ran").exists());
        assert_eq!(workspace.status("x")["state"], "free", "{command}");
    }
}

#[test]
fn shared_holders_coexist_and_exclude_an_exclusive_one() {
    let workspace = Workspace::new();
    let wait = "echo > $0; until [ -e end ]; do sleep 0.05; done";
    let readers: Vec<_> = ["a", "b"]
        .map(|file| {
            let mut command = workspace.polylock();
            command.args(["run", "-s", "x", "sh", "-c", wait, file]);
            let run = Running::spawn(command);
            workspace.wait_for_file(file);
            run
        })
        .into();
    assert_eq!(workspace.call("run -n x true").status.code(), Some(75));
    std::fs::write(workspace.path("end"), "").unwrap();
    for reader in readers {
        assert_eq!(reader.code(), Some(0));
    }
    assert_eq!(workspace.call("run -n x true").status.code(), Some(0));
}
