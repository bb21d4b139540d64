//! A guard that is dropped as the program's last act: the release reaches the store all the same, over a network, too.
//!
//! The lease is a minute, so what is free at once was released.
#![allow(clippy::unwrap_used, reason = "tests")]

use polylock::Locks;
use polylock_integration_tests::{on_stores, process::Process, stores::spot};

const TIMES: usize = 60;
/// How many programs run at once.
const ABREAST: usize = 3;

/// How many of how many programs that end like that have released their lock.
async fn released(store: &str, how: &str, times: usize) -> (usize, usize) {
    let spot = spot(store).await;
    let times = spot.times(times);
    let url = spot.url_with("polylock.ttl", "1m");
    let locks = Locks::connect(&url).await.unwrap();
    let mut released = 0;
    for first in (0..times).step_by(ABREAST) {
        let names: Vec<String> =
            (first..times.min(first + ABREAST)).map(|run| format!("{how}/{run}")).collect();
        let start =
            |name: &String| Process::start(env!("CARGO_BIN_EXE_worker"), ["last-act", &url, name, how]);
        let mut programs: Vec<Process> = names.iter().map(start).collect();
        for (program, name) in programs.iter_mut().zip(&names) {
            program.hears("held");
            program.ends();
            if let Some(guard) = locks.lock(name).try_acquire().await.unwrap() {
                released += 1;
                guard.release().await.unwrap();
            }
        }
    }
    println!("{store}, {how}: {released} of {times}");
    (released, times)
}

/// Each of these ends, on every store.
macro_rules! all_are_released {
    ($($test:ident $how:literal)*) => {
        on_stores! { $($test)* what_is_forgotten_is_not_released }
        $(async fn $test(store: &str) {
            let (released, of) = released(store, $how, TIMES).await;
            assert_eq!(released, of);
        })*
    };
}

all_are_released! {
    at_the_end_of_a_multi_thread_main "multi"
    at_the_end_of_a_current_thread_main "current"
    in_a_task_of_a_runtime_that_goes_down "task"
    after_the_runtime_has_gone "after"
    with_the_locks_in_a_static "static"
    with_the_locks_in_a_static_and_a_current_thread_main "static-current"
    before_process_exit "exit"
    on_another_thread_before_process_exit "exit-elsewhere"
    by_a_panic "panic"
}

/// The planted twins: a guard that is forgotten, or a program that aborts, releases nothing, and that is seen.
async fn what_is_forgotten_is_not_released(store: &str) {
    assert_eq!(released(store, "forget", 6).await.0, 0);
    assert_eq!(released(store, "abort", 6).await.0, 0);
}
