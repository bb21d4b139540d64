//! Several users of one SQLite file, one of them root, by the recipe in `docs/troubleshooting.md`. A machine without root needs `sudo`.
#![cfg(target_os = "linux")]

use std::{
    env, fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use polylock_integration_tests::{cargo, clock::now, history::read_all, process::Process};
use polylock_testkit::history::{self, Rules};
use tempfile::TempDir;

use crate::{WORKER, kills::assert_within};

/// Root, and two others. No user needs to exist.
const USERS: [u32; 3] = [0, 61_001, 61_002];
const GROUP: u32 = 61_000;

/// The time until the lock of a killed process is free.
const LIMIT: Duration = Duration::from_millis(500);

/// A directory that all users reach, with a copy of the worker: the build may be in a private directory.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        set_mode(place.0.path(), 0o711);
        fs::copy(WORKER, place.path("worker")).unwrap();
        set_mode(&place.path("worker"), 0o755);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns the URL of a file in the directory `name`, in which a lock of a dead process would be held for longer than a test takes.
    fn url(&self, name: &str) -> String {
        format!("sqlite://{}?polylock.ttl=600s", self.path(name).join("locks.db").display())
    }

    /// Creates the directory as the page says.
    fn create_as_documented(&self, name: &str) {
        let page = fs::read_to_string("../docs/troubleshooting.md").unwrap();
        let recipe = page.split('`').find(|code| code.starts_with("install -d ")).unwrap();
        let recipe = recipe.replace("/var/lib/polylock", self.path(name).to_str().unwrap());
        as_root(&recipe.replace("-g polylock", &format!("-g {GROUP}")));
    }

    /// Starts the worker as a user who lets nobody else read new files.
    fn start(&self, user: u32, arguments: &[&str]) -> Worker {
        let root: &[&str] = if is_root() { &[] } else { &["sudo", "-n"] };
        let identity = [format!("--reuid={user}"), format!("--regid={user}"), format!("--groups={GROUP}")];
        let setpriv = ["setpriv"].into_iter().chain(identity.iter().map(String::as_str));
        let script = ["sh", "-c", "umask 077; echo pid $$; exec \"$@\"", "sh"];
        let worker = self.path("worker");
        let program = script.into_iter().chain([worker.to_str().unwrap()]).chain(arguments.iter().copied());
        let mut words = root.iter().copied().chain(setpriv).chain(program);
        let mut process = Process::start(words.next().unwrap(), words);
        let pid = process.expect_line("pid").remove(0);
        Worker { process, pid }
    }
}

struct Worker {
    process: Process,
    pid: String,
}

impl Worker {
    fn kill(mut self) {
        as_root(&format!("kill -KILL {}", self.pid));
        self.process.wait_for_exit();
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn as_root(command: &str) {
    let mut root = Command::new(if is_root() { "sh" } else { "sudo" });
    if !is_root() {
        root.args(["-n", "sh"]);
    }
    assert!(root.args(["-c", command]).status().unwrap().success(), "{command}");
}

/// The acceptance run has 1,000 sections: `POLYLOCK_TEST_SECTIONS=1000`.
#[test]
fn users_of_a_directory_of_their_group_lose_no_increment() {
    let times =
        env::var("POLYLOCK_TEST_SECTIONS").map_or(150, |number| number.parse().unwrap()) / USERS.len();
    let place = Place::new();
    place.create_as_documented("shared");
    let (file, written) = (place.path("number"), place.path("history"));
    fs::write(&file, "0").unwrap();
    fs::create_dir(&written).unwrap();
    set_mode(&file, 0o666);
    set_mode(&written, 0o777);
    let url = place.url("shared");
    let arguments = [file.to_str().unwrap(), written.to_str().unwrap(), &times.to_string(), "locked"];
    let arguments: Vec<&str> = ["increment", &url, "number"].into_iter().chain(arguments).collect();
    let mut workers = USERS.map(|user| place.start(user, &arguments).process);
    for worker in &mut workers {
        worker.expect_line("ready");
    }
    for worker in &mut workers {
        worker.send_line("go");
    }
    for worker in &mut workers {
        let done = worker.next_line(Duration::from_secs(120));
        assert_eq!(done.as_deref(), Some("done"), "{worker:?} has not finished");
        assert!(worker.wait_for_exit().success());
    }
    as_root(&format!("chmod -R a+r {}", written.display()));
    let sections = read_all(&written);
    assert_eq!(sections.len(), USERS.len() * times);
    assert_eq!(history::check(&sections, Rules::default()), []);
    assert_eq!(fs::read_to_string(&file).unwrap(), sections.len().to_string());
    let mode = fs::metadata(place.path("shared/locks.db")).unwrap();
    assert_eq!((mode.mode() & 0o777, mode.gid()), (0o660, GROUP));
}

/// Kills a holder of each of `users`, and returns the times until the next one has the lock.
fn times_after_kills(place: &Place, url: &str, users: &[u32]) -> Vec<Duration> {
    let holder = |user| place.start(user, &["hold", url, "n", "1"]);
    let mut times = Vec::new();
    let mut held = holder(users[0]);
    held.process.expect_line("held");
    for user in users[1..].iter().chain(users) {
        let mut next = holder(*user);
        assert_eq!(next.process.next_line(LIMIT), None, "the lock is held");
        held.kill();
        let killed = now();
        next.process.expect_line("held");
        times.push(now().since(killed));
        held = next;
    }
    held.kill();
    times
}

/// Whoever has created the files.
#[test]
fn a_killed_holder_of_any_user_is_superseded_at_once() {
    let place = Place::new();
    let mut times = Vec::new();
    for first in 0..USERS.len() {
        let name = format!("first-{first}");
        place.create_as_documented(&name);
        let mut users = USERS;
        users.rotate_left(first);
        times.extend(times_after_kills(&place, &place.url(&name), &users));
    }
    assert_within(LIMIT, times);
}

/// The files that root creates beside a file of another user are that user's.
#[test]
fn root_is_the_first_user_of_a_file_that_belongs_to_another_one() {
    let place = Place::new();
    let user = USERS[1];
    let directory = place.path("private");
    as_root(&format!("install -d -o {user} -g {GROUP} -m 750 {}", directory.display()));
    as_root(&format!(
        "install -o {user} -g {user} -m 600 /dev/null {}",
        directory.join("locks.db").display()
    ));
    assert_within(LIMIT, times_after_kills(&place, &place.url("private"), &[0, user]));
    as_root(&format!(
        "test \"$(stat -c '%u %g %a' {}/locks.db-holders)\" = '{user} {user} 600'",
        directory.display()
    ));
}

/// A user who is no member of the group is told what to do.
#[test]
fn another_user_is_refused_with_the_remedy() {
    let place = Place::new();
    place.create_as_documented("shared");
    as_root(&format!("chmod o+x {}", place.path("shared").display()));
    let locks = |user: u32, groups: &str| {
        let mut polylock = Command::new("setpriv");
        polylock.args([&format!("--reuid={user}"), &format!("--regid={user}"), groups]);
        let program = place.path("polylock");
        if !program.exists() {
            fs::copy(cargo::polylock(), &program).unwrap();
            set_mode(&program, 0o755);
        }
        polylock.arg(program).args(["-S", &place.url("shared"), "run", "n", "true"]);
        polylock.output().unwrap()
    };
    assert!(locks(USERS[1], &format!("--groups={GROUP}")).status.success());
    let refused = locks(USERS[2], "--clear-groups");
    let text = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(77), "{text}");
    assert!(text.contains("install -d -m 2770 -g GROUP DIRECTORY"), "{text}");
}
