//! Commands under `polylock run` increment a number in a file: no increment is lost, and the fencing tokens grow.

use std::{
    env, fs,
    path::Path,
    process::{Command, Stdio},
    thread,
};

use polylock_integration_tests::{cargo::polylock, clock::now, load::turn, on_stores, stores::namespace};
use tempfile::TempDir;

const LOOPS: usize = 8;

/// The number of runs in each loop, or `POLYLOCK_TEST_INCREMENTS`.
const RUNS: usize = 60;

/// The loops, and the runs of each, on Azure, where a run needs several HTTP requests.
const FEWER_ON_AZURE: (usize, usize) = (4, 40);

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

on_stores! { runs_lose_no_increment_and_their_tokens_grow }

async fn runs_lose_no_increment_and_their_tokens_grow(store: &str) {
    let namespace = namespace(store).await;
    let (loops, mut runs) = if store == "azure" { FEWER_ON_AZURE } else { (LOOPS, RUNS) };
    if let Ok(number) = env::var("POLYLOCK_TEST_INCREMENTS") {
        runs = number.parse().unwrap();
    }
    let _turn = turn().await;
    let began = now();
    let (sum, tokens) = additions((loops, runs), |_| {
        let mut run = Command::new(polylock());
        run.env_remove("POLYLOCK_STORE").env("POLYLOCK_CONFIG", "/dev/null");
        run.args(["-S", namespace.url(), "run", "--wait", MAX_WAIT, "number", "--"]);
        run
    });
    println!("{store}: {} runs in {:.2?}", loops * runs, now().since(began));
    assert_eq!(sum, loops * runs);
    assert_eq!(tokens.len(), loops * runs);
    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "tokens grow strictly");
}

/// The counter-check: without the lock, the same commands lose increments.
#[test]
fn without_the_lock_increments_are_lost() {
    let (sum, _) = additions((LOOPS, 20), |_| Command::new("env"));
    assert_ne!(sum, LOOPS * 20, "no increment was lost without a lock: the commands do not overlap");
}
