//! `polylock acquire`, `renew` and `release`: holds without a process.

use std::{
    fs,
    io::{self, Write},
    process::{Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Running, Workspace, eventually, now, stderr, stdout};

fn acquire(workspace: &Workspace, arguments: &str) -> String {
    let acquired = workspace.call(&format!("acquire {arguments}"));
    assert!(acquired.status.success(), "{}", stderr(&acquired));
    assert_eq!(stderr(&acquired), "");
    let text = stdout(&acquired);
    assert!(text.ends_with('\n') && text.lines().count() == 1, "{text}");
    text.trim_end().to_owned()
}

fn is_held(workspace: &Workspace) -> bool {
    workspace.status("gpu")["state"] == "held"
}

#[test]
fn a_hold_outlives_its_command() {
    let workspace = Workspace::new();
    let handle = acquire(&workspace, "--for 2h --label report gpu");
    let status = workspace.status("gpu");
    let holder = &status["holders"][0];
    assert_eq!((&holder["label"], &holder["mode"]), (&"report".into(), &"EX".into()));
    assert!(holder["expires_in_ms"].as_u64().unwrap() > 7_100_000, "{status}");
    assert_eq!(workspace.call("run -n gpu true").status.code(), Some(75));
    let busy = workspace.call("acquire -n gpu");
    assert_eq!((busy.status.code(), stdout(&busy)), (Some(75), String::new()));
    assert_eq!(workspace.call("acquire -w 0.1 -E 9 gpu").status.code(), Some(9));

    let renewed = workspace.call(&format!("renew --for 10s {handle}"));
    assert!(renewed.status.success() && stdout(&renewed).is_empty(), "{}", stderr(&renewed));
    let left = || workspace.status("gpu")["holders"][0]["expires_in_ms"].as_u64().unwrap();
    assert!(left() > 7_100_000, "a renewal never shortens: {}", left());
    let renewed = workspace.call(&format!("renew -v --for 8h {handle}"));
    assert!(stderr(&renewed).contains("is held for another 8h"), "{}", stderr(&renewed));
    // The handle has two hours.
    let renewed = workspace.call(&format!("renew {handle}"));
    assert!(renewed.status.success() && left() > 28_000_000, "{} {}", left(), stderr(&renewed));
    let renewed = workspace.call(&format!("renew --output json {handle}"));
    let json: serde_json::Value = serde_json::from_str(&stdout(&renewed)).unwrap();
    assert_eq!((&json["name"], &json["mode"]), (&"gpu".into(), &"EX".into()));
    // The new handle has the lease that is left of eight hours.
    assert_ne!(json["handle"].as_str(), Some(handle.as_str()));
    assert_eq!(json["fencing_token"], workspace.status("gpu")["holders"][0]["fencing_token"]);
    assert!(json["expires_at_ms"].is_u64());

    // From stdin, so that no other user reads it.
    let mut command = workspace.polylock();
    let mut release = command.args(["release", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    let handle = json["handle"].as_str().unwrap();
    release.stdin.take().unwrap().write_all(format!("{handle}\n").as_bytes()).unwrap();
    let released = Running(Some(release)).finish();
    assert!(released.status.success(), "{}", stderr(&released));
    assert!(!is_held(&workspace));
    for command in ["renew", "release"] {
        let lost = workspace.call(&format!("{command} {handle}"));
        assert_eq!(lost.status.code(), Some(79), "{}", stderr(&lost));
        assert!(
            stderr(&lost).contains("lock gpu lost") && !stderr(&lost).contains(handle),
            "{}",
            stderr(&lost)
        );
    }
}

/// Otherwise nobody could release the lock until the end of its lease.
#[test]
fn a_hold_whose_handle_nobody_receives_is_released() {
    let workspace = Workspace::new();
    let own_pid = format!("--while-pid {} gpu", std::process::id());
    for arguments in ["gpu", "--output json gpu", "--hold gpu", &own_pid] {
        let start = |stdout: Stdio| {
            let mut acquire = workspace.polylock();
            acquire.arg("acquire").args(arguments.split(' ')).stdout(stdout).stderr(Stdio::piped());
            Running(Some(acquire.spawn().unwrap()))
        };
        let full = || fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let closed = || io::pipe().unwrap().1;
        for (stdout, reason) in
            [(full().into(), "No space left on device"), (closed().into(), "it is a closed pipe")]
        {
            let failed = start(stdout).finish();
            let text = stderr(&failed);
            assert_eq!(failed.status.code(), Some(70), "{arguments}: {text}");
            assert!(text.contains(reason) && text.contains("the lock was released"), "{arguments}: {text}");
            assert!(!is_held(&workspace), "{arguments}: {text}");
        }
    }
}

#[test]
fn shared_holds_share_the_lock() {
    let workspace = Workspace::new();
    let handles = ["--shared gpu", "--mode PR gpu"].map(|arguments| acquire(&workspace, arguments));
    assert_eq!(workspace.status("gpu")["holders"].as_array().unwrap().len(), 2);
    for handle in handles {
        assert!(workspace.call(&format!("release {handle}")).status.success());
    }
}

#[test]
fn invalid_arguments_are_refused() {
    let workspace = Workspace::new();
    for arguments in [
        "renew gpu",
        "release hold1.EX.EX.1.1.00.gpu",
        "acquire --while-pid 0 gpu",
        "acquire --hold --for 1h gpu",
    ] {
        let refused = workspace.call(arguments);
        assert_eq!(refused.status.code(), Some(64), "{arguments}: {}", stderr(&refused));
    }
    let gone = workspace.call("acquire --while-pid 999999999 gpu");
    assert_eq!(gone.status.code(), Some(64), "{}", stderr(&gone));
    assert!(stderr(&gone).contains("there is no process 999999999"), "{}", stderr(&gone));
}

#[test]
fn a_hold_lasts_as_long_as_a_process() {
    let workspace = Workspace::new();
    let mut sleep = Command::new("sleep").arg("60").spawn().unwrap();
    let pid = sleep.id();
    let handle = acquire(&workspace, &format!("--while-pid {pid} gpu"));
    assert!(handle.starts_with("hold1.EX.EX."), "{handle}");
    assert!(is_held(&workspace));
    assert_eq!(workspace.call("run -n gpu true").status.code(), Some(75));
    sleep.kill().unwrap();
    sleep.wait().unwrap();
    eventually("the lock is released", || !is_held(&workspace));

    // The keeper ends with its hold.
    let mut sleep = Command::new("sleep").arg("60").spawn().unwrap();
    let handle = acquire(&workspace, &format!("--while-pid {} gpu", sleep.id()));
    assert!(workspace.call(&format!("release {handle}")).status.success());
    assert!(!is_held(&workspace));
    sleep.kill().unwrap();
    sleep.wait().unwrap();
}

#[test]
fn a_wait_for_a_busy_lock_ends_with_its_command() {
    let workspace = Workspace::new();
    let handle = acquire(&workspace, "gpu");
    let mut command = workspace.polylock();
    command.args(["acquire", "--while-pid", &std::process::id().to_string(), "gpu"]);
    let waiting = Running::spawn(command);
    workspace.wait_for_waiters("gpu", 1);
    waiting.signal(Signal::KILL);
    workspace.wait_for_waiters("gpu", 0);
    drop(waiting);
    assert!(workspace.call(&format!("release {handle}")).status.success());
    assert!(!is_held(&workspace));
}

#[test]
fn a_command_that_holds_releases_at_its_end() {
    let workspace = Workspace::new();
    let mut command = workspace.polylock();
    command.args(["acquire", "--hold", "gpu"]);
    let holding = Running::spawn(command);
    eventually("it holds the lock", || is_held(&workspace));
    let pid: Pid = holding.pid();
    kill_process(pid, Signal::TERM).unwrap();
    let output = holding.finish();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).starts_with("hold1."), "{}", stdout(&output));
    assert!(!is_held(&workspace));
}

/// The default for an unreachable store is half a minute.
#[test]
fn the_wait_begins_with_the_opening_of_the_store() {
    let workspace = Workspace::new();
    let start = now();
    let output = workspace.call("acquire -S redis://127.0.0.1:1 -w 0.5 gpu");
    assert_eq!(output.status.code(), Some(69), "{}", stderr(&output));
    let took = now().since(start);
    assert!(took >= Duration::from_millis(400) && took < Duration::from_secs(10), "{took:?}");
}
