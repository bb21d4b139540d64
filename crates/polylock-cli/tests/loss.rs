//! A lock that is lost: the command is gone before another can have it, and the exit code is never 0.

mod support;

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use sqlx::Connection;
use support::{Place, eventually, is_alive, lines, now, stderr, stdout, warden_of};

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
fn a_broken_lock_stops_the_command_and_goes_on_when_that_has_ended() {
    let place = Place::new();
    // The command says that all is well when it is asked to stop: the code tells the truth all the same.
    let script = "trap 'echo > asked; sleep 0.3; echo > ended; exit 0' TERM; sleep 60 & echo $! > grandchild; \
                  echo $$ > child; while :; do wait; done";
    let run = place.start("--ttl 3s --label job --status-file status x", script);
    let grandchild = place.wait_for_pid("grandchild");
    place.wait_for_file("child");
    let next = place.start("x", "[ -e ended ] || echo > early");
    place.wait_for_waiters("x", 1);
    let broken = place.call("break --yes --reason stuck x");
    assert!(broken.status.success(), "{}", stderr(&broken));
    let said = stdout(&broken);
    assert!(
        said.starts_with("x: told ")
            && said.contains("(job) to stop; the lock is free when it has stopped, in "),
        "{said}"
    );
    let status = place.status("x");
    assert_eq!(status["holders"][0]["broken"]["reason"], "stuck", "{status}");
    let table = stdout(&place.call("status x"));
    assert!(table.contains("; broken by ") && table.contains(" (stuck), until it has stopped, "), "{table}");

    assert_eq!(next.code(), Some(0));
    assert!(!place.path("early").exists(), "the next one began before the command had ended");
    let output = run.finish();
    assert_eq!(output.status.code(), Some(79));
    assert!(stderr(&output).contains(": stuck; asking the command to stop"), "{}", stderr(&output));
    place.wait_for_file("asked");
    assert!(!is_alive(grandchild));
    let lines = lines(&place.read("status"));
    let [.., lost, verdict] = lines.as_slice() else { panic!("{lines:?}") };
    assert_eq!(
        (&lines[0]["event"], &lost["event"], &verdict["event"]),
        (&"acquired".into(), &"lost".into(), &"verdict".into())
    );
    assert_eq!(lost["broken_reason"], "stuck");
    assert!(lost["by"].as_str().unwrap().contains('@'), "{lost}");
    assert!(lost["reason"].as_str().unwrap().ends_with(": stuck"), "{lost}");
}

/// What has left the group, is deaf and was started in the last moment is waited for, too.
#[test]
fn a_broken_lock_goes_on_when_all_that_the_command_has_started_has_ended() {
    let place = Place::new();
    let script = "trap 'setsid -f sh -c \"trap \\\"\\\" TERM; echo \\$\\$ > daemon; exec sleep 60\"; exit 0' TERM; \
                  echo > held; while :; do sleep 0.02; done";
    let run = place.start("--ttl 3s --grace 500ms x", script);
    place.wait_for_file("held");
    let next = place.start(
        "x",
        "[ -s daemon ] || echo > early; grep -q '^State:.[^ZX]' /proc/$(cat daemon)/status 2>/dev/null && echo > beside; true",
    );
    place.wait_for_waiters("x", 1);
    place.call("break --yes x");
    assert_eq!(run.code(), Some(79));
    assert_eq!(next.code(), Some(0));
    assert!(!place.path("early").exists() && !place.path("beside").exists());
}

#[test]
fn a_break_by_force_does_not_wait() {
    let place = Place::new();
    let run = place.start("--ttl 20s x", "echo > held; exec sleep 60");
    place.wait_for_file("held");
    let broken = place.call("break --yes --force --output jsonl --reason gone x");
    let event = &lines(&stdout(&broken))[0];
    assert_eq!(
        (&event["event"], &event["forced"], &event["reason"]),
        (&"broken".into(), &true.into(), &"gone".into())
    );
    assert!(event["by"].as_str().unwrap().contains('@'), "{event}");
    // Long before its next renewal.
    let start = now();
    assert_eq!(place.call("run --wait 5 x true").status.code(), Some(0));
    assert!(now().since(start) < Duration::from_secs(3));
    drop(run);
}

#[test]
fn break_waits_until_the_holder_has_stopped_or_its_time_is_over() {
    let place = Place::new();
    assert_eq!(place.call("break --yes --wait 1 x").status.code(), Some(0));
    let script = "trap 'until [ -e end ]; do sleep 0.02; done; exit 0' TERM; echo > held; while :; do sleep 0.02; done";
    let run = place.start("--ttl 20s --grace 10s x", script);
    place.wait_for_file("held");
    let early = place.call("break --yes --wait 300ms x");
    assert_eq!(early.status.code(), Some(75));
    assert!(stderr(&early).contains("x is still held by "), "{}", stderr(&early));
    std::fs::write(place.path("end"), "").unwrap();
    assert_eq!(place.call("break --yes --wait 20 x").status.code(), Some(0));
    assert_eq!(place.status("x")["state"], "free");
    assert_eq!(run.code(), Some(79));
}

/// The command ends before the next renewal: the release shows that another may have held the lock meanwhile.
#[tokio::test]
async fn a_loss_that_only_the_release_shows_is_a_loss() {
    for how in ["row", "break"] {
        let place = Place::new();
        let script = "echo > held; until [ -e end ]; do sleep 0.02; done; exit 0";
        let run = place.start("--ttl 30s --status-file status x", script);
        place.wait_for_file("held");
        if how == "row" {
            let mut store = sqlx::SqliteConnection::connect(&place.url()).await.unwrap();
            let gone = sqlx::query("DELETE FROM polylock_holds").execute(&mut store).await.unwrap();
            assert_eq!(gone.rows_affected(), 1);
        } else {
            assert!(place.call("break --yes --force --reason stuck x").status.success());
        }
        assert_eq!(place.call("run -n x true").status.code(), Some(0), "another holds it meanwhile");
        std::fs::write(place.path("end"), "").unwrap();
        let output = run.finish();
        assert_eq!(output.status.code(), Some(79), "{how}: {}", stderr(&output));
        assert!(stderr(&output).contains("lock x lost: "), "{how}: {}", stderr(&output));
        let lines = lines(&place.read("status"));
        let [.., lost, verdict] = lines.as_slice() else { panic!("{lines:?}") };
        assert_eq!((&lost["event"], &verdict["verdict"]), (&"lost".into(), &"lost".into()));
        if how == "break" {
            assert_eq!(lost["broken_reason"], "stuck", "{lost}");
        }
    }
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
    let run = place.start("--ttl 600ms --status-file status x", WITH_CHILD);
    let (child, grandchild) = (place.wait_for_pid("child"), place.wait_for_pid("grandchild"));
    eventually("a renewal", || place.read("status").contains("renewed"));
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
