//! A peer in the same run: crate `rslock`, by a program that is built outside the workspace.

use std::process::Command;

use polylock_integration_tests::cargo::{self, workspace};
use serde_json::Value;

use crate::{
    report::{Cell, Report},
    setups::Setup,
};

/// The Redis that it is measured on.
pub(crate) const RSLOCK: Setup = Setup::RedisForgetful;

/// A measurement of benchmark `scale`: the store, the kind of measurement, and the number of locks or waiters.
pub(crate) type AtScale = (&'static str, &'static str, u64);

/// Prints the table, and returns what the program has measured, if it can be built.
pub(crate) fn run(report: &mut Report) -> Option<Value> {
    let url = RSLOCK.redis_url()?;
    let target = workspace().join("target/peers");
    let manifest = workspace().join("integration-tests/peers/Cargo.toml");
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build.args(["build", "--quiet", "--release", "--locked", "--manifest-path"]).arg(manifest);
    let built = build.arg("--target-dir").arg(&target).status();
    if !built.is_ok_and(|status| status.success()) {
        println!("\nrslock is not measured: its program can't be built.");
        return None;
    }
    let output = Command::new(target.join("release/polylock-peers")).arg(url).output().unwrap();
    let Ok(measured) = serde_json::from_slice::<Value>(&output.stdout) else {
        println!("\nrslock is not measured: {}", String::from_utf8_lossy(&output.stderr));
        return None;
    };
    let (store, durability) = RSLOCK.names();
    let title = format!("Crate rslock on the same {store} ({durability}), multi-thread");
    report.begin(
        "rslock",
        &title,
        &[
            "pair p50 us",
            "pair p99 us",
            "64 tasks: acquisitions/s",
            "hand-over p50 us",
            "hand-over p99 us",
            "wait p99 us",
            "wait max us",
            "fairness min/max",
        ],
    );
    let number = |value: &Value, digits| value.as_f64().map(|number| Cell::number(number, digits)).into();
    let (pair, many) = (&measured["uncontended"], &measured["contended"]);
    report.row(vec![
        number(&pair["p50_us"], 0),
        number(&pair["p99_us"], 0),
        number(&many["acquisitions_per_s"], 0),
        number(&many["hand_over_p50_us"], 0),
        number(&many["hand_over_p99_us"], 0),
        number(&many["wait_p99_us"], 0),
        number(&many["wait_max_us"], 0),
        number(&many["fairness"], 2),
    ]);
    Some(measured)
}

/// The lines that benchmark `scale` prints for the goals; `None` if it can't be run.
pub(crate) fn scale(wanted: &[AtScale]) -> Option<Vec<Value>> {
    let mut lines = Vec::new();
    for (store, what, count) in wanted {
        let mut scale = cargo::cargo();
        scale.args(["bench", "--quiet", "-p", "polylock-integration-tests", "--bench", "scale", "--"]);
        let output = scale.args([*store, *what, &count.to_string(), "seconds=20"]).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let measured: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        if measured.is_empty() {
            println!("{store}, {count} {what}: not measured: {}", String::from_utf8_lossy(&output.stderr));
        }
        measured.iter().for_each(|line| eprintln!("{line}"));
        lines.extend(measured);
    }
    Some(lines)
}
