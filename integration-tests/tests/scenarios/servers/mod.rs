//! The servers of the harness: they behave as documented, and leave nothing behind.

mod blobs;
mod databases;
mod disk;
mod ends;
mod ensemble;
mod family;
mod key_value;
mod session;
mod standalone;

use std::{collections::HashSet, panic, thread, time::Duration};

use polylock_integration_tests::{
    clock::TIMEOUT,
    process::Process,
    servers::{PrivateServer, Server, azurite, mariadb, postgres, redis, redlock, valkey, zookeeper},
};
use polylock_testkit::Missing;

use family::{all_gone, family, is_port_closed};
use session::{Session, query, stored};

type Start = fn(&[&str]) -> Result<PrivateServer, Missing>;

const KINDS: [(&str, Start); 6] = [
    ("postgres", postgres::start),
    ("mariadb", mariadb::start),
    // What it keeps is a setting.
    ("redis", |settings| redis::start(&[redis::DURABLE, settings].concat())),
    ("valkey", |settings| valkey::start(&[redis::DURABLE, settings].concat())),
    ("zookeeper", zookeeper::start),
    ("azurite", |settings| azurite::start(&[azurite::DURABLE, settings].concat())),
];

#[tokio::test]
async fn a_killed_server_restarts_with_its_data() {
    for (name, start) in KINDS {
        let server = start(&[]).unwrap();
        let mut session = Session::open(server.url()).await.unwrap();
        session.store().await.unwrap();

        let family = family(server.id().unwrap());
        assert!(name != "postgres" || family.len() > 4, "its helpers count: {family:?}");
        server.kill();
        assert!(all_gone(&family), "{name}: a process of {family:?} is left");
        assert!(is_port_closed(server.url()), "{name}");
        assert!(session.is_dead().await, "{name}: its connections are dead");

        server.restart();
        assert_eq!(stored(server.url()).await, "seven", "{name}");
        server.restart();
        assert_eq!(stored(server.url()).await, "seven", "{name}: restarted while it ran");
    }
}

#[tokio::test]
async fn a_frozen_server_replies_after_the_thaw() {
    for (name, start) in KINDS {
        let server = start(&[]).unwrap();
        let mut session = Session::open(server.url()).await.unwrap();
        server.freeze();
        let mut asking = Box::pin(session.echo());
        let early = tokio::time::timeout(Duration::from_millis(200), &mut asking).await;
        assert!(early.is_err(), "{name}: answered while frozen: {early:?}");
        server.thaw();
        let answer = tokio::time::timeout(TIMEOUT, asking).await.expect("no reply after the thaw");
        assert_eq!(answer.unwrap(), "it", "{name}");
        // One that is frozen can be killed, too.
        let family = family(server.id().unwrap());
        server.freeze();
        server.kill();
        assert!(all_gone(&family), "{name}: a process of {family:?} is left");
        server.restart();
        assert_eq!(Session::open(server.url()).await.unwrap().echo().await.unwrap(), "it", "{name}");
    }
}

#[tokio::test]
async fn settings_reach_the_server() {
    let server = postgres::start(&["default_transaction_isolation=serializable"]).unwrap();
    assert_eq!(query(server.url(), "SHOW default_transaction_isolation").await, "serializable");
    let server =
        mariadb::start(&["innodb_flush_log_at_trx_commit=2", "transaction_isolation=SERIALIZABLE"]).unwrap();
    assert_eq!(query(server.url(), "SELECT @@tx_isolation").await, "SERIALIZABLE");
    let flush = "SELECT CAST(@@innodb_flush_log_at_trx_commit AS CHAR)";
    assert_eq!(query(server.url(), flush).await, "2");
    for start in [redis::start, valkey::start] {
        let server = start(&["maxmemory-policy allkeys-lru", "maxmemory 90mb"]).unwrap();
        assert_eq!(query(server.url(), "CONFIG GET maxmemory-policy").await, "allkeys-lru");
        assert_eq!(query(server.url(), "CONFIG GET maxmemory").await, "94371840");
    }
}

#[tokio::test]
async fn a_shared_server_is_durable() {
    let server = postgres().unwrap();
    for statement in ["SHOW fsync", "SHOW synchronous_commit", "SHOW full_page_writes"] {
        assert_eq!(query(server.url(), statement).await, "on", "{statement}");
    }
    let nodes = redlock().unwrap();
    assert_eq!(nodes.len(), 5);
    for server in nodes.iter().chain([redis().unwrap(), valkey().unwrap()]) {
        assert_eq!(query(server.url(), "CONFIG GET appendonly").await, "yes");
        assert_eq!(query(server.url(), "CONFIG GET appendfsync").await, "always");
        assert_eq!(query(server.url(), "CONFIG GET maxmemory-policy").await, "noeviction");
    }
    let server = mariadb().unwrap();
    for (statement, default) in [
        ("SELECT CAST(@@innodb_flush_log_at_trx_commit AS CHAR)", "1"),
        ("SELECT CAST(@@innodb_doublewrite AS CHAR)", "ON"),
    ] {
        assert_eq!(query(server.url(), statement).await, default, "{statement}");
    }
}

#[test]
fn a_server_that_does_not_start_shows_its_log() {
    for (name, start) in KINDS {
        // It takes any name for a setting.
        let setting = if name == "zookeeper" { "tickTime=no_such_setting" } else { "no_such_setting=1" };
        let started = panic::catch_unwind(|| start(&[setting]));
        let message = *started.expect_err("it must not start").downcast::<String>().unwrap();
        assert!(message.contains("no_such_setting") && message.contains("it has ended"), "{name}: {message}");
    }
}

#[test]
fn all_tests_of_a_process_share_a_server() {
    let threads: Vec<_> = (0..4).map(|_| thread::spawn(|| redlock().unwrap())).collect();
    let nodes: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(nodes.iter().all(|five| std::ptr::eq(*five, nodes[0])));
    assert_eq!(nodes[0].iter().map(Server::url).collect::<HashSet<_>>().len(), 5);

    let threads: Vec<_> = (0..4).map(|_| thread::spawn(|| postgres().unwrap())).collect();
    let servers: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(servers.iter().all(|server| std::ptr::eq(*server, servers[0])));
    // Every name is unique, and valid for any server.
    let names: HashSet<_> = (0..1000).map(|i| servers[i % 4].name()).collect();
    assert_eq!(names.len(), 1000);
    let plain =
        |name: &String| name.len() < 16 && name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric());
    assert!(names.iter().all(plain), "{names:?}");
}

#[test]
fn a_url_in_the_environment_is_used() {
    for (variable, name) in [
        ("POLYLOCK_TEST_POSTGRES_URL", "postgres"),
        ("POLYLOCK_TEST_MYSQL_URL", "mariadb"),
        ("POLYLOCK_TEST_REDIS_URL", "redis"),
        ("POLYLOCK_TEST_VALKEY_URL", "valkey"),
        ("POLYLOCK_TEST_ZOOKEEPER_URL", "zookeeper"),
        ("POLYLOCK_TEST_ZOOKEEPER_ENSEMBLE_URL", "zookeeper-ensemble"),
        ("POLYLOCK_TEST_AZURE_URL", "azurite"),
    ] {
        let value = format!("{variable}={name}://me:secret@elsewhere/");
        let mut attached = Process::start("env", [&value, env!("CARGO_BIN_EXE_server"), "shared", name]);
        assert_eq!(attached.expect_line("url"), [format!("{name}://me:secret@elsewhere/")]);
    }
    let redlock = |url: &str| {
        let value = format!("POLYLOCK_TEST_REDLOCK_URL={url}");
        Process::start("env", [&value, env!("CARGO_BIN_EXE_server"), "shared", "redlock"])
    };
    let five = "redlock://me:secret@a:1,b:2,c:3,d:4,e:5/0?k=v";
    assert_eq!(redlock(five).expect_line("url"), [five]);
    // With fewer nodes the tests would test less than required.
    assert!(!redlock("redlock://a:1,b:2,c:3").wait_for_exit().success());
}
