//! `polylock run --also`: processes that hold overlapping sets of locks lose no update, also when some of them are killed.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use polylock_integration_tests::{cargo::polylock, clock, load::turn, on_stores, stores::namespace};
use tempfile::TempDir;

const LOOPS: usize = 6;

/// The number of runs in each loop, without the one that is killed.
const RUNS: usize = 8;

/// The loops, and the runs of each, on Azure, where a run needs several HTTP requests.
const FEWER_ON_AZURE: (usize, usize) = (4, 4);

/// The loops with a run that is killed. The other runs wait for its leases.
const KILLED: usize = 1;

/// Long enough that no run loses a lock on a busy machine.
const TTL: Duration = Duration::from_secs(6);

/// The time limit of a wait: many times the duration of all runs ahead in the queue, and of the leases of the killed ones.
const MAX_WAIT: &str = "100s";

/// The locks, each of which protects a file of its name. A loop uses two of them, in both orders.
const LOCKS: [&str; 3] = ["one", "two", "three"];

/// Adds a line with the token of the lock and the name of the run to the file of each lock: copies the file, pauses, and replaces it. If
/// the run is to be killed, it waits between the two.
const ADD_LINES: &str = r#"
add() { cp "$1" "$1.$id"; sleep 0.001; echo "$2 $id" >> "$1.$id"; mv "$1.$id" "$1"; }
id=$0
add "$POLYLOCK_NAME" "$POLYLOCK_FENCING_TOKEN"
[ "$1" != stays ] || { echo > "$id.stays"; exec sleep 600; }
add "$POLYLOCK_NAME_2" "$POLYLOCK_FENCING_TOKEN_2"
"#;

/// One loop of runs.
struct Loop<'a> {
    number: usize,
    directory: &'a Path,
    /// Returns `polylock run` with both locks.
    run: &'a (dyn Fn(&str, &str) -> Command + Sync),
}

impl Loop<'_> {
    fn locks(&self, round: usize) -> (&'static str, &'static str) {
        let (first, second) = (LOCKS[self.number % 3], LOCKS[(self.number + 1) % 3]);
        if round.is_multiple_of(2) { (first, second) } else { (second, first) }
    }

    fn start(&self, round: usize, kind: &str) -> Child {
        let (first, second) = self.locks(round);
        let mut run = (self.run)(first, second);
        run.args(["sh", "-c", ADD_LINES, &format!("{}-{round}", self.number), kind]);
        run.current_dir(self.directory).stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Runs to completion.
    fn complete(&self, round: usize) {
        let output = self.start(round, "ends").wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    /// Kills a run between its two lines.
    fn kill(&self, round: usize) {
        let (mut run, stays) = (self.start(round, "stays"), format!("{}-{round}.stays", self.number));
        let limit = clock::now() + Duration::from_secs(100);
        while !self.directory.join(&stays).exists() {
            assert!(clock::now() < limit && run.try_wait().unwrap().is_none(), "{run:?}");
            thread::park_timeout(Duration::from_millis(5));
        }
        run.kill().unwrap();
        run.wait().unwrap();
    }
}

/// The lines that each file must have at the end: the names of the runs.
type Expected = BTreeMap<&'static str, Vec<String>>;

/// Runs the loops, and returns the expected lines. The run in the middle of some loops is killed.
fn run_loops(
    loops: usize,
    runs: usize,
    killed: usize,
    directory: &Path,
    run: &(dyn Fn(&str, &str) -> Command + Sync),
) -> Expected {
    let loops: Vec<_> = (0..loops).map(|number| Loop { number, directory, run }).collect();
    thread::scope(|scope| {
        for of in &loops {
            scope.spawn(move || {
                for round in 0..=runs {
                    match round == runs / 2 {
                        true if of.number < killed => of.kill(round),
                        true => {}
                        false => of.complete(round),
                    }
                }
            });
        }
    });
    let mut expected = Expected::new();
    for of in &loops {
        for round in 0..=runs {
            let ((first, second), is_middle) = (of.locks(round), round == runs / 2);
            let id = format!("{}-{round}", of.number);
            if !is_middle || of.number < killed {
                expected.entry(first).or_default().push(id.clone());
            }
            if !is_middle {
                expected.entry(second).or_default().push(id);
            }
        }
    }
    expected
}

/// Returns the differences between the files and the expected lines.
fn problems(directory: &Path, expected: Expected) -> Vec<String> {
    let mut problems = Vec::new();
    for (lock, mut expected) in expected {
        let text = fs::read_to_string(directory.join(lock)).unwrap();
        let lines: Vec<(u64, &str)> = text
            .lines()
            .filter_map(|line| line.split_once(' '))
            .map(|(token, id)| (token.parse().unwrap_or(0), id))
            .collect();
        let mut found: Vec<&str> = lines.iter().map(|(_, id)| *id).collect();
        found.sort_unstable();
        expected.sort_unstable();
        if found != expected {
            problems.push(format!("{lock}: expected the lines {expected:?}, found {found:?}"));
        }
        if !lines.windows(2).all(|pair| pair[0].0 < pair[1].0) {
            problems.push(format!("{lock}: tokens do not grow strictly: {lines:?}"));
        }
    }
    problems
}

fn directory() -> TempDir {
    let directory = TempDir::new().unwrap();
    for lock in LOCKS {
        fs::write(directory.path().join(lock), "").unwrap();
    }
    directory
}

on_stores! { runs_with_overlapping_locks_lose_no_update }

async fn runs_with_overlapping_locks_lose_no_update(store: &str) {
    let namespace = namespace(store).await;
    let (loops, runs) = if store == "azure" { FEWER_ON_AZURE } else { (LOOPS, RUNS) };
    let _turn = turn().await;
    let (began, directory) = (clock::now(), directory());
    let url = namespace.url_with("polylock.ttl", &format!("{}ms", namespace.lease(TTL).as_millis()));
    let expected = run_loops(loops, runs, KILLED, directory.path(), &|first, second| {
        let mut run = Command::new(polylock());
        run.env_remove("POLYLOCK_STORE").env("POLYLOCK_CONFIG", "/dev/null");
        run.args(["-S", &url, "run", "--wait", MAX_WAIT, "--also", second, first, "--"]);
        run
    });
    println!("{store}: {loops} loops of {runs} runs in {:.2?}", clock::now().since(began));
    assert_eq!(problems(directory.path(), expected), [""; 0]);
}

/// The counterexample: without the locks, the same commands lose lines.
#[test]
fn without_the_locks_updates_are_lost() {
    let directory = directory();
    let expected = run_loops(LOOPS, RUNS, 0, directory.path(), &|first, second| {
        let mut run = Command::new("env");
        run.args([format!("POLYLOCK_NAME={first}"), format!("POLYLOCK_NAME_2={second}")]);
        run
    });
    assert_ne!(problems(directory.path(), expected), [""; 0], "the commands do not overlap");
}
