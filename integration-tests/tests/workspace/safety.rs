//! `docs/safety.md` is generated.

use std::{fs, path::Path};

use polylock_integration_tests::chaos::page;

/// Returns true if the file at `path` is the page for the current records.
fn is_current(path: &Path) -> bool {
    fs::read_to_string(path).unwrap() == page::current().unwrap()
}

#[test]
fn the_page_is_what_the_records_generate() {
    let advice = "cargo run -p polylock-integration-tests --bin chaos -- page";
    assert!(is_current(&page::path()), "docs/safety.md is not current: {advice}");
}

#[test]
fn another_page_is_detected() {
    let edited = tempfile::NamedTempFile::new().unwrap();
    fs::write(&edited, page::current().unwrap().replacen("| redis |", "| redis | |", 1)).unwrap();
    assert!(!is_current(edited.path()));
}
