//! A child process made by `fork` has none of the threads of its parent's locks: every use is an error, at once.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "tests")]

mod two_connections;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use fork::{Fork, fork};
use polylock_core::{Clock, Error, Locks, SystemClock};

fn blocking<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Checks the locks in a child process; returns a message if a check fails.
fn child(
    locks: &Locks,
    connection: &two_connections::CallerConnection,
    guard: polylock_core::Guard,
) -> Result<(), String> {
    let (began, driven) = (SystemClock.now(), connection.driven());
    let refused = blocking(locks.lock("other").wait(Duration::from_millis(500)).acquire());
    let Err(Error::Unavailable(failure)) = refused else { return Err(format!("acquired: {refused:?}")) };
    if !failure.source.to_string().contains("forked") {
        return Err(format!("no word of the fork: {}", failure.source));
    }
    if blocking(locks.inspect("held")).is_ok() {
        return Err("inspected".to_owned());
    }
    // The parent holds the lock, and continues to hold it.
    drop(guard);
    if connection.driven() != driven {
        return Err("a connection of the parent was used".to_owned());
    }
    let took = SystemClock.now().since(began);
    if took > Duration::from_secs(5) { Err(format!("took {took:?}")) } else { Ok(()) }
}

/// Returns the exit code of the child process; `None` if it hangs.
fn exit_code(child: i32) -> Option<i32> {
    let until = SystemClock.now() + Duration::from_secs(20);
    while SystemClock.now() < until {
        if let Some(code) = fork::waitpid_nohang(child).unwrap() {
            return Some(code);
        }
        std::thread::park_timeout(Duration::from_millis(1));
    }
    fork::signal_process(fork::ProcessId::new(child).unwrap(), fork::Signal::KILL).unwrap();
    fork::waitpid(child).unwrap();
    None
}

#[test]
fn use_after_a_fork_is_an_immediate_error_without_side_effects() {
    let (locks, connection) = two_connections::locks(two_connections::Reply::Delivered);
    let guard = blocking(locks.lock("held").acquire()).unwrap();
    // Other threads have the mutexes of the store at some of the forks.
    let others: Vec<_> = (0..2)
        .map(|number| {
            let locks = locks.clone();
            std::thread::spawn(move || {
                for _ in 0..1_000 {
                    drop(blocking(locks.lock(format!("busy-{number}")).acquire()).unwrap());
                }
            })
        })
        .collect();
    while !others.iter().all(std::thread::JoinHandle::is_finished) {
        let driven = connection.driven();
        match fork().unwrap() {
            Fork::Child => {
                let found = catch_unwind(AssertUnwindSafe(|| child(&locks, &connection, guard)));
                let code = match found {
                    Ok(Ok(())) => 0,
                    Ok(Err(why)) => {
                        eprintln!("in the child: {why}");
                        1
                    }
                    Err(_) => 2,
                };
                std::process::exit(code);
            }
            Fork::Parent(child) => assert_eq!(exit_code(child), Some(0)),
        }
        assert!(connection.driven() >= driven);
    }
    guard.ensure_held().unwrap();
    assert!(blocking(locks.lock("held").try_acquire()).unwrap().is_none());
    blocking(guard.release()).unwrap();
    for other in others {
        other.join().unwrap();
    }
}
