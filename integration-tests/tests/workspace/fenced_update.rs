//! The example of the optimistic helpers, run as a user would.

use std::process::Command;

use polylock_integration_tests::{
    cargo::example,
    servers::{self, Server},
};
use polylock_testkit::Missing;

/// Returns the output of the example, and true if it succeeded.
fn run(arguments: &[&str]) -> (String, bool) {
    let result = Command::new(example("polylock-sql", "fenced_update")).args(arguments).output().unwrap();
    let output =
        String::from_utf8_lossy(&result.stdout).into_owned() + &String::from_utf8_lossy(&result.stderr);
    (output, result.status.success())
}

#[test]
fn the_late_write_of_a_stopped_holder_is_refused() {
    let (output, is_success) = run(&[]);
    assert!(is_success && output.contains("A: refused: fencing token"), "{output}");
    assert!(output.contains("the order is paid, as the last holder"), "{output}");
}

/// The planted bug: the same program with a write without a token.
#[test]
fn planted_late_write_without_a_token_is_caught() {
    let (output, is_success) = run(&["--unfenced"]);
    assert!(!is_success && output.contains("the order is cancelled"), "{output}");
}

#[test]
fn the_late_write_is_refused_by_servers_too() {
    for server in [servers::postgres(), servers::mariadb()] {
        match server.map(Server::url) {
            Ok(url) => {
                let (output, is_success) = run(&[url]);
                assert!(is_success && output.contains("A: refused: fencing token"), "{output}");
            }
            Err(Missing(why)) => {
                let required = std::env::var("POLYLOCK_TEST_REQUIRE").is_ok_and(|required| required == "all");
                assert!(!required, "required and missing: {why}");
                eprintln!("missing: {why}");
            }
        }
    }
}
