//! The packages of the workspace: each published one contains a README and the licences, and states its oldest compiler.

use std::{collections::BTreeSet, fs, path::Path};

use polylock_integration_tests::cargo::{cargo, workspace};
use serde_json::Value;

/// The files of a package that its users and the registry need.
const FILES: [&str; 4] = ["Cargo.toml", "LICENSE-APACHE", "LICENSE-MIT", "README.md"];

/// Returns the published packages of the workspace.
fn published() -> Vec<Value> {
    let output =
        cargo().args(["metadata", "--no-deps", "--offline", "--format-version", "1"]).output().unwrap();
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap().iter();
    packages.filter(|package| package["publish"].is_null()).cloned().collect()
}

/// Returns those of [`FILES`] that the package of `directory` lacks.
fn missing(listed: &BTreeSet<String>) -> Vec<&'static str> {
    FILES.into_iter().filter(|file| !listed.contains(*file)).collect()
}

#[test]
fn each_contains_a_readme_and_the_licences() {
    let packages = published();
    assert!(packages.len() >= 8, "{}", packages.len());
    for package in &packages {
        let name = package["name"].as_str().unwrap();
        let listed =
            cargo().args(["package", "--list", "--allow-dirty", "--offline", "-p", name]).output().unwrap();
        let listed: BTreeSet<String> =
            String::from_utf8(listed.stdout).unwrap().lines().map(str::to_owned).collect();
        assert_eq!(missing(&listed), [""; 0], "{name}");
        let directory = Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap();
        for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
            let text = |at: &Path| fs::read_to_string(at.join(licence)).unwrap();
            assert_eq!(text(directory), text(workspace()), "{name}: {licence}");
        }
        let readme = fs::read_to_string(directory.join(package["readme"].as_str().unwrap())).unwrap();
        assert!(readme.starts_with(&format!("# {name}\n")) || name == "polylock-cli", "{name}: {readme}");
    }
    // The planted twin: a package without a README.
    let without: BTreeSet<String> = ["Cargo.toml", "LICENSE-APACHE", "LICENSE-MIT"].map(str::to_owned).into();
    assert_eq!(missing(&without), ["README.md"]);
}

#[test]
fn each_states_its_oldest_compiler_and_how_its_pages_are_built() {
    for package in published() {
        let name = &package["name"];
        assert!(package["rust_version"].is_string(), "{name}");
        assert!(package["description"].as_str().is_some_and(|text| !text.is_empty()), "{name}");
        assert_eq!(package["metadata"]["docs"]["rs"]["all-features"], true, "{name}");
    }
}
