//! Plants bugs in the library, one at a time, in a copy of the workspace, and runs the one test that must catch each.
//!
//! ```text
//! cargo run -p polylock-integration-tests --bin mutants            # all of them
//! cargo run -p polylock-integration-tests --bin mutants release    # those with this in their name
//! ```
//!
//! It fails if a test passes in spite of its bug, if it fails without one, or if a bug can't be planted any more because
//! the text has changed. The first run builds everything anew below `target/mutants` and takes some minutes; after that
//! each mutant takes the time to build core and the tests.

mod list;

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use list::{MUTANTS, Mutant};
use polylock_integration_tests::{cargo::workspace, clock::now};

fn main() -> ExitCode {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    let mutants: Vec<&Mutant> = MUTANTS.iter().filter(|mutant| mutant.name.contains(&wanted)).collect();
    if mutants.is_empty() {
        eprintln!("no mutant is called {wanted:?}");
        return ExitCode::FAILURE;
    }
    match run(&mutants) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(faults) => {
            eprintln!("{faults} of {} are not as they must be", mutants.len());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(mutants: &[&Mutant]) -> io::Result<usize> {
    let began = now();
    let place = workspace().join("target/mutants");
    let copy = place.join("workspace");
    mirror(workspace(), &copy)?;
    let mut faults = 0;
    // Without a bug, every test passes.
    for test in tests(mutants) {
        let verdict = outcome(&place, &copy, test)?;
        faults += report("no bug", test, &verdict, &Outcome::Passes);
    }
    for mutant in mutants {
        let file = copy.join(mutant.file);
        let original = fs::read_to_string(&file)?;
        let verdict = match mutant.planted(&original) {
            Ok(planted) => {
                fs::write(&file, planted)?;
                let verdict = outcome(&place, &copy, mutant.test);
                fs::write(&file, original)?;
                verdict?
            }
            Err(why) => Outcome::NoResult(why),
        };
        faults += report(mutant.name, mutant.test, &verdict, &Outcome::Fails);
    }
    println!("in {:.0?}", now().since(began));
    Ok(faults)
}

/// Each test once.
fn tests<'m>(mutants: &[&'m Mutant]) -> Vec<(&'m str, &'m str)> {
    let mut tests: Vec<_> = mutants.iter().map(|mutant| mutant.test).collect();
    tests.sort_unstable();
    tests.dedup();
    tests
}

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Passes,
    Fails,
    /// It was not run, which proves nothing.
    NoResult(String),
}

/// Prints a line; 1 if it is not as it must be.
fn report(bug: &str, (binary, test): (&str, &str), found: &Outcome, must: &Outcome) -> usize {
    let right = found == must;
    let verdict = if right { "ok".to_owned() } else { format!("WRONG, {found:?}") };
    println!("{bug}: {binary} {test} must be {must:?}: {verdict}");
    usize::from(!right)
}

/// Runs one test of the copy.
fn outcome(place: &Path, copy: &Path, (binary, test): (&str, &str)) -> io::Result<Outcome> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(copy).env("CARGO_TARGET_DIR", place.join("target")).env("RUST_BACKTRACE", "0");
    cargo.args(["test", "--offline", "-p", "polylock-integration-tests", "--test", binary]);
    // In words, as the quiet format has none.
    cargo.args(["--", "--exact", test, "--format", "pretty"]);
    let output = cargo.output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let ends = |word: &str| said.contains(&format!("test {test} ... {word}"));
    Ok(if output.status.success() && ends("ok") {
        Outcome::Passes
    } else if !output.status.success() && ends("FAILED") {
        Outcome::Fails
    } else {
        Outcome::NoResult(String::from_utf8_lossy(&output.stderr).into_owned())
    })
}

/// Makes `to` a copy of `from`, without what was built. What is the same already is left alone, and so need not be built
/// again.
fn mirror(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    let there = |directory: &Path| -> io::Result<Vec<PathBuf>> {
        fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect()
    };
    for old in there(to)? {
        if !old.file_name().is_some_and(|name| from.join(name).exists()) {
            if old.is_dir() { fs::remove_dir_all(old)? } else { fs::remove_file(old)? }
        }
    }
    for path in there(from)? {
        let Some(name) = path.file_name().filter(|name| *name != "target" && *name != ".git") else {
            continue;
        };
        let copy = to.join(name);
        if path.is_dir() {
            mirror(&path, &copy)?;
        } else {
            let text = fs::read(&path)?;
            if fs::read(&copy).ok().as_ref() != Some(&text) {
                fs::write(copy, text)?;
            }
        }
    }
    Ok(())
}
