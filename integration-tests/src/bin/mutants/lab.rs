//! A copy of the workspace, in which bugs are planted, and the tests that are built and run there.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use futures_util::{StreamExt, TryStreamExt, stream};
use polylock_integration_tests::cargo::workspace;

use crate::supervisor::SUPERVISE;

/// The number of tests that run at the same time.
const PARALLEL: usize = 4;
/// The prefix of a library's name, for its unit tests.
pub(crate) const UNITS: &str = "units of library ";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passes,
    Fails,
    /// It was not run.
    NoResult(String),
}

/// A test: its program and its name.
pub(crate) type Test<'t> = (&'t str, &'t str);

/// The copy of the workspace, and its target directory.
pub(crate) struct Lab {
    pub(crate) copy: PathBuf,
    pub(crate) target: PathBuf,
    /// A copy of this program, because a build during the run replaces the original.
    program: PathBuf,
}

impl Lab {
    pub(crate) fn create() -> io::Result<Self> {
        let directory = workspace().join("target/mutants");
        let copy = directory.join("workspace");
        mirror(workspace(), &copy)?;
        let program = directory.join("supervisor");
        fs::copy(std::env::current_exe()?, &program)?;
        Ok(Self { copy, target: link_dependencies(&directory)?, program })
    }

    /// Returns cargo with this command in the copy. It uses the features of the whole workspace, as everything was built before.
    pub(crate) fn cargo(&self, command: &str) -> Command {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(&self.copy).env("CARGO_TARGET_DIR", &self.target);
        cargo.args([command, "--offline", "--workspace", "--all-features"]);
        cargo
    }

    /// Builds the copy and runs these tests, a few at a time.
    pub(crate) fn run<'t>(&self, tests: &BTreeSet<Test<'t>>) -> io::Result<BTreeMap<Test<'t>, Outcome>> {
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
    pub(crate) fn build(
        &self,
        programs: &BTreeSet<&str>,
    ) -> io::Result<Result<BTreeMap<String, PathBuf>, String>> {
        let mut cargo = self.cargo("test");
        // The errors of the compiler are on the standard error.
        cargo.args(["--no-run", "--message-format", "json-render-diagnostics"]);
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
