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
        postgres,
        redis::{self, DURABLE},
    },
};

/// What `polylock run` writes to its standard error.
fn said(url: &str, quiet: &[&str]) -> String {
    static POLYLOCK: LazyLock<PathBuf> =
        LazyLock::new(|| cargo::program("polylock-cli", "polylock", Path::new(env!("CARGO_BIN_EXE_worker"))));
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
