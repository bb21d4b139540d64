//! Every exit code, and its one-line message.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    process::Command,
    time::Duration,
};

use rustix::process::Signal;
use sqlx::Connection;

use crate::support::{Running, Workspace, assert_code, lines, now, stderr, stderr_without_waits, stdout};

#[test]
fn the_exit_code_and_the_signal_of_the_command_are_returned() {
    let workspace = Workspace::new();
    for code in [0, 1, 42, 255] {
        let output =
            workspace.polylock().args(["run", "x", "sh", "-c", &format!("exit {code}")]).output().unwrap();
        assert_code(&output, code, "");
        assert_eq!(stderr_without_waits(&output), "");
    }
    let output = workspace.polylock().args(["run", "x", "-c", "kill -KILL $$"]).output().unwrap();
    assert_code(&output, 137, "");
    assert_eq!(workspace.status("x")["state"], "free");
}

#[test]
fn a_command_that_cannot_run_leaves_the_lock_free() {
    let workspace = Workspace::new();
    assert_code(
        &workspace.call("run x surely-no-such-command"),
        127,
        "surely-no-such-command: command not found",
    );
    assert_code(&workspace.call("run x /etc/passwd"), 126, "/etc/passwd can't be run: Permission denied");
    assert_eq!(workspace.status("x")["state"], "free");
}

#[test]
fn a_lock_that_is_held_elsewhere() {
    let workspace = Workspace::new();
    let holder = workspace.start("--label nightly x", "echo > held; exec sleep 60");
    workspace.wait_for_file("held");
    assert_code(&workspace.call("run -n x touch ran"), 75, "(nightly)");
    assert_code(&workspace.call("run --nb -E 9 x touch ran"), 9, "held by another");
    assert_code(&workspace.call("run -n --skip-ok x touch ran"), 0, "");
    assert_eq!(stderr_without_waits(&workspace.call("run -n --skip-ok x touch ran")), "");
    assert_eq!(stderr(&workspace.call("run -n -q x touch ran")), "");
    // The store replies within this time on a busy machine, too.
    let start = now();
    assert_code(&workspace.call("run -w 2 x touch ran"), 75, "still held by another");
    assert!(now().since(start) >= Duration::from_secs(2));
    assert!(!workspace.path("ran").exists());
    // Another lock, and the same one in a mode that does not conflict, are free.
    assert_code(&workspace.call("run -n y true"), 0, "");
    assert_code(&workspace.call("run -n --mode NL x true"), 0, "");
    drop(holder);
}

#[test]
fn wrong_usage() {
    let workspace = Workspace::new();
    for arguments in ["", "run", "run x", "run --lost-exit-code 0 x true", "rum x true", "run -w soon x true"]
    {
        assert_code(&workspace.polylock().args(arguments.split_whitespace()).output().unwrap(), 64, "");
    }
    assert_code(&workspace.call(&format!("run {} true", "x".repeat(256))), 64, "too long: use at most 255");
    assert_code(&workspace.call("run --ttl 10s --grace 6s x true"), 64, "use at most half of the TTL");
    assert_code(&workspace.call("run --ttl 0 x true"), 64, "out of range");
    assert_code(&workspace.call("break x"), 64, "add --yes");
    assert_code(&workspace.call("man rum"), 64, "no command \"rum\"");
}

#[test]
fn data_that_cannot_be_written() {
    let workspace = Workspace::new();
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = workspace.polylock().args(["completions", "bash"]).stdout(full).output().unwrap();
    assert_code(&output, 70, "can't write to stdout");
}

#[test]
fn only_the_servers_of_a_redlock_are_admitted() {
    let workspace = Workspace::new();
    for store in ["memory:", "sqlite:///l.db", "redis://127.0.0.1:1"] {
        let output =
            workspace.polylock_without_store().args(["-S", store, "admit", "--yes"]).output().unwrap();
        assert_code(&output, 78, "have no start-up delay: only those of redlock do");
    }
    let unconfirmed = workspace
        .polylock_without_store()
        .args(["-S", "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", "admit"])
        .output()
        .unwrap();
    assert_code(&unconfirmed, 64, "add --yes");
    let unreachable = workspace
        .polylock_without_store()
        .args(["-S", "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", "admit", "-y"])
        .output()
        .unwrap();
    assert_code(&unreachable, 69, "redlock could not connect");
}

#[test]
fn help_and_version_are_not_errors() {
    let workspace = Workspace::new();
    let help = workspace.call("run --help");
    assert_code(&help, 0, "");
    for part in
        ["EXIT CODE", "POLYLOCK_FENCING_TOKEN", "--min-hold", "WHEN THE LOCK IS LOST", "\"fencing_token\""]
    {
        assert!(stdout(&help).contains(part), "{part}");
    }
    assert!(!stdout(&help).contains("__warden <"));
    assert_code(&workspace.call("--version"), 0, "");
}

#[test]
fn invalid_settings() {
    let workspace = Workspace::new();
    for (store, expected) in [
        ("etcd3://h", "unknown scheme \"etcd3\"; available: memory, sqlite"),
        ("zookeper://h", "did you mean \"zookeeper\"?"),
        ("sqlitte:x", "did you mean \"sqlite\"?"),
        ("locks.db", "no scheme"),
        ("sqlite:l.db?polylock.tll=3s", "polylock.tll: unknown key; did you mean polylock.ttl?"),
        ("sqlite:l.db?polylock.ttl=soon", "is not a duration"),
        ("env:NOT_SET", "NOT_SET is not set"),
        ("file:not-there", "not-there can't be read"),
        ("postgres:db", "names no server"),
        ("postgres://h/x?polylock.namespace=a;b", "polylock.namespace"),
    ] {
        assert_code(
            &workspace.polylock_without_store().args(["-S", store, "schema"]).output().unwrap(),
            78,
            expected,
        );
        assert_code(
            &workspace.polylock_without_store().args(["-S", store, "run", "x", "true"]).output().unwrap(),
            78,
            expected,
        );
    }
    assert_code(
        &workspace.polylock_without_store().args(["-p", "night", "list"]).output().unwrap(),
        78,
        "there is no \"night\"",
    );
    assert_code(
        &workspace.polylock_without_store().args(["--config", "no.toml", "list"]).output().unwrap(),
        78,
        "no.toml",
    );
}

#[test]
fn a_file_without_write_permission() {
    let workspace = Workspace::new();
    assert_code(&workspace.call("run x true"), 0, "");
    for (name, mode) in [(".", 0o755), ("locks.db", 0o444)] {
        fs::set_permissions(workspace.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let mut run = workspace.polylock();
    if rustix::process::getuid().is_root() {
        // The root user has all permissions, so the program runs as another one.
        run = Command::new("setpriv");
        run.args(["--reuid", "65534", "--clear-groups", env!("CARGO_BIN_EXE_polylock")]);
        run.env("POLYLOCK_STORE", workspace.url()).env_remove("POLYLOCK_OUTER_STORE");
    }
    assert_code(&run.args(["run", "x", "true"]).output().unwrap(), 77, "sqlite could not");
}

#[test]
fn a_file_that_is_not_a_database() {
    let workspace = Workspace::new();
    fs::write(
        workspace.path("text.db"),
        "this is not a database, but long enough to be opened: ".repeat(100),
    )
    .unwrap();
    assert_code(
        &workspace.polylock_without_store().args(["-S", "sqlite:text.db", "list"]).output().unwrap(),
        78,
        "sqlite could not",
    );
    assert_code(
        &workspace.polylock_without_store().args(["-S", "sqlite:text.db/locks.db", "list"]).output().unwrap(),
        78,
        "sqlite could not",
    );
}

/// A server that comes up during the wait is used; otherwise the wait ends at its limit.
#[test]
fn a_store_that_is_unreachable_at_the_start() {
    let workspace = Workspace::new();
    // No server listens there, and none can while this is bound.
    let reserved = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = reserved.local_addr().unwrap().port();
    drop(reserved);
    let url = format!("redis://127.0.0.1:{port}");
    let run_without_server = |flags: &str| {
        let start = now();
        let output = workspace
            .polylock_without_store()
            .args(["-S", &url, "run"])
            .args(flags.split(' '))
            .args(["x", "true"])
            .output();
        (output.unwrap(), now().since(start))
    };
    for flags in ["-n", "--outage 0", "-w 0"] {
        let (output, took) = run_without_server(flags);
        assert_code(&output, 69, "redis could not connect");
        // By default it waits for half a minute.
        assert!(took < Duration::from_secs(5), "{flags}: {took:?}");
    }
    // An outage is reported after a second.
    for flags in ["--outage 3", "-w 3", "-w 3 --outage 1m", "-n --outage 3"] {
        let (output, took) = run_without_server(flags);
        assert_code(&output, 69, "redis could not connect");
        let text = stderr(&output);
        assert!(
            text.contains("x: store unavailable for ")
                && text.contains("s, giving up in ")
                && text.contains("in redis://"),
            "{text}"
        );
        assert!(took > Duration::from_millis(1200) && took < Duration::from_secs(8), "{flags}: {took:?}");
    }
    assert_eq!(stderr(&run_without_server("-q --outage 1.5").0).lines().count(), 1);
    let listed = now();
    assert_code(
        &workspace.polylock_without_store().args(["-S", &url, "list"]).output().unwrap(),
        69,
        "redis could not connect",
    );
    assert!(now().since(listed) < Duration::from_secs(5));
    // The wait can be interrupted.
    let mut waiting = workspace.polylock_without_store();
    waiting.args(["-S", &url, "run", "x", "true"]);
    let mut waiting = Running::spawn(waiting);
    let mut stderr = BufReader::new(waiting.0.as_mut().unwrap().stderr.as_mut().unwrap());
    stderr.read_line(&mut String::new()).unwrap();
    waiting.signal(Signal::INT);
    assert_eq!(waiting.code(), Some(130));
}

#[test]
fn a_status_file_that_cannot_be_written() {
    let workspace = Workspace::new();
    assert_code(
        &workspace.call("run --status-file no/such/file x touch ran"),
        73,
        "no/such/file can't be written",
    );
    assert_code(&workspace.call("run --status-fd 77 x touch ran"), 73, "file descriptor 77 is not open");
    assert!(!workspace.path("ran").exists());
}

#[test]
fn interrupted_while_waiting() {
    let workspace = Workspace::new();
    let holder = workspace.start("x", "echo > held; exec sleep 60");
    workspace.wait_for_file("held");
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let waiter = workspace.start("x", "touch ran");
        workspace.wait_for_waiters("x", 1);
        waiter.signal(signal);
        assert_eq!(waiter.code(), Some(code));
        // It has left the queue before it ended.
        assert_eq!(workspace.status("x")["waiters"].as_array().unwrap().len(), 0);
    }
    assert!(!workspace.path("ran").exists());
    drop(holder);
}

#[tokio::test]
async fn a_second_signal_ends_a_waiter_at_once_while_the_store_hangs() {
    let workspace = Workspace::new();
    let holder = workspace.start("x", "echo > held; exec sleep 60");
    workspace.wait_for_file("held");
    let mut waiter = workspace.start("--status-file status x", "true");
    workspace.wait_for_waiters("x", 1);
    // No other connection can write from now on, so the request can't leave the queue.
    let mut store = sqlx::SqliteConnection::connect(&workspace.url()).await.unwrap();
    sqlx::query("BEGIN EXCLUSIVE").execute(&mut store).await.unwrap();
    waiter.signal(Signal::INT);
    let signalled = now();
    while now().since(signalled) < Duration::from_millis(700) {
        assert!(waiter.0.as_mut().unwrap().try_wait().unwrap().is_none(), "it did not try to leave");
        std::thread::park_timeout(Duration::from_millis(20));
    }
    waiter.signal(Signal::TERM);
    let signalled = now();
    assert_eq!(waiter.code(), Some(143));
    let took = now().since(signalled);
    // The first signal alone would end it four seconds after that signal, with another code.
    assert!(took < Duration::from_millis(2500), "{took:?}");
    assert_eq!(lines(&workspace.read("status")).pop().unwrap()["verdict"], "interrupted");
    sqlx::query("ROLLBACK").execute(&mut store).await.unwrap();
    drop(holder);
}
