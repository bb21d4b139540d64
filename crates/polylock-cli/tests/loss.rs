//! A lock that is lost: the command is gone before another can have it, and the exit code is never 0.

mod support;

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use sqlx::Connection;
use support::{Place, eventually, is_alive, lines, now, stderr, warden_of};

/// Writes its own number and that of a child of its own, and works on.
const WITH_CHILD: &str = "sleep 60 & echo $! > grandchild; echo $$ > child; wait";
const TTL: Duration = Duration::from_secs(2);

/// Runs `x` as soon as it is free and writes down which of `pids` are alive then.
fn next_holder(place: &Place, pids: &[Pid]) -> support::Running {
    let look = |pid: &Pid| {
        format!("if grep -q '^State:.[^ZX]' /proc/{pid}/status 2>/dev/null; then echo {pid} >> alive; fi;")
    };
    let script: String = pids.iter().map(look).collect();
    place.start("x", &format!("{script} echo >> next"))
}

#[test]
fn a_killed_polylock_takes_its_command_along_and_the_lock_is_free_in_time() {
    let place = Place::new();
    let run = place.start("--ttl 2s x", WITH_CHILD);
    let (child, grandchild) = (place.wait_for_pid("child"), place.wait_for_pid("grandchild"));
    let warden = warden_of(run.pid());
    let next = next_holder(&place, &[child, grandchild]);
    place.wait_for_waiters("x", 1);

    let killed = now();
    run.signal(Signal::KILL);
    eventually("the death of the command", || !is_alive(child) && !is_alive(grandchild));
    let dead_after = now().since(killed);
    eventually("the end of the warden", || !is_alive(warden));
    place.wait_for_file("next");
    let free_after = now().since(killed);
    println!("dead after {dead_after:?}, free after {free_after:?}");
    assert!(dead_after < Duration::from_secs(1), "{dead_after:?}");
    assert!(free_after < TTL + Duration::from_millis(500), "{free_after:?}");
    assert_eq!(place.read("alive"), "");
    assert_eq!(next.code(), Some(0));
}

#[test]
fn a_stopped_polylock_loses_the_lock_only_after_its_command_is_dead() {
    let place = Place::new();
    let run = place.start("--ttl 1s --status-file status x", WITH_CHILD);
    let (child, grandchild) = (place.wait_for_pid("child"), place.wait_for_pid("grandchild"));
    let next = next_holder(&place, &[child, grandchild]);
    place.wait_for_waiters("x", 1);

    run.signal(Signal::STOP);
    place.wait_for_file("next");
    assert_eq!(place.read("alive"), "", "the command lived beside the next holder");
    assert_eq!(next.code(), Some(0));
    run.signal(Signal::CONT);
    assert_eq!(run.code(), Some(79));
    let verdict = lines(&place.read("status")).pop().unwrap();
    assert_eq!((verdict["verdict"].as_str(), verdict["exit_code"].as_u64()), (Some("lost"), Some(79)));
}

#[test]
fn a_short_stop_loses_nothing() {
    let place = Place::new();
    let run = place.start("--ttl 3s x", "echo > held; until [ -e end ]; do sleep 0.05; done; exit 4");
    place.wait_for_file("held");
    run.signal(Signal::STOP);
    run.signal(Signal::CONT);
    std::fs::write(place.path("end"), "").unwrap();
    assert_eq!(run.code(), Some(4));
}

#[test]
fn a_broken_lock_stops_the_command() {
    let place = Place::new();
    // The child says that all is well when it is asked to stop: the code tells the truth all the same.
    let script = "trap 'echo > asked; exit 0' TERM; sleep 60 & echo $! > grandchild; echo $$ > child; wait";
    let run = place.start("--ttl 1s --label job --status-file status x", script);
    let grandchild = place.wait_for_pid("grandchild");
    place.wait_for_file("child");
    let broken = place.call("break --yes --reason stuck x");
    assert!(broken.status.success(), "{}", stderr(&broken));
    assert_eq!(run.code(), Some(79));
    place.wait_for_file("asked");
    assert!(!is_alive(grandchild));
    let events: Vec<String> =
        lines(&place.read("status")).iter().map(|line| line["event"].as_str().unwrap().to_owned()).collect();
    assert_eq!(events.first().map(String::as_str), Some("acquired"));
    assert_eq!(events[events.len() - 2..], ["lost", "verdict"]);
}

#[tokio::test]
async fn a_store_that_no_longer_answers_stops_the_command_before_the_lease_is_over() {
    let place = Place::new();
    let script = "trap 'echo > asked' TERM; echo $$ > child; while :; do sleep 0.05; done";
    let run = place.start("--ttl 3s --grace 1s --status-file status x", script);
    let child = place.wait_for_pid("child");

    // Nobody can write to the file from here on, so no renewal is acknowledged.
    let mut blocker = sqlx::SqliteConnection::connect(&place.url()).await.unwrap();
    sqlx::query("BEGIN IMMEDIATE").execute(&mut blocker).await.unwrap();
    let blocked = now();
    place.wait_for_file("asked");
    let asked_after = now().since(blocked);
    eventually("the kill", || !is_alive(child));
    let killed_after = now().since(blocked);
    println!("asked after {asked_after:?}, killed after {killed_after:?}");
    // The last renewal may be as old as a third of the lease.
    assert!(asked_after > Duration::from_millis(800), "{asked_after:?}");
    assert!(killed_after - asked_after > Duration::from_millis(800), "no grace");
    assert!(killed_after < Duration::from_secs(3), "{killed_after:?}");

    sqlx::query("ROLLBACK").execute(&mut blocker).await.unwrap();
    assert_eq!(run.code(), Some(79));
    assert_eq!(lines(&place.read("status")).pop().unwrap()["verdict"], "lost");
}

#[test]
fn what_will_not_stop_is_killed_after_its_grace() {
    let place = Place::new();
    let deaf = "trap '' TERM; (trap '' TERM; echo > deaf; while :; do sleep 60; done) & \
                echo $! > grandchild; echo $$ > child; wait; while :; do wait; done";
    let run = place.start("--ttl 1s --grace 300ms x", deaf);
    let (child, grandchild) = (place.wait_for_pid("child"), place.wait_for_pid("grandchild"));
    place.call("break -y x");
    assert_eq!(run.code(), Some(79));
    assert!(!is_alive(child) && !is_alive(grandchild));
}

#[test]
fn what_left_the_group_is_killed_too() {
    let place = Place::new();
    let run = place.start(
        "--ttl 1s --grace 200ms x",
        "setsid sh -c 'echo $$ > stray; exec sleep 60' & echo $$ > child; wait",
    );
    let stray = place.wait_for_pid("stray");
    place.wait_for_file("child");
    place.call("break -y x");
    assert_eq!(run.code(), Some(79));
    eventually("the end of the stray", || !is_alive(stray));
}

#[test]
fn on_lost_kill_asks_nobody() {
    let place = Place::new();
    let script = "trap 'echo > asked' TERM; echo > held; sleep 60 & wait; wait";
    let run = place.start("-q --ttl 1s --on-lost kill x", script);
    place.wait_for_file("held");
    place.call("break -y x");
    let output = run.finish();
    assert_eq!(output.status.code(), Some(79));
    // A loss is told even to those who asked for quiet.
    assert!(stderr(&output).contains("lock x lost: "), "{}", stderr(&output));
    assert!(!place.path("asked").exists());
}

#[test]
fn on_lost_continue_leaves_the_command_alone_and_still_tells() {
    let place = Place::new();
    let script = "echo > held; until [ -e end ]; do sleep 0.05; done; echo > done; exit 0";
    let run = place.start("--ttl 1s --on-lost continue --lost-exit-code 42 --status-file status x", script);
    place.wait_for_file("held");
    place.call("break -y x");
    eventually("word of the loss", || place.read("status").contains("\"lost\""));
    std::fs::write(place.path("end"), "").unwrap();
    assert_eq!(run.code(), Some(42));
    assert!(place.path("done").exists());
}

#[test]
fn a_dead_warden_is_replaced() {
    let place = Place::new();
    let run = place.start("--ttl 600ms x", WITH_CHILD);
    let (child, grandchild) = (place.wait_for_pid("child"), place.wait_for_pid("grandchild"));
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
fn a_hundred_short_leases_are_kept() {
    let place = Place::new();
    // Many renewals, and not one of them may cost the command its life.
    let runs: Vec<_> = (0..8).map(|i| place.start(&format!("--ttl 600ms x{i}"), "exec sleep 3")).collect();
    for run in runs {
        assert_eq!(run.code(), Some(0));
    }
}

#[test]
fn a_kill_from_outside_is_no_loss() {
    let place = Place::new();
    let run = place.start("--ttl 5s x", "echo $$ > child; exec sleep 60");
    let child = place.wait_for_pid("child");
    kill_process(child, Signal::KILL).unwrap();
    assert_eq!(run.code(), Some(137));
    assert_eq!(place.status("x")["state"], "free");
}
