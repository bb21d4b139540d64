//! The program whose only change between stores is the URL, on every store of this machine.
#![allow(clippy::unwrap_used, reason = "tests")]

use polylock_integration_tests::{cargo::cargo, targets};
use polylock_testkit::Missing;

/// Runs the example as a user would; what it says, and whether it was content.
fn swap(url: &str) -> (String, bool) {
    let mut cargo = cargo();
    cargo.args([
        "run",
        "-q",
        "-p",
        "polylock",
        "--features",
        "sqlite,postgres,mysql,redis,zookeeper,azure,tls,sasl",
        "--example",
        "swap",
        "--",
        url,
    ]);
    let output = cargo.output().unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (said, output.status.success())
}

#[tokio::test]
async fn one_program_runs_on_every_store() {
    for name in targets::NAMES {
        match targets::make(name).await {
            Ok(spot) => {
                let (said, content) = swap(spot.url());
                assert!(content && said.contains("as it should be"), "{name}: {said}");
            }
            Err(Missing(why)) => {
                let required = std::env::var("POLYLOCK_TEST_REQUIRE").is_ok_and(|required| required == "all");
                assert!(!required, "{name} is required and missing: {why}");
                eprintln!("missing: {name}: {why}");
            }
        }
    }
}

/// The planted twin: a store that is not there is not passed over in silence.
#[tokio::test]
async fn a_store_that_is_not_there_fails() {
    let (said, content) = swap("sqlite:///proc/no/such/place/locks.db");
    assert!(!content, "{said}");
}
