//! A program that uses the library as users do. Tests start it many times, and kill and stop it.
//!
//! ```text
//! worker SCENARIO URL NAME [ARGUMENT…]
//! ```
//!
//! It reports its progress in lines on its standard output, and waits for a line on its standard input where the test controls
//! the time.
#![allow(clippy::unwrap_used, reason = "a helper of tests: it reports errors by a panic")]

mod chaos;
mod exit;
mod increment;
mod lead;
mod measure;
mod stay;
mod task;

use polylock::Locks;
use task::{Task, current_thread, multi_thread};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let scenario = arguments.next().unwrap();
    let task =
        Task { url: arguments.next().unwrap(), name: arguments.next().unwrap(), more: arguments.collect() };
    match scenario.as_str() {
        "increment" => multi_thread().block_on(increment::run(&task)),
        "contend" => multi_thread().block_on(increment::contend(&task)),
        "bench" => multi_thread().block_on(bench(&task)),
        "chaos" => multi_thread().block_on(chaos::run(&task)),
        "late" => multi_thread().block_on(late(&task)),
        "measure" => multi_thread().block_on(measure::run(&task)),
        "open" => current_thread().block_on(stay::open(&task)),
        "queue" => current_thread().block_on(stay::queue(&task)),
        "hold" => current_thread().block_on(stay::hold(&task, stay::Guarded::Run)),
        "hold-with-child" => current_thread().block_on(stay::hold_with_child(&task)),
        "hold-by-select" => current_thread().block_on(stay::hold(&task, stay::Guarded::Select)),
        "lead" => current_thread().block_on(lead::run(&task)),
        "last-act" => exit::run(&task),
        other => panic!("unknown scenario {other:?}"),
    }
}

/// `late URL - LANES`: carries out the operations of the coordinator of late messages, on this number of connections to the store.
async fn late(task: &Task) {
    let lanes = usize::try_from(task.number(0)).unwrap();
    polylock_integration_tests::late::player::play(task.url.clone(), lanes).await.unwrap();
}

/// Runs as a child process of the benchmark.
async fn bench(task: &Task) {
    let open = |_, _| async { Ok((*Locks::connect(&task.url).await?).clone()) };
    // The error was written to the parent.
    polylock_bench::run_child(open).await.ok();
}
