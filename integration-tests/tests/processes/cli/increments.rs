//! Commands under `polylock run` increment a number in a file: no increment is lost, and the fencing tokens grow.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use polylock_integration_tests::{cargo::polylock, clock::now, load::turn, on_stores, stores::namespace};
use tempfile::TempDir;

const LOOPS: usize = 8;

/// The number of runs in each loop, or `POLYLOCK_TEST_INCREMENTS`.
const RUNS: usize = 60;

/// The loops, and the runs of each, on Azure, where a run needs several HTTP requests.
const FEWER_ON_AZURE: (usize, usize) = (4, 40);

/// Long enough that no run loses its lock on a busy machine.
const TTL: Duration = Duration::from_secs(6);

/// The time limit of a wait: many times the duration of all runs ahead in the queue.
const MAX_WAIT: &str = "30s";

/// Reads the number, pauses, writes the next one, and appends its token to a file.
const ADD_ONE: &str = "read number < number; sleep 0.001; echo $((number + 1)) > number; echo $POLYLOCK_FENCING_TOKEN >> tokens";

/// Runs the commands in concurrent loops, and returns the final number and the tokens.
fn additions((loops, runs): (usize, usize), command: impl Fn(&Path) -> Command + Sync) -> (usize, Vec<u64>) {
    let directory = TempDir::new().unwrap();
    fs::write(directory.path().join("number"), "0\n").unwrap();
    thread::scope(|scope| {
        for _ in 0..loops {
            scope.spawn(|| {
                for _ in 0..runs {
                    let mut command = command(directory.path());
                    command.args(["sh", "-c", ADD_ONE]).current_dir(directory.path()).stdin(Stdio::null());
                    let output = command.output().unwrap();
                    assert!(output.status.success(), "{output:?}");
                }
            });
        }
    });
    let text = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
    let tokens = text("tokens").lines().filter_map(|line| line.parse().ok()).collect();
    // Without the lock, a shorter number may be written over the beginning of a longer one.
    (text("number").lines().next().unwrap().parse().unwrap(), tokens)
}

on_stores! {
    runs_lose_no_increment_and_their_tokens_grow
    runs_with_a_slot_lose_no_increment_though_one_is_killed
}

async fn runs_lose_no_increment_and_their_tokens_grow(store: &str) {
    let namespace = namespace(store).await;
    let (loops, mut runs) = if store == "azure" { FEWER_ON_AZURE } else { (LOOPS, RUNS) };
    if let Ok(number) = env::var("POLYLOCK_TEST_INCREMENTS") {
        runs = number.parse().unwrap();
    }
    let _turn = turn().await;
    let began = now();
    let (sum, tokens) =
        additions((loops, runs), |_| run(namespace.url(), &["--wait", MAX_WAIT, "number", "--"]));
    println!("{store}: {} runs in {:.2?}", loops * runs, now().since(began));
    assert_eq!(sum, loops * runs);
    assert_eq!(tokens.len(), loops * runs);
    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "tokens grow strictly");
}

/// The part of the runs above.
const WITH_A_SLOT: usize = 4;

async fn runs_with_a_slot_lose_no_increment_though_one_is_killed(store: &str) {
    let namespace = namespace(store).await;
    let url = namespace.url_with("polylock.ttl", &format!("{}ms", namespace.lease(TTL).as_millis()));
    let (loops, runs) = if store == "azure" { FEWER_ON_AZURE } else { (LOOPS, RUNS) };
    let runs = env::var("POLYLOCK_TEST_INCREMENTS").map_or(runs, |number| number.parse().unwrap());
    let runs = (runs / WITH_A_SLOT).max(1);
    let slot = ["--slots", "1", "--wait", MAX_WAIT, "number", "--"];
    let _turn = turn().await;
    let mut killed = run(&url, &slot);
    killed.args(["sh", "-c", "echo holds; exec sleep 600"]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut killed = killed.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(killed.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "holds\n");
    let killing = thread::spawn(move || {
        // The others have begun to wait.
        thread::park_timeout(Duration::from_millis(500));
        killed.kill().unwrap();
        killed.wait().unwrap();
    });
    let began = now();
    let (sum, tokens) = additions((loops, runs), |_| run(&url, &slot));
    println!("{store}: {} runs with a slot in {:.2?}", loops * runs, now().since(began));
    killing.join().unwrap();
    assert_eq!((sum, tokens.len()), (loops * runs, loops * runs));
    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "tokens grow strictly");
}

/// Returns `polylock run` with these arguments.
fn run(url: &str, arguments: &[&str]) -> Command {
    let mut run = Command::new(polylock());
    run.env_remove("POLYLOCK_STORE").env("POLYLOCK_CONFIG", "/dev/null");
    run.args(["-S", url, "run"]).args(arguments);
    run
}

/// The counter-check: without the lock, the same commands lose increments.
#[test]
fn without_the_lock_increments_are_lost() {
    let (sum, _) = additions((LOOPS, 20), |_| Command::new("env"));
    assert_ne!(sum, LOOPS * 20, "no increment was lost without a lock: the commands do not overlap");
}
