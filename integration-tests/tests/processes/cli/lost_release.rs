//! The lock is broken by force, and the command ends before its next renewal: only the release detects the loss.

use std::process::{Command, Output, Stdio};

use polylock_integration_tests::{cargo::polylock, clock::until, on_stores, stores::namespace};

on_stores! { [sqlite_full postgres mariadb] [the_release_of_a_lock_that_was_lost_reports_the_loss] }

async fn the_release_of_a_lock_that_was_lost_reports_the_loss(store: &str) {
    let namespace = namespace(store).await;
    let directory = tempfile::tempdir().unwrap();
    let call = |arguments: &[&str]| {
        let mut command = Command::new(polylock());
        command
            .args(["-S", namespace.url()])
            .args(arguments)
            .current_dir(directory.path())
            .stdin(Stdio::null());
        command.env_remove("POLYLOCK_STORE").env("POLYLOCK_CONFIG", "/dev/null");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let (held, end) = (directory.path().join("held"), directory.path().join("end"));
    let script = "echo > held; until [ -e end ]; do sleep 0.02; done; exit 0";
    let first = call(&["run", "--ttl", "50s", "--status-file", "status", "x", "sh", "-c", script]);
    until("the command runs", async || held.exists()).await;
    let broken = call(&["break", "--yes", "--force", "--reason", "stuck", "x"]).wait_with_output().unwrap();
    assert!(broken.status.success(), "{broken:?}");
    // Another run holds the lock meanwhile.
    let other = call(&["run", "--wait", "20s", "x", "true"]).wait_with_output().unwrap();
    assert!(other.status.success(), "{other:?}");
    std::fs::write(end, "").unwrap();

    let Output { status, stderr, .. } = first.wait_with_output().unwrap();
    let (stderr, log) = (
        String::from_utf8(stderr).unwrap(),
        std::fs::read_to_string(directory.path().join("status")).unwrap(),
    );
    assert_eq!(status.code(), Some(79), "{stderr}{log}");
    assert!(stderr.contains("lock x lost: ") && stderr.contains("stuck"), "{stderr}");
    assert!(log.contains("\"event\":\"lost\"") && log.contains("\"broken_reason\":\"stuck\""), "{log}");
    assert!(!log.contains("\"event\":\"released\"") && !log.contains("\"event\":\"renewed\""), "{log}");
}
