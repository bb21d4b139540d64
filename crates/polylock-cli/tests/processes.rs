//! The processes of a command: its warden, its group, what loses its parent, and odd places to run from.
#![allow(clippy::unwrap_used, reason = "a failure here fails the test")]

mod support;

use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt, process::Command};

use rustix::process::{Pid, Signal, kill_process};
use support::{Place, Running, eventually, is_alive, stderr, warden_of};

/// The warden of a run with `--status-file status`, when polylock knows that its command runs.
fn settled_warden(place: &Place) -> Pid {
    eventually("a renewal", || place.read("status").contains("\"renewed\""));
    place.wait_for_pid("warden")
}

/// Whether a process is a zombie.
fn is_zombie(pid: Pid) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| stat.rsplit_once(") ").unwrap().1.starts_with('Z'))
}

fn children(pid: Pid) -> Vec<Pid> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().map(|id| Pid::from_raw(id.parse().unwrap()).unwrap()).collect()
}

/// `setsid` forks if it leads a process group, and then the command seems to have ended.
#[test]
fn a_command_may_start_a_session_in_its_place() {
    let place = Place::new();
    let output =
        place.polylock().args(["run", "x", "setsid", "sh", "-c", "sleep 0.2; exit 7"]).output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
}

#[test]
fn what_has_lost_its_parent_is_reaped_while_the_command_runs() {
    let place = Place::new();
    let script = "for i in 1 2 3 4 5 6 7 8; do (setsid sh -c 'echo >> orphans' &); done; echo > started; \
                  until [ -e end ]; do sleep 0.02; done; exit 5";
    let run = place.start("x", script);
    place.wait_for_file("started");
    eventually("the orphans", || place.read("orphans").lines().count() == 8);
    let warden = warden_of(run.pid());
    // The leader of the group and the command.
    eventually("the end of the orphans", || children(warden).len() == 2);
    assert!(!children(warden).into_iter().any(is_zombie));
    fs::write(place.path("end"), "").unwrap();
    assert_eq!(run.code(), Some(5));
}

#[test]
fn nothing_is_left_of_polylocks_own_processes() {
    let place = Place::new();
    let run = place.start("x", "echo $PPID > warden; exit 3");
    let warden = place.wait_for_pid("warden");
    assert_eq!(run.code(), Some(3));
    assert!(!fs::exists(format!("/proc/{warden}")).unwrap());
}

#[test]
fn the_exit_code_comes_back_though_the_warden_was_replaced() {
    let place = Place::new();
    for (end, code) in [("exit 7", 7), ("kill -KILL $$", 137)] {
        let script = format!("echo $PPID > warden; until [ -e end ]; do sleep 0.02; done; {end}");
        let run = place.start("--ttl 900ms --status-file status x", &script);
        let first = settled_warden(&place);
        kill_process(first, Signal::KILL).unwrap();
        eventually("another warden", || warden_of(run.pid()) != first);
        fs::write(place.path("end"), "").unwrap();
        let output = run.finish();
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        assert!(stderr(&output).contains("another one was started"), "{}", stderr(&output));
        fs::remove_file(place.path("end")).unwrap();
        fs::remove_file(place.path("status")).unwrap();
    }
}

/// Nothing runs under a lock that nobody watches.
#[test]
fn a_command_whose_wardens_are_all_killed_is_killed_too() {
    let place = Place::new();
    let run = place.start("--ttl 20s x", "echo $PPID > warden; echo $$ > child; exec sleep 60");
    let (mut warden, child) = (place.wait_for_pid("warden"), place.wait_for_pid("child"));
    while is_alive(child) {
        kill_process(warden, Signal::KILL).ok();
        eventually("another warden, or the end", || {
            let next = children(run.pid()).into_iter().find(|one| {
                one.as_raw_nonzero() > child.as_raw_nonzero() && *one != warden && is_alive(*one)
            });
            warden = next.unwrap_or(warden);
            next.is_some() || !is_alive(child)
        });
    }
    let output = run.finish();
    assert_eq!(output.status.code(), Some(70));
    // The first one may be killed before it has reported that the command runs.
    let said = stderr(&output);
    assert!(
        said.contains("can't watch over the command") || said.contains("can't start the warden"),
        "{said}"
    );
    assert_eq!(place.status("x")["state"], "free");
}

#[test]
fn a_stopped_warden_holds_up_neither_the_exit_code_nor_the_release() {
    let place = Place::new();
    let script = "echo $PPID > warden; until [ -e end ]; do sleep 0.02; done; exit 7";
    let run = place.start("--ttl 900ms --status-file status x", script);
    let warden = settled_warden(&place);
    kill_process(warden, Signal::STOP).unwrap();
    fs::write(place.path("end"), "").unwrap();
    assert_eq!(run.code(), Some(7));
    assert!(!is_alive(warden));
    assert_eq!(place.status("x")["state"], "free");
}

/// A replaced warden is not the ancestor of the command: while polylock lives, its children are searched instead.
#[test]
fn a_replaced_warden_kills_what_has_lost_its_parent_when_polylock_is_stopped() {
    let place = Place::new();
    let script = "echo $PPID > warden; until [ -e go ]; do sleep 0.02; done; \
                  (setsid sh -c 'echo $$ > daemon; exec sleep 60' &); sleep 60";
    let run = place.start("--ttl 1s --status-file status x", script);
    let first = settled_warden(&place);
    kill_process(first, Signal::KILL).unwrap();
    eventually("another warden", || warden_of(run.pid()) != first);
    fs::write(place.path("go"), "").unwrap();
    let daemon = place.wait_for_pid("daemon");
    run.signal(Signal::STOP);
    let next =
        place.start("x", &format!("if [ -d /proc/{daemon} ]; then cat /proc/{daemon}/stat > alive; fi"));
    assert_eq!(next.code(), Some(0));
    assert!(!place.read("alive").contains(") S "), "{}", place.read("alive"));
    run.signal(Signal::CONT);
    assert_eq!(run.code(), Some(79));
}

/// A shell that becomes polylock leaves it children that are not the command's.
#[test]
fn children_that_polylock_had_before_are_not_killed() {
    let place = Place::new();
    let mut command = Command::new("sh");
    let script = format!(
        "sleep 60 >/dev/null 2>&1 & echo $! > sibling; exec {} run --ttl 1s --max-hold 900ms --grace 200ms --status-file status x \
         sh -c 'echo $PPID > warden; trap \"\" TERM; (setsid sleep 60 &); while :; do sleep 1; done'",
        env!("CARGO_BIN_EXE_polylock")
    );
    command.args(["-c", &script]).env("POLYLOCK_STORE", place.url()).current_dir(place.directory.path());
    let run = Running::spawn(command);
    let (sibling, warden) = (place.wait_for_pid("sibling"), settled_warden(&place));
    kill_process(warden, Signal::KILL).unwrap();
    assert_eq!(run.code(), Some(124));
    assert!(is_alive(sibling));
    kill_process(sibling, Signal::KILL).unwrap();
}

#[test]
fn it_runs_from_a_path_that_is_no_utf_8() {
    let place = Place::new();
    let odd = place.directory.path().join(OsStr::from_bytes(b"b\xffn"));
    fs::create_dir(&odd).unwrap();
    let program = odd.join("polylock");
    fs::copy(env!("CARGO_BIN_EXE_polylock"), &program).unwrap();
    let script = "echo $PPID > warden; until [ -e end ]; do sleep 0.02; done; exit 7";
    let mut command = Command::new(&program);
    command
        .args(["run", "--ttl", "900ms", "--status-file", "status", "x", "sh", "-c", script])
        .env("POLYLOCK_STORE", place.url());
    command.current_dir(place.directory.path()).stderr(std::process::Stdio::piped());
    let run = Running::spawn(command);
    // Also for a warden that takes another's place.
    let first = settled_warden(&place);
    kill_process(first, Signal::KILL).unwrap();
    eventually("another warden", || warden_of(run.pid()) != first);
    fs::write(place.path("end"), "").unwrap();
    assert_eq!(run.code(), Some(7));
}

#[test]
fn a_command_line_of_any_size_and_any_bytes_arrives() {
    let place = Place::new();
    let long = "x".repeat(100_000);
    let mut command = place.polylock();
    command.args(["run", "x", "sh", "-c", "printf %s \"$1\" > first; printf %s \"$#\" > number"]);
    command.arg("sh").arg(OsStr::from_bytes(b"a\xff\n %b")).args(std::iter::repeat_n(&long, 12));
    assert!(command.status().unwrap().success());
    assert_eq!(fs::read(place.path("first")).unwrap(), b"a\xff\n %b");
    assert_eq!(place.read("number"), "13");
}
