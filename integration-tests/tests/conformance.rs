//! Every case of the conformance suite on every store of this machine.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::process::Command;

use polylock_integration_tests::targets;

macro_rules! conform {
    ($($target:ident)*) => {
        $(polylock_testkit::conformance!($target, || polylock_integration_tests::targets::$target());)*
    };
}
polylock_integration_tests::targets!(conform);

/// The pairs of target and case that are in no line of `listed`.
fn untested(listed: &str) -> Vec<String> {
    let tests: Vec<&str> = listed.lines().filter_map(|line| line.strip_suffix(": test")).collect();
    targets::NAMES
        .iter()
        .flat_map(|target| polylock_testkit::CASES.iter().map(move |case| format!("{target}::{case}")))
        .filter(|pair| !tests.contains(&pair.as_str()))
        .collect()
}

#[test]
fn every_case_runs_on_every_target() {
    let listed = |which: &str| {
        let output = Command::new(std::env::current_exe().unwrap()).args(["--list", which]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    // Those that are there, and are not ignored.
    let (all, ignored) = (listed("--include-ignored"), listed("--ignored"));
    assert_eq!(untested(&all), [""; 0]);
    assert!(!ignored.contains(": test"), "ignored: {ignored}");
    // The planted twin: one that is missing is missed.
    let line = format!("{}::{}: test", targets::NAMES[1], polylock_testkit::CASES[0]);
    assert_eq!(untested(&all.replace(&line, "")), [line.trim_end_matches(": test")]);
}
