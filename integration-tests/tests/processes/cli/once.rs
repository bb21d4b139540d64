//! `polylock once` in several processes with different clocks: each period has one run, and a failed run is repeated.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::Path,
    process::{Command, Stdio},
    sync::Mutex,
    thread,
    time::Duration,
};

use polylock_core::sync::lock;
use polylock_integration_tests::{
    cargo::polylock,
    clock,
    load::turn,
    on_stores,
    stores::{is_available, namespace},
};
use tempfile::TempDir;

const LOOPS: usize = 8;
/// The number of periods.
const PERIODS: usize = 3;
/// Their length in milliseconds: long enough for two attempts on a busy machine.
const PERIOD_MS: u64 = 3000;
/// The variable with another number of periods, which are shorter.
const LONG_RUN: &str = "POLYLOCK_TEST_PERIODS";
const PERIOD_OF_LONG_RUN_MS: u64 = 2000;
/// The pause between two calls of one loop.
const PAUSE: Duration = Duration::from_millis(400);
/// The exit code of a store without records.
const UNSUPPORTED: i32 = 78;

/// Adds a line with the period and the attempt. The first attempt of every third period fails.
const RUN: &str = r#"
echo "$POLYLOCK_PERIOD_BEGIN_MS $POLYLOCK_ATTEMPT" >> runs
[ "$POLYLOCK_ATTEMPT" != 1 ] || [ $((POLYLOCK_PERIOD_BEGIN_MS / PERIOD_MS % 3)) != 0 ] || exit 5
"#;

/// Builds the library that sets the clock of a process.
fn clock_library(directory: &Path) -> String {
    let library = directory.join("clock.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/servers/wall_clock.c");
    let built = Command::new("cc").args(["-O1", "-shared", "-fPIC", "-o"]).arg(&library).arg(source).status();
    assert!(built.unwrap().success());
    library.to_str().unwrap().to_owned()
}

/// The attempts of each period.
type Runs = BTreeMap<u64, Vec<u32>>;

fn runs(directory: &Path) -> Runs {
    let mut runs = Runs::new();
    for line in fs::read_to_string(directory.join("runs")).unwrap_or_default().lines() {
        let (period, attempt) = line.split_once(' ').unwrap();
        runs.entry(period.parse().unwrap()).or_default().push(attempt.parse().unwrap());
    }
    runs
}

/// Calls the command until that many periods have begun. Returns the exit codes.
fn call_until(periods: usize, directory: &Path, command: impl Fn() -> Command) -> BTreeSet<i32> {
    let mut codes = BTreeSet::new();
    while runs(directory).len() < periods {
        let output = command().current_dir(directory).stdin(Stdio::null()).output().unwrap();
        let code = output.status.code().unwrap();
        assert!(matches!(code, 0 | 5 | UNSUPPORTED), "{output:?}");
        codes.insert(code);
        if code == UNSUPPORTED {
            break;
        }
        thread::park_timeout(PAUSE);
    }
    codes
}

/// Calls the command in several loops, each with the store that `url` returns for its number before each call, until that many periods have
/// begun. Returns the exit codes of each loop. With `clocks`, a library, the loops have different clocks.
fn call_in_loops(
    (periods, period_ms): (usize, u64),
    directory: &Path,
    clocks: Option<&str>,
    url: impl Fn(usize) -> String + Sync,
) -> Vec<BTreeSet<i32>> {
    let every = format!("{period_ms}ms");
    thread::scope(|scope| {
        let loops: Vec<_> = (0..LOOPS)
            .map(|number| {
                // From 2.5 s behind to 2.5 s ahead of the machine.
                let ahead_ms = i64::try_from(5000 * number / (LOOPS - 1)).unwrap() - 2500;
                let offset = directory.join(format!("offset-{number}"));
                fs::write(&offset, (ahead_ms * 1_000_000).to_ne_bytes()).unwrap();
                let (every, url) = (&every, &url);
                scope.spawn(move || {
                    call_until(periods, directory, || {
                        let mut once = Command::new(polylock());
                        once.env_remove("POLYLOCK_STORE").env("POLYLOCK_CONFIG", "/dev/null");
                        once.env("PERIOD_MS", period_ms.to_string());
                        if let Some(library) = clocks {
                            once.env("LD_PRELOAD", library).env("POLYLOCK_CLOCK", &offset);
                        }
                        let retries = ["--retries", "1", "--wait", "30s"];
                        once.args(["-S", &url(number), "once", "--every", every]).args(retries);
                        once.args(["job", "sh", "-c", RUN]);
                        once
                    })
                })
            })
            .collect();
        loops.into_iter().map(|of| of.join().unwrap()).collect()
    })
}

/// Checks that each of at least `periods` periods has one run, or a failed one and its repetition.
fn check(mut runs: Runs, periods: usize, period_ms: u64) {
    // The last one may not have ended.
    runs.pop_last();
    assert!(runs.len() >= periods, "{runs:?}");
    let begins: Vec<u64> = runs.keys().copied().collect();
    assert!(begins.windows(2).all(|pair| pair[1] == pair[0] + period_ms), "a period was missed: {begins:?}");
    for (begin, attempts) in &runs {
        let expected: &[u32] = if (begin / period_ms).is_multiple_of(3) { &[1, 2] } else { &[1] };
        // The first one may have begun before the calls, with no time left for a second attempt.
        let expected = if *begin == begins[0] && attempts.len() == 1 { &expected[..1] } else { expected };
        assert_eq!(attempts, expected, "the attempts of the period at {begin} ms");
    }
}

on_stores! { each_period_has_one_run }

async fn each_period_has_one_run(store: &str) {
    let namespace = namespace(store).await;
    let (periods, period_ms) = env::var(LONG_RUN)
        .map_or((PERIODS, PERIOD_MS), |number| (number.parse().unwrap(), PERIOD_OF_LONG_RUN_MS));
    let _turn = turn().await;
    let (began, directory) = (clock::now(), TempDir::new().unwrap());
    let library = clock_library(directory.path());
    // The processes that share a SQLite file are on one machine, and SQLite reads its clock.
    let clocks = (!store.starts_with("sqlite")).then_some(library.as_str());
    let url = |_| namespace.url().to_owned();
    let codes = call_in_loops((periods + 1, period_ms), directory.path(), clocks, url);
    if codes.iter().all(|codes| codes.contains(&UNSUPPORTED)) {
        let keeps_records = !matches!(store, "zookeeper" | "azure") && !store.starts_with("redlock");
        assert!(!keeps_records, "{store} keeps records");
        return;
    }
    let runs = runs(directory.path());
    println!("{store}: {} periods in {:.2?}", runs.len(), clock::now().since(began));
    check(runs, periods, period_ms);
}

/// Moves the loops through these steps, half of them one period earlier. No loop begins a step while another one is two behind.
async fn move_through(steps: &[&str], periods: usize) -> Runs {
    let _turn = turn().await;
    let directory = TempDir::new().unwrap();
    let steps_of_loops = Mutex::new([0; LOOPS]);
    let url = |number: usize| {
        let mut of_loops = lock(&steps_of_loops);
        let wanted = usize::midpoint(runs(directory.path()).len(), (number + 1) % 2);
        let least = of_loops.iter().copied().min().unwrap();
        of_loops[number] = wanted.min(least + 1).min(steps.len() - 1);
        steps[of_loops[number]].to_owned()
    };
    call_in_loops((periods + 1, PERIOD_MS), directory.path(), None, url);
    assert_eq!(*lock(&steps_of_loops), [steps.len() - 1; LOOPS], "the last step of each loop");
    runs(directory.path())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_period_of_a_migration_has_one_run() {
    if !is_available("redis").await {
        return;
    }
    let [old, new] = [namespace("sqlite_normal").await, namespace("redis").await];
    let both = format!("both:{};{}", old.url(), new.url());
    let runs = move_through(&[old.url(), &both, new.url()], 6).await;
    println!("{runs:?}");
    check(runs, 6, PERIOD_MS);
}

/// The counterexample: without the step in between, both halves run the job while only one of them has moved.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_moves_at_once_runs_twice() {
    if !is_available("redis").await {
        return;
    }
    let [old, new] = [namespace("sqlite_normal").await, namespace("redis").await];
    let _turn = turn().await;
    let directory = TempDir::new().unwrap();
    // They stay so for some periods: loops that move by themselves may all have moved before the next period begins.
    let url = |number: usize| [old.url(), new.url()][number % 2].to_owned();
    call_in_loops((3, PERIOD_MS), directory.path(), None, url);
    let runs = runs(directory.path());
    assert!(
        runs.values().any(|attempts| attempts.iter().filter(|number| **number == 1).count() > 1),
        "{runs:?}"
    );
}
