//! A guard that is dropped as the program's very last act.

use std::sync::OnceLock;

use polylock::{Guard, Locks};

use crate::{Task, current_thread, multi_thread, say};

static LOCKS: OnceLock<Locks> = OnceLock::new();

/// `last-act URL NAME HOW`: takes the lock, says `held`, and ends in one way or another.
pub(crate) fn run(task: &Task) {
    match task.text(0) {
        // In `async fn main`, as `#[tokio::main]` makes it, of both flavours.
        "multi" => multi_thread().block_on(dropped(task)),
        "current" => current_thread().block_on(dropped(task)),
        // In a task of its own, and the runtime goes down at once.
        "task" => {
            let runtime = multi_thread();
            let guard = runtime.block_on(held(task));
            runtime.spawn(async move { drop(guard) });
        }
        // After the runtime has gone.
        "after" => {
            let guard = multi_thread().block_on(held(task));
            drop(guard);
        }
        // With a `Locks` that is never dropped.
        "static" => multi_thread().block_on(dropped_with_static_locks(task)),
        "static-current" => current_thread().block_on(dropped_with_static_locks(task)),
        // And with an end that unwinds nothing.
        "exit" => multi_thread().block_on(async {
            dropped_with_static_locks(task).await;
            std::process::exit(0)
        }),
        // The guard goes on another thread, which lives on.
        "exit-elsewhere" => multi_thread().block_on(async {
            let locks = task.locks().await;
            let guard = LOCKS.get_or_init(|| locks).lock(&task.name).acquire().await.unwrap();
            say("held");
            let (gone, seen) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                drop(guard);
                gone.send(()).unwrap();
                std::thread::park();
            });
            seen.recv().unwrap();
            std::process::exit(0)
        }),
        // By unwinding.
        "panic" => {
            // It is what is wanted here, and no news.
            std::panic::set_hook(Box::new(|_| {}));
            multi_thread().block_on(panics(task));
        }
        // Planted: nothing is released, which the test must see.
        "forget" => multi_thread().block_on(async { std::mem::forget(held(task).await) }),
        "abort" => multi_thread().block_on(async {
            let _guard = held(task).await;
            std::process::abort()
        }),
        other => panic!("there is no end {other:?}"),
    }
}

/// The guard is the last handle on its store.
async fn held(task: &Task) -> Guard {
    let guard = task.locks().await.lock(&task.name).acquire().await.unwrap();
    say("held");
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
    say("held");
}
