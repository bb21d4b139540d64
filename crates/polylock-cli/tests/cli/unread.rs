//! Unread pipes: they delay neither the command, nor signals, nor the release.

use std::{
    fs::File,
    io::{PipeReader, PipeWriter, Read, Write},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    process::Stdio,
    time::Duration,
};

use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::{FdFlags, fcntl_setfd},
    pipe::fcntl_setpipe_size,
    process::Signal,
};

use crate::support::{Running, Workspace, eventually, is_alive, lines, now, stderr};

/// The time for which the pipes stay unread. `POLYLOCK_TEST_UNREAD_SECONDS=60` is the long form.
fn unread_time() -> Duration {
    let seconds = std::env::var("POLYLOCK_TEST_UNREAD_SECONDS").map_or(4, |seconds| seconds.parse().unwrap());
    Duration::from_secs(seconds)
}

/// Returns a pipe of one page that is full, so that the first write to it blocks.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    fcntl_setpipe_size(&writer, 4096).unwrap();
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    while writer.write(b"\n").is_ok() {}
    fcntl_setfl(&writer, flags).unwrap();
    (reader, writer)
}

/// Reads a pipe until its end.
fn rest(mut reader: PipeReader) -> String {
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    text
}

/// Its own messages are discarded: it shares the standard error that is not read.
const BEATS: &str = "exec 2>/dev/null; trap 'echo got > got; exit 5' TERM; echo $$ > child; while :; do echo >> beats; sleep 0.05; done";

/// Starts a run with full pipes as standard error and status descriptor.
fn start(workspace: &Workspace, flags: &[&str]) -> (Running, PipeReader, PipeReader) {
    let ((status_reader, status), (stderr_reader, stderr)) = (full_pipe(), full_pipe());
    fcntl_setfd(status.as_fd(), FdFlags::empty()).unwrap();
    let mut run = workspace.polylock();
    run.args(["run", "--ttl", "3s", "--grace", "200ms", "--status-fd", &status.as_raw_fd().to_string()]);
    run.args(flags);
    run.args(["x", "sh", "-c", BEATS]).stderr(stderr);
    let run = Running::spawn(run);
    fcntl_setfd(status.as_fd(), FdFlags::CLOEXEC).unwrap();
    (run, status_reader, stderr_reader)
}

#[test]
fn unread_pipes_delay_neither_the_command_nor_a_signal_nor_the_release() {
    for flags in [&["-v"][..], &["--output", "json"]] {
        let workspace = Workspace::new();
        let (run, status, stderr) = start(&workspace, flags);
        let child = workspace.wait_for_pid("child");
        let until = now() + unread_time();
        while now() < until {
            std::thread::park_timeout(Duration::from_millis(50));
        }
        let beats = || workspace.read("beats").len();
        let before = beats();
        eventually("progress of the command", || beats() > before + 3);
        assert!(is_alive(child) && workspace.status("x")["state"] == "held");

        let signalled = now();
        run.signal(Signal::TERM);
        eventually("the end of the command", || !is_alive(child));
        eventually("the release", || workspace.status("x")["state"] == "free");
        let free_after = now().since(signalled);
        println!("{flags:?}: free after {free_after:?}");
        // Without a release, the lease lasts for longer.
        assert!(free_after < Duration::from_millis(1900), "{free_after:?}");
        assert_eq!(run.code(), Some(5), "it ends although the pipes are not read");
        assert_eq!(workspace.read("got"), "got\n");
        drop((status, stderr));
    }
}

/// A write of the handle blocks. A signal, or the end of the hold, ends the command all the same, and nobody holds the lock then.
#[test]
fn a_handle_that_nobody_reads_keeps_no_lock() {
    let own_pid = std::process::id();
    let (signal, by_break) = ("kill", "break --yes --force gpu");
    for (arguments, end, code) in [
        ("--hold gpu".to_owned(), signal, Some(143)),
        ("gpu".to_owned(), signal, Some(143)),
        (format!("--while-pid {own_pid} gpu"), signal, None),
        ("--hold gpu".to_owned(), by_break, Some(79)),
        ("--for 2s gpu".to_owned(), "expire", Some(79)),
    ] {
        let workspace = Workspace::new();
        let (reader, stdout) = full_pipe();
        let mut acquire = workspace.polylock();
        acquire.arg("acquire").args(arguments.split(' ')).stdout(stdout).stderr(Stdio::piped());
        let acquire = Running(Some(acquire.spawn().unwrap()));
        let is_held = || workspace.status("gpu")["state"] == "held";
        eventually("it holds the lock", is_held);
        match end {
            "kill" => acquire.signal(Signal::TERM),
            "expire" => {}
            end => assert!(workspace.call(end).status.success()),
        }
        let ended = acquire.finish();
        assert_eq!(ended.status.code(), code, "{arguments}, {end}: {}", stderr(&ended));
        eventually("nobody holds the lock", || !is_held());
        drop(reader);
    }
}

#[test]
fn dropped_events_are_counted_and_the_verdict_is_written() {
    let workspace = Workspace::new();
    let (reader, status) = full_pipe();
    fcntl_setfd(status.as_fd(), FdFlags::empty()).unwrap();
    // Each event is as long as possible, so that few are needed.
    let (mut run, longest) = (workspace.polylock(), "\"".repeat(255));
    run.args(["run", "--ttl", "2s", "--grace", "100ms", "--status-fd", &status.as_raw_fd().to_string()]);
    run.args(["--label", &longest, &longest, "sh", "-c"]);
    run.arg("echo > held; until [ -e end ]; do sleep 0.05; done");
    let run = Running::spawn(run);
    drop(status);
    workspace.wait_for_file("held");
    let until = now() + Duration::from_secs(14);
    eventually("the time of about 20 renewals", || now() >= until);
    // The end of the run waits half a second for a reader.
    let text = std::thread::spawn(move || rest(reader));
    std::fs::write(workspace.path("end"), "").unwrap();
    let output = run.finish();
    assert_eq!(output.status.code(), Some(0));
    assert!(stderr(&output).contains("are not read"), "{}", stderr(&output));
    let text = text.join().unwrap();
    let events = lines(text.trim_start_matches('\n'));
    let dropped: Vec<u64> = events.iter().filter_map(|event| event["dropped"].as_u64()).collect();
    assert!(dropped.iter().sum::<u64>() > 0, "{} events, none dropped", events.len());
    let last: Vec<&str> =
        events[events.len() - 2..].iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(last, ["released", "verdict"]);
}

#[test]
fn the_status_descriptor_may_be_a_socket_or_an_unlinked_file() {
    let workspace = Workspace::new();
    let (local, inherited) = std::os::unix::net::UnixStream::pair().unwrap();
    let path = workspace.path("gone");
    let file = File::create(&path).unwrap();
    let mut copy = File::open(&path).unwrap();
    // The file has no name any more.
    std::fs::remove_file(&path).unwrap();
    let mut descriptors: Vec<OwnedFd> = vec![inherited.into(), file.into()];
    for descriptor in &descriptors {
        fcntl_setfd(descriptor, FdFlags::empty()).unwrap();
        let number = descriptor.as_raw_fd().to_string();
        let output =
            workspace.polylock().args(["run", "--status-fd", &number, "x", "true"]).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
    }
    descriptors.clear();
    let read = |from: &mut dyn Read| {
        let mut text = String::new();
        from.read_to_string(&mut text).unwrap();
        lines(&text).iter().map(|line| line["event"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(read(&mut &local), ["acquired", "released", "verdict"]);
    assert_eq!(read(&mut copy), ["acquired", "released", "verdict"]);
}
