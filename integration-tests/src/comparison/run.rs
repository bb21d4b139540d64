//! A run of some parts on some subjects. The results are added to a file of JSON, so a run that ends early loses none.

use std::{
    fs, io,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use polylock_bench::Machine;
use polylock_testkit::Missing;
use serde_json::{Value, json};

use super::{
    parts::{Part, Place},
    subject::{Subject, subjects},
};
use crate::{cargo::workspace, chaos::record, clock::now};

/// Returns the path of the results that `docs/comparison.md` shows.
#[must_use]
pub fn path() -> PathBuf {
    workspace().join("integration-tests/record/comparison.json")
}

/// Reads the results in a file; there are none if it does not exist.
///
/// # Errors
/// If it can't be read.
pub fn read(path: &Path) -> io::Result<Value> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(json!({})),
        text => Ok(serde_json::from_str(&text?)?),
    }
}

/// Runs these parts on the subjects with these names, or on all, and adds the results to the file. Returns the parts that failed.
///
/// It blocks, on a runtime with several threads.
///
/// # Errors
/// If there is no such subject, or the file can't be read or written.
pub fn run(only: &[String], parts: &[Part], file: &Path) -> io::Result<Vec<String>> {
    let unknown = only.iter().find(|name| subjects().iter().all(|subject| subject.name != **name));
    if let Some(name) = unknown {
        let names: Vec<&str> = subjects().iter().map(|subject| subject.name).collect();
        return Err(io::Error::other(format!("there is no subject {name:?}: {}", names.join(", "))));
    }
    // Before files can change.
    let commit = record::commit();
    let mut results = read(file)?;
    results["machine"] = json!(Machine::current().to_string());
    results["commit"] = json!(commit);
    results["date"] = json!(record::today());
    let is_chosen = |subject: &&Subject| only.is_empty() || only.iter().any(|name| name == subject.name);
    let mut failures = Vec::new();
    for subject in subjects().iter().filter(is_chosen) {
        measure(subject, parts, |part, mut outcome, seconds| {
            println!("{}: {}: {outcome} in {seconds} s", subject.name, part.name());
            if let Some(reason) = outcome["failed"].as_str() {
                failures.push(format!("{}: {}: {reason}", subject.name, part.name()));
            }
            outcome["seconds"] = json!(seconds);
            results["subjects"][subject.name][part.name()] = outcome;
            fs::write(file, format!("{results:#}\n"))
        })?;
    }
    Ok(failures)
}

/// Runs these parts, and passes on each result with its seconds.
fn measure(
    subject: &'static Subject,
    parts: &[Part],
    mut done: impl FnMut(Part, Value, u64) -> io::Result<()>,
) -> io::Result<()> {
    let own = subject.configuration.start().map_err(|Missing(why)| io::Error::other(why))?;
    let url = subject.configuration.url(&own);
    let place = Place { subject, own: &own, url: &url };
    for part in Part::ALL.into_iter().filter(|part| parts.contains(part)) {
        let began = now();
        let failed = |why: String| json!({ "failed": why });
        // A program or a server that fails ends only its part.
        let outcome = catch_unwind(AssertUnwindSafe(|| place.run(part)));
        let outcome = outcome.unwrap_or_else(|_| Err("a panic, which is on the standard error".to_owned()));
        done(part, outcome.unwrap_or_else(failed), now().since(began).as_secs())?;
    }
    Ok(())
}
