//! The examples of fences, run as a user would: a stopped holder continues, and its late write is refused.

use std::process::Command;

use polylock_integration_tests::{
    cargo::example,
    servers::{self, Server},
};
use polylock_testkit::Missing;

/// Returns the output of an example, and true if it succeeded.
fn run(package: &str, name: &str, arguments: &[&str]) -> (String, bool) {
    let result = Command::new(example(package, name)).args(arguments).output().unwrap();
    let output =
        String::from_utf8_lossy(&result.stdout).into_owned() + &String::from_utf8_lossy(&result.stderr);
    (output, result.status.success())
}

/// Runs an example, in which the late write is refused.
fn refuses(package: &str, name: &str, arguments: &[&str]) {
    let (output, is_success) = run(package, name, arguments);
    let refusal = output.lines().find(|line| line.starts_with("A: refused: "));
    assert!(
        is_success && refusal.is_some_and(|line| line.contains("fencing token")),
        "{arguments:?}: {output}"
    );
    assert!(output.contains("the order is paid, as the last holder"), "{output}");
}

/// The planted bug: the same program with a late write without a token.
fn planted_without_a_token_is_caught(package: &str, name: &str, arguments: &[&str]) {
    let unfenced: Vec<&str> = ["--unfenced"].iter().chain(arguments).copied().collect();
    let (output, is_success) = run(package, name, &unfenced);
    assert!(!is_success && output.contains("the order is cancelled, but"), "{unfenced:?}: {output}");
}

/// Returns the URL of a server; `None` if it is missing and not required.
fn url(server: Result<&'static Server, Missing>) -> Option<&'static str> {
    match server.map(Server::url) {
        Ok(url) => Some(url),
        Err(Missing(why)) => {
            let required = std::env::var("POLYLOCK_TEST_REQUIRE").is_ok_and(|required| required == "all");
            assert!(!required, "required and missing: {why}");
            eprintln!("missing: {why}");
            None
        }
    }
}

/// The helper of the library for a row; the function and the trigger for plain SQL.
fn tables_refuse(url: Option<&str>) {
    for flag in [None, Some("--function"), Some("--trigger")] {
        let arguments: Vec<&str> = flag.into_iter().chain(url).collect();
        refuses("polylock-sql", "fenced_update", &arguments);
    }
    planted_without_a_token_is_caught("polylock-sql", "fenced_update", &url.into_iter().collect::<Vec<_>>());
}

#[test]
fn tables_of_sqlite_refuse_the_late_write_of_a_stopped_holder() {
    tables_refuse(None);
}

#[test]
fn tables_of_postgres_refuse_the_late_write_of_a_stopped_holder() {
    if let Some(url) = url(servers::postgres()) {
        tables_refuse(Some(url));
    }
}

#[test]
fn tables_of_mariadb_refuse_the_late_write_of_a_stopped_holder() {
    if let Some(url) = url(servers::mariadb()) {
        tables_refuse(Some(url));
    }
}

#[test]
fn the_script_of_redis_refuses_the_late_write_of_a_stopped_holder() {
    if let Some(url) = url(servers::redis()) {
        refuses("polylock", "fenced_redis", &[url]);
        planted_without_a_token_is_caught("polylock", "fenced_redis", &[url]);
    }
}

#[test]
fn a_blob_refuses_the_late_write_of_a_stopped_holder() {
    if let Some(url) = url(servers::azurite()) {
        refuses("polylock", "fenced_azure", &[url]);
    }
}

#[test]
fn the_layer_refuses_the_late_request_of_a_stopped_holder() {
    refuses("polylock", "fenced_http", &[]);
    planted_without_a_token_is_caught("polylock", "fenced_http", &[]);
}
