//! Bugs in the code that real processes must find under random faults, without hints.

use std::{
    fs, io,
    process::{Command, ExitCode},
};

use polylock_integration_tests::chaos::planted::{CODE, CodeBug};

use crate::{
    lab::Lab,
    list::{Mutant, mutants},
};

/// The longest time of a run, in seconds.
const LIMIT: &str = "60";

/// Plants each of these bugs in a copy of the code, builds the program of the processes there, and runs it with these options of the
/// program `chaos`, which is beside this one.
pub(crate) fn run(options: &[&str]) -> io::Result<ExitCode> {
    let lab = Lab::create()?;
    let mut all_are_found = true;
    for bug in &CODE {
        all_are_found &= is_found(&lab, bug, options)?;
    }
    Ok(if all_are_found { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the change of the code.
fn mutant(bug: &CodeBug) -> io::Result<&'static Mutant> {
    let missing = || io::Error::other(format!("{}: there is no bug {:?}", bug.name, bug.mutant));
    mutants().find(|mutant| mutant.name == bug.mutant).ok_or_else(missing)
}

fn is_found(lab: &Lab, bug: &CodeBug, options: &[&str]) -> io::Result<bool> {
    let mutant = mutant(bug)?;
    let file = lab.copy.join(mutant.file);
    let original = fs::read_to_string(&file)?;
    fs::write(&file, mutant.planted(&original).map_err(io::Error::other)?)?;
    let built = lab.cargo("build").args(["--quiet", "--bin", "worker"]).status();
    fs::write(&file, original)?;
    if !built?.success() {
        return Err(io::Error::other(format!("{}: can't be built", bug.name)));
    }
    let chaos = std::env::current_exe()?.with_file_name("chaos");
    let mut run = Command::new(chaos);
    run.args(["--store", bug.configuration, "--planted", bug.name, "--seconds", LIMIT]).args(options);
    run.arg("--worker").arg(lab.target.join("debug/worker"));
    Ok(run.status()?.success())
}

#[cfg(test)]
mod tests {
    use super::*;
    use polylock_integration_tests::chaos::configuration;

    #[test]
    fn every_bug_and_its_configuration_exist() {
        for bug in &CODE {
            mutant(bug).unwrap();
            assert!(configuration::named(bug.configuration).is_some(), "{}", bug.name);
        }
    }
}
