//! What a store warns of reaches the operator.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    path::Path,
    process::{Command, Stdio},
};

use polylock_integration_tests::{
    cargo,
    servers::redis::{self, DURABLE},
};

#[test]
fn a_server_that_may_forget_locks_is_warned_of_unless_quiet_is_asked_for() {
    let polylock = cargo::program("polylock-cli", "polylock", Path::new(env!("CARGO_BIN_EXE_worker")));
    let said = |url: &str, quiet: &[&str]| {
        let mut run = Command::new(&polylock);
        run.args(["-S", url]).args(quiet).args(["run", "x", "true"]).stdin(Stdio::null());
        let output = run.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let (forgetful, durable) = (redis::start(&[]).unwrap(), redis::start(DURABLE).unwrap());
    let warned = said(forgetful.url(), &[]);
    let begins =
        format!("polylock: warning: 127.0.0.1:{}: the server keeps no append-only file", forgetful.port());
    assert!(warned.starts_with(&begins) && warned.contains("set appendonly yes"), "{warned}");
    assert_eq!(warned.lines().count(), 1, "{warned}");
    assert_eq!(said(forgetful.url(), &["-q"]), "");
    assert_eq!(said(durable.url(), &[]), "");
}
