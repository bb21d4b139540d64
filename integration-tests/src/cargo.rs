//! Calls of `cargo`: programs of other packages, and dependency trees.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// Returns a `cargo` command in the workspace, without network access.
#[must_use]
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace()).env("CARGO_NET_OFFLINE", "true");
    cargo
}

/// Returns the directory of the workspace.
#[must_use]
pub fn workspace() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// Returns the program `name` of `package`, built with the profile of `sibling`, a program of this package. With `POLYLOCK_TEST_BUILT` set,
/// the caller has built everything already.
///
/// # Panics
/// If it can't be built.
#[must_use]
pub fn program(package: &str, name: &str, sibling: &Path) -> PathBuf {
    let directory = sibling.parent().unwrap_or(sibling);
    if std::env::var_os("POLYLOCK_TEST_BUILT").is_some() {
        return directory.join(name);
    }
    let profile = if directory.ends_with("release") { "release" } else { "dev" };
    let built = cargo().args(["build", "-q", "-p", package, "--bin", name, "--profile", profile]).status();
    assert!(built.is_ok_and(|status| status.success()), "can't build {name} of {package}");
    directory.join(name)
}

/// Returns the names of all dependencies of `package` with these `features`, itself included, each once.
///
/// # Panics
/// If cargo fails.
#[must_use]
pub fn tree(package: &str, features: &[&str]) -> Vec<String> {
    let mut cargo = cargo();
    cargo.args([
        "tree",
        "--edges",
        "normal,build",
        "--prefix",
        "none",
        "--format",
        "{p}",
        "--no-default-features",
    ]);
    cargo.args(["--package", package, "--features", &features.join(",")]);
    let output = cargo.output().unwrap_or_else(|error| panic!("can't run cargo tree: {error}"));
    let (tree, messages) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "cargo tree: {messages}");
    let mut names: Vec<String> =
        tree.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect();
    names.sort();
    names.dedup();
    names
}
