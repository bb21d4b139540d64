//! `polylock run --slots`: a command with a slot of a semaphore.

use sqlx::Connection;

use crate::support::{Running, Workspace, assert_code, eventually, is_alive, lines, stderr, stdout};

#[test]
fn each_run_has_a_slot_of_its_own() {
    let workspace = Workspace::new();
    let hold = "echo $POLYLOCK_SLOT > slot$POLYLOCK_SLOT; exec sleep 60";
    let first = workspace.start("--slots 2 --label nightly gpu", hold);
    workspace.wait_for_file("slot0");
    let second = workspace.start("--slots 2 gpu", hold);
    workspace.wait_for_file("slot1");

    let busy = workspace.call("run -n --slots 2 gpu touch ran");
    assert_eq!(busy.status.code(), Some(75), "{}", stderr(&busy));
    assert!(stderr(&busy).contains("lock gpu not acquired"), "{}", stderr(&busy));
    let other = workspace.call("run --slots 3 gpu touch ran");
    assert_eq!(other.status.code(), Some(78), "{}", stderr(&other));
    let text = stderr(&other);
    assert!(text.contains("2 slots") && text.contains("this request has 3"), "{text}");
    assert!(!workspace.path("ran").exists());
    // The lock is independent of the semaphore.
    assert!(workspace.call("run -n gpu true").status.success());

    let waiter = workspace.start("--slots 2 --status-file status gpu", "echo $POLYLOCK_NAME $POLYLOCK_SLOT");
    eventually("a waiter", || {
        workspace.status("gpu")["semaphore"]["waiters"].as_array().is_some_and(|waiters| waiters.len() == 1)
    });
    let status = workspace.status("gpu");
    assert_eq!((&status["state"], &status["semaphore"]["slots"]), (&"free".into(), &2.into()));
    let held = status["semaphore"]["held"].as_array().unwrap();
    assert_eq!(
        (&held[0]["slot"], &held[0]["label"], &held[1]["slot"]),
        (&0.into(), &"nightly".into(), &1.into())
    );
    let text = stdout(&workspace.call("status gpu"));
    assert!(text.contains("2 of 2 slots held") && text.contains("slot 1 held by"), "{text}");
    assert!(text.contains("1st in line for a slot"), "{text}");
    let code = workspace.call("status --exit-code gpu").status.code();
    assert_eq!(code, Some(75));

    drop(second);
    let output = waiter.finish();
    assert_eq!(stdout(&output), "gpu 1\n", "{}", stderr(&output));
    let events = lines(&workspace.read("status"));
    let acquired = events.iter().find(|event| event["event"] == "acquired").unwrap();
    assert_eq!((&acquired["name"], &acquired["slot"]), (&"gpu".into(), &1.into()));
    assert!(acquired["fencing_token"].is_u64());
    drop(first);
}

#[test]
fn a_lost_slot_stops_the_command() {
    let workspace = Workspace::new();
    let run =
        workspace.start("--slots 2 --ttl 6s --status-file status gpu", "echo $$ > child; exec sleep 60");
    let child = workspace.wait_for_pid("child");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut store = sqlx::SqliteConnection::connect(&workspace.url()).await.unwrap();
        let gone = sqlx::query("DELETE FROM polylock_holds").execute(&mut store).await.unwrap();
        assert_eq!(gone.rows_affected(), 1);
    });
    let output = run.finish();
    assert_eq!(output.status.code(), Some(79), "{}", stderr(&output));
    assert!(stderr(&output).contains("lock gpu slot 0 lost: "), "{}", stderr(&output));
    assert!(!is_alive(child));
    let events = lines(&workspace.read("status"));
    let lost = events.iter().find(|event| event["event"] == "lost").unwrap();
    assert_eq!((&lost["name"], &lost["slot"]), (&"gpu".into(), &0.into()));
}

#[test]
fn a_slot_is_broken_by_its_number() {
    let workspace = Workspace::new();
    let hold = "echo $POLYLOCK_SLOT > slot$POLYLOCK_SLOT; exec sleep 60";
    let first = workspace.start("--slots 3 gpu", hold);
    workspace.wait_for_file("slot0");
    let free = workspace.call("break --yes gpu");
    assert_code(&free, 0, "lock gpu is not held; slot 0 of gpu is held: break it with --slot 0");
    let second = workspace.start("--slots 3 --ttl 3s --status-file status gpu", hold);
    workspace.wait_for_file("slot1");
    let free = workspace.call("break --yes gpu");
    assert_code(&free, 0, "lock gpu is not held; slots 0, 1 of gpu are held: break one with --slot");

    let broken = workspace.call("break --yes --slot 1 --wait 20 --reason upgrade gpu");
    assert!(stdout(&broken).contains("gpu slot 1: requested "), "{} {}", stdout(&broken), stderr(&broken));
    assert_eq!(broken.status.code(), Some(0));
    assert_eq!(second.finish().status.code(), Some(79));
    assert!(workspace.read("status").contains("upgrade"), "{}", workspace.read("status"));
    let held = workspace.status("gpu")["semaphore"]["held"].as_array().unwrap().len();
    assert_eq!(held, 1, "the other slot is held");
    assert_code(&workspace.call("break --yes --slot 2 gpu"), 0, "lock gpu slot 2 is not held");
    assert_code(&workspace.call("break --yes --slot 1024 gpu"), 64, "1024 is not in 0..1024");
    drop(first);
}

/// Starts a run inside a run, and returns the output of both.
fn nested(workspace: &Workspace, outer: &str, inner: &str) -> std::process::Output {
    let polylock = env!("CARGO_BIN_EXE_polylock");
    let mut run = workspace.polylock();
    run.arg("run").args(outer.split(' ')).args([polylock, "run"]).args(inner.split(' '));
    Running::spawn(run).finish()
}

#[test]
fn a_nested_run_does_not_wait_for_its_own_slot() {
    let workspace = Workspace::new();
    for limit in ["", "-n ", "-w 20 "] {
        let refused = nested(&workspace, "--slots 1 gpu", &format!("{limit}--slots 1 gpu touch ran"));
        assert_eq!(refused.status.code(), Some(64), "{limit}: {}", stderr(&refused));
        let text = stderr(&refused);
        assert!(text.contains("runs in slot 0 of gpu already, and would wait for itself"), "{text}");
    }
    assert!(!workspace.path("ran").exists());
    assert_eq!(workspace.status("gpu")["semaphore"], serde_json::Value::Null);
}

/// Two runs that each hold one of two slots, and wait for the other one, would wait for ever.
#[test]
fn a_nested_run_takes_another_slot_if_its_wait_has_a_limit() {
    let workspace = Workspace::new();
    let refused = nested(&workspace, "--slots 2 gpu", "--slots 2 gpu touch ran");
    assert_eq!(refused.status.code(), Some(64), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("use -n or -w"), "{}", stderr(&refused));
    assert!(!workspace.path("ran").exists());

    let second = nested(&workspace, "--slots 2 gpu", "-w 20 --slots 2 gpu printenv POLYLOCK_SLOT");
    assert_eq!(stdout(&second), "1\n", "{}", stderr(&second));
    let third = format!("-n --slots 2 gpu {} run -n --slots 2 gpu touch ran", env!("CARGO_BIN_EXE_polylock"));
    let third = nested(&workspace, "--slots 2 gpu", &third);
    assert_eq!(third.status.code(), Some(64), "{}", stderr(&third));
    assert!(stderr(&third).contains("slots 0, 1 of gpu already, and would wait"), "{}", stderr(&third));
    assert!(!workspace.path("ran").exists());
}

#[test]
fn a_nested_run_is_independent_of_other_semaphores_and_of_the_lock_with_its_name() {
    let workspace = Workspace::new();
    for (outer, inner) in
        [("--slots 1 gpu", "--slots 1 disk"), ("--slots 1 gpu", "gpu"), ("gpu", "--slots 1 gpu")]
    {
        let output = nested(&workspace, outer, &format!("{inner} echo inner"));
        assert_eq!(stdout(&output), "inner\n", "{outer}, {inner}: {}", stderr(&output));
    }
}
