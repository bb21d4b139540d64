//! The warnings of the stores are printed on stderr.

use std::process::{Command, Stdio};

use polylock_integration_tests::{
    cargo::polylock,
    servers::{
        Server, postgres,
        redis::{self, DURABLE},
    },
};

/// Returns the standard error of a `polylock run`, without the report of a wait: any wait may take longer than half a second on a busy
/// machine.
fn run_stderr(url: &str, quiet: &[&str]) -> String {
    let mut run = Command::new(polylock());
    run.args(["-S", url]).args(quiet).args(["run", "x", "true"]).stdin(Stdio::null());
    let output = run.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with("polylock: waiting for "));
    lines.map(|line| format!("{line}\n")).collect()
}

#[test]
fn a_server_without_persistence_causes_a_warning_unless_quiet_is_given() {
    let (volatile, durable) = (redis::start(&[]).unwrap(), redis::start(DURABLE).unwrap());
    let stderr = run_stderr(volatile.url(), &[]);
    let begins =
        format!("polylock: warning: 127.0.0.1:{}: the server keeps no append-only file", volatile.port());
    assert!(stderr.starts_with(&begins) && stderr.contains("set appendonly yes"), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert_eq!(run_stderr(volatile.url(), &["-q"]), "");
    assert_eq!(run_stderr(durable.url(), &[]), "");
}

#[test]
fn a_schema_in_which_every_user_may_create_objects_causes_a_warning() {
    let server = postgres::start(&[]).unwrap();
    assert_eq!(run_stderr(server.url(), &[]), "");
    let grant = ["-X", "-q", server.url(), "-c", "GRANT CREATE ON SCHEMA public TO PUBLIC"];
    assert!(Command::new("psql").args(grant).status().unwrap().success());
    let stderr = run_stderr(server.url(), &[]);
    assert!(stderr.contains("every user of the database") && stderr.contains("polylock.schema"), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    let own = format!("{}?polylock.schema=locks", server.url());
    assert_eq!(run_stderr(&own, &[]), "");
}

fn psql(server: &Server, sql: &str) {
    assert!(Command::new("psql").args(["-X", "-q", server.url(), "-c", sql]).status().unwrap().success());
}

/// A statement in the background has no caller that could return its error, so a persistent failure causes a warning.
#[test]
fn a_failing_background_statement_causes_one_warning_with_the_cause() {
    let server = postgres::start(&[]).unwrap();
    assert_eq!(run_stderr(server.url(), &[]), "");
    // This user has the right to claim, but not to read the tables.
    psql(&server, "CREATE ROLE weak LOGIN");
    psql(&server, "GRANT SELECT ON polylock_meta TO weak");
    for function in [
        "settle_3(bytea, bytea, bigint, bigint)",
        "keep_alive_3(bytea, boolean)",
        "release_4(bytea, bytea, text, bigint, bigint)",
    ] {
        psql(&server, &format!("ALTER FUNCTION polylock_{function} SECURITY DEFINER"));
    }
    psql(
        &server,
        "DO $$ BEGIN EXECUTE (SELECT format('ALTER FUNCTION %s SECURITY DEFINER', oid::regprocedure) FROM pg_proc WHERE proname = 'polylock_claim_4'); END $$",
    );
    let url = format!("{}?polylock.listen=off", server.url().replace("postgres@", "weak@"));
    let mut holder = Command::new(polylock());
    let mut holder =
        holder.args(["-S", server.url(), "run", "x", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
    // The first run holds the lock as soon as another one fails to acquire it.
    let tries = ["-S", server.url(), "-q", "run", "-n", "x", "true"];
    while Command::new(polylock()).args(tries).status().unwrap().success() {}
    let waits = ["-S", &url, "run", "--wait", "6s", "x", "true"];
    let output = Command::new(polylock()).args(waits).stdin(Stdio::null()).output().unwrap();
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
    let stderr = String::from_utf8(output.stderr).unwrap();
    let line: Vec<&str> =
        stderr.lines().filter(|line| line.contains("releases by other processes")).collect();
    assert!(line.len() == 1 && line[0].contains("permission denied for table polylock_holds"), "{stderr}");
}
