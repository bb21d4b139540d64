//! `polylock run --also`: a command under several locks.

use crate::support::{Workspace, eventually, is_alive, lines, stderr, stderr_without_waits, stdout};

#[test]
fn the_environment_and_the_events_describe_each_lock() {
    let workspace = Workspace::new();
    for _ in 0..3 {
        assert!(workspace.call("run b true").status.success());
    }
    let show = "echo $POLYLOCK_NAME $POLYLOCK_NAME_2 $POLYLOCK_NAME_3 ${POLYLOCK_NAME_4-none}; \
                echo $POLYLOCK_FENCING_TOKEN $POLYLOCK_FENCING_TOKEN_2 $POLYLOCK_FENCING_TOKEN_3";
    let mut run = workspace.polylock();
    // A name that appears twice is one lock. Those of an outer run are not passed on.
    run.env("POLYLOCK_NAME_4", "outer").env("POLYLOCK_FENCING_TOKEN_4", "1").env("POLYLOCK_NAMES", "mine");
    run.args([
        "run",
        "-v",
        "--status-file",
        "status",
        "--also",
        "a b",
        "c",
        "--also",
        "b",
        "--also",
        "c",
        "-c",
        show,
    ]);
    let output = run.output().unwrap();
    let text = stdout(&output);
    let (names, tokens) = text.trim().split_once('\n').unwrap_or_else(|| panic!("{output:?}"));
    assert_eq!(names, "c a b b none");
    let tokens: Vec<u64> = tokens.split(' ').map(|token| token.parse().unwrap()).collect();
    assert_eq!(tokens.len(), 3);
    let text = stderr(&output);
    for (name, token) in ["c", "a b", "b"].iter().zip(&tokens) {
        assert!(text.contains(&format!("lock {name} acquired, token {token}, in ")), "{text}");
    }
    let events = lines(&workspace.read("status"));
    let acquired = events.iter().find(|event| event["event"] == "acquired").unwrap();
    assert_eq!((&acquired["name"], &acquired["fencing_token"]), (&"c".into(), &tokens[0].into()));
    let also = serde_json::json!([
        {"name": "a b", "fencing_token": tokens[1]},
        {"name": "b", "fencing_token": tokens[2]},
    ]);
    assert_eq!(acquired["also"], also);
    assert_eq!(events.last().unwrap()["verdict"], "command");
    let single = workspace.polylock().args(["run", "--status-file", "status", "c", "true"]).output().unwrap();
    assert!(single.status.success() && !workspace.read("status").contains("also"));
    for name in ["a b", "b", "c"] {
        assert_eq!(workspace.status(name)["state"], "free");
    }
}

#[test]
fn a_lock_that_is_held_elsewhere_leaves_the_others_free() {
    let workspace = Workspace::new();
    let holder = workspace.start("--label nightly b", "echo > held; exec sleep 60");
    workspace.wait_for_file("held");
    let busy = workspace.call("run -n --also b --also c a touch ran");
    assert_eq!(busy.status.code(), Some(75), "{}", stderr(&busy));
    let text = stderr_without_waits(&busy);
    assert!(text.contains("lock b not acquired") && text.contains("(nightly)"), "{text}");
    for name in ["a", "c"] {
        assert_eq!(workspace.status(name)["state"], "free");
    }
    assert!(!workspace.path("ran").exists());

    // The events show the lock that is awaited.
    let waiter = workspace.start("--also b --status-file status a", "true");
    workspace.wait_for_waiters("b", 1);
    eventually("the position in the queue", || workspace.read("status").contains("\"queued\""));
    assert_eq!(workspace.status("a")["state"], "held");
    let queued = lines(&workspace.read("status")).remove(0);
    assert_eq!(
        (&queued["event"], &queued["name"], &queued["position"]),
        (&"queued".into(), &"b".into(), &1.into())
    );
    waiter.signal(rustix::process::Signal::TERM);
    assert_eq!(waiter.code(), Some(143));
    assert_eq!(workspace.status("a")["state"], "free");
    drop(holder);
}

#[test]
fn losing_one_lock_stops_the_command_and_releases_the_others() {
    let workspace = Workspace::new();
    let run = workspace.start("--also b --ttl 6s --status-file status a", "echo $$ > child; exec sleep 60");
    let child = workspace.wait_for_pid("child");
    let broken = workspace.call("break b --yes --reason maintenance");
    assert!(broken.status.success(), "{}", stderr(&broken));
    let output = run.finish();
    assert_eq!(output.status.code(), Some(79), "{}", stderr(&output));
    assert!(stderr(&output).contains("lock b lost: "), "{}", stderr(&output));
    assert!(!is_alive(child));
    let events = lines(&workspace.read("status"));
    let lost = events.iter().find(|event| event["event"] == "lost").unwrap();
    assert_eq!((&lost["name"], &lost["broken_reason"]), (&"b".into(), &"maintenance".into()));
    assert!(lost["fencing_token"].is_u64());
    for name in ["a", "b"] {
        assert_eq!(workspace.status(name)["state"], "free");
    }
}

#[test]
fn a_nested_run_holds_all_of_its_locks_or_none_in_the_outer_run() {
    let workspace = Workspace::new();
    let polylock = env!("CARGO_BIN_EXE_polylock");
    let nested = |inner: &str| {
        let mut run = workspace.polylock();
        run.args(["run", "--also", "b", "a", polylock, "run", "-w", "20"]);
        run.args(inner.split(' ')).output().unwrap()
    };
    let refused = nested("c --also b true");
    assert_eq!(refused.status.code(), Some(64), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("runs under lock b already"), "{}", stderr(&refused));
    let partly = nested("--reentrant c --also b true");
    assert_eq!(partly.status.code(), Some(64), "{}", stderr(&partly));
    assert!(stderr(&partly).contains("holds lock b, but not lock c"), "{}", stderr(&partly));
    let entered = nested("--reentrant b --also a echo inner");
    assert_eq!(stdout(&entered), "inner\n", "{}", stderr(&entered));
    let others = nested("c --also d echo inner");
    assert_eq!(stdout(&others), "inner\n", "{}", stderr(&others));
}
