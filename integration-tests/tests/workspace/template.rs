//! The store that `docs/writing-a-store.md` starts from.

use polylock_integration_tests::cargo::{cargo, workspace};

/// Runs its tests as an author does, outside of this workspace; returns their output, and true if they passed.
fn tests(arguments: &[&str]) -> (String, bool) {
    let manifest = workspace().join("docs/template-store/Cargo.toml");
    let target = workspace().join("target/template-store");
    let mut cargo = cargo();
    cargo.args(["test", "--locked", "--manifest-path"]).arg(manifest).arg("--target-dir").arg(target);
    let output = cargo.args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (String::from_utf8_lossy(&text).into_owned(), output.status.success())
}

#[test]
fn the_template_passes_the_suite_and_opens_by_url() {
    let (output, passed) = tests(&[]);
    assert!(passed, "{output}");
    for test in ["template::exclusion::one_holder_at_a_time", "a_registered_scheme_opens_the_store"] {
        assert!(output.contains(&format!("test {test} ... ok")), "{test}: {output}");
    }
    let cases = polylock_testkit::CASES.len();
    assert!(output.contains(&format!("{cases} passed")), "{cases} cases: {output}");
}
