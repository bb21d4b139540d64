//! Nothing of a server stays behind.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use polylock_integration_tests::{
    clock::{self, PATIENCE},
    process::Process,
};
use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

use super::{
    KINDS,
    family::{all_gone, family, nobody_listens, segments, signal},
};

/// A place for the servers of other processes, to see what they leave in it.
struct Elsewhere {
    temporary: TempDir,
    cache: TempDir,
}

impl Elsewhere {
    fn new() -> Self {
        let (temporary, cache) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        // The servers run as users of their own.
        fs::set_permissions(temporary.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Self { temporary, cache }
    }

    /// Another process that has a server.
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

    /// What is in the directory for servers.
    fn files(&self) -> Vec<PathBuf> {
        fs::read_dir(&self.temporary).unwrap().flatten().map(|entry| entry.path()).collect()
    }

    /// The processes that know of it.
    fn processes(&self) -> Vec<PathBuf> {
        let place = self.temporary.path().to_str().unwrap();
        let knows = |process: &PathBuf| {
            ["cmdline", "environ"].iter().any(|file| {
                let text = fs::read(process.join(file)).unwrap_or_default();
                String::from_utf8_lossy(&text).contains(place)
            })
        };
        fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path()).filter(knows).collect()
    }

    fn is_clean_soon(&self, what: &str) {
        clock::within(PATIENCE, || self.files().is_empty() && self.processes().is_empty());
        let (files, processes) = (self.files(), self.processes());
        assert!(files.is_empty() && processes.is_empty(), "{what} has left {files:?} and {processes:?}");
    }
}

/// Starts a server in another process, ends that process with `end`, and expects nothing to be left.
fn is_gone_after(name: &str, end: impl Fn(&mut Process, &[u32])) {
    let elsewhere = Elsewhere::new();
    let mut owner = elsewhere.start(&[name]);
    let id: u32 = owner.hears("process")[0].parse().unwrap();
    let directory = owner.hears("directory").remove(0);
    let url = owner.hears("url").remove(0);
    let family = family(id);
    assert!(Path::new(&directory).is_dir() && !nobody_listens(&url) && !elsewhere.processes().is_empty());
    assert_eq!(segments(id), usize::from(name == "postgres"), "{name}");

    end(&mut owner, &family);
    elsewhere.is_clean_soon(name);
    assert!(clock::within(PATIENCE, || all_gone(&family)), "{name}: {family:?} has left some");
    assert!(nobody_listens(&url), "{name}");
    assert_eq!(segments(id), 0, "{name}: memory");
}

#[test]
fn nothing_outlives_a_killed_owner() {
    for (name, _) in KINDS {
        is_gone_after(name, |owner, _| {
            owner.kill();
        });
    }
}

#[test]
fn nothing_outlives_an_owners_killed_process_group() {
    for (name, _) in KINDS {
        is_gone_after(name, |owner, _| {
            let group = Pid::from_raw(i32::try_from(owner.id()).unwrap()).unwrap();
            kill_process_group(group, Signal::KILL).unwrap();
        });
    }
}

#[test]
fn a_frozen_server_does_not_outlive_its_owner() {
    for (name, _) in KINDS {
        is_gone_after(name, |owner, family| {
            signal(family, Signal::STOP);
            owner.kill();
        });
    }
}

#[test]
fn a_shared_server_ends_with_its_process() {
    let elsewhere = Elsewhere::new();
    for (name, count) in
        [("postgres", 1), ("redis", 1), ("azurite", 1), ("redlock", 5), ("zookeeper-ensemble", 3)]
    {
        let mut owner = elsewhere.start(&["shared", name]);
        owner.hears("url");
        assert!(elsewhere.files().len() == count && elsewhere.processes().len() >= 2 * count, "{name}");
        drop(owner);
        elsewhere.is_clean_soon(name);
    }
}

/// Also while it makes its template, which is then made again.
#[tokio::test]
async fn an_owner_killed_at_any_moment_of_the_start_leaves_nothing() {
    for (name, _) in KINDS {
        let elsewhere = Elsewhere::new();
        for (templates_before, moments) in [(0, [10, 100, 200, 300]), (1, [80, 120, 170, 230])] {
            if templates_before > 0 {
                elsewhere.start(&[name]).hears("process");
            }
            assert_eq!(templates(&elsewhere), templates_before * templates_of(name), "{name}");
            for moment in moments {
                let mut owner = elsewhere.start(&[name]);
                clock::pause(Duration::from_millis(moment)).await;
                owner.kill();
                elsewhere.is_clean_soon(&format!("{name}, killed after {moment} ms"));
            }
        }
    }
}

#[test]
fn a_template_is_whole_though_its_maker_is_killed_while_it_is_written() {
    for (name, _) in KINDS.into_iter().filter(|(name, _)| templates_of(name) > 0) {
        let elsewhere = Elsewhere::new();
        let mut maker = elsewhere.start(&[name]);
        assert!(clock::within(PATIENCE, || templates(&elsewhere) > 0), "{name} writes none");
        maker.kill();
        elsewhere.start(&[name]).hears("process");
        elsewhere.is_clean_soon(name);
        assert_eq!(templates(&elsewhere), 1, "{name}");
    }
}

/// How many templates there are; anything else in their directory is one too many, too.
fn templates(elsewhere: &Elsewhere) -> usize {
    fs::read_dir(&elsewhere.cache).unwrap().count()
}

/// How many the servers of a kind keep. The others start from nothing.
fn templates_of(name: &str) -> usize {
    usize::from(["postgres", "mariadb"].contains(&name))
}

#[test]
fn two_processes_may_start_their_first_server_at_once() {
    for (name, _) in KINDS {
        let elsewhere = Elsewhere::new();
        let mut owners = [(); 2].map(|()| elsewhere.start(&[name]));
        let urls = owners.each_mut().map(|owner| {
            owner.hears("process");
            owner.hears("directory");
            owner.hears("url")
        });
        assert_ne!(urls[0], urls[1]);
        assert_eq!(templates(&elsewhere), templates_of(name), "{name}");
        drop(owners);
        elsewhere.is_clean_soon(name);
    }
}
