//! A program that uses the library as users do, to be started many times at once, killed and stopped by the tests.
//!
//! ```text
//! worker SCENARIO URL NAME [ARGUMENT…]
//! ```
//!
//! It says what it does in lines on its standard output, and waits for a line on its standard input where it must not
//! go on by itself.
#![allow(clippy::unwrap_used, reason = "a test's helper: a panic is how it says that something is wrong")]

mod exit;
mod increment;
mod stay;

use std::io::{Write, stdin};

use polylock::Locks;

/// What every scenario is given.
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
        other => panic!("there is no scenario {other:?}"),
    }
}

fn multi_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn current_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Says a line, at once.
fn say(line: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    // If nobody listens any more, the test is over.
    writeln!(out, "{line}").and_then(|()| out.flush()).ok();
}

/// Blocks until a line comes, so that many can begin at one instant.
fn wait_for_the_word() {
    let mut line = String::new();
    stdin().read_line(&mut line).unwrap();
}
