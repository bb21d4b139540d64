//! A guard that is dropped at the end of the program.

use std::sync::OnceLock;

use polylock::{Guard, Locks};
use polylock_integration_tests::clock::now;

use crate::task::{Task, current_thread, multi_thread, print_line};

static LOCKS: OnceLock<Locks> = OnceLock::new();

/// `last-act URL NAME HOW`: acquires the lock, prints `held` and the time, and exits in the way HOW.
pub(crate) fn run(task: &Task) {
    match task.text(0) {
        // In `async fn main`, as `#[tokio::main]` generates it, of both flavours.
        "multi" => multi_thread().block_on(dropped(task)),
        "current" => current_thread().block_on(dropped(task)),
        // In a task of a runtime that shuts down at once.
        "task" => {
            let runtime = multi_thread();
            let guard = runtime.block_on(held(task));
            runtime.spawn(async move { drop(guard) });
        }
        // After the end of the runtime.
        "after" => {
            let guard = multi_thread().block_on(held(task));
            drop(guard);
        }
        // With a `Locks` that is never dropped.
        "static" => multi_thread().block_on(dropped_with_static_locks(task)),
        "static-current" => current_thread().block_on(dropped_with_static_locks(task)),
        // With an exit that does not unwind.
        "exit" => multi_thread().block_on(async {
            dropped_with_static_locks(task).await;
            std::process::exit(0)
        }),
        // The guard is dropped on another thread, which continues.
        "exit-elsewhere" => multi_thread().block_on(async {
            let locks = task.locks().await;
            let guard = LOCKS.get_or_init(|| locks).lock(&task.name).acquire().await.unwrap();
            print_line(format_args!("held {}", now().as_nanos()));
            let (sender, dropped) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                drop(guard);
                sender.send(()).unwrap();
                std::thread::park();
            });
            dropped.recv().unwrap();
            std::process::exit(0)
        }),
        // By unwinding.
        "panic" => {
            // The panic is expected, so its message is suppressed.
            std::panic::set_hook(Box::new(|_| {}));
            multi_thread().block_on(panics(task));
        }
        // Counterexamples: nothing is released, and the test must detect that.
        "forget" => multi_thread().block_on(async { std::mem::forget(held(task).await) }),
        "abort" => multi_thread().block_on(async {
            let _guard = held(task).await;
            std::process::abort()
        }),
        other => panic!("unknown exit {other:?}"),
    }
}

/// Returns a guard that is the last handle of its store.
async fn held(task: &Task) -> Guard {
    let guard = task.locks().await.lock(&task.name).acquire().await.unwrap();
    print_line(format_args!("held {}", now().as_nanos()));
    guard
}

async fn dropped(task: &Task) {
    let _guard = held(task).await;
}

async fn panics(task: &Task) {
    let _guard = held(task).await;
    panic!("a panic in the critical section")
}

async fn dropped_with_static_locks(task: &Task) {
    let locks = task.locks().await;
    let _guard = LOCKS.get_or_init(|| locks).lock(&task.name).acquire().await.unwrap();
    print_line(format_args!("held {}", now().as_nanos()));
}
