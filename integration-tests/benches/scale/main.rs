//! Ten thousand of each: locks that one process holds, and waiters of one lock, on private servers of Redis.
//!
//! `cargo bench -p polylock-integration-tests --bench scale` prints a line of JSON for each measurement; behind `--`, words select some:
//! `redis`, `redlock`, `held`, `waiters`, a number of locks or waiters, and `seconds=60` sets how long locks are held and waiters wait.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

mod held;
mod site;
mod waiters;

use std::time::Duration;

use site::{Site, Store};

/// How many locks or waiters, unless the command line says otherwise.
const COUNTS: [usize; 3] = [100, 1_000, 10_000];

fn main() {
    // What cargo says is an option.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let mut counts: Vec<usize> = words.iter().filter_map(|word| word.parse().ok()).collect();
    let is_known = |word: &String| {
        ["redis", "redlock", "held", "waiters"].contains(&word.as_str()) || word.starts_with("seconds=")
    };
    if !words.is_empty() && counts.is_empty() && !words.iter().any(is_known) {
        // They select tables of another benchmark.
        return;
    }
    let is = |wanted: &str, among: &[&str]| {
        words.iter().any(|word| word == wanted) || !words.iter().any(|word| among.contains(&word.as_str()))
    };
    if counts.is_empty() {
        counts.extend(COUNTS);
    }
    let seconds = words.iter().find_map(|word| word.strip_prefix("seconds=")?.parse().ok());
    let lasts = Duration::from_secs(seconds.unwrap_or(5));
    // All requests of a process come in the order in which they were made.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for store in
        [Store::Redis, Store::Redlock].into_iter().filter(|store| is(store.name(), &["redis", "redlock"]))
    {
        for count in &counts {
            for (what, is_held) in [("held", true), ("waiters", false)] {
                if is(what, &["held", "waiters"]) {
                    let site = Site::start(store);
                    let measured = runtime.block_on(async {
                        if is_held {
                            held::measure(&site, *count, lasts).await
                        } else {
                            waiters::measure(&site, *count, lasts).await
                        }
                    });
                    println!("{measured}");
                }
            }
        }
    }
}
