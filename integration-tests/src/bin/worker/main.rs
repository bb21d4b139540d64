//! A program that uses the library as users do. Tests start it many times, and kill and stop it.
//!
//! ```text
//! worker SCENARIO URL NAME [ARGUMENT…]
//! ```
//!
//! It reports its progress in lines on its standard output, and waits for a line on its standard input where the test controls
//! the time.
#![allow(clippy::unwrap_used, reason = "a helper of tests: it reports errors by a panic")]

mod exit;
mod increment;
mod stay;

use std::io::{Write, stdin};

use polylock::Locks;

/// The arguments of a scenario.
struct Task {
    url: String,
    name: String,
    more: Vec<String>,
}

impl Task {
    async fn locks(&self) -> Locks {
        Locks::connect(&self.url).await.unwrap_or_else(|error| panic!("can't connect: {error}"))
    }

    fn text(&self, at: usize) -> &str {
        self.more.get(at).unwrap_or_else(|| panic!("argument {at} is missing"))
    }

    fn number(&self, at: usize) -> u64 {
        self.text(at).parse().unwrap_or_else(|error| panic!("argument {at}: {error}"))
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let scenario = arguments.next().unwrap();
    let task =
        Task { url: arguments.next().unwrap(), name: arguments.next().unwrap(), more: arguments.collect() };
    match scenario.as_str() {
        "increment" => multi_thread().block_on(increment::run(&task)),
        "contend" => multi_thread().block_on(increment::contend(&task)),
        "open" => current_thread().block_on(stay::open(&task)),
        "queue" => current_thread().block_on(stay::queue(&task)),
        "hold" => current_thread().block_on(stay::hold(&task, stay::Guarded::Run)),
        "hold-by-select" => current_thread().block_on(stay::hold(&task, stay::Guarded::Select)),
        "last-act" => exit::run(&task),
        other => panic!("unknown scenario {other:?}"),
    }
}

fn multi_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn current_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Prints a line, and flushes it.
fn print_line(line: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    // An error means that the test has ended.
    writeln!(out, "{line}").and_then(|()| out.flush()).ok();
}

/// Blocks until a line arrives, so that many workers can start at the same time.
fn wait_for_line() {
    let mut line = String::new();
    stdin().read_line(&mut line).unwrap();
}
