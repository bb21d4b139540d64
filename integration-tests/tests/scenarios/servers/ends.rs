//! A server leaves no process, file or memory behind.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use polylock_integration_tests::{
    clock::{self, TIMEOUT},
    process::Process,
};
use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

use super::{
    KINDS,
    family::{all_gone, family, is_port_closed, segments, signal},
};

/// A temporary directory and a cache for the servers of other processes, to observe what they leave.
struct Environment {
    temporary: TempDir,
    cache: TempDir,
}

impl Environment {
    fn new() -> Self {
        let (temporary, cache) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        // The servers run as users of their own.
        fs::set_permissions(temporary.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Self { temporary, cache }
    }

    /// Starts another process with a server.
    fn start(&self, what: &[&str]) -> Process {
        let temporary = format!("TMPDIR={}", self.temporary.path().display());
        let cache = format!("POLYLOCK_TEST_CACHE={}", self.cache.path().display());
        // A process group of its own, and a server of its own where this run shares one.
        let shared = std::env::vars().map(|(name, _)| name);
        let shared = shared.filter(|name| name.starts_with("POLYLOCK_TEST_") && name.ends_with("_URL"));
        let shared: Vec<String> = shared.map(|name| format!("--unset={name}")).collect();
        let mut arguments = vec!["env"];
        arguments.extend(shared.iter().map(String::as_str));
        arguments.extend([&temporary, &cache, env!("CARGO_BIN_EXE_server")]);
        Process::start("setsid", arguments.iter().chain(what))
    }

    /// Returns the files in the temporary directory.
    fn files(&self) -> Vec<PathBuf> {
        fs::read_dir(&self.temporary).unwrap().flatten().map(|entry| entry.path()).collect()
    }

    /// Returns the processes that refer to the temporary directory.
    fn processes(&self) -> Vec<PathBuf> {
        let directory = self.temporary.path().to_str().unwrap();
        let refers = |process: &PathBuf| {
            ["cmdline", "environ"].iter().any(|file| {
                let text = fs::read(process.join(file)).unwrap_or_default();
                String::from_utf8_lossy(&text).contains(directory)
            })
        };
        fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path()).filter(refers).collect()
    }

    fn assert_clean(&self, what: &str) {
        clock::within(TIMEOUT, || self.files().is_empty() && self.processes().is_empty());
        let (files, processes) = (self.files(), self.processes());
        assert!(
            files.is_empty() && processes.is_empty(),
            "{what} has left the files {files:?} and the processes {processes:?}"
        );
    }
}

/// Starts a server in another process, ends that process with `end`, and checks that nothing is left.
fn assert_nothing_left(name: &str, end: impl Fn(&mut Process, &[u32])) {
    let environment = Environment::new();
    let mut owner = environment.start(&[name]);
    let id: u32 = owner.expect_line("process")[0].parse().unwrap();
    let directory = owner.expect_line("directory").remove(0);
    let url = owner.expect_line("url").remove(0);
    let family = family(id);
    assert!(Path::new(&directory).is_dir() && !is_port_closed(&url) && !environment.processes().is_empty());
    assert_eq!(segments(id), usize::from(name == "postgres"), "{name}");

    end(&mut owner, &family);
    environment.assert_clean(name);
    assert!(clock::within(TIMEOUT, || all_gone(&family)), "{name}: a process of {family:?} is left");
    assert!(is_port_closed(&url), "{name}");
    assert_eq!(segments(id), 0, "{name}: shared memory is left");
}

#[test]
fn nothing_outlives_a_killed_owner() {
    for (name, _) in KINDS {
        assert_nothing_left(name, |owner, _| {
            owner.kill();
        });
    }
}

#[test]
fn nothing_outlives_an_owners_killed_process_group() {
    for (name, _) in KINDS {
        assert_nothing_left(name, |owner, _| {
            let group = Pid::from_raw(i32::try_from(owner.id()).unwrap()).unwrap();
            kill_process_group(group, Signal::KILL).unwrap();
        });
    }
}

#[test]
fn a_frozen_server_does_not_outlive_its_owner() {
    for (name, _) in KINDS {
        assert_nothing_left(name, |owner, family| {
            signal(family, Signal::STOP);
            owner.kill();
        });
    }
}

#[test]
fn a_shared_server_ends_with_its_process() {
    let environment = Environment::new();
    for (name, count) in
        [("postgres", 1), ("redis", 1), ("azurite", 1), ("redlock", 5), ("zookeeper-ensemble", 3)]
    {
        let mut owner = environment.start(&["shared", name]);
        owner.expect_line("url");
        assert!(environment.files().len() == count && environment.processes().len() >= 2 * count, "{name}");
        drop(owner);
        environment.assert_clean(name);
    }
}

/// Also during the creation of the template, which is then repeated.
#[tokio::test]
async fn an_owner_that_is_killed_during_the_start_leaves_nothing() {
    for (name, _) in KINDS {
        let environment = Environment::new();
        for (templates_before, moments) in [(0, [10, 100, 200, 300]), (1, [80, 120, 170, 230])] {
            if templates_before > 0 {
                environment.start(&[name]).expect_line("process");
            }
            assert_eq!(templates(&environment), templates_before * templates_of(name), "{name}");
            for moment in moments {
                let mut owner = environment.start(&[name]);
                clock::pause(Duration::from_millis(moment)).await;
                owner.kill();
                environment.assert_clean(&format!("{name}, killed after {moment} ms"));
            }
        }
    }
}

#[test]
fn a_template_is_complete_even_if_its_creator_is_killed_while_writing() {
    for (name, _) in KINDS.into_iter().filter(|(name, _)| templates_of(name) > 0) {
        let environment = Environment::new();
        let mut creator = environment.start(&[name]);
        assert!(clock::within(TIMEOUT, || templates(&environment) > 0), "{name} has written no template");
        creator.kill();
        environment.start(&[name]).expect_line("process");
        environment.assert_clean(name);
        assert_eq!(templates(&environment), 1, "{name}");
    }
}

/// Returns the number of files in the cache, which should be templates.
fn templates(environment: &Environment) -> usize {
    fs::read_dir(&environment.cache).unwrap().count()
}

/// Returns the number of templates of a kind of server.
fn templates_of(name: &str) -> usize {
    usize::from(["postgres", "mariadb"].contains(&name))
}

#[test]
fn two_processes_can_start_their_first_server_at_the_same_time() {
    for (name, _) in KINDS {
        let environment = Environment::new();
        let mut owners = [(); 2].map(|()| environment.start(&[name]));
        let urls = owners.each_mut().map(|owner| {
            owner.expect_line("process");
            owner.expect_line("directory");
            owner.expect_line("url")
        });
        assert_ne!(urls[0], urls[1]);
        assert_eq!(templates(&environment), templates_of(name), "{name}");
        drop(owners);
        environment.assert_clean(name);
    }
}
