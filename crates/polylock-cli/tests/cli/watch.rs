//! `watch`, `status --exit-code` and `run --metrics-listen`; `top` on a terminal is in `terminal.rs`.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::ChildStdout,
};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Running, Workspace, eventually, stderr, stdout};

/// A `polylock watch` with its lines.
struct Watching {
    lines: BufReader<ChildStdout>,
    _running: Running,
}

impl Watching {
    fn start(workspace: &Workspace, arguments: &[&str]) -> Self {
        let mut command = workspace.polylock();
        command.arg("watch").args(arguments);
        let mut running = Running::spawn(command);
        let lines = BufReader::new(running.0.as_mut().unwrap().stdout.take().unwrap());
        Self { lines, _running: running }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line
    }

    fn object(&mut self) -> Value {
        serde_json::from_str(&self.line()).unwrap()
    }
}

#[test]
fn the_present_state_then_waits_grants_and_ends_are_printed() {
    let workspace = Workspace::new();
    let first = workspace.start("--label first x", "echo > held; exec sleep 60");
    workspace.wait_for_file("held");
    let mut text = Watching::start(&workspace, &["x"]);
    let held = text.line();
    assert!(held.contains("Z held     x: ") && held.contains(" (first), EX, token "), "{held}");
    let mut exact = Watching::start(&workspace, &["--exact", "x", "--output", "jsonl"]);
    assert_eq!(exact.object()["event"], "held");
    let mut objects = Watching::start(&workspace, &["--output", "json"]);
    let object = objects.object();
    assert_eq!((&object["event"], &object["label"]), (&"held".into(), &"first".into()));

    let other = workspace.start("--label other xy", "echo > other; exec sleep 60");
    workspace.wait_for_file("other");
    let mut events = vec![objects.object()];
    assert!(text.line().contains("Z granted  xy: "), "a prefix");
    let second = workspace.start("--label second x", "exec sleep 60");
    workspace.wait_for_waiters("x", 1);
    events.push(objects.object());
    assert!(text.line().contains("1st in line"));
    assert_eq!(exact.object()["event"], "queued");
    first.signal(Signal::TERM);
    events.extend([objects.object(), objects.object()]);
    let events: Vec<_> = events.iter().map(|line| format!("{} {}", line["event"], line["label"])).collect();
    assert_eq!(
        events,
        [r#""granted" "other""#, r#""queued" "second""#, r#""ended" "first""#, r#""granted" "second""#]
    );
    let seen: Vec<_> = (0..2).map(|_| exact.object()["event"].clone()).collect();
    assert_eq!(seen, ["ended", "granted"], "only the lock with that name");
    drop((first, second, other));
}

#[test]
fn a_watch_ends_with_its_reader_and_fails_without_a_store() {
    let workspace = Workspace::new();
    let mut command = workspace.polylock();
    command.args(["watch", "--output", "jsonl"]);
    let mut watching = Running::spawn(command);
    drop(watching.0.as_mut().unwrap().stdout.take());
    let holder = workspace.start("x", "echo > held; exec sleep 60");
    workspace.wait_for_file("held");
    assert_eq!(watching.code(), Some(0));
    drop(holder);
    let output = workspace.call("watch -S redis://127.0.0.1:1");
    assert_eq!(output.status.code(), Some(69), "{}", stderr(&output));
}

#[test]
fn the_exit_code_of_status_shows_that_the_lock_is_held() {
    let workspace = Workspace::new();
    let status = |arguments: &str| workspace.call(arguments).status.code();
    assert_eq!(status("status --exit-code x"), Some(0));
    let holder = workspace.start("x", "echo > held; exec sleep 60");
    workspace.wait_for_file("held");
    assert_eq!(status("status --exit-code x"), Some(75));
    assert_eq!((status("status x"), status("status --exit-code y")), (Some(0), Some(0)));
    drop(holder);
}

#[test]
fn a_run_serves_its_metrics_until_the_command_has_ended() {
    let workspace = Workspace::new();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let run = workspace.start(&format!("--metrics-listen {free} x"), "echo > held; exec sleep 60");
    workspace.wait_for_file("held");
    let get = || -> Option<String> {
        let mut client = TcpStream::connect(free).ok()?;
        client.write_all(b"GET /metrics HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").ok()?;
        let mut reply = String::new();
        client.read_to_string(&mut reply).ok()?;
        Some(reply)
    };
    let acquired =
        "polylock_acquire_duration_seconds_bucket{backend=\"sqlite\",outcome=\"acquired\",le=\"+Inf\"} 1";
    eventually("the metrics", || get().is_some_and(|reply| reply.contains(acquired)));
    let reply = get().unwrap();
    assert!(reply.contains("polylock_lost_total{backend=\"sqlite\",reason=\"gone\"} 0"), "{reply}");
    let output = workspace.call(&format!("run --metrics-listen {free} y true"));
    assert_eq!(output.status.code(), Some(78), "{}", stdout(&output));
    assert!(stderr(&output).contains(&free.to_string()), "{}", stderr(&output));
    run.signal(Signal::TERM);
    run.finish();
    assert_eq!(get(), None);
}
