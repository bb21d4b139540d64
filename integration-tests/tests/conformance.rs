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

/// A test for each group of cases that a variant of a target gets.
macro_rules! vary {
    ($($target:ident)*) => {
        $(mod $target {
            vary! { @ $target [exclusion order wait lost release breaking inspect] }
        })*
    };
    (@ $target:ident [$($group:ident)*]) => {
        pub(super) const GROUPS: &[&str] = &[$(stringify!($group)),*];

        $(#[test]
        fn $group() {
            let maker = polylock_testkit::Maker::new(polylock_integration_tests::targets::$target);
            super::group(stringify!($target), stringify!($group), &maker);
        })*
    };
}
polylock_integration_tests::variants!(vary);

/// A pooler passes no notifications on, which a store that listens through it does not know when it is opened.
const PUSHED: (&str, &str) = ("postgres_pooled", "breaking::reaches_the_holder_at_once");

/// Runs the cases of `group`, four at a time: most of them wait.
fn group(target: &str, group: &str, maker: &polylock_testkit::Maker) {
    let cases = polylock_testkit::CASES.iter().copied();
    let cases: Vec<&str> =
        cases.filter(|case| case.split("::").next() == Some(group) && (target, *case) != PUSHED).collect();
    assert!(!cases.is_empty(), "there is no group {group:?}");
    std::thread::scope(|scope| {
        for some in cases.chunks(cases.len().div_ceil(4)) {
            scope.spawn(|| some.iter().for_each(|case| polylock_testkit::__test(target, case, maker)));
        }
    });
}

#[test]
fn every_variant_gets_the_groups_that_depend_on_notifications() {
    assert_eq!(postgres_unheard::GROUPS, targets::VARIED);
    assert_eq!(postgres_pooled::GROUPS, targets::VARIED);
    assert_eq!(redis_sentinel::GROUPS, targets::VARIED);
}

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
