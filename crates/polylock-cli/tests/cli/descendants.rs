//! The processes of a command: its warden, its group, processes that lose their parents, and unusual environments.

use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt, process::Command};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Running, Workspace, eventually, is_alive, stderr, warden_of};

/// Returns the warden of a run with `--status-file status`, when polylock knows that its command runs.
fn running_warden(workspace: &Workspace) -> Pid {
    eventually("a renewal", || workspace.read("status").contains("\"renewed\""));
    workspace.wait_for_pid("warden")
}

/// Returns true if a process is a zombie.
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
fn a_command_may_continue_in_a_session_of_its_own() {
    let workspace = Workspace::new();
    let output =
        workspace.polylock().args(["run", "x", "setsid", "sh", "-c", "sleep 0.2; exit 7"]).output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
}

#[test]
fn orphans_are_reaped_while_the_command_runs() {
    let workspace = Workspace::new();
    let script = "for i in 1 2 3 4 5 6 7 8; do (setsid sh -c 'echo >> orphans' &); done; echo > started; \
                  until [ -e end ]; do sleep 0.02; done; exit 5";
    let run = workspace.start("x", script);
    workspace.wait_for_file("started");
    eventually("the orphans", || workspace.read("orphans").lines().count() == 8);
    let warden = warden_of(run.pid());
    // The remaining children are the leader of the group and the command.
    eventually("the end of the orphans", || children(warden).len() == 2);
    assert!(!children(warden).into_iter().any(is_zombie));
    fs::write(workspace.path("end"), "").unwrap();
    assert_eq!(run.code(), Some(5));
}

#[test]
fn no_process_of_polylock_remains() {
    let workspace = Workspace::new();
    let run = workspace.start("x", "echo $PPID > warden; exit 3");
    let warden = workspace.wait_for_pid("warden");
    assert_eq!(run.code(), Some(3));
    assert!(!fs::exists(format!("/proc/{warden}")).unwrap());
}

#[test]
fn the_exit_code_is_returned_after_a_replacement_of_the_warden() {
    let workspace = Workspace::new();
    for (end, code) in [("exit 7", 7), ("kill -KILL $$", 137)] {
        let script = format!("echo $PPID > warden; until [ -e end ]; do sleep 0.02; done; {end}");
        let run = workspace.start("--ttl 3s --grace 200ms --status-file status x", &script);
        let first = running_warden(&workspace);
        kill_process(first, Signal::KILL).unwrap();
        eventually("another warden", || warden_of(run.pid()) != first);
        fs::write(workspace.path("end"), "").unwrap();
        let output = run.finish();
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        assert!(stderr(&output).contains("another one was started"), "{}", stderr(&output));
        fs::remove_file(workspace.path("end")).unwrap();
        fs::remove_file(workspace.path("status")).unwrap();
    }
}

/// No command runs under a lock without supervision.
#[test]
fn a_command_is_killed_if_all_its_wardens_are_killed() {
    let workspace = Workspace::new();
    let run = workspace.start("--ttl 20s x", "echo $PPID > warden; echo $$ > child; exec sleep 60");
    let (mut warden, child) = (workspace.wait_for_pid("warden"), workspace.wait_for_pid("child"));
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
    let text = stderr(&output);
    assert!(text.contains("can't supervise the command"), "{text}");
    assert_eq!(workspace.status("x")["state"], "free");
}

#[test]
fn a_stopped_warden_delays_neither_the_exit_code_nor_the_release() {
    let workspace = Workspace::new();
    let script = "echo $PPID > warden; until [ -e end ]; do sleep 0.02; done; exit 7";
    let run = workspace.start("--ttl 3s --grace 200ms --status-file status x", script);
    let warden = running_warden(&workspace);
    kill_process(warden, Signal::STOP).unwrap();
    fs::write(workspace.path("end"), "").unwrap();
    assert_eq!(run.code(), Some(7));
    assert!(!is_alive(warden));
    assert_eq!(workspace.status("x")["state"], "free");
}

/// A replaced warden is not the ancestor of the command: while polylock lives, its children are searched instead.
#[test]
fn a_replacement_warden_kills_orphans_when_polylock_is_stopped() {
    let workspace = Workspace::new();
    let script = "echo $PPID > warden; until [ -e go ]; do sleep 0.02; done; \
                  (setsid sh -c 'echo $$ > daemon; exec sleep 60' &); sleep 60";
    let run = workspace.start("--ttl 3s --grace 200ms --status-file status x", script);
    let first = running_warden(&workspace);
    kill_process(first, Signal::KILL).unwrap();
    eventually("another warden", || warden_of(run.pid()) != first);
    fs::write(workspace.path("go"), "").unwrap();
    let daemon = workspace.wait_for_pid("daemon");
    run.signal(Signal::STOP);
    let next =
        workspace.start("x", &format!("if [ -d /proc/{daemon} ]; then cat /proc/{daemon}/stat > alive; fi"));
    assert_eq!(next.code(), Some(0));
    assert!(!workspace.read("alive").contains(") S "), "{}", workspace.read("alive"));
    run.signal(Signal::CONT);
    assert_eq!(run.code(), Some(79));
}

/// A shell that replaces itself by polylock leaves it children that are not the command's.
#[test]
fn children_from_before_the_exec_of_polylock_are_not_killed() {
    let workspace = Workspace::new();
    let mut command = Command::new("sh");
    let script = format!(
        "sleep 60 >/dev/null 2>&1 & echo $! > sibling; exec {} run --ttl 3s --max-hold 5s --grace 200ms --status-file status x \
         sh -c 'echo $PPID > warden; trap \"\" TERM; (setsid sleep 60 &); while :; do sleep 1; done'",
        env!("CARGO_BIN_EXE_polylock")
    );
    command
        .args(["-c", &script])
        .env("POLYLOCK_STORE", workspace.url())
        .current_dir(workspace.directory.path());
    let run = Running::spawn(command);
    let (sibling, warden) = (workspace.wait_for_pid("sibling"), running_warden(&workspace));
    kill_process(warden, Signal::KILL).unwrap();
    assert_eq!(run.code(), Some(124));
    assert!(is_alive(sibling));
    kill_process(sibling, Signal::KILL).unwrap();
}

#[test]
fn a_program_path_that_is_not_utf_8_works() {
    let workspace = Workspace::new();
    let directory = workspace.directory.path().join(OsStr::from_bytes(b"b\xffn"));
    fs::create_dir(&directory).unwrap();
    let program = directory.join("polylock");
    fs::copy(env!("CARGO_BIN_EXE_polylock"), &program).unwrap();
    let script = "echo $PPID > warden; until [ -e end ]; do sleep 0.02; done; exit 7";
    let mut command = Command::new(&program);
    command
        .args(["run", "--ttl", "3s", "--grace", "200ms", "--status-file", "status", "x", "sh", "-c", script])
        .env("POLYLOCK_STORE", workspace.url());
    command.current_dir(workspace.directory.path()).stderr(std::process::Stdio::piped());
    let run = Running::spawn(command);
    // This also applies to a warden that replaces another.
    let first = running_warden(&workspace);
    kill_process(first, Signal::KILL).unwrap();
    eventually("another warden", || warden_of(run.pid()) != first);
    fs::write(workspace.path("end"), "").unwrap();
    assert_eq!(run.code(), Some(7));
}

#[test]
fn a_command_line_of_any_size_and_any_bytes_is_passed_on() {
    let workspace = Workspace::new();
    let long = "x".repeat(100_000);
    let mut command = workspace.polylock();
    command.args(["run", "x", "sh", "-c", "printf %s \"$1\" > first; printf %s \"$#\" > number"]);
    command.arg("sh").arg(OsStr::from_bytes(b"a\xff\n %b")).args(std::iter::repeat_n(&long, 12));
    assert!(command.status().unwrap().success());
    assert_eq!(fs::read(workspace.path("first")).unwrap(), b"a\xff\n %b");
    assert_eq!(workspace.read("number"), "13");
}
