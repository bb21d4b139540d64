//! The arguments of a scenario, its runtime, and its conversation with the test.

use std::io::{Write, stdin};

use polylock::Locks;

/// The arguments of a scenario.
pub(crate) struct Task {
    pub(crate) url: String,
    pub(crate) name: String,
    pub(crate) more: Vec<String>,
}

impl Task {
    pub(crate) async fn locks(&self) -> Locks {
        Locks::connect(&self.url).await.unwrap_or_else(|error| panic!("can't connect: {error}"))
    }

    pub(crate) fn text(&self, at: usize) -> &str {
        self.more.get(at).unwrap_or_else(|| panic!("argument {at} is missing"))
    }

    pub(crate) fn number(&self, at: usize) -> u64 {
        self.text(at).parse().unwrap_or_else(|error| panic!("argument {at}: {error}"))
    }
}

pub(crate) fn multi_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

pub(crate) fn current_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Prints a line, and flushes it.
pub(crate) fn print_line(line: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    // An error means that the test has ended.
    writeln!(out, "{line}").and_then(|()| out.flush()).ok();
}

/// Blocks until a line arrives, so that many workers can start at the same time.
pub(crate) fn wait_for_line() {
    let mut line = String::new();
    stdin().read_line(&mut line).unwrap();
}
