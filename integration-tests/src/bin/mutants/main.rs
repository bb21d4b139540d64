//! Plants bugs in a copy of the workspace, and runs the tests that must detect them.
//!
//! ```text
//! cargo run -p polylock-integration-tests --bin mutants            # all of them
//! cargo run -p polylock-integration-tests --bin mutants release    # those with this text in their name or that of their test
//! cargo run -p polylock-integration-tests --bin mutants -- --some 8 # a selection that changes daily
//! cargo run -p polylock-integration-tests --bin mutants -- --prepare --some 8 # only the build that precedes it
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
mod lab;
mod list;
mod supervisor;

use std::{
    collections::BTreeSet,
    fs, io,
    process::{Command, ExitCode},
};

use lab::{Lab, Outcome};
use list::{Mutant, mutants};
use polylock_integration_tests::{cargo::workspace, clock::now};
use supervisor::SUPERVISE;

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
        ["--some", count] | ["--prepare", "--some", count] => {
            count.parse().map(select).map_err(|_| format!("{count} is not a number"))
        }
        [] => Ok(mutants().collect()),
        [wanted] if !wanted.starts_with('-') => {
            let is_wanted = |mutant: &&Mutant| mutant.name.contains(wanted) || mutant.test.1.contains(wanted);
            Ok(mutants().filter(is_wanted).collect())
        }
        _ => Err("usage: mutants [PART OF A NAME OR TEST | [--prepare] --some COUNT | --chaos [--record FILE] | --list]"
            .to_owned()),
    };
    let verdict = match chosen {
        Ok(mutants) if mutants.is_empty() => {
            Err("no mutant has this text in its name or that of its test: see --list".to_owned())
        }
        Ok(mutants) => {
            let faults = if words.first() == Some(&"--prepare") { prepare(&mutants) } else { run(&mutants) };
            faults.map(|faults| (faults, mutants.len())).map_err(|error| error.to_string())
        }
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

/// Builds the tests of these bugs without a bug, so that [`run`] has less to build. Returns the number of failures.
fn prepare(mutants: &[&Mutant]) -> io::Result<usize> {
    let programs = mutants.iter().map(|mutant| mutant.test.0).collect();
    let built = Lab::create()?.build(&programs)?;
    if let Err(why) = &built {
        eprintln!("{why}");
    }
    Ok(usize::from(built.is_err()))
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

/// Prints a line; returns 1 if the outcome is not the expected one.
fn report(bug: &str, (program, test): (&str, &str), found: &Outcome, expected: &Outcome) -> usize {
    let is_expected = found == expected;
    let verdict = if is_expected { "ok".to_owned() } else { format!("WRONG, {found:?}") };
    println!("{bug}: {program} {test} must be {expected:?}: {verdict}");
    usize::from(!is_expected)
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
