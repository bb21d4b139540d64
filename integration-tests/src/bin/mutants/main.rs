//! Plants bugs in a copy of the workspace, and runs the tests that must detect them.
//!
//! ```text
//! cargo run -p polylock-integration-tests --bin mutants            # all of them
//! cargo run -p polylock-integration-tests --bin mutants release    # those with this text in their name or that of their test
//! cargo run -p polylock-integration-tests --bin mutants -- --some 8 # a selection that changes daily
//! cargo run -p polylock-integration-tests --bin mutants -- --list  # the bugs and their tests
//! cargo run -p polylock-integration-tests --bin mutants -- --chaos  # those that real processes must find under random faults
//! ```
//!
//! With `--some`, those in files that the last commit changed come first.
//!
//! It fails if a test passes in spite of its bug, if it fails without one, or if a bug can't be planted any more because
//! the text has changed. It ends the processes that a test leaves. Bugs of different stores do not affect each other's tests, so one of
//! each is planted at a time. The copy is built below `target/mutants`, with what is built of the dependencies already.

mod chaos;
mod list;
mod supervisor;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use futures_util::{StreamExt, TryStreamExt, stream};
use list::{Mutant, mutants};
use polylock_integration_tests::{cargo::workspace, clock::now};

/// The number of tests that run at the same time.
const PARALLEL: usize = 4;
/// The prefix of a library's name, for its unit tests.
const UNITS: &str = "units of library ";
/// The mode of this program that runs one test program.
const SUPERVISE: &str = "--supervise";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let chosen = match words[..] {
        ["--list"] => {
            for Mutant { name, file, test: (program, test), .. } in mutants() {
                println!("{name}\n    {file}\n    {program} {test}");
            }
            return ExitCode::SUCCESS;
        }
        [SUPERVISE, program, ref arguments @ ..] => {
            return supervisor::supervise(program, arguments).unwrap_or_else(|error| {
                eprintln!("{program}: {error}");
                ExitCode::FAILURE
            });
        }
        ["--chaos", ref options @ ..] => {
            return chaos::run(options).unwrap_or_else(|error| {
                eprintln!("{error}");
                ExitCode::FAILURE
            });
        }
        ["--some", count] => count.parse().map(select).map_err(|_| format!("{count} is not a number")),
        [] => Ok(mutants().collect()),
        [wanted] if !wanted.starts_with('-') => {
            let is_wanted = |mutant: &&Mutant| mutant.name.contains(wanted) || mutant.test.1.contains(wanted);
            Ok(mutants().filter(is_wanted).collect())
        }
        _ => Err("usage: mutants [PART OF A NAME OR TEST | --some COUNT | --chaos [--record FILE] | --list]"
            .to_owned()),
    };
    let verdict = match chosen {
        Ok(mutants) if mutants.is_empty() => {
            Err("no mutant has this text in its name or that of its test: see --list".to_owned())
        }
        Ok(mutants) => run(&mutants).map(|faults| (faults, mutants.len())).map_err(|error| error.to_string()),
        Err(why) => Err(why),
    };
    match verdict {
        Ok((0, _)) => ExitCode::SUCCESS,
        Ok((faults, of)) => {
            eprintln!("{faults} of {of} have another outcome than expected");
            ExitCode::FAILURE
        }
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// Returns `count` of them: first those in files that the last commit changed, then others by the day.
fn select(count: usize) -> Vec<&'static Mutant> {
    let git = Command::new("git").current_dir(workspace()).args(["diff", "--name-only", "HEAD~1"]).output();
    let changed = git.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let (mut first, rest): (Vec<_>, Vec<_>) =
        mutants().partition(|mutant| changed.lines().any(|file| file == mutant.file));
    let day = usize::try_from(polylock_integration_tests::clock::day()).unwrap_or(0);
    let begin = day.wrapping_mul(count) % rest.len().max(1);
    first.extend(rest[begin..].iter().chain(&rest[..begin]).copied());
    first.truncate(count);
    first
}

fn run(mutants: &[&Mutant]) -> io::Result<usize> {
    let began = now();
    let lab = Lab::create()?;
    let mut faults = 0;
    // Without a bug, every test passes.
    let tests: BTreeSet<_> = mutants.iter().map(|mutant| mutant.test).collect();
    let outcomes = lab.run(&tests)?;
    for test in &tests {
        faults += report("no bug", *test, &outcomes[test], &Outcome::Passes);
    }
    for group in groups(mutants) {
        let mut originals = Vec::new();
        let mut tests = BTreeSet::new();
        for mutant in &group {
            let file = lab.copy.join(mutant.file);
            let original = fs::read_to_string(&file).unwrap_or_default();
            match mutant.planted(&original) {
                Ok(planted) => {
                    fs::write(&file, planted)?;
                    originals.push((file, original));
                    tests.insert(mutant.test);
                }
                Err(why) => {
                    faults += report(mutant.name, mutant.test, &Outcome::NoResult(why), &Outcome::Fails);
                }
            }
        }
        let outcomes = lab.run(&tests);
        for (file, original) in originals {
            fs::write(file, original)?;
        }
        let outcomes = outcomes?;
        for mutant in group.iter().filter(|mutant| tests.contains(&mutant.test)) {
            faults += report(mutant.name, mutant.test, &outcomes[&mutant.test], &Outcome::Fails);
        }
    }
    println!("{} in {:.0?}", mutants.len(), now().since(began));
    Ok(faults)
}

/// Returns groups in which no two bugs are in the same part of the library, or in parts that depend on each other.
fn groups<'m>(mutants: &[&'m Mutant]) -> Vec<Vec<&'m Mutant>> {
    let mut groups: Vec<(BTreeSet<String>, Vec<&Mutant>)> = Vec::new();
    for mutant in mutants {
        let part = part(mutant.file);
        let fits = |(parts, members): &&mut (BTreeSet<String>, Vec<&Mutant>)| {
            let is_independent = |other: &String| !other.starts_with(&*part) && !part.starts_with(&**other);
            parts.iter().all(is_independent) && members.iter().all(|member| member.test != mutant.test)
        };
        match groups.iter_mut().find(fits) {
            Some((parts, members)) => {
                parts.insert(part);
                members.push(mutant);
            }
            None => groups.push((BTreeSet::from([part]), vec![mutant])),
        }
    }
    groups.into_iter().map(|(_, members)| members).collect()
}

/// The part of the library that `file` belongs to: a store, or everything.
fn part(file: &str) -> String {
    let folders = ["sqlite", "postgres", "mysql", "optimistic", "single", "redlock"];
    let parts: Vec<&str> = file.split('/').collect();
    match parts[..] {
        ["crates", krate @ ("polylock-zookeeper" | "polylock-azure" | "polylock-cli"), ..] => {
            krate.to_owned()
        }
        ["crates", krate, "src", folder, ..] if folders.contains(&folder) => format!("{krate}/{folder}"),
        ["crates", krate @ ("polylock-sql" | "polylock-redis"), ..] => krate.to_owned(),
        // Every store depends on the other crates.
        _ => String::new(),
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    Passes,
    Fails,
    /// It was not run.
    NoResult(String),
}

/// Prints a line; returns 1 if the outcome is not the expected one.
fn report(bug: &str, (program, test): (&str, &str), found: &Outcome, expected: &Outcome) -> usize {
    let is_expected = found == expected;
    let verdict = if is_expected { "ok".to_owned() } else { format!("WRONG, {found:?}") };
    println!("{bug}: {program} {test} must be {expected:?}: {verdict}");
    usize::from(!is_expected)
}

/// A test: its program and its name.
type Test<'t> = (&'t str, &'t str);

/// The copy of the workspace, and its target directory.
struct Lab {
    copy: PathBuf,
    target: PathBuf,
    /// A copy of this program, because a build during the run replaces the original.
    program: PathBuf,
}

impl Lab {
    fn create() -> io::Result<Self> {
        let directory = workspace().join("target/mutants");
        let copy = directory.join("workspace");
        mirror(workspace(), &copy)?;
        let program = directory.join("supervisor");
        fs::copy(std::env::current_exe()?, &program)?;
        Ok(Self { copy, target: link_dependencies(&directory)?, program })
    }

    /// Returns cargo with this command in the copy. It uses the features of the whole workspace, as everything was built before.
    fn cargo(&self, command: &str) -> Command {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(&self.copy).env("CARGO_TARGET_DIR", &self.target);
        cargo.args([command, "--offline", "--workspace", "--all-features"]);
        cargo
    }

    /// Builds the copy and runs these tests, a few at a time.
    fn run<'t>(&self, tests: &BTreeSet<Test<'t>>) -> io::Result<BTreeMap<Test<'t>, Outcome>> {
        let programs: BTreeSet<&str> = tests.iter().map(|(program, _)| *program).collect();
        let built = match self.build(&programs)? {
            Ok(built) => built,
            Err(why) => {
                return Ok(tests.iter().map(|test| (*test, Outcome::NoResult(why.clone()))).collect());
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let outcomes = stream::iter(tests).map(|test| self.run_one(&built, *test)).buffer_unordered(PARALLEL);
        runtime.block_on(outcomes.try_collect())
    }

    async fn run_one<'t>(
        &self,
        built: &BTreeMap<String, PathBuf>,
        test: Test<'t>,
    ) -> io::Result<(Test<'t>, Outcome)> {
        let (program, name) = test;
        let Some(executable) = built.get(program) else {
            return Ok((test, Outcome::NoResult(format!("there is no program {program}"))));
        };
        let mut command = tokio::process::Command::new(&self.program);
        // The quiet format does not print the outcomes.
        command
            .arg(SUPERVISE)
            .arg(executable)
            .args(["--exact", name, "--format", "pretty"])
            .env("RUST_BACKTRACE", "0");
        command.env("POLYLOCK_TEST_BUILT", "1");
        command.current_dir(self.copy.join("integration-tests")).kill_on_drop(true);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        Ok((test, outcome(name, &child.wait_with_output().await?)))
    }

    /// Builds these test programs, and returns their executables, or the error of the compiler.
    fn build(&self, programs: &BTreeSet<&str>) -> io::Result<Result<BTreeMap<String, PathBuf>, String>> {
        let mut cargo = self.cargo("test");
        cargo.args(["--no-run", "--message-format", "json"]);
        for program in programs.iter().filter(|program| !program.starts_with(UNITS)) {
            cargo.args(["--test", program]);
        }
        if programs.iter().any(|program| program.starts_with(UNITS)) {
            cargo.arg("--lib");
        }
        if programs.iter().any(|program| ["scenarios", "processes"].contains(program)) {
            // They run the command, which is built for its own tests.
            cargo.args(["--test", "cli"]);
        }
        let output = cargo.output()?;
        if !output.status.success() {
            return Ok(Err(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let messages = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let executable = |message: serde_json::Value| {
            if message["profile"]["test"] != true {
                return None;
            }
            let name = message["target"]["name"].as_str()?;
            let is_library = message["target"]["kind"][0] == "lib";
            let name = if is_library { format!("{UNITS}{name}") } else { name.to_owned() };
            Some((name, PathBuf::from(message["executable"].as_str()?)))
        };
        let mut built = BTreeMap::new();
        for (name, executable) in messages.filter_map(executable) {
            if let Some(other) = built.insert(name, executable.clone()) {
                let why =
                    format!("two programs have one name: {} and {}", other.display(), executable.display());
                return Ok(Err(why));
            }
        }
        Ok(Ok(built))
    }
}

fn outcome(test: &str, output: &std::process::Output) -> Outcome {
    let text = String::from_utf8_lossy(&output.stdout);
    let ends = |word: &str| text.contains(&format!("test {test} ... {word}"));
    if output.status.success() && ends("ok") {
        Outcome::Passes
    } else if !output.status.success() && ends("FAILED") {
        Outcome::Fails
    } else {
        Outcome::NoResult(text.into_owned())
    }
}

/// Creates a target directory for the copy, with hard links to the built dependencies, which are not built again.
fn link_dependencies(directory: &Path) -> io::Result<PathBuf> {
    let target = directory.join("target");
    if !target.join("debug").exists() {
        fs::create_dir_all(&target)?;
        let built = workspace().join("target/debug");
        for part in ["deps", "build", ".fingerprint"] {
            link(&built.join(part), &target.join("debug").join(part))?;
        }
    }
    Ok(target)
}

fn link(from: &Path, to: &Path) -> io::Result<()> {
    if !from.exists() {
        return Ok(());
    }
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let Some(name) = path.file_name() else { continue };
        // The crates of the workspace are built again, because the copy has other paths.
        if name.to_string_lossy().contains("polylock") {
            continue;
        }
        if path.is_dir() { link(&path, &to.join(name))? } else { fs::hard_link(&path, to.join(name))? }
    }
    Ok(())
}

/// Makes `to` a copy of `from`, without build output. Equal files are not written, so that they are not built
/// again.
fn mirror(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    let entries = |directory: &Path| -> io::Result<Vec<PathBuf>> {
        fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect()
    };
    for old in entries(to)? {
        if !old.file_name().is_some_and(|name| from.join(name).exists()) {
            if old.is_dir() { fs::remove_dir_all(old)? } else { fs::remove_file(old)? }
        }
    }
    for path in entries(from)? {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bugs_in_dependent_parts_are_not_planted_together() {
        let all: Vec<_> = mutants().collect();
        let groups = groups(&all);
        assert!(groups.len() < all.len(), "no two bugs share a group");
        for group in groups {
            let parts: Vec<String> = group.iter().map(|mutant| part(mutant.file)).collect();
            for (at, one) in parts.iter().enumerate() {
                let others = parts.iter().enumerate().filter(|(other, _)| *other != at);
                assert!(others.clone().all(|(_, other)| !one.starts_with(&**other)), "{parts:?}");
            }
        }
    }
}
