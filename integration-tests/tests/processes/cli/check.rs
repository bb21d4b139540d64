//! `polylock check` of real servers: its verdict, and that it leaves nothing behind.

use std::{
    path::Path,
    process::{Command, Output, Stdio},
};

use polylock_integration_tests::{
    cargo::{example, polylock},
    servers::{
        Server, mariadb, postgres,
        redis::{self, DURABLE},
        zookeeper,
    },
};
use serde_json::Value;
use sqlx::Connection;
use tempfile::TempDir;

fn check_with(program: &Path, url: &str, arguments: &[&str]) -> (Output, Value) {
    let mut check = Command::new(program);
    check.args(["-S", url, "--output", "json", "check"]).args(arguments).stdin(Stdio::null());
    if program != polylock() {
        // A case of a store that breaks its promise may wait for all of this time.
        check.env("POLYLOCK_TESTKIT_TIMEOUT", "5");
    }
    let output = check.output().unwrap();
    let report = serde_json::from_slice(&output.stdout);
    let report = report.unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (output, report)
}

fn rows<'r>(report: &'r Value, outcome: &str) -> Vec<&'r Value> {
    let rows = report["rows"].as_array().unwrap().iter();
    rows.filter(|row| row["outcome"] == outcome).collect()
}

const ALL: &[&str] = &["settings", "latency", "clock", "conformance", "faults"];

/// Checks these parts of a store that keeps its promises.
fn assert_kept(url: &str, parts: &[&str]) -> Value {
    let only = parts.iter().flat_map(|part| ["--only", *part]);
    let arguments: Vec<&str> =
        ["--quick", "--seconds", "6s", "--seed", "5"].into_iter().chain(only).collect();
    let (output, report) = check_with(polylock(), url, &arguments);
    assert_eq!(rows(&report, "failure"), [&Value::Null; 0], "{report:#}");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    for part in parts {
        let is_part = |row: &&Value| row["part"] == *part && row["outcome"] == "ok";
        assert!(report["rows"].as_array().unwrap().iter().any(|row| is_part(&row)), "{part}: {report:#}");
    }
    report
}

#[test]
fn of_redis_reports_its_settings_and_leaves_no_key() {
    let (volatile, durable) = (redis::start(&[]).unwrap(), redis::start(DURABLE).unwrap());
    let of_volatile = assert_kept(volatile.url(), ALL);
    let warnings = rows(&of_volatile, "warning");
    assert!(
        warnings.iter().any(|row| row["value"].as_str().unwrap().contains("append-only file")),
        "{warnings:?}"
    );
    let (_, report) = check_with(polylock(), durable.url(), &["--only", "settings"]);
    assert_eq!(report["verdict"], "ok", "{report:#}");
    for server in [volatile, durable] {
        let mut client = ::redis::Client::open(server.url()).unwrap().get_connection().unwrap();
        let keys: u64 = ::redis::cmd("DBSIZE").query(&mut client).unwrap();
        assert_eq!(keys, 0);
    }
}

pub(super) fn psql(server: &Server, sql: &str) -> String {
    let output =
        Command::new("psql").args(["-X", "-q", "-A", "-t", server.url(), "-c", sql]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn of_postgresql_leaves_no_table_and_no_function() {
    let server = postgres::start(&[]).unwrap();
    let count = "SELECT (SELECT count(*) FROM pg_class WHERE relname LIKE 'polylock%') + \
                 (SELECT count(*) FROM pg_proc WHERE proname LIKE 'polylock%')";
    assert_kept(server.url(), ALL);
    assert_eq!(psql(&server, count), "0");
    let pessimistic = format!("{}?polylock.strategy=pessimistic", server.url());
    assert_kept(&pessimistic, &["latency"]);
    assert_eq!(psql(&server, count), "0");
}

#[test]
fn of_a_store_that_breaks_a_promise_reports_it() {
    let program = example("polylock-cli", "faulty_store");
    let directory = TempDir::new().unwrap();
    let url = |scheme: &str| format!("{scheme}:{}", directory.path().join(scheme).display());
    for (scheme, name) in [("faulty-exclusion", "exclusion"), ("faulty-tokens", "fencing tokens")] {
        let (output, report) = check_with(&program, &url(scheme), &["--only", "faults", "--seconds", "4s"]);
        assert_eq!(output.status.code(), Some(1), "{report:#}");
        assert!(rows(&report, "failure").iter().any(|row| row["name"] == name), "{report:#}");
    }
    let arguments = ["--only", "conformance", "--quick"];
    let (output, report) = check_with(&program, &url("faulty-tokens"), &arguments);
    assert_eq!(output.status.code(), Some(1), "{report:#}");
    let failures = rows(&report, "failure");
    assert!(failures.iter().any(|row| row["name"] == "fencing::tokens_grow_across_releases"), "{report:#}");
    assert!(failures.iter().all(|row| row["part"] == "conformance"), "{report:#}");
}

#[tokio::test]
async fn of_mariadb_leaves_no_table_and_no_procedure() {
    let server = mariadb::start(&[]).unwrap();
    let url = server.url().to_owned();
    tokio::task::spawn_blocking(move || assert_kept(&url, &["latency", "faults"])).await.unwrap();
    let mut client = sqlx::MySqlConnection::connect(server.url()).await.unwrap();
    let count = "SELECT (SELECT count(*) FROM information_schema.tables WHERE table_name LIKE 'polylock%') + \
                 (SELECT count(*) FROM information_schema.routines WHERE routine_name LIKE 'polylock%')";
    let left: i64 = sqlx::query_scalar(count).fetch_one(&mut client).await.unwrap();
    assert_eq!(left, 0);
}

#[tokio::test]
async fn of_zookeeper_leaves_no_node() {
    let server = zookeeper::start(&[]).unwrap();
    let url = server.url().to_owned();
    tokio::task::spawn_blocking(move || assert_kept(&url, &["latency", "faults"])).await.unwrap();
    let (_, servers) = server.url().split_once("://").unwrap();
    let client = zookeeper_client::Client::connect(servers.trim_end_matches('/')).await.unwrap();
    assert_eq!(client.list_children("/").await.unwrap(), ["zookeeper"]);
}
