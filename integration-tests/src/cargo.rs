//! Calls of `cargo`: programs of other packages, and dependency trees.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

/// Returns a `cargo` command in the workspace, without network access, and without the variable that `scripts/test.sh` sets for test
/// programs: it would build everything again.
#[must_use]
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace()).env("CARGO_NET_OFFLINE", "true").env_remove("RUSTC_BOOTSTRAP");
    cargo
}

/// Returns the directory of the workspace.
#[must_use]
pub fn workspace() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// Returns the program `polylock`, built once.
///
/// # Panics
/// If it can't be built.
#[must_use]
pub fn polylock() -> &'static Path {
    static PROGRAM: LazyLock<PathBuf> =
        LazyLock::new(|| built("polylock-cli", ["--bin", "polylock"]).join("polylock"));
    &PROGRAM
}

/// Returns an example of `package`, built with all features.
///
/// # Panics
/// If it can't be built.
#[must_use]
pub fn example(package: &str, name: &str) -> PathBuf {
    built(package, ["--example", name]).join("examples").join(name)
}

/// Builds a program of `package` with the profile of this program, and returns the directory of that profile. With
/// `POLYLOCK_TEST_BUILT` set, the caller has built everything already.
fn built(package: &str, target: [&str; 2]) -> PathBuf {
    let program = std::env::current_exe().unwrap_or_else(|error| panic!("this program: {error}"));
    let mut above = program.ancestors().skip(1);
    // Test programs are in its directory `deps`.
    let directory = above.find(|directory| !directory.ends_with("deps")).unwrap_or(&program);
    if std::env::var_os("POLYLOCK_TEST_BUILT").is_none() {
        let profile = if directory.ends_with("release") { "release" } else { "dev" };
        let build = ["build", "-q", "-p", package, "--all-features", "--profile", profile];
        let status = cargo().args(build).args(target).status();
        assert!(status.is_ok_and(|status| status.success()), "can't build {target:?} of {package}");
    }
    directory.to_owned()
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
