//! `polylock check`: the report in its formats, and what is left of a check that was ended.

use std::fs;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Running, Workspace, eventually, stderr, stdout, tables};

#[test]
fn the_report_is_a_table_a_json_document_and_a_page() {
    let workspace = Workspace::new();
    let output = workspace.call("check --quick --only settings --only latency --only clock --html r.html");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    for line in
        ["settings\n", "latency\n", "clock\n", "  fencing  ", "hand-over to another process", "0 failures"]
    {
        assert!(text.contains(line), "{line}: {text}");
    }
    let page = workspace.read("r.html");
    assert!(page.contains("hand-over to another process") && page.contains("locks.db"), "{page}");
    let output = workspace.call("check --only settings --output json --seed 7");
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(
        (&report["verdict"], &report["backend"], &report["seed"]),
        (&"ok".into(), &"sqlite".into(), &7.into())
    );
    let output = workspace.call("check --only settings --output jsonl");
    let rows: Vec<Value> = stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(Value::Array(rows), report["rows"]);
    assert_eq!(tables(&workspace), [""; 0]);
}

#[test]
fn the_settings_name_the_store_its_origin_and_its_sharers() {
    let workspace = Workspace::new();
    let settings = |name: &str, arguments: &[&str]| {
        let mut command =
            if name.is_empty() { workspace.polylock_without_store() } else { workspace.polylock() };
        let output = command
            .args(["check", "--only", "settings", "--output", "jsonl"])
            .args(arguments)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let rows = stdout(&output);
        let rows = rows.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let row =
            |row: Value| format!("{}: {}", row["name"].as_str().unwrap(), row["value"].as_str().unwrap());
        rows.map(row).take(3).collect::<Vec<_>>()
    };
    let store = format!("store: {}", workspace.url());
    let named = settings("POLYLOCK_STORE", &[]);
    assert_eq!(named[..2], [store.clone(), "chosen by: the variable POLYLOCK_STORE".to_owned()]);
    assert!(named[2].starts_with("shared by: the processes of "), "{named:?}");
    let flag = settings("", &["-S", &workspace.url()]);
    assert_eq!(flag[..2], [store.clone(), "chosen by: -S on the command line".to_owned()]);
    let default = settings("", &[]);
    assert_eq!(default[1], "chosen by: the default, because nothing names a store");
    let config = workspace.path("config.toml");
    fs::write(&config, format!("[profiles.night]\nstore = \"{}\"\n", workspace.url())).unwrap();
    let path = config.display().to_string();
    let profile = settings("", &["--config", &path, "--profile", "night"]);
    assert_eq!(profile[..2], [store, format!("chosen by: profile night of the config file {path}")]);
}

#[test]
fn a_check_leaves_the_locks_of_the_store_alone() {
    let workspace = Workspace::new();
    let holder = workspace.start("orders", "echo > held; exec sleep 60");
    workspace.wait_for_file("held");
    let (before, held) =
        (tables(&workspace), workspace.status("orders")["holders"][0]["fencing_token"].clone());
    let output = workspace.call("check --only faults --seconds 3s");
    assert_eq!(output.status.code(), Some(0), "{}", stdout(&output));
    assert_eq!(tables(&workspace), before);
    assert_eq!(workspace.status("orders")["holders"][0]["fencing_token"], held);
    drop(holder);
}

#[test]
fn a_check_that_is_ended_leaves_nothing() {
    let workspace = Workspace::new();
    let mut check = workspace.polylock();
    check.args(["check", "--only", "faults", "--seconds", "60s"]);
    let check = Running::spawn(check);
    eventually("the namespace of the clients", || {
        fs::exists(workspace.path("locks.db")).unwrap() && tables(&workspace).len() > 4
    });
    check.signal(Signal::INT);
    let output = check.finish();
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert!(stdout(&output).contains("ended by SIGINT"), "{}", stdout(&output));
    assert_eq!(tables(&workspace), [""; 0]);
}

#[test]
fn a_store_that_can_not_be_opened_has_no_report() {
    let workspace = Workspace::new();
    let output =
        workspace.polylock_without_store().args(["-S", "redis://127.0.0.1:1", "check"]).output().unwrap();
    assert_eq!((output.status.code(), stdout(&output)), (Some(69), String::new()));
    assert!(stderr(&output).starts_with("polylock: opening redis://127.0.0.1:1"), "{}", stderr(&output));
    assert_eq!(stderr(&output).lines().count(), 2, "{}", stderr(&output));
}
