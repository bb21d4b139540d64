//! Tests on a real terminal, which `script` of util-linux provides: the waiting display, reading, Ctrl-C, and the confirmation.

use std::{
    io::{Read, Write},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use rustix::process::Signal;

use crate::support::{Workspace, eventually, is_alive, now, stderr, warden_of};

/// A shell command line on a terminal of its own.
///
/// A shell in between receives the terminal's Ctrl-C, too, and dash dies of it while bash waits for its command: in tests of Ctrl-C, the
/// line starts with `exec`. The shell is `sh`, whatever the user's shell is.
pub(crate) struct Terminal {
    script: Child,
    keys: std::process::ChildStdin,
    screen: Arc<Mutex<String>>,
}

impl Terminal {
    pub(crate) fn run(workspace: &Workspace, command: &str) -> Self {
        let mut script = Command::new("script")
            .args(["-q", "-e", "-f", "-c", command, "/dev/null"])
            .env("POLYLOCK_STORE", workspace.url())
            .env("P", env!("CARGO_BIN_EXE_polylock"))
            .env("TERM", "xterm")
            .env("SHELL", "/bin/sh")
            .current_dir(workspace.directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script (of util-linux, in every Debian) is installed");
        let keys = script.stdin.take().unwrap();
        let mut output = script.stdout.take().unwrap();
        let screen = Arc::new(Mutex::new(String::new()));
        let seen = screen.clone();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(number @ 1..) = output.read(&mut bytes) {
                seen.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..number]));
            }
        });
        Self { script, keys, screen }
    }

    pub(crate) fn screen(&self) -> String {
        self.screen.lock().unwrap().clone()
    }

    pub(crate) fn wait_for(&self, text: &str) {
        eventually(text, || self.screen().contains(text));
    }

    /// Waits for a text after the first `before` bytes of the screen.
    pub(crate) fn wait_for_after(&self, before: usize, text: &str) {
        eventually(text, || self.screen()[before..].contains(text));
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    fn code(mut self) -> i32 {
        eventually("the end of the terminal", || self.script.try_wait().unwrap().is_some());
        println!("{}", self.screen());
        self.script.wait().unwrap().code().unwrap()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.script.kill().ok();
        self.script.wait().ok();
    }
}

#[test]
fn the_waiting_line_is_redrawn_and_then_removed() {
    let workspace = Workspace::new();
    let holder =
        workspace.start("--label nightly orders", "echo > held; until [ -e end ]; do sleep 0.05; done");
    workspace.wait_for_file("held");
    let terminal = Terminal::run(&workspace, "$P run orders echo mine");
    terminal.wait_for("orders: held by ");
    terminal.wait_for("(nightly), token ");
    terminal.wait_for("you are 1st of 1");
    // A busy machine may draw no line in the first of these seconds.
    let later = ["waited 1s", "waited 2s", "waited 3s"];
    eventually("a later time", || later.iter().any(|time| terminal.screen().contains(time)));
    let before = terminal.screen();
    assert!(before.contains('\r') && !before.contains("polylock: waiting"), "{before:?}");
    std::fs::write(workspace.path("end"), "").unwrap();
    terminal.wait_for("mine");
    assert_eq!(terminal.code(), 0);
    assert_eq!(holder.code(), Some(0));
}

#[test]
fn top_shows_the_locks_and_breaks_one_after_a_reason_and_a_confirmation() {
    let workspace = Workspace::new();
    let holder = workspace.start("--label nightly orders", "echo > held; exec sleep 60");
    workspace.wait_for_file("held");
    let mut terminal = Terminal::run(&workspace, "stty rows 24 cols 80; exec $P top");
    terminal.wait_for("nightly");
    terminal.press("bit hangs\rnb\ry");
    let output = holder.finish();
    assert_eq!(output.status.code(), Some(79), "{output:?}");
    assert!(!stderr(&output).contains("it hangs"), "the first break was not confirmed: {output:?}");
    assert!(stderr(&output).contains("broken"), "{output:?}");
    terminal.press("q");
    let before = "\u{1b}[?1049";
    eventually("the former screen", || terminal.screen().contains(&format!("{before}l")));
    assert!(terminal.screen().contains(&format!("{before}h")));
    assert_eq!(terminal.code(), 0);
}

#[test]
fn top_needs_a_terminal() {
    let output = Workspace::new().call("top");
    assert_eq!(output.status.code(), Some(64));
    assert!(stderr(&output).contains("polylock watch"), "{output:?}");
}

#[test]
fn a_short_wait_displays_nothing() {
    let workspace = Workspace::new();
    // On a busy machine, a wait may take longer than half a second; then it is displayed.
    eventually("a short wait", || {
        let began = now();
        let terminal = Terminal::run(&workspace, "$P run orders echo mine");
        terminal.wait_for("mine");
        let is_short = now().since(began) < Duration::from_millis(500);
        assert!(!is_short || terminal.screen().trim() == "mine", "{:?}", terminal.screen());
        assert_eq!(terminal.code(), 0);
        is_short
    });
}

#[test]
fn control_c_removes_a_waiter_from_the_queue() {
    let workspace = Workspace::new();
    let holder = workspace.start("orders", "echo > held; exec sleep 60");
    workspace.wait_for_file("held");
    let mut terminal = Terminal::run(&workspace, "exec $P run orders touch ran");
    terminal.wait_for("you are 1st of 1");
    terminal.press("\u{3}");
    assert_eq!(terminal.code(), 130);
    assert_eq!(workspace.status("orders")["waiters"].as_array().unwrap().len(), 0);
    assert!(!workspace.path("ran").exists());
    drop(holder);
}

#[test]
fn the_command_can_read_the_terminal() {
    let workspace = Workspace::new();
    let mut terminal =
        Terminal::run(&workspace, "$P run orders sh -c 'echo ready; read line; echo got $line'");
    terminal.wait_for("ready");
    terminal.press("hello\n");
    terminal.wait_for("got hello");
    assert_eq!(terminal.code(), 0);
}

#[test]
fn control_c_reaches_the_command_once() {
    let workspace = Workspace::new();
    let script = "trap \"echo x >> got\" INT; echo ready; until [ -e end ]; do sleep 0.05; done; exit 7";
    let mut terminal = Terminal::run(&workspace, &format!("exec $P run orders sh -c '{script}'"));
    terminal.wait_for("ready");
    terminal.press("\u{3}");
    workspace.wait_for_file("got");
    std::fs::write(workspace.path("end"), "").unwrap();
    assert_eq!(terminal.code(), 7);
    assert_eq!(workspace.read("got"), "x\n");
}

#[test]
fn the_foreground_command_dies_with_a_killed_polylock() {
    let workspace = Workspace::new();
    let terminal = Terminal::run(
        &workspace,
        "sh -c 'echo $$ > self; exec $P run orders sh -c \"sleep 60 & echo \\$! > grandchild; echo \\$\\$ > child; wait\"'",
    );
    let (run, child) = (workspace.wait_for_pid("self"), workspace.wait_for_pid("child"));
    let grandchild = workspace.wait_for_pid("grandchild");
    let warden = warden_of(run);
    rustix::process::kill_process(run, Signal::KILL).unwrap();
    eventually("the death of the command", || !is_alive(child) && !is_alive(grandchild));
    eventually("the end of the warden", || !is_alive(warden));
    drop(terminal);
}

#[test]
fn the_foreground_command_of_a_stopped_polylock_dies_before_the_loss() {
    let workspace = Workspace::new();
    let terminal = Terminal::run(
        &workspace,
        "sh -c 'echo $$ > self; exec $P run --ttl 3s --grace 200ms orders sh -c \"sleep 60 & echo \\$! > grandchild; wait\"'; echo code $?",
    );
    let (run, grandchild) = (workspace.wait_for_pid("self"), workspace.wait_for_pid("grandchild"));
    rustix::process::kill_process(run, Signal::STOP).unwrap();
    let script = format!("if grep -q '^State:.[^ZX]' /proc/{grandchild}/status 2>/dev/null; then exit 9; fi");
    assert_eq!(
        workspace.start("orders", &script).code(),
        Some(0),
        "the command was alive beside the next holder"
    );
    rustix::process::kill_process(run, Signal::CONT).unwrap();
    terminal.wait_for("code 79");
}

#[test]
fn break_requires_a_confirmation() {
    let workspace = Workspace::new();
    let holder = workspace.start("orders", "echo > held; exec sleep 60");
    workspace.wait_for_file("held");
    for (key, question) in [
        ("n\n", "$P break --force orders"),
        ("n\n", "$P break orders"),
        ("y\n", "$P break --wait 20s orders"),
    ] {
        let mut terminal = Terminal::run(&workspace, question);
        let consequence =
            if question.contains("--force") { "work beside the next one" } else { "is requested to stop" };
        terminal.wait_for(consequence);
        terminal.wait_for("[y/N]");
        assert_eq!(workspace.status("orders")["state"], "held");
        terminal.press(key);
        assert_eq!(terminal.code(), 0);
    }
    assert_eq!(workspace.status("orders")["state"], "free");
    assert_eq!(holder.code(), Some(79));
}

#[test]
fn a_command_with_redirected_stdin_can_use_the_terminal() {
    let workspace = Workspace::new();
    let mut terminal = Terminal::run(
        &workspace,
        "echo x | $P run orders sh -c 'echo ready; read line </dev/tty; echo got $line'",
    );
    terminal.wait_for("ready");
    terminal.press("hello\n");
    terminal.wait_for("got hello");
    assert_eq!(terminal.code(), 0);
}

#[test]
fn a_background_command_that_is_stopped_by_the_terminal_is_reported() {
    let workspace = Workspace::new();
    let terminal = Terminal::run(
        &workspace,
        "bash -mc '$P run orders sh -c \"echo \\$\\$ > child; read line </dev/tty\" </dev/null & wait'",
    );
    let child = workspace.wait_for_pid("child");
    terminal.wait_for("the terminal stopped the command because it tried to use the terminal");
    terminal.wait_for("--foreground");
    assert!(is_alive(child));
    drop(terminal);
    rustix::process::kill_process(child, Signal::KILL).unwrap();
}

#[test]
fn a_terminal_without_job_control_stops_nothing() {
    let workspace = Workspace::new();
    let script =
        "echo ready; i=0; until [ -e end ]; do sleep 0.02; i=$((i+1)); echo $i > beats; done; exit 7";
    let mut terminal = Terminal::run(&workspace, &format!("exec $P run orders sh -c '{script}'"));
    terminal.wait_for("ready");
    // No process could continue a group that Ctrl-Z stops here.
    terminal.press("\u{1a}");
    terminal.wait_for("^Z");
    let beats = || workspace.read("beats").trim().parse::<u32>().unwrap_or(0);
    let before = beats();
    eventually("progress of the command", || beats() > before + 5);
    std::fs::write(workspace.path("end"), "").unwrap();
    assert_eq!(terminal.code(), 7);
}

#[test]
fn a_shell_with_job_control_stops_and_continues_the_command() {
    let workspace = Workspace::new();
    // The shell waits without a child. A shell that is about to start a program waits for it in a state that only SIGKILL interrupts: if
    // Ctrl-Z stops the new process before it runs its program, the shell itself is never shown as stopped.
    assert!(Command::new("mkfifo").arg(workspace.path("end")).status().unwrap().success());
    std::fs::write(workspace.path("script"), "echo $$ > child; read line < end; exit 7").unwrap();
    let mut terminal = Terminal::run(&workspace, "bash --norc -i");
    terminal.press("$P run --ttl 20s orders sh script\n");
    let child = workspace.wait_for_pid("child");
    let is_stopped = || {
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.starts_with('T')
    };
    terminal.press("\u{1a}");
    eventually("the stop", is_stopped);
    terminal.wait_for("Stopped");
    terminal.press("fg; echo code $?\n");
    eventually("the command continues", || !is_stopped());
    // It is opened in both directions, so that it does not wait for a reader.
    let mut end = std::fs::OpenOptions::new().read(true).write(true).open(workspace.path("end")).unwrap();
    end.write_all(b"\n").unwrap();
    eventually("the end", || !is_alive(child));
    terminal.wait_for("code 7");
    terminal.press("exit\n");
    terminal.code();
}
