//! `polylock bench` of real servers: the raw driver beside each, and that it leaves nothing behind.

use std::process::{Command, Output, Stdio};

use polylock_integration_tests::{
    cargo::{example, polylock},
    servers::{mariadb, postgres, redis, zookeeper},
};
use serde_json::Value;
use sqlx::Connection;
use tempfile::TempDir;

use super::check::psql;

fn bench(urls: &[&str], arguments: &str) -> Value {
    let mut bench = Command::new(polylock());
    bench.args(["bench", "--quick", "--output", "json"]).args(arguments.split(' ')).stdin(Stdio::null());
    bench.args(urls.iter().flat_map(|url| ["-S", *url]));
    let output: Output = bench.output().unwrap();
    let report = serde_json::from_slice(&output.stdout);
    let report: Value = report.unwrap_or_else(|error| panic!("{error}: {output:?}"));
    assert_eq!(output.status.code(), Some(0), "{report:#}");
    report
}

/// Checks that each part was measured on each store.
fn assert_measured(report: &Value, stores: usize, parts: usize) {
    let measured = report["stores"].as_array().unwrap();
    assert_eq!(measured.len(), stores, "{report:#}");
    for store in measured {
        let all = store["parts"].as_array().unwrap();
        assert!(all.len() == parts && all.iter().all(|part| part["outcome"] == "measured"), "{store:#}");
    }
}

/// Checks that each part was measured on each store, and the raw driver beside it.
fn assert_beside_raw(report: &Value, stores: usize, parts: usize) {
    assert_measured(report, stores, parts);
    for store in report["stores"].as_array().unwrap() {
        assert!(store["raw"].is_string(), "{store:#}");
        let all = store["parts"].as_array().unwrap();
        assert!(all[0]["part"] == "uncontended" && all[0]["numbers"]["ratio"].is_number(), "{store:#}");
    }
}

#[test]
fn of_redis_and_postgresql_has_all_parts_and_leaves_nothing() {
    let (redis, postgres) = (redis::start(&[]).unwrap(), postgres::start(&[]).unwrap());
    let urls = [redis.url(), postgres.url()];
    let without_leases =
        "--only uncontended --only own-locks --only hand-over --only contended --only waiters";
    let report = bench(&urls, &format!("--seconds 4s --contenders 8 --waiters 40 {without_leases}"));
    assert_beside_raw(&report, 2, 5);
    // The leases are about as long as each of these parts, so a busy machine does not lose them.
    let leases = bench(&urls, "--seconds 7s --held 40 --kills 2 --only held --only kill");
    assert_measured(&leases, 2, 2);
    let own_locks = &report["stores"][0]["parts"][1];
    assert!(own_locks["numbers"]["ratio"].is_number(), "tasks share the connection: {own_locks:#}");
    let mut client = ::redis::Client::open(redis.url()).unwrap().get_connection().unwrap();
    let keys: u64 = ::redis::cmd("DBSIZE").query(&mut client).unwrap();
    let tables = psql(&postgres, "SELECT count(*) FROM pg_class WHERE relname LIKE 'polylock%'");
    assert_eq!((keys, tables.as_str()), (0, "0"));
}

#[tokio::test]
async fn of_mariadb_and_zookeeper_leaves_nothing() {
    let (mariadb, zookeeper) = (mariadb::start(&[]).unwrap(), zookeeper::start(&[]).unwrap());
    let urls = [mariadb.url().to_owned(), zookeeper.url().to_owned()];
    // The lease of the last part is a fifth of this time.
    let arguments = "--seconds 8s --kills 2 --only uncontended --only hand-over --only kill";
    let measure = move || bench(&[&urls[0], &urls[1]], arguments);
    let report = tokio::task::spawn_blocking(measure).await.unwrap();
    assert_beside_raw(&report, 2, 3);
    let mut client = sqlx::MySqlConnection::connect(mariadb.url()).await.unwrap();
    let count = "SELECT count(*) FROM information_schema.tables WHERE table_name LIKE 'polylock%'";
    let left: i64 = sqlx::query_scalar(count).fetch_one(&mut client).await.unwrap();
    assert_eq!(left, 0);
    let (_, servers) = zookeeper.url().split_once("://").unwrap();
    let client = zookeeper_client::Client::connect(servers.trim_end_matches('/')).await.unwrap();
    assert_eq!(client.list_children("/").await.unwrap(), ["zookeeper"]);
}

#[test]
fn of_a_store_that_breaks_a_promise_has_no_numbers() {
    let directory = TempDir::new().unwrap();
    let url = format!("faulty-exclusion:{}", directory.path().join("store").display());
    let mut bench = Command::new(example("polylock-cli", "faulty_store"));
    bench.args(["bench", "-S", &url, "--seconds", "4s", "--only", "contended"]).stdin(Stdio::null());
    let output = bench.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("failed: the store has broken a promise"), "{text}");
}
