//! Runs fuzz targets in unit tests: functions that decode the bytes of others.
//!
//! The inputs are the files of a corpus, then random changes of them. A target must not panic, and must not use much memory; the test script limits
//! its time. An input that fails is made smaller by proptest and added to the corpus, where all later runs begin with it.
//! `PROPTEST_CASES` is the number of changes, 10,000 if it is not set or less.

#![forbid(unsafe_code)]

mod change;

use std::{
    fs,
    hash::{BuildHasher, RandomState},
    path::Path,
};

use proptest::test_runner::{Config, TestError, TestRunner};

/// Defines a module with a test for each of these functions, which has the files in `fuzz/<function>/` as its corpus.
#[macro_export]
macro_rules! fuzz_targets {
    ($module:ident: $($target:ident),+) => {
        mod $module {$(
            #[test]
            fn $target() {
                let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/", stringify!($target));
                $crate::run(corpus, super::$target);
            }
        )+}
    };
}

/// The inputs of a normal run.
const INPUTS: u32 = 10_000;
/// The most memory that the inputs may need, in KiB.
const MAX_KIB: u64 = 256 << 10;

/// Runs `target` on the files in the directory `corpus` and on random changes of them.
///
/// # Panics
/// If `target` panics or uses too much memory, or if the corpus is empty.
pub fn run(corpus: &str, target: fn(&[u8])) {
    explore(Path::new(corpus), target, Config::default().cases.max(INPUTS));
}

fn explore(corpus: &Path, target: fn(&[u8]), cases: u32) {
    let (seeds, before_kib) = (read(corpus), peak_kib());
    assert!(!seeds.is_empty(), "no corpus in {}", corpus.display());
    seeds.iter().for_each(|seed| target(seed));
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let result = runner.run(&change::inputs(seeds), |input| {
        target(&input);
        Ok(())
    });
    match result {
        Ok(()) => {}
        Err(TestError::Fail(reason, input)) => {
            let file = corpus.join(format!("failure-{:016x}", RandomState::new().hash_one(&input)));
            fs::write(&file, &input).ok();
            panic!("{reason}: the input {} in {}", input.escape_ascii(), file.display());
        }
        Err(TestError::Abort(reason)) => panic!("{reason}"),
    }
    let more_kib = peak_kib().saturating_sub(before_kib);
    assert!(more_kib <= MAX_KIB, "the inputs need {more_kib} KiB");
}

/// Reads the files of a corpus in the order of their names.
fn read(corpus: &Path) -> Vec<Vec<u8>> {
    let mut files: Vec<_> =
        fs::read_dir(corpus).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    files.sort();
    files.iter().filter_map(|file| fs::read(file).ok()).collect()
}

/// Returns the most memory that this process has used, in KiB; 0 if the system does not show it.
fn peak_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    peak.and_then(|peak| peak.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use tempfile::TempDir;

    use super::*;

    fn corpus(seed: &str) -> TempDir {
        let corpus = TempDir::new().unwrap();
        fs::write(corpus.path().join("seed"), seed).unwrap();
        corpus
    }

    fn failure(corpus: &TempDir, target: fn(&[u8]), cases: u32) -> String {
        let failure = catch_unwind(|| explore(corpus.path(), target, cases)).unwrap_err();
        failure.downcast_ref::<String>().cloned().unwrap_or_default()
    }

    #[test]
    fn an_input_that_fails_is_made_smaller_and_added_to_the_corpus() {
        let corpus = corpus("key=17;label");
        let target = |input: &[u8]| {
            let text = String::from_utf8_lossy(input);
            let number = text.split(';').find_map(|part| part.strip_prefix("key=")?.parse::<u64>().ok());
            assert!(number.is_none_or(|number| number < 1 << 40), "too large: {text}");
        };
        assert!(failure(&corpus, target, INPUTS).contains("too large: key="));
        let found = read(corpus.path()).remove(0);
        assert!(found.starts_with(b"key=") && found.len() < 64, "{found:?}");
        // The next run begins with it.
        assert!(failure(&corpus, target, INPUTS).starts_with("too large: key="));
    }

    #[test]
    fn a_target_that_uses_too_much_memory_fails() {
        let waste = |input: &[u8]| {
            let kib = if input == b"seed" { 2 * MAX_KIB } else { 0 };
            drop(std::hint::black_box(vec![1_u8; usize::try_from(kib << 10).unwrap()]));
        };
        assert!(peak_kib() == 0 || failure(&corpus("seed"), waste, 1).starts_with("the inputs need"));
    }

    #[test]
    fn an_empty_corpus_fails() {
        assert!(failure(&TempDir::new().unwrap(), |_| {}, 1).starts_with("no corpus"));
    }
}
