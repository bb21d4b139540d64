//! The example of the helpers, run as a user would.

use polylock_integration_tests::{
    cargo::cargo,
    servers::{self, Server},
};
use polylock_testkit::Missing;

/// What it says, and whether it was content.
fn run(arguments: &[&str]) -> (String, bool) {
    let mut cargo = cargo();
    cargo.args(["run", "-q", "-p", "polylock-sql", "--features", "sqlite,postgres,mysql"]);
    let output = cargo.args(["--example", "fenced_update", "--"]).args(arguments).output().unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (said, output.status.success())
}

#[test]
fn the_late_write_of_a_stopped_holder_is_refused() {
    let (said, content) = run(&[]);
    assert!(content && said.contains("A: refused: fencing token"), "{said}");
    assert!(said.contains("the order is paid, as the last holder"), "{said}");
}

/// The planted twin: the same program sees what a write without token does.
#[test]
fn planted_late_write_without_a_token_is_caught() {
    let (said, content) = run(&["--unfenced"]);
    assert!(!content && said.contains("the order is cancelled"), "{said}");
}

#[test]
fn the_late_write_is_refused_by_servers_too() {
    for server in [servers::postgres(), servers::mariadb()] {
        match server.map(Server::url) {
            Ok(url) => {
                let (said, content) = run(&[url]);
                assert!(content && said.contains("A: refused: fencing token"), "{said}");
            }
            Err(Missing(why)) => {
                let required = std::env::var("POLYLOCK_TEST_REQUIRE").is_ok_and(|required| required == "all");
                assert!(!required, "required and missing: {why}");
                eprintln!("missing: {why}");
            }
        }
    }
}
