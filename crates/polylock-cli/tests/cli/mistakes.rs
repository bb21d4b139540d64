//! Command lines with mistakes: the message says what to write instead.

use std::{
    fs::{self, Permissions},
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    process::Command,
    time::Duration,
};

use rustix::process::geteuid;

use crate::support::{Workspace, assert_code, now, stderr};

#[track_caller]
fn assert_refused(workspace: &Workspace, arguments: &[&str], code: i32, expected: &str) -> String {
    let output = workspace.polylock().args(arguments).output().unwrap();
    assert_code(&output, code, expected);
    stderr(&output)
}

#[test]
fn values_of_options() {
    let workspace = Workspace::new();
    for (arguments, expected) in [
        ("run --ttl -5s", "\"-5s\" is not a duration: write seconds (2.5) or units"),
        ("run --wait -1", "\"-1\" is not a duration"),
        ("run --wait -n", "\"-n\" is not a duration"),
        ("run --slots -1", "-1 is not in 1..=1024"),
        ("once --retries -1", "-1 is not in 0..="),
        ("run --max-hold 0", "it would stop the command at once: omit it for no limit"),
        ("run --min-hold 400d", "it is longer than 31d"),
        ("run --metrics-listen 9464", "write an IP address and a port, such as 127.0.0.1:9464"),
        ("run --metrics-listen localhost:80", "such as 127.0.0.1:9464"),
    ] {
        let arguments: Vec<&str> = arguments.split(' ').chain(["x", "touch", "ran"]).collect();
        assert_refused(&workspace, &arguments, 64, expected);
    }
    assert!(!workspace.path("ran").exists());
}

/// The runtime would open descriptors with these numbers of its own, and the events would be written to them.
#[test]
fn a_status_descriptor_that_the_caller_has_not_opened() {
    let workspace = Workspace::new();
    for number in 3..=9 {
        let script = format!(
            "exec {number}>&-; exec {} run --status-fd {number} x touch ran",
            env!("CARGO_BIN_EXE_polylock")
        );
        let mut polylock = Command::new("sh");
        polylock.args(["-c", &script]).env("POLYLOCK_STORE", workspace.url());
        let output = polylock.current_dir(workspace.directory.path()).output().unwrap();
        assert_code(&output, 73, &format!("descriptor {number} is not open"));
    }
    assert!(!workspace.path("ran").exists());
}

#[test]
fn commands_and_names() {
    let workspace = Workspace::new();
    let directory = workspace.path("directory");
    fs::create_dir(&directory).unwrap();
    assert_refused(&workspace, &["run", "x", directory.to_str().unwrap()], 126, "it is a directory");
    assert_refused(
        &workspace,
        &["run", "x", "echo hi && ls"],
        127,
        "command not found; run a command line with -c",
    );
    for (typed, meant) in
        [("rn", "run"), ("runn", "run"), ("stat", "status"), ("renwe", "renew"), ("lst", "list")]
    {
        assert_refused(&workspace, &[typed], 64, &format!("a similar subcommand exists: '{meant}'"));
    }
    let text = assert_refused(&workspace, &["qqqqq"], 64, "unrecognized subcommand");
    assert!(!text.contains("similar"), "{text}");
    assert_refused(&workspace, &["list", "job/*"], 0, "is not a pattern: write the beginning of a name");
}

#[test]
fn urls() {
    let workspace = Workspace::new();
    for (url, expected) in [
        ("localhost:6379", "write a scheme before the host"),
        ("http://h", "write polylock+http for a lock service"),
        ("jdbc:postgresql://h/x", "remove \"jdbc:\""),
        ("sqlite:l.db?ttl=5s", "did you mean polylock.ttl?"),
        ("sqlite:l.db?polylock.tll=5s", "did you mean polylock.ttl?"),
        ("sqlite:l.db?polylock.grace=5s", "unknown key; known keys: "),
    ] {
        assert_refused(&workspace, &["-S", url, "list"], 78, expected);
    }
    let text = assert_refused(&workspace, &["-S", "postgres://h/x?sslmode=reqire", "list"], 78, "\"reqire\"");
    assert!(!text.contains("percent"), "{text}");
    // The place of a URL that is not on the command line is named.
    fs::write(workspace.path("url"), "LOCKS=redis://h").unwrap();
    assert_refused(&workspace, &["-S", "file:url", "list"], 78, "(in file url)");
}

#[test]
fn advice_is_given_once() {
    let workspace = Workspace::new();
    let closed = "redis://127.0.0.1:1";
    let text = assert_refused(
        &workspace,
        &["-S", closed, "run", "-n", "--outage", "0", "x", "true"],
        69,
        "check the host",
    );
    assert_eq!(text.matches("check ").count(), 1, "{text}");
}

/// Only the value of a key that may be a secret is hidden.
#[test]
fn a_setting_of_the_store_is_shown() {
    let workspace = Workspace::new();
    let url = format!("{}?polylock.ttl=7s&polylock.durability=normal", workspace.url());
    let text = assert_refused(&workspace, &["-S", &url, "run", "-v", "x", "true"], 0, "polylock.ttl=7s");
    assert!(text.contains("polylock.durability=normal") && !text.contains("***"), "{text}");
    let secret = "redis://me:canary@127.0.0.1:1?polylock.ttl=7s";
    let arguments = ["-S", secret, "run", "--outage", "1.5", "x", "true"];
    let text = assert_refused(&workspace, &arguments, 69, "redis://***@127.0.0.1:1?polylock.ttl=7s");
    assert!(!text.contains("canary"), "{text}");
}

/// A server that accepts a connection and sends nothing.
#[test]
fn a_server_that_does_not_reply_is_given_up_after_the_outage() {
    let workspace = Workspace::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    for (scheme, database) in [("postgres", "x"), ("mysql", "x"), ("redis", "0")] {
        let url = format!("{scheme}://127.0.0.1:{port}/{database}");
        let began = now();
        let text = assert_refused(
            &workspace,
            &["-S", &url, "run", "--outage", "2", "x", "true"],
            69,
            &format!("{scheme} could not connect"),
        );
        let took = now().since(began);
        assert!(took < Duration::from_secs(4), "{scheme}: {took:?}");
        // Redis has a shorter limit of its own, so its first attempt has failed by then.
        let reports = ["x: the store has not replied yet", "x: store unavailable for "];
        assert!(reports.iter().any(|report| text.contains(report)), "{text}");
    }
}

/// The process would end by a panic or a signal otherwise, or with advice about something else.
#[test]
fn limits_that_are_too_low_are_named() {
    let workspace = Workspace::new();
    let polylock = env!("CARGO_BIN_EXE_polylock");
    for limit in ["-n 6", "-n 10", "-n 16", "-n 20", "-s 128"] {
        let mut bash = Command::new("bash");
        bash.args(["-c", &format!("ulimit {limit}; exec {polylock} run x touch ran")]);
        let output = bash
            .env("POLYLOCK_STORE", workspace.url())
            .current_dir(workspace.directory.path())
            .output()
            .unwrap();
        assert_code(&output, 70, &format!("raise the limit (ulimit {})", &limit[..2]));
        assert_eq!(stderr(&output).lines().count(), 1, "{limit}");
    }
    assert!(!workspace.path("ran").exists());
}

/// The limit counts all processes and threads of a user and does not apply to root, so the command runs as a user that has nothing else.
#[test]
fn a_user_without_a_thread_left_is_told() {
    if !geteuid().is_root() {
        return;
    }
    let workspace = Workspace::new();
    // The other user may not reach the directory of the program.
    fs::copy(env!("CARGO_BIN_EXE_polylock"), workspace.path("polylock")).unwrap();
    fs::set_permissions(workspace.directory.path(), Permissions::from_mode(0o777)).unwrap();
    for limit in 1..=4 {
        let script = format!("ulimit -u {limit}; exec ./polylock run x touch ran");
        let mut other_user = Command::new("setpriv");
        other_user.args(["--reuid=61234", "--regid=61234", "--clear-groups", "bash", "-c", &script]);
        other_user.env("POLYLOCK_STORE", workspace.url()).current_dir(workspace.directory.path());
        let output = other_user.output().unwrap();
        assert_code(&output, 70, "no more processes and threads: raise the limit (ulimit -u");
        assert_eq!(stderr(&output).lines().count(), 1, "{limit}");
    }
    assert!(!workspace.path("ran").exists());
}
