//! A number in a file again, and this time each addition is a command of its own under `polylock run`.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    env, fs,
    path::Path,
    process::{Command, Stdio},
    thread,
};

use polylock_integration_tests::{cargo, clock::now, on_stores, stores::spot};
use tempfile::TempDir;

const LOOPS: usize = 8;

/// How often each of them runs the command; `POLYLOCK_TEST_INCREMENTS` is another number.
const TIMES: usize = 60;

/// The same where each turn is several requests over HTTP.
const FEWER: (usize, usize) = (4, 40);

/// The longest that a run may wait: everybody before it, many times over.
const FOR_EVER: &str = "30s";

/// Reads, pauses a moment, writes, and writes down its token.
const ADD_ONE: &str = "read number < number; sleep 0.001; echo $((number + 1)) > number; echo $POLYLOCK_FENCING_TOKEN >> tokens";

/// So many loops, each of which runs so many commands, one after the other; the sum and the tokens.
fn additions((loops, times): (usize, usize), command: impl Fn(&Path) -> Command + Sync) -> (usize, Vec<u64>) {
    let directory = TempDir::new().unwrap();
    fs::write(directory.path().join("number"), "0\n").unwrap();
    thread::scope(|scope| {
        for _ in 0..loops {
            scope.spawn(|| {
                for _ in 0..times {
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
    (text("number").trim().parse().unwrap(), tokens)
}

on_stores! { loops_of_runs_lose_no_increment_and_their_tokens_grow }

async fn loops_of_runs_lose_no_increment_and_their_tokens_grow(store: &str) {
    let polylock = cargo::program("polylock-cli", "polylock", Path::new(env!("CARGO_BIN_EXE_worker")));
    let spot = spot(store).await;
    let (loops, mut times) = if store == "azure" { FEWER } else { (LOOPS, TIMES) };
    if let Ok(wanted) = env::var("POLYLOCK_TEST_INCREMENTS") {
        times = wanted.parse().unwrap();
    }
    let began = now();
    let (sum, tokens) = additions((loops, times), |_| {
        let mut run = Command::new(&polylock);
        run.env_remove("POLYLOCK_STORE").env("POLYLOCK_CONFIG", "/dev/null");
        run.args(["-S", spot.url(), "run", "--wait", FOR_EVER, "number", "--"]);
        run
    });
    println!("{store}: {} runs in {:.2?}", loops * times, now().since(began));
    assert_eq!(sum, loops * times);
    assert_eq!(tokens.len(), loops * times);
    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "tokens grow strictly");
}

/// The planted twin: the same commands without the lock must lose some, or they prove nothing.
#[test]
fn without_the_lock_increments_are_lost() {
    let (sum, _) = additions((LOOPS, 20), |_| Command::new("env"));
    assert_ne!(sum, LOOPS * 20, "nothing was lost without a lock: the commands do not collide");
}
