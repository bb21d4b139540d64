//! Signals that are passed on, and holds that are kept shorter or longer than the command.

mod support;

use std::{process::Command, time::Duration};

use rustix::process::Signal;
use support::{Place, Running, eventually, is_alive, lines, now};

#[test]
fn signals_reach_the_command_and_its_code_comes_back() {
    let place = Place::new();
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
        let run = place.start("x", &script);
        place.wait_for_file("held");
        run.signal(signal);
        assert_eq!(run.code(), Some(5), "{name}");
        assert_eq!(place.read("got").trim(), name);
        std::fs::remove_file(place.path("held")).unwrap();
    }
}

#[test]
fn a_signal_reaches_grandchildren_too() {
    let place = Place::new();
    let run = place.start("x", "sleep 60 & echo $! > grandchild; wait");
    let grandchild = place.wait_for_pid("grandchild");
    run.signal(Signal::TERM);
    assert_eq!(run.code(), Some(143));
    eventually("the end of the grandchild", || !is_alive(grandchild));
    assert_eq!(place.status("x")["state"], "free");
}

#[test]
fn under_nohup_a_hang_up_harms_nobody() {
    let place = Place::new();
    let mut command = Command::new("sh");
    let script = format!(
        "trap '' HUP; exec {} run x sh -c 'echo > held; until [ -e end ]; do sleep 0.05; done; exit 6'",
        env!("CARGO_BIN_EXE_polylock")
    );
    command.args(["-c", &script]).env("POLYLOCK_STORE", place.url()).current_dir(place.directory.path());
    let run = Running::spawn(command);
    place.wait_for_file("held");
    run.signal(Signal::HUP);
    std::fs::write(place.path("end"), "").unwrap();
    assert_eq!(run.code(), Some(6));
}

#[test]
fn what_the_command_leaves_running_is_left_alone() {
    let place = Place::new();
    let run = place.start("x", "sleep 60 >/dev/null 2>&1 & echo $! > left");
    let left = place.wait_for_pid("left");
    assert_eq!(run.code(), Some(0));
    assert!(is_alive(left));
    rustix::process::kill_process(left, Signal::KILL).unwrap();
}

#[test]
fn max_hold_stops_the_command_and_frees_the_lock() {
    let place = Place::new();
    let run = place.start("--max-hold 300ms --status-file status x", "echo > held; exec sleep 60");
    assert_eq!(run.code(), Some(143));
    assert_eq!(lines(&place.read("status")).pop().unwrap()["verdict"], "max_hold");
    assert_eq!(place.status("x")["state"], "free");
    // What does not heed the signal is killed after the grace.
    let run = place.start("--max-hold 200ms --grace 200ms x", "trap '' TERM; while :; do sleep 60; done");
    assert_eq!(run.code(), Some(137));
    assert_eq!(place.status("x")["state"], "free");
}

#[test]
fn min_hold_leaves_the_lock_taken_without_waiting_for_it() {
    let place = Place::new();
    let start = now();
    let run = place.start("--ttl 1s --min-hold 3s --status-file status x", "exit 3");
    assert_eq!(run.code(), Some(3));
    assert!(now().since(start) < Duration::from_secs(2), "it waited");
    assert_eq!(place.status("x")["state"], "held");
    let events = lines(&place.read("status"));
    assert_eq!(events[events.len() - 2]["event"], "expired");
    let next = place.start("-w 20 x", "true");
    assert_eq!(next.code(), Some(0));
    assert!(now().since(start) >= Duration::from_secs(3), "it was free too soon");
}

#[test]
fn jitter_can_be_interrupted() {
    let place = Place::new();
    let run = place.start("--jitter 1h x", "touch ran");
    // It has opened the store, so it listens to signals.
    eventually("the store", || place.path("locks.db").exists());
    run.signal(Signal::TERM);
    assert_eq!(run.code(), Some(143));
    assert!(!place.path("ran").exists());
}

#[test]
fn shared_holders_meet_and_exclude_an_exclusive_one() {
    let place = Place::new();
    let wait = "echo > $0; until [ -e end ]; do sleep 0.05; done";
    let readers: Vec<_> = ["a", "b"]
        .map(|file| {
            let mut command = place.polylock();
            command.args(["run", "-s", "x", "sh", "-c", wait, file]);
            let run = Running::spawn(command);
            place.wait_for_file(file);
            run
        })
        .into();
    assert_eq!(place.call("run -n x true").status.code(), Some(75));
    std::fs::write(place.path("end"), "").unwrap();
    for reader in readers {
        assert_eq!(reader.code(), Some(0));
    }
    assert_eq!(place.call("run -n x true").status.code(), Some(0));
}
