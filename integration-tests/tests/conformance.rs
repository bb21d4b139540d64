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
macro_rules! conform_in_part {
    ($($target:ident)*) => {
        $(mod $target {
            conform_in_part! { @ $target [exclusion order wait lost release breaking inspect] }
        })*
    };
    (@ $target:ident [$($group:ident)*]) => {
        pub(super) const GROUPS: &[&str] = &[$(stringify!($group)),*];

        $(#[test]
        fn $group() {
            let factory = polylock_testkit::TargetFactory::new(polylock_integration_tests::targets::$target);
            super::group(stringify!($target), stringify!($group), &factory);
        })*
    };
}
polylock_integration_tests::variants!(conform_in_part);

/// A pooler does not forward notifications, which the store can't detect when it is opened.
const UNSUPPORTED_PAIR: (&str, &str) = ("postgres_pooled", "breaking::notifies_the_holder_at_once");

/// Runs the cases of `group`, four at a time: most of them wait.
fn group(target: &str, group: &str, factory: &polylock_testkit::TargetFactory) {
    let cases = polylock_testkit::CASES.iter().copied();
    let cases: Vec<&str> = cases
        .filter(|case| case.split("::").next() == Some(group) && (target, *case) != UNSUPPORTED_PAIR)
        .collect();
    assert!(!cases.is_empty(), "there is no group {group:?}");
    std::thread::scope(|scope| {
        for some in cases.chunks(cases.len().div_ceil(4)) {
            scope.spawn(|| some.iter().for_each(|case| polylock_testkit::__test(target, case, factory)));
        }
    });
}

#[test]
fn every_variant_runs_the_groups_that_depend_on_notifications() {
    assert_eq!(postgres_listen_off::GROUPS, targets::VARIED);
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
    // The tests of this program, and the ignored ones.
    let (all, ignored) = (listed("--include-ignored"), listed("--ignored"));
    assert_eq!(untested(&all), [""; 0]);
    assert!(!ignored.contains(": test"), "ignored: {ignored}");
    // The counterexample: a missing test is reported.
    let line = format!("{}::{}: test", targets::NAMES[1], polylock_testkit::CASES[0]);
    assert_eq!(untested(&all.replace(&line, "")), [line.trim_end_matches(": test")]);
}
