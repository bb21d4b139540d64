//! Servers with other settings than the default, users with few rights, and refused servers. Settings under which the store must work as
//! ever, or is refused by their names, are in `src/settings`.

use std::{
    io::Write,
    process::{Command, Stdio},
    time::Duration,
};

use polylock::{Fault, Fencing, Locks};
use polylock_integration_tests::{
    clock,
    load::Load,
    refusals::refusal,
    servers::{PrivateServer, mariadb},
};
use polylock_sql::mysql::{Config, schema};

use super::{connection, number, run, tables};

#[tokio::test(flavor = "multi_thread")]
async fn locks_exclude_under_every_default_isolation() {
    for isolation in ["READ-UNCOMMITTED", "READ-COMMITTED", "REPEATABLE-READ", "SERIALIZABLE"] {
        let setting = format!("transaction_isolation={isolation}");
        let settings =
            [setting.as_str(), "innodb_snapshot_isolation=ON", "log_bin=log", "binlog_format=MIXED"];
        let server = mariadb::start(&settings).unwrap();
        let load = Load { min_holds: 50, ..Load::default() };
        let outcome = load.run(&tables(&server, "").0, async {}).await;
        outcome.assert_consistent();
        assert!(outcome.sections.len() > 50, "{isolation}");
        assert_eq!((outcome.failures, outcome.losses), (0, 0), "{isolation}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_are_byte_exact_under_odd_modes_and_character_sets() {
    for mode in [
        "",
        "ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,IGNORE_SPACE,HIGH_NOT_PRECEDENCE,SIMULTANEOUS_ASSIGNMENT",
        "ORACLE,EMPTY_STRING_IS_NULL,NO_UNSIGNED_SUBTRACTION,TIME_ROUND_FRACTIONAL,TRADITIONAL",
    ] {
        let sql_mode = format!("sql_mode={mode}");
        let settings = [&sql_mode, "character_set_server=ucs2", "default_time_zone=-09:30"];
        let server = mariadb::start(&settings).unwrap();
        let (url, table) = tables(&server, "");
        let mut admin = connection(&server).await;
        // That of the database is that of the texts which routines take.
        if !mode.is_empty() {
            run(&mut admin, "ALTER DATABASE CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci").await;
        }
        let (here, there) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
        let names = ["a", "A", "a ", "á", "a\u{301}", "\\", "'", "\"", "é\u{1f512}"];
        let mut guards = Vec::new();
        for name in names {
            let lock = here.lock(name).label("\u{1f512} 'x' \\").ttl(Duration::from_secs(3600));
            guards.push(lock.try_acquire().await.unwrap().unwrap_or_else(|| panic!("{mode}: {name:?}")));
        }
        for (name, guard) in names.into_iter().zip(guards) {
            assert!(there.lock(name).try_acquire().await.unwrap().is_none(), "{mode}: {name:?}");
            let holder = there.inspect(name).await.unwrap().holders.remove(0);
            assert_eq!(holder.label, "\u{1f512} 'x' \\", "{mode}");
            assert!(
                holder.age < Duration::from_secs(60) && holder.expires_in > Duration::from_secs(3500),
                "{mode}"
            );
            guard.release().await.unwrap();
        }
        let broken = here.lock("n").acquire().await.unwrap();
        assert_eq!(there.break_lock("n").force().await.unwrap().len(), 1, "{mode}");
        assert!(broken.release().await.is_err());
        assert_eq!(number(&mut admin, &format!("SELECT count(*) FROM {table}_holds")).await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unusable_servers_are_refused_with_a_remedy() {
    let server = mariadb::start(&[]).unwrap();
    let (url, table) = tables(&server, "");
    let mut admin = connection(&server).await;
    drop(Locks::connect(&url).await.unwrap());

    for (version, words) in [(9, "update the program"), (1, "drop them")] {
        run(&mut admin, &format!("UPDATE {table}_meta SET value = {version}")).await;
        let (fault, text) = refusal(&url).await;
        assert!(fault.is_none() && text.contains(words), "{version}: {text}");
    }

    let (fault, text) = refusal(&url.replace("/polylock?", "/nowhere?")).await;
    assert!(fault.is_none() && text.contains("does not exist"), "a wrong setting: {text}");

    run(&mut admin, "CREATE USER weak IDENTIFIED BY 'canary'; GRANT SELECT ON polylock.* TO weak").await;
    let weak = |password: &str| url.replace("root@", &format!("weak:{password}@")).replace(&table, "other");
    let (fault, text) = refusal(&weak("canary")).await;
    assert!(fault == Some(Fault::Denied) && text.contains("CREATE TABLE IF NOT EXISTS"), "{text}");
    let (fault, text) = refusal(&weak("wrong-canary")).await;
    assert!(fault == Some(Fault::Denied) && text.contains("check the user and the password"), "{text}");
    assert!(!text.contains("canary"));
    let (fault, text) = refusal(&weak("canary").replace("/polylock?", "/mysql?")).await;
    assert!(fault == Some(Fault::Denied), "{text}");

    server.kill();
    let (fault, text) = refusal(&url).await;
    assert!(fault == Some(Fault::Temporary) && text.contains("can't be reached"), "{text}");
}

/// Runs `text` with the program `mariadb`.
fn client(server: &PrivateServer, text: &str) {
    let port = format!("-P{}", server.port());
    let mut client = Command::new("mariadb")
        .args(["--no-defaults", "-h127.0.0.1", &port, "-uroot"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    client.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(client.wait().unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_administrator_creates_the_tables_for_a_user_without_that_right() {
    let server = mariadb::start(&[]).unwrap();
    let (url, _) = tables(&server, "");
    let text = schema(&Config::new(&url).unwrap()).unwrap();
    for _ in 0..2 {
        client(&server, &text);
    }
    let mut admin = connection(&server).await;
    run(&mut admin, "CREATE USER app; GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON polylock.* TO app")
        .await;
    let url = url.replace("root@", "app@");
    run(&mut admin, "SET GLOBAL init_connect = 'SET autocommit = 0'").await;
    assert!(refusal(&url).await.1.contains("init_connect"));
    run(&mut admin, "SET GLOBAL init_connect = 'SET NAMES binary'").await;
    let outcome = Load { duration: Duration::from_secs(1), ..Load::default() }.run(&url, async {}).await;
    outcome.assert_consistent();
    assert_eq!((outcome.failures, outcome.losses), (0, 0));
    let locks = Locks::connect(&url).await.unwrap();
    let _guard = locks.lock("a").acquire().await.unwrap();
    assert_eq!(locks.break_lock("a").await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_unsafe_setting_is_reported_in_the_capabilities() {
    for (settings, durable) in [
        (["innodb_flush_log_at_trx_commit=1", "skip_log_bin"], true),
        (["innodb_flush_log_at_trx_commit=2", "skip_log_bin"], false),
        (["log_bin=log", "sync_binlog=0"], false),
        (["log_bin=log", "sync_binlog=1"], true),
    ] {
        let server = mariadb::start(&settings).unwrap();
        let locks = Locks::connect(&tables(&server, "").0).await.unwrap();
        let expected = if durable { Fencing::Durable } else { Fencing::WhileRunning };
        assert_eq!(locks.capabilities().fencing, expected, "{settings:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tables_can_be_created_by_many_processes_at_once() {
    let server = mariadb().unwrap();
    let (url, _) = tables(server, "");
    let opened: Vec<_> = (0..16)
        .map(|_| {
            tokio::spawn({
                let url = url.clone();
                async move { Locks::connect(&url).await }
            })
        })
        .collect();
    for locks in opened {
        locks.await.unwrap().unwrap().lock("a").acquire().await.unwrap().release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn opening_the_store_deletes_expired_rows() {
    let server = mariadb().unwrap();
    let (url, table) = tables(server, "&polylock.ttl=3s");
    let locks = Locks::connect(&url).await.unwrap();
    let mut observer = connection(server).await;
    for name in ["a", "b", "c"] {
        locks.lock(name).acquire().await.unwrap().leave_to_expire().unwrap();
    }
    let rows = format!("SELECT count(*) FROM {table}_holds");
    assert_eq!(number(&mut observer, &rows).await, 3);
    let end = clock::now() + clock::TIMEOUT;
    while number(&mut observer, &rows).await != 0 {
        assert!(clock::now() < end);
        drop(Locks::connect(&url).await.unwrap());
    }
}
