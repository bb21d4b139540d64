//! Ten thousand of each: locks that one process holds, waiters of one lock, and locks that are taken at once, on private servers.
//!
//! `cargo bench -p polylock-integration-tests --bench scale` prints a line of JSON for each measurement; behind `--`, words select some:
//! the name of a store, `held`, `waiters`, `tries`, `acquires`, `names`, a number of locks or waiters; `seconds=60` sets how long locks
//! are held and waiters wait, and with `relaxed` the SQL stores do not wait for the disk.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, reason = "a benchmark")]

mod burst;
mod databases;
mod held;
mod site;
mod waiters;
mod zookeeper;

use std::time::Duration;

use site::{Site, Store};

/// How many locks or waiters, unless the command line says otherwise.
const COUNTS: [usize; 3] = [100, 1_000, 10_000];

/// What is measured.
const MEASURED: [&str; 5] = ["held", "waiters", "tries", "acquires", "names"];

fn main() {
    // What cargo says is an option.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let mut counts: Vec<usize> = words.iter().filter_map(|word| word.parse().ok()).collect();
    let stores = Store::ALL.map(Store::name);
    let is_known = |word: &String| {
        stores.contains(&word.as_str())
            || MEASURED.contains(&word.as_str())
            || word.starts_with("seconds=")
            || word == "relaxed"
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
    let relaxed = words.iter().any(|word| word == "relaxed");
    let lasts = Duration::from_secs(seconds.unwrap_or(5));
    // All requests of a process come in the order in which they were made.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for store in Store::ALL.into_iter().filter(|store| is(store.name(), &stores)) {
        for count in &counts {
            // Only ZooKeeper has something for each name that was locked.
            let has = |what: &&str| *what != "names" || store == Store::ZooKeeper;
            for what in MEASURED.into_iter().filter(|what| is(what, &MEASURED)).filter(has) {
                let site = match Site::start(store, relaxed) {
                    Ok(site) => site,
                    Err(missing) => {
                        eprintln!("{}: not measured: {missing:?}", store.name());
                        continue;
                    }
                };
                let measured = runtime.block_on(async {
                    match what {
                        "held" => held::measure(&site, *count, lasts).await,
                        "waiters" => waiters::measure(&site, *count, lasts).await,
                        "names" => zookeeper::names(&site, *count, lasts).await,
                        _ => burst::measure(&site, *count, what == "tries").await,
                    }
                });
                println!("{measured}");
            }
        }
    }
}
