//! The lock service beside the store that it serves, in the same run:
//!
//! | word | measurement |
//! |---|---|
//! | `overhead` | an uncontended acquisition and release: of the store, and through the service; and a request that needs no store |
//! | `hand-over` | the time from a release to the next grant: of the store between two tasks and between two processes, and from stream to stream |
//! | `streams` | the memory and the processor time of a server with 10,000 streams, each of which holds a lock |
//! | `slow` | acquisitions beside 1,000 readers that do not read and 1,000 connections without a request, and without them |
//!
//! `cargo bench -p polylock-integration-tests --bench service` prints a line of JSON for each; behind `--`, words select some.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

mod crowds;
mod latency;
mod server;

use polylock_integration_tests::servers;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tempfile::TempDir;

use crate::server::Server;

const MEASURED: [&str; 4] = ["overhead", "hand-over", "streams", "slow"];

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let is = |wanted: &str| words.is_empty() || words.iter().any(|word| word == wanted);
    if !MEASURED.iter().any(|word| is(word)) {
        // They select tables of another benchmark.
        return;
    }
    // Each stream is an open file.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let directory = TempDir::new().unwrap();
    let sqlite = format!("sqlite://{}", directory.path().join("locks.db").display());
    let redis = servers::redlock::start(1, &[]).unwrap().remove(0);
    let postgres = servers::postgres::start(&[]).unwrap();
    for store in [&sqlite, redis.url(), postgres.url()] {
        let server = Server::start(store);
        for (word, hand_over) in [("overhead", false), ("hand-over", true)] {
            if is(word) {
                println!("{}", runtime.block_on(latency::measure(store, &server, hand_over)));
            }
        }
    }
    for (word, slow) in [("streams", false), ("slow", true)] {
        if is(word) {
            let server = Server::start(&sqlite);
            println!("{}", runtime.block_on(crowds::measure(&server, slow)));
        }
    }
}
