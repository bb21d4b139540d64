//! `docs/safety.md` and `docs/comparison.md` are generated.

use std::{fs, io, path::Path, path::PathBuf};

use polylock_integration_tests::{chaos, comparison};

/// A page: its path, its contents for the current results, and the command that writes it.
type Page = (fn() -> PathBuf, fn() -> io::Result<String>, &'static str);

const PAGES: [Page; 2] = [
    (chaos::page::path, chaos::page::current, "cargo run -p polylock-integration-tests --bin chaos -- page"),
    (
        comparison::page::path,
        comparison::page::current,
        "cargo run -p polylock-integration-tests --bin comparison -- page",
    ),
];

/// Returns true if the file at `path` is the page for the current results.
fn is_current(path: &Path, current: fn() -> io::Result<String>) -> bool {
    fs::read_to_string(path).unwrap() == current().unwrap()
}

#[test]
fn each_page_is_what_the_results_generate() {
    for (path, current, advice) in PAGES {
        assert!(is_current(&path(), current), "{} is not current: {advice}", path().display());
    }
}

#[test]
fn another_page_is_detected() {
    for (path, current, _) in PAGES {
        let edited = tempfile::NamedTempFile::new().unwrap();
        let page = current().unwrap();
        fs::write(&edited, page.replacen("---|\n| ", "---|\n|  ", 1)).unwrap();
        assert!(!is_current(edited.path(), current), "{}", path().display());
    }
}
