//! The program whose only change between stores is the URL, on every store of this machine.

use std::process::Command;

use polylock_integration_tests::{cargo::example, targets};
use polylock_testkit::Missing;

/// Returns the output of the example, and true if it succeeded.
fn swap(url: &str) -> (String, bool) {
    let output = Command::new(example("polylock", "swap")).arg(url).output().unwrap();
    let output_text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output_text, output.status.success())
}

#[tokio::test]
async fn one_program_runs_on_every_store() {
    for name in targets::NAMES {
        match targets::create(name).await {
            Ok(namespace) => {
                let (output_text, succeeded) = swap(namespace.url());
                assert!(succeeded && output_text.contains("as expected"), "{name}: {output_text}");
            }
            Err(Missing(why)) => {
                let required = std::env::var("POLYLOCK_TEST_REQUIRE").is_ok_and(|required| required == "all");
                assert!(!required, "{name} is required and missing: {why}");
                eprintln!("missing: {name}: {why}");
            }
        }
    }
}

/// The counter-check: a store that does not exist is an error.
#[tokio::test]
async fn a_store_that_does_not_exist_fails() {
    let (output_text, succeeded) = swap("sqlite:///proc/no/such/place/locks.db");
    assert!(!succeeded, "{output_text}");
}
