//! Completions: in real shells, and the promises about the store: no wait, no message, no new file.

use std::{
    fs,
    net::TcpListener,
    os::unix::fs::symlink,
    process::{Command, Output},
    time::Duration,
};

use crate::{
    support::{Workspace, now, stderr, stdout},
    terminal::Terminal,
};

/// The variable with the time limit for the store. A busy machine needs longer than the default.
const LIMIT: (&str, &str) = ("POLYLOCK_COMPLETION_TIMEOUT", "20");

/// Returns the completions of the last of these words, as bash gets them.
fn complete(workspace: &Workspace, words: &[&str]) -> Output {
    let mut polylock = workspace.polylock();
    polylock.env(LIMIT.0, LIMIT.1);
    completions_by(polylock, words)
}

fn completions_by(mut polylock: Command, words: &[&str]) -> Output {
    polylock.env("_POLYLOCK_COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", words.len().to_string());
    polylock.args(["--", "polylock"]).args(words).output().unwrap()
}

/// Returns them as a list, without the options. There is no message.
fn completed(workspace: &Workspace, words: &[&str]) -> Vec<String> {
    let output = complete(workspace, words);
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""), "{words:?}");
    stdout(&output).lines().filter(|word| !word.starts_with('-')).map(str::to_owned).collect()
}

/// Returns true if this shell is installed.
fn is_installed(shell: &str) -> bool {
    let is_there = Command::new(shell).args(["-c", "exit"]).status().is_ok();
    let required = std::env::var("POLYLOCK_TEST_REQUIRE").is_ok_and(|required| required == "all");
    assert!(is_there || !required, "{shell} is required by POLYLOCK_TEST_REQUIRE and not installed");
    if !is_there {
        eprintln!("missing: {shell} is not installed");
    }
    is_there
}

/// Types command lines with TAB in a shell of this name, which `start` starts.
fn type_in(shell: &str, start: &str) {
    if !is_installed(shell) {
        return;
    }
    let workspace = Workspace::new();
    let hold = |name: &str| {
        workspace.start(&format!("--label nightly {name}"), &format!("echo > '{name}'; exec sleep 600"))
    };
    let holders = ["orders-42", "tenant:7"].map(hold);
    for name in ["orders-42", "tenant:7"] {
        workspace.wait_for_file(name);
    }
    let programs = workspace.path("programs");
    fs::create_dir(&programs).unwrap();
    symlink(env!("CARGO_BIN_EXE_polylock"), programs.join("polylock")).unwrap();
    fs::write(workspace.path(".zshrc"), "autoload -U compinit; compinit -u -D; PS1='ready> '").unwrap();
    let path = format!("PATH={}:$PATH {}={}; export PATH {}", programs.display(), LIMIT.0, LIMIT.1, LIMIT.0);
    let mut terminal = Terminal::run(&workspace, &format!("{path}; stty cols 200; exec {start}"));
    terminal.wait_for("ready> ");
    let source = if shell == "fish" {
        "polylock completions fish | source"
    } else {
        &format!("source <(polylock completions {shell})")
    };
    terminal.press(&format!("{source}; echo so''urced\r"));
    terminal.wait_for("sourced");
    let url = workspace.url();
    for (typed, expected) in [
        ("polylock status ord".to_owned(), "held by"),
        // Both contain a colon, at which bash splits words.
        (format!("polylock -S {url} status ord"), "held by"),
        ("polylock status tenant:".to_owned(), "held by"),
        ("polylock run --no-wait ord".to_owned(), "required arguments"),
    ] {
        let before = terminal.screen().len();
        terminal.press(&format!("{typed}\t"));
        terminal.wait_for_after(before, if typed.ends_with("ord") { "orders-42" } else { "tenant:7" });
        terminal.press("\r");
        terminal.wait_for_after(before, expected);
    }
    drop(holders);
}

#[test]
fn bash_completes_names() {
    type_in("bash", "env PS1='ready> ' bash --norc --noprofile -i");
}

#[test]
fn zsh_completes_names() {
    type_in("zsh", "env ZDOTDIR=. zsh -i");
}

#[test]
fn fish_completes_names() {
    type_in("fish", "fish --no-config -i -C 'function fish_prompt; echo -n \"ready> \"; end'");
}

#[test]
fn the_names_of_the_store_of_the_command_line_are_completed() {
    let workspace = Workspace::new();
    let names = ["a/1", "a/2", "b", "a$(touch x)", "a b"];
    let holders: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(index, name)| {
            let mut run = workspace.polylock();
            run.args(["run", name, "sh", "-c", &format!("echo > held{index}; exec sleep 600")]);
            crate::support::Running::spawn(run)
        })
        .collect();
    (0..names.len()).for_each(|index| workspace.wait_for_file(&format!("held{index}")));
    for words in
        [&["status", "a"][..], &["run", "-n", "--ttl", "5s", "a"], &["break", "--yes", "a"], &["list", "a"]]
    {
        assert_eq!(completed(&workspace, words), ["a/1", "a/2"], "{words:?}");
    }
    assert_eq!(completed(&workspace, &["-S", "sqlite:other.db", "status", ""]), [""; 0]);
    // After the name comes a program, then files.
    fs::write(workspace.path("some-file"), "").unwrap();
    assert!(completed(&workspace, &["run", "a/1", "sle"]).contains(&"sleep".to_owned()));
    assert_eq!(completed(&workspace, &["run", "a/1", "sleep", "some"]), ["some-file"]);
    drop(holders);
}

#[test]
fn commands_and_options_are_completed_and_hidden_ones_are_not() {
    let workspace = Workspace::new();
    let commands = completed(&workspace, &[""]);
    assert!(
        commands.contains(&"run".to_owned()) && !commands.iter().any(|name| name.starts_with("__")),
        "{commands:?}"
    );
    assert_eq!(stdout(&complete(&workspace, &["run", "--min"])).trim_end(), "--min-hold");
}

#[test]
fn a_completion_creates_nothing() {
    let workspace = Workspace::new();
    for store in [
        "sqlite:new.db",
        "sqlite:directory/new.db",
        "both:sqlite:old.db;sqlite:new.db",
        "file:no-such-file",
        "env:NOT_SET",
        "memory:",
        "no-url",
        "sqlite:",
    ] {
        assert_eq!(completed(&workspace, &["-S", store, "status", ""]), [""; 0], "{store}");
    }
    // The default store.
    let mut polylock = workspace.polylock_without_store();
    polylock.env("_POLYLOCK_COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", "2");
    let output = polylock.args(["--", "polylock", "status", ""]).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert_eq!(fs::read_dir(workspace.directory.path()).unwrap().count(), 0);
}

#[test]
fn a_store_that_does_not_reply_delays_no_completion() {
    let workspace = Workspace::new();
    // Connections are accepted by the kernel, and nothing replies.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let pipe = workspace.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let stores = ["redis", "postgres", "mysql", "zookeeper"]
        .map(|scheme| format!("{scheme}://127.0.0.1:{port}/x?polylock.operation_timeout=50s"));
    for store in stores.into_iter().chain([format!("file:{}", pipe.display())]) {
        let start = now();
        // The default time limit is far below the bound, which a busy machine keeps, too.
        let output = completions_by(workspace.polylock(), &["-S", &store, "status", ""]);
        let took = now().since(start);
        assert!(took < Duration::from_secs(15), "{store}: {took:?}");
        assert!(output.status.success() && output.stderr.is_empty(), "{store}: {output:?}");
        assert!(!stdout(&output).contains("held by"), "{store}: {output:?}");
    }
}
