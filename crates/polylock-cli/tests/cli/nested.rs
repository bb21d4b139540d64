//! Runs inside of runs: only a process that the outer run supervises may run under its hold.

use std::{
    fs,
    process::{Command, Output},
};

use rustix::process::{Signal, kill_process};

use crate::support::{Running, Workspace, eventually, stderr, stdout, warden_of};

const POLYLOCK: &str = env!("CARGO_BIN_EXE_polylock");

/// Starts a run of lock `x` that writes its environment to the file `variables`.
fn start_outer(workspace: &Workspace) -> Running {
    let outer = workspace.start("x", "export -p > variables; echo > ready; exec sleep 60");
    workspace.wait_for_file("ready");
    outer
}

/// Runs this script with the environment of the outer run, but as a child of this test: a tmux server, `at`, `systemd-run` and `docker
/// exec` start processes in this way.
fn run_elsewhere(workspace: &Workspace, script: &str) -> Output {
    let script = format!(". ./variables; {}", script.replace("polylock ", &format!("{POLYLOCK} ")));
    Command::new("sh").args(["-c", &script]).current_dir(workspace.directory.path()).output().unwrap()
}

#[test]
fn a_process_that_only_has_the_variables_of_a_run_does_not_run_under_its_hold() {
    let workspace = Workspace::new();
    let outer = start_outer(&workspace);
    for arguments in ["--reentrant x", "x", "-n x"] {
        let refused = run_elsewhere(&workspace, &format!("polylock run {arguments} touch entered"));
        let text = stderr(&refused);
        assert_eq!(refused.status.code(), Some(64), "{arguments}: {text}");
        assert!(text.contains("does not supervise this process: its warden"), "{arguments}: {text}");
    }
    // The remedies that the message names.
    let waits = "unset POLYLOCK_OWNER POLYLOCK_OUTER; polylock run -n x touch entered";
    assert_eq!(run_elsewhere(&workspace, waits).status.code(), Some(75));
    assert!(!workspace.path("entered").exists());
    drop(outer);
}

#[test]
fn without_the_variable_of_the_warden_a_nested_run_is_refused() {
    let workspace = Workspace::new();
    for (change, expected) in [
        ("unset POLYLOCK_WARDENS", "names no warden of it"),
        ("POLYLOCK_WARDENS='1 1 a b c'", "names no warden of it"),
        ("POLYLOCK_WARDENS=\"1 1 pid:[1] ${POLYLOCK_WARDENS#*] }\"", "in another PID namespace"),
        ("POLYLOCK_WARDENS=\"${POLYLOCK_WARDENS%-*} ${POLYLOCK_WARDENS##* }\"", "on another machine"),
    ] {
        let script = format!("{change}; exec {POLYLOCK} run --reentrant x touch entered");
        let output = workspace.polylock().args(["run", "x", "sh", "-c", &script]).output().unwrap();
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(64), "{change}: {text}");
        assert!(text.contains(expected), "{change}: {text}");
    }
    assert!(!workspace.path("entered").exists());
}

#[test]
fn every_descendant_of_a_run_may_run_under_its_hold() {
    let workspace = Workspace::new();
    let reenter = |number: usize| format!("{POLYLOCK} run --reentrant x sh -c 'echo {number} >> entered'");
    let quoted = |number: usize| reenter(number).replace('\'', "'\\''");
    let script = [
        reenter(1),
        format!("setsid sh -c '{}'", quoted(2)),
        // The parent of each of the two forks ends.
        format!("(setsid sh -c '({} &)' &)", quoted(3)),
        format!("{POLYLOCK} run y sh -c '{}'", quoted(4)),
        "until [ \"$(wc -l < entered)\" = 4 ]; do sleep 0.02; done".to_owned(),
    ]
    .join("\n");
    let output = workspace.polylock().args(["run", "x", "-c", &script]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let mut entered: Vec<String> = workspace.read("entered").lines().map(str::to_owned).collect();
    entered.sort();
    assert_eq!(entered, ["1", "2", "3", "4"]);
}

/// A process that the command of an earlier term has left is not supervised in the next one, though both have the same owner.
#[test]
fn a_process_of_an_earlier_term_does_not_run_under_the_hold_of_the_next() {
    let workspace = Workspace::new();
    let script = format!(
        "if [ -e first ]; then echo > second; until [ -e end ]; do sleep 0.02; done; exit 0; fi
         echo > first
         (setsid sh -c 'until [ -e second ]; do sleep 0.02; done
             {POLYLOCK} run --reentrant x touch entered 2> errors; echo $? > code' > /dev/null 2>&1 &)
         exit 5"
    );
    let mut elect = workspace.polylock();
    elect.args(["elect", "--restart", "on-failure", "--restart-delay", "0", "x", "sh", "-c", &script]);
    let elect = Running::spawn(elect);
    workspace.wait_for_file("code");
    fs::write(workspace.path("end"), "").unwrap();
    assert_eq!(elect.code(), Some(0));
    assert_eq!(workspace.read("code"), "64\n", "{}", workspace.read("errors"));
    assert!(!workspace.path("entered").exists());
}

#[test]
fn after_a_replacement_of_the_warden_a_nested_run_is_refused() {
    let workspace = Workspace::new();
    let script = format!(
        "echo > ready; until [ -e replaced ]; do sleep 0.02; done; exec {POLYLOCK} run --reentrant x touch entered"
    );
    let outer = workspace.start("x", &script);
    workspace.wait_for_file("ready");
    let first = warden_of(outer.pid());
    kill_process(first, Signal::KILL).unwrap();
    eventually("another warden", || warden_of(outer.pid()) != first);
    fs::write(workspace.path("replaced"), "").unwrap();
    let output = outer.finish();
    assert_eq!(output.status.code(), Some(64), "{}", stderr(&output));
    assert!(stderr(&output).contains("or its warden was killed"), "{}", stderr(&output));
    assert!(!workspace.path("entered").exists());
}

/// It would wait for the run, which waits for it.
#[test]
fn a_hold_inside_a_run_of_its_lock_is_refused_if_it_would_wait() {
    let workspace = Workspace::new();
    let inside = |outer: &str, inner: &str| {
        let mut nested = workspace.polylock();
        nested.args(["run"]).args(outer.split(' ')).args([POLYLOCK, "acquire"]).args(inner.split(' '));
        let output = nested.output().unwrap();
        (output.status.code(), stderr(&output))
    };
    for (outer, inner) in [("x", "x"), ("x", "-n x"), ("-s x", "x"), ("y --also x", "-s x")] {
        let (code, text) = inside(outer, inner);
        assert_eq!(code, Some(64), "{outer}, {inner}: {text}");
        assert!(text.contains("runs under lock x already and would wait for itself"), "{text}");
    }
    for (outer, inner) in [("-s x", "-s --for 1s x"), ("x", "--for 1s y")] {
        let (code, text) = inside(outer, inner);
        assert_eq!(code, Some(0), "{outer}, {inner}: {text}");
    }
}

/// They have no option `--reentrant`, so the message names the command that has it.
#[test]
fn an_election_or_a_job_inside_a_run_of_its_lock_is_refused() {
    for inner in ["elect", "once", "run"] {
        for outer in ["elect", "once", "run"] {
            let workspace = Workspace::new();
            let mut nested = workspace.polylock();
            nested.args(outer.split(' ')).args(["x", POLYLOCK, inner, "x", "echo", "inner"]);
            let output = nested.output().unwrap();
            let text = stderr(&output);
            assert_eq!(
                (output.status.code(), stdout(&output).as_str()),
                (Some(64), ""),
                "{outer} {inner}: {text}"
            );
            assert!(text.contains("`polylock run --reentrant`"), "{outer} {inner}: {text}");
        }
    }
}
