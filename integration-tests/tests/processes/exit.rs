//! A guard that is dropped at the end of the program: the release reaches the store, over a network, too.
//!
//! The lease is a minute, so a lock that is free at once was released.

use std::time::Duration;

use polylock::{Guard, Locks, Moment};
use polylock_integration_tests::{
    clock::{TIMEOUT, now},
    on_stores,
    process::Process,
    stores::namespace,
};

const TIMES: usize = 60;
/// The number of programs that run at the same time.
const PARALLEL: usize = 3;
/// The time for which the end of a program waits for the release.
const AT_EXIT: Duration = Duration::from_millis(500);

/// The numbers of programs with one exit.
struct Exits {
    all: usize,
    /// Those that have released their lock.
    released: usize,
    /// Those that have not, because the store needed longer than the end of a program waits.
    slow: usize,
}

/// Runs programs with the exit `scenario`.
async fn exits(store: &str, scenario: &str, times: usize) -> Exits {
    let namespace = namespace(store).await;
    let times = namespace.times(times);
    let url = namespace.url_with("polylock.ttl", "1m");
    let locks = Locks::connect(&url).await.unwrap();
    let (mut released, mut slow) = (0, 0);
    for first in (0..times).step_by(PARALLEL) {
        let names: Vec<String> =
            (first..times.min(first + PARALLEL)).map(|run| format!("{scenario}/{run}")).collect();
        let start =
            |name: &String| Process::start(env!("CARGO_BIN_EXE_worker"), ["last-act", &url, name, scenario]);
        let mut programs: Vec<Process> = names.iter().map(start).collect();
        for (program, name) in programs.iter_mut().zip(&names) {
            let held = Moment::from_nanos(program.expect_line("held")[0].parse().unwrap());
            program.wait_for_exit();
            let took = now().since(held);
            if is_left(&locks, name).await {
                slow += usize::from(took >= AT_EXIT);
            } else if let Some(guard) = try_acquire(&locks, name).await {
                released += 1;
                guard.release().await.unwrap();
            } else if took >= AT_EXIT {
                slow += 1;
            }
        }
    }
    println!("{store}, {scenario}: {released} of {times}, {slow} were slow");
    Exits { all: times, released, slow }
}

/// Returns true if the store frees the lock of a process that has ended, and has not received a release: then it still has the entry.
async fn is_left(locks: &Locks, name: &str) -> bool {
    locks.capabilities().frees_dead_holders && !locks.inspect(name).await.unwrap().holders.is_empty()
}

/// Tries the lock until the store replies: a busy machine is slower than the time limit of a server.
async fn try_acquire(locks: &Locks, name: &str) -> Option<Guard> {
    let latest = now() + TIMEOUT;
    loop {
        match locks.lock(name).try_acquire().await {
            // The next one comes when this one is undone.
            Err(error) if error.is_temporary() && now() < latest => {
                assert!(locks.clone().close(TIMEOUT).await, "the failed try is not undone: {error:?}");
            }
            reply => return reply.unwrap(),
        }
    }
}

/// Each of these exits, on every store.
macro_rules! all_are_released {
    ($($test:ident $scenario:literal)*) => {
        on_stores! { $($test)* a_forgotten_guard_is_not_released }
        $(async fn $test(store: &str) {
            let Exits { all, released, slow } = exits(store, $scenario, TIMES).await;
            assert_eq!(released + slow, all);
            // A busy machine delays some of them.
            assert!(2 * slow <= all, "{slow} of {all} were slow");
        })*
    };
}

all_are_released! {
    at_the_end_of_a_multi_thread_main "multi"
    at_the_end_of_a_current_thread_main "current"
    in_a_task_of_a_runtime_that_shuts_down "task"
    after_the_end_of_the_runtime "after"
    with_the_locks_in_a_static "static"
    with_the_locks_in_a_static_and_a_current_thread_main "static-current"
    before_process_exit "exit"
    on_another_thread_before_process_exit "exit-elsewhere"
    by_a_panic "panic"
}

/// The counterexamples: a forgotten guard, or a program that aborts, releases nothing, and the test detects it.
async fn a_forgotten_guard_is_not_released(store: &str) {
    assert_eq!(exits(store, "forget", 6).await.released, 0);
    assert_eq!(exits(store, "abort", 6).await.released, 0);
}
