//! `polylock once` in several processes with different clocks: each period has one run, and a failed run is repeated.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use polylock_integration_tests::{cargo::polylock, clock, load::turn, on_stores, stores::namespace};
use tempfile::TempDir;

const LOOPS: u64 = 8;
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

on_stores! { each_period_has_one_run }

async fn each_period_has_one_run(store: &str) {
    let namespace = namespace(store).await;
    let (periods, period_ms) = env::var(LONG_RUN)
        .map_or((PERIODS, PERIOD_MS), |number| (number.parse().unwrap(), PERIOD_OF_LONG_RUN_MS));
    let every = format!("{period_ms}ms");
    let _turn = turn().await;
    let (began, directory) = (clock::now(), TempDir::new().unwrap());
    let library = clock_library(directory.path());
    // The processes that share a SQLite file are on one machine, and SQLite reads its clock.
    let has_server = !store.starts_with("sqlite");
    let codes: Vec<_> = thread::scope(|scope| {
        let loops: Vec<_> = (0..LOOPS)
            .map(|number| {
                // From 2.5 s behind to 2.5 s ahead of the machine.
                let ahead_ms = i64::try_from(5000 * number / (LOOPS - 1)).unwrap() - 2500;
                let offset = directory.path().join(format!("offset-{number}"));
                fs::write(&offset, (ahead_ms * 1_000_000).to_ne_bytes()).unwrap();
                let (library, url, directory, every) = (&library, namespace.url(), directory.path(), &every);
                scope.spawn(move || {
                    call_until(periods + 1, directory, || {
                        let mut once = Command::new(polylock());
                        once.env_remove("POLYLOCK_STORE").env("POLYLOCK_CONFIG", "/dev/null");
                        once.env("PERIOD_MS", period_ms.to_string());
                        if has_server {
                            once.env("LD_PRELOAD", library).env("POLYLOCK_CLOCK", &offset);
                        }
                        once.args([
                            "-S",
                            url,
                            "once",
                            "--every",
                            every,
                            "--retries",
                            "1",
                            "--wait",
                            "30s",
                            "job",
                            "sh",
                            "-c",
                            RUN,
                        ]);
                        once
                    })
                })
            })
            .collect();
        loops.into_iter().map(|of| of.join().unwrap()).collect()
    });
    if codes.iter().all(|codes| codes.contains(&UNSUPPORTED)) {
        let keeps_records = !matches!(store, "zookeeper" | "azure") && !store.starts_with("redlock");
        assert!(!keeps_records, "{store} keeps records");
        return;
    }
    let mut runs = runs(directory.path());
    println!("{store}: {} periods in {:.2?}", runs.len(), clock::now().since(began));
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
