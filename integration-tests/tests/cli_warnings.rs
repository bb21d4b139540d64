//! What a store warns of reaches the operator.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::LazyLock,
};

use polylock_integration_tests::{
    cargo,
    servers::{
        Server, postgres,
        redis::{self, DURABLE},
    },
};

static POLYLOCK: LazyLock<PathBuf> =
    LazyLock::new(|| cargo::program("polylock-cli", "polylock", Path::new(env!("CARGO_BIN_EXE_worker"))));

/// What `polylock run` writes to its standard error.
fn said(url: &str, quiet: &[&str]) -> String {
    let mut run = Command::new(&*POLYLOCK);
    run.args(["-S", url]).args(quiet).args(["run", "x", "true"]).stdin(Stdio::null());
    let output = run.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_server_that_may_forget_locks_is_warned_of_unless_quiet_is_asked_for() {
    let (forgetful, durable) = (redis::start(&[]).unwrap(), redis::start(DURABLE).unwrap());
    let warned = said(forgetful.url(), &[]);
    let begins =
        format!("polylock: warning: 127.0.0.1:{}: the server keeps no append-only file", forgetful.port());
    assert!(warned.starts_with(&begins) && warned.contains("set appendonly yes"), "{warned}");
    assert_eq!(warned.lines().count(), 1, "{warned}");
    assert_eq!(said(forgetful.url(), &["-q"]), "");
    assert_eq!(said(durable.url(), &[]), "");
}

#[test]
fn a_schema_in_which_every_user_may_create_objects_is_warned_of() {
    let server = postgres::start(&[]).unwrap();
    assert_eq!(said(server.url(), &[]), "");
    let grant = ["-X", "-q", server.url(), "-c", "GRANT CREATE ON SCHEMA public TO PUBLIC"];
    assert!(Command::new("psql").args(grant).status().unwrap().success());
    let warned = said(server.url(), &[]);
    assert!(warned.contains("every user of the database") && warned.contains("polylock.schema"), "{warned}");
    assert_eq!(warned.lines().count(), 1, "{warned}");
    let own = format!("{}?polylock.schema=locks", server.url());
    assert_eq!(said(&own, &[]), "");
}

fn psql(server: &Server, sql: &str) {
    assert!(Command::new("psql").args(["-X", "-q", server.url(), "-c", sql]).status().unwrap().success());
}

/// A statement in the background has no caller: a failure that lasts must be seen in another way.
#[test]
fn a_statement_that_fails_in_the_background_is_warned_of_once_with_its_cause() {
    let server = postgres::start(&[]).unwrap();
    assert_eq!(said(server.url(), &[]), "");
    // A user who may claim, and may not look at the tables.
    psql(&server, "CREATE ROLE weak LOGIN");
    psql(&server, "GRANT SELECT ON polylock_meta TO weak");
    for function in [
        "settle_2(bytea, bytea, bigint, bigint)",
        "keep_alive_2(bytea, boolean)",
        "release_2(bytea, bytea, text)",
    ] {
        psql(&server, &format!("ALTER FUNCTION polylock_{function} SECURITY DEFINER"));
    }
    psql(
        &server,
        "DO $$ BEGIN EXECUTE (SELECT format('ALTER FUNCTION %s SECURITY DEFINER', oid::regprocedure) FROM pg_proc WHERE proname = 'polylock_claim_2'); END $$",
    );
    let url = format!("{}?polylock.listen=off", server.url().replace("postgres@", "weak@"));
    let mut holder = Command::new(&*POLYLOCK);
    let mut holder =
        holder.args(["-S", server.url(), "run", "x", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
    // It holds the lock when another one does not get it.
    let tries = ["-S", server.url(), "-q", "run", "-n", "x", "true"];
    while Command::new(&*POLYLOCK).args(tries).status().unwrap().success() {}
    let waits = ["-S", &url, "run", "--wait", "2s", "x", "true"];
    let output = Command::new(&*POLYLOCK).args(waits).stdin(Stdio::null()).output().unwrap();
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
    let warned = String::from_utf8(output.stderr).unwrap();
    let line: Vec<&str> =
        warned.lines().filter(|line| line.contains("releases by other processes")).collect();
    assert!(line.len() == 1 && line[0].contains("permission denied for table polylock_holds"), "{warned}");
}
