//! A warden that is killed while it starts its command, as by the OOM killer.

use std::{
    fs::{self, File},
    process::{Command, Stdio},
};

use polylock_integration_tests::cargo::polylock;
use tempfile::TempDir;

/// Runs a command that adds its process to the file `runs`, while the wardens end as these files say. Returns the exit code and the
/// messages.
fn run(files: &[&str], script: &str) -> (TempDir, Option<i32>, String) {
    let directory = TempDir::new().unwrap();
    let path = |name: &str| directory.path().join(name);
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/warden_end.c");
    let mut cc = Command::new("cc");
    let built = cc.args(["-O1", "-shared", "-fPIC", "-o"]).arg(path("warden_end.so")).arg(source).status();
    assert!(built.unwrap().success());
    for file in files {
        fs::write(path(file), "").unwrap();
    }
    let mut shell = Command::new("bash");
    shell.args(["-c", script]).current_dir(directory.path()).stdin(Stdio::null());
    shell.env("P", polylock()).env("POLYLOCK_STORE", "sqlite:locks.db").env("POLYLOCK_CONFIG", "/dev/null");
    shell.env("L", path("warden_end.so")).env("POLYLOCK_WARDEN_END", directory.path());
    // A command that is not killed would keep a pipe open.
    shell.env("COMMAND", COMMAND).stderr(File::create(path("errors")).unwrap());
    let code = shell.status().unwrap().code();
    let text = fs::read_to_string(path("errors")).unwrap();
    println!("{text}");
    (directory, code, text)
}

/// The status of the lock, and the number of runs of the command.
fn state(directory: &TempDir) -> (String, usize) {
    let mut status = Command::new(polylock());
    status.args(["-q", "-S", "sqlite:locks.db", "status", "x"]).current_dir(directory.path());
    let status = String::from_utf8(status.output().unwrap().stdout).unwrap();
    let runs = fs::read_to_string(directory.path().join("runs")).unwrap_or_default();
    (status.lines().next().unwrap_or_default().to_owned(), runs.lines().count())
}

/// With the file `stays`, the command resumes polylock when it has lost its parent, the warden, and stays.
const COMMAND: &str = r#"
    echo $$ >> runs; echo > began; [ -e stays ] && [ "$(wc -l < runs)" = 1 ] || exit 7
    until [ "$(cut -d" " -f4 /proc/$$/stat)" = "$TOP" ]; do sleep 0.01; done
    kill -CONT "$TOP"; sleep 20"#;

const RUN: &str = r#"export TOP=$$; LD_PRELOAD=$L exec "$P" run --ttl 50 x -- sh -c "$COMMAND""#;

#[test]
fn another_one_starts_the_command_if_it_has_not_begun() {
    let (directory, code, text) = run(&["before-1", "before-2"], RUN);
    assert_eq!(code, Some(7));
    assert!(text.contains("the warden of the command was killed; another one was started"));
    assert_eq!(state(&directory), ("x: free".to_owned(), 1));
}

#[test]
fn the_lock_is_free_if_all_of_them_are_killed() {
    let (directory, code, text) = run(&["before-1", "before-2", "before-3", "before-4"], RUN);
    assert_eq!(code, Some(70));
    let expected = "can't start the command: its warden was ended by SIGKILL, 4 times";
    assert!(text.contains(expected) && text.contains("OOM killer"));
    assert_eq!(state(&directory), ("x: free".to_owned(), 0));
}

/// The command may have begun, so it is not started again. It is killed, also if it is not the only child of polylock.
#[test]
fn a_command_that_may_have_begun_is_killed_and_not_started_again() {
    for before in ["", "sleep 61 > /dev/null 2>&1 & echo $! > sibling; "] {
        let (directory, code, text) = run(&["after", "stays"], &format!("{before}{RUN}"));
        assert_eq!(code, Some(70));
        let expected = "its warden was ended by SIGKILL while it started the command; the command was killed";
        assert!(text.contains(expected));
        assert_eq!(state(&directory), ("x: free".to_owned(), 1));
        let runs = |file: &str| {
            let id = fs::read_to_string(directory.path().join(file)).unwrap_or_default();
            let status = fs::read_to_string(format!("/proc/{}/status", id.trim())).unwrap_or_default();
            status.contains("\nState:") && !status.contains("\nState:\tZ")
        };
        assert!(!runs("runs"), "the command");
        if !before.is_empty() {
            assert!(runs("sibling"), "a process that polylock has not started");
            let sibling = fs::read_to_string(directory.path().join("sibling")).unwrap();
            Command::new("kill").args(["-KILL", sibling.trim()]).status().unwrap();
        }
    }
}
