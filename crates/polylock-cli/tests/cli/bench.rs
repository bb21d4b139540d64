//! `polylock bench`: the report in its formats, and what is left of a benchmark that was ended.

use std::fs;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Running, Workspace, eventually, stderr, stdout, tables};

/// Measures with small numbers.
const SMALL: &str = "bench --quick --seconds 2s --contenders 4 --waiters 20";

/// The parts that need no lease.
const WITHOUT_LEASES: &str =
    "--only uncontended --only own-locks --only hand-over --only contended --only waiters";

/// Measures the other parts. Their leases are about as long as each part, so a busy machine does not lose them.
const LEASES: &str = "bench --quick --seconds 7s --held 20 --kills 2 --only held --only kill";

/// Returns the numbers of a part of the first store.
fn numbers<'r>(report: &'r Value, part: &str) -> &'r Value {
    let parts = report["stores"][0]["parts"].as_array().unwrap();
    let found = parts.iter().find(|found| found["part"] == part).unwrap();
    assert_eq!((&found["outcome"], &found["reason"]), (&"measured".into(), &Value::Null), "{report:#}");
    &found["numbers"]
}

#[test]
fn the_report_has_the_numbers_of_all_parts_and_a_page_that_loads_nothing() {
    let workspace = Workspace::new();
    let output = workspace.call(&format!("{SMALL} {WITHOUT_LEASES} --output json --html r.html"));
    assert_eq!(output.status.code(), Some(0), "{} {}", stderr(&output), stdout(&output));
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let store = &report["stores"][0];
    assert_eq!((&store["backend"], &report["settings"]["waiters"]), (&"sqlite".into(), &20.into()));
    assert!(store["store"].as_str().unwrap().ends_with("locks.db") && store["raw"].is_string(), "{store:#}");
    let number = |of: &Value| of.as_f64().unwrap_or_else(|| panic!("{of}: {report:#}"));
    let pairs = numbers(&report, "uncontended");
    assert!(number(&pairs["ratio"]) > 0.0 && number(&pairs["raw_pair"]["p50_us"]) > 0.0, "{pairs}");
    let contended = numbers(&report, "contended");
    assert_eq!(contended["processes"]["processes"], 4, "{contended}");
    assert_eq!(contended["one_process"]["shares"].as_array().unwrap().len(), 4, "{contended}");
    // Tasks can't share a connection of the driver.
    let own_locks = numbers(&report, "own-locks");
    assert!(number(&own_locks["polylock"]["pairs_per_s"]) > 0.0 && own_locks["raw"].is_null(), "{own_locks}");
    assert!(number(&numbers(&report, "hand-over")["to_process"]["count"]) >= 3.0);
    let waiters = numbers(&report, "waiters");
    assert_eq!(
        (&waiters["out_of_order"], &waiters["other_lock_held"]),
        (&0.into(), &true.into()),
        "{waiters}"
    );
    let output = workspace.call(&format!("{LEASES} --output json --html leases.html"));
    assert_eq!(output.status.code(), Some(0), "{} {}", stderr(&output), stdout(&output));
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(numbers(&report, "held")["lost"], 0);
    let kills = numbers(&report, "kill");
    let (ttl, times) = (number(&kills["ttl_us"]), kills["free_after_us"].as_array().unwrap());
    // The store notices the end of a process of the same machine, so the next holder need not wait for the end of the lease.
    assert!(times.len() == 2 && times.iter().all(|time| (0.0..ttl / 3.0).contains(&number(time))), "{kills}");

    let pages = ["r.html", "leases.html"].map(|name| workspace.read(name));
    for page in &pages {
        for reference in ["http", "src=", "href=", "url(", "@import", "<script", "<link"] {
            assert!(!page.contains(reference), "{reference}");
        }
        assert!(page.contains("locks.db"), "{page}");
    }
    let plots: usize = pages.iter().map(|page| page.matches("<svg").count()).sum();
    assert!(plots >= 6, "{plots} plots: {pages:?}");
    assert_eq!(tables(&workspace), [""; 0]);
}

#[test]
fn the_tables_have_80_columns_as_text_and_the_same_numbers_as_markdown() {
    let workspace = Workspace::new();
    let only = "--only uncontended --only waiters --only contended";
    let output = workspace.call(&format!("{SMALL} {only}"));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    for line in [
        "Uncontended: ",
        "p50 / raw",
        "Contended: waiting and fairness",
        "  sqlite  4 x 1",
        "Waiters: 20 tasks",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let path = workspace.path("").display().to_string();
    let tables = text.lines().filter(|line| !line.contains(&path));
    assert!(tables.into_iter().all(|line| line.chars().count() <= 80), "{text}");
    // Without a terminal, a line shows the begin of each part.
    assert!(stderr(&output).contains("sqlite: contended, about"), "{}", stderr(&output));

    let output = workspace.call("bench --quick --seconds 1s --only uncontended --output markdown -q");
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
    let page = stdout(&output);
    assert!(page.contains("| store | p50 | p99 | raw p50 | raw p99 | p50 / raw |\n|---|"), "{page}");
    assert!(page.contains("| sqlite | "), "{page}");
    let output = workspace.call("bench --quick --seconds 1s --only uncontended --output jsonl");
    let line: Value = serde_json::from_str(stdout(&output).trim_end()).unwrap();
    assert_eq!((&line["part"], &line["label"]), (&"uncontended".into(), &"sqlite".into()), "{line}");
}

#[test]
fn stores_are_compared_in_one_report() {
    let workspace = Workspace::new();
    let (first, second) = (workspace.url(), "memory:");
    let mut bench = workspace.polylock_without_store();
    bench.args([
        "bench",
        "-S",
        second,
        "-S",
        &first,
        "--only",
        "uncontended",
        "--only",
        "kill",
        "--seconds",
        "6s",
        "--kills",
        "1",
    ]);
    let output = bench.args(["--output", "json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let labels: Vec<_> = report["stores"].as_array().unwrap().iter().map(|store| &store["label"]).collect();
    assert_eq!(labels, ["memory", "sqlite"], "{report:#}");
    let of_memory = &report["stores"][0];
    assert!(of_memory["raw"].is_null() && of_memory["no_raw_because"].is_string(), "{of_memory:#}");
    assert_eq!(of_memory["parts"][1]["outcome"], "skipped", "{of_memory:#}");
    assert_eq!(of_memory["parts"][0]["numbers"]["raw_pair"], Value::Null, "{of_memory:#}");
}

#[test]
fn a_benchmark_leaves_the_locks_of_the_store_alone() {
    let workspace = Workspace::new();
    let holder = workspace.start("orders", "echo > held; exec sleep 60");
    workspace.wait_for_file("held");
    let (before, held) =
        (tables(&workspace), workspace.status("orders")["holders"][0]["fencing_token"].clone());
    let output = workspace.call("bench --quick --seconds 1s --only contended");
    assert_eq!(output.status.code(), Some(0), "{}", stdout(&output));
    assert_eq!(tables(&workspace), before);
    assert_eq!(workspace.status("orders")["holders"][0]["fencing_token"], held);
    drop(holder);
}

#[test]
fn a_benchmark_that_is_ended_leaves_nothing_and_prints_what_was_measured() {
    let workspace = Workspace::new();
    let mut bench = workspace.polylock();
    bench.args(["bench", "--only", "contended", "--seconds", "60s"]);
    let bench = Running::spawn(bench);
    // The namespaces of the check, of the raw driver and of the part.
    let is_measured = || tables(&workspace).iter().any(|table| table.ends_with("_raw"));
    eventually("the table of the raw driver", || {
        fs::exists(workspace.path("locks.db")).unwrap() && is_measured()
    });
    bench.signal(Signal::INT);
    let output = bench.finish();
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert!(stdout(&output).contains("ended by SIGINT"), "{}", stdout(&output));
    assert_eq!(tables(&workspace), [""; 0]);
}

#[test]
fn bad_input_is_refused_before_any_measurement() {
    let workspace = Workspace::new();
    let url = workspace.url();
    let fails = |arguments: &[&str], code: i32, text: &str| {
        let output = workspace.polylock_without_store().args(arguments).output().unwrap();
        assert_eq!((output.status.code(), stdout(&output)), (Some(code), String::new()), "{arguments:?}");
        assert!(stderr(&output).contains(text), "{arguments:?}: {}", stderr(&output));
    };
    fails(&["bench", "-S", &url, "-S", "redis://127.0.0.1:1", "-q"], 69, "polylock: redis could not connect");
    fails(&["bench", "-S", &url, "--only", "speed"], 64, "uncontended");
    fails(&["bench", "-S", &url, "--kills", "0"], 64, "1..=100");
    fails(&["bench", "-S", &url, "--html", "absent/r.html"], 73, "absent/r.html can't be written");
    fails(&["status", "x", "-S", &url, "-S", "memory:"], 64, "only polylock bench uses more than one -S");
    fails(&["status", "x", "-S", &url, "--output", "markdown"], 64, "only polylock bench writes Markdown");
    assert!(!workspace.path("absent").exists());
    if workspace.path("locks.db").exists() {
        assert_eq!(tables(&workspace), [""; 0]);
    }
}
