//! The planted bugs, and the tests that detect them.

mod api;
mod azure;
mod bench;
mod cli;
mod conversion;
mod core;
mod deadlock_check;
mod election;
mod handles;
mod http;
mod late;
mod many;
mod mutant;
mod mysql;
mod once;
mod outages;
mod postgres;
mod redis;
mod redlock;
mod semaphore;
mod sql;
mod sqlite;
mod tower;
mod transition;
mod zookeeper;

pub(crate) use self::mutant::Mutant;

/// Returns all bugs.
pub(crate) fn mutants() -> impl Iterator<Item = &'static Mutant> {
    [
        core::MUTANTS,
        api::MUTANTS,
        many::MUTANTS,
        semaphore::MUTANTS,
        conversion::MUTANTS,
        handles::MUTANTS,
        late::MUTANTS,
        deadlock_check::MUTANTS,
        once::MUTANTS,
        outages::MUTANTS,
        election::MUTANTS,
        transition::MUTANTS,
        sql::MUTANTS,
        sqlite::MUTANTS,
        postgres::MUTANTS,
        mysql::MUTANTS,
        redis::MUTANTS,
        redlock::MUTANTS,
        zookeeper::MUTANTS,
        azure::MUTANTS,
        http::MUTANTS,
        tower::MUTANTS,
        cli::MUTANTS,
        bench::MUTANTS,
    ]
    .into_iter()
    .flatten()
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        path::{Path, PathBuf},
    };

    use super::*;
    use crate::lab::UNITS;
    use polylock_integration_tests::{cargo::workspace, targets};

    /// So that a change of the text is noticed with the next test run, not with the next run of the mutants.
    #[test]
    fn every_bug_can_still_be_planted() {
        let mut stale = Vec::new();
        for mutant in mutants() {
            let text = fs::read_to_string(workspace().join(mutant.file)).unwrap_or_default();
            match mutant.planted(&text) {
                Ok(planted) => assert_ne!(planted, text, "{}", mutant.name),
                Err(error) => stale.push(format!("{}: {error}", mutant.name)),
            }
        }
        assert!(stale.is_empty(), "{}", stale.join("\n"));
    }

    #[test]
    fn what_does_not_stand_there_exactly_once_is_not_planted() {
        let mutant = mutants().next().unwrap();
        assert!(mutant.planted("something else").is_err());
        assert!(mutant.planted(&mutant.from.repeat(2)).is_err());
    }

    /// Returns the file with the root module of a test program, or of a package's unit tests.
    fn root(program: &str) -> Result<PathBuf, String> {
        let crates = workspace().join("crates");
        if let Some(library) = program.strip_prefix(UNITS) {
            let package = crates.join(library.replace('_', "-"));
            let package = if package.exists() { package } else { workspace().join("integration-tests") };
            return Ok(package.join("src/lib.rs"));
        }
        let packages = fs::read_dir(crates).unwrap().flatten().map(|entry| entry.path());
        let tests =
            packages.chain([workspace().join("integration-tests")]).map(|package| package.join("tests"));
        let files =
            |tests: PathBuf| [tests.join(format!("{program}.rs")), tests.join(program).join("main.rs")];
        let found: Vec<PathBuf> = tests.flat_map(files).filter(|file| file.exists()).collect();
        match &found[..] {
            [file] => Ok(file.clone()),
            _ => Err(format!("{} programs {program}", found.len())),
        }
    }

    /// Checks that the source of `program` has the test `name`. A module is a file, or named in one, or generated for a target.
    fn find(program: &str, name: &str) -> Result<(), String> {
        if program == "conformance" {
            let (target, case) = name.split_once("::").unwrap_or_default();
            let is_group = variants().contains(&target) && targets::VARIED.contains(&case);
            let is_case = targets::NAMES.contains(&target) && polylock_testkit::CASES.contains(&case);
            return (is_group || is_case).then_some(()).ok_or(format!("no case {name}"));
        }
        let has = |text: &str, name| {
            text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == name)
        };
        let root = root(program)?;
        let mut directory = root.parent().unwrap_or(Path::new("")).to_owned();
        let mut text = fs::read_to_string(root).unwrap();
        let mut outer = text.clone();
        let (modules, test) = name.rsplit_once("::").unwrap_or(("", name));
        for module in modules.split("::").filter(|module| !module.is_empty()) {
            let files = [format!("{module}.rs"), format!("{module}/mod.rs")].map(|file| directory.join(file));
            if let Some(file) = files.iter().find(|file| file.exists()) {
                text = fs::read_to_string(file).unwrap();
                outer += &text;
                directory.push(module);
            } else if !targets::NAMES.contains(&module) && !has(&outer, module) {
                return Err(format!("{program} has no module {module}: {name}"));
            }
        }
        has(&text, test).then_some(()).ok_or_else(|| format!("{program} has no test {name}"))
    }

    fn variants() -> Vec<&'static str> {
        macro_rules! names {
            ($($name:ident)*) => {
                vec![$(stringify!($name)),*]
            };
        }
        polylock_integration_tests::variants!(names)
    }

    #[test]
    fn every_test_that_is_named_exists() {
        let missing = |mutant: &Mutant| find(mutant.test.0, mutant.test.1).err();
        assert_eq!(mutants().filter_map(missing).collect::<Vec<_>>(), [""; 0]);
        // The counterexamples: a program, a module, a test and a case that do not exist.
        for (program, name) in [
            ("scenario", "redis::list::a"),
            ("scenarios", "redis::lists::listing_a_hundred_thousand_locks"),
            ("scenarios", "redis::list::no_such_test"),
            ("conformance", "memory::renew::no_such_case"),
        ] {
            assert!(find(program, name).is_err(), "{program} {name}");
        }
    }
}
