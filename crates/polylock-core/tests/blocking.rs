//! The blocking interface: the threads on which it works, and the tasks in which it is refused.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{collections::BTreeSet, future::poll_fn, task::Poll, thread, time::Duration};

use polylock_core::{
    Error, LostReason, Result,
    blocking::{Guard, Locks, block_on},
    memory,
};
use tokio::{
    runtime::{Builder, Runtime, RuntimeFlavor},
    task::{LocalSet, block_in_place, spawn_blocking},
};

fn locks() -> Locks {
    Locks::new(memory::connect())
}

fn runtimes() -> [Runtime; 2] {
    [Builder::new_current_thread(), Builder::new_multi_thread()].map(|mut builder| builder.build().unwrap())
}

fn assert_refused<T>(outcome: Result<T>) {
    assert!(matches!(outcome, Err(Error::AsyncContext)), "{:?}", outcome.err());
}

#[test]
fn a_thread_waits_for_a_lock_of_another_thread() {
    let locks = locks();
    let guard = locks.lock("a").acquire().unwrap();
    let token = guard.fencing_token();
    let waiter = thread::spawn({
        let locks = locks.clone();
        move || locks.lock("a").acquire().unwrap().fencing_token()
    });
    while locks.inspect("a").unwrap().waiters.is_empty() {
        thread::yield_now();
    }
    guard.release().unwrap();
    assert!(waiter.join().unwrap() > token);
}

#[test]
fn every_call_in_a_task_is_refused() {
    let (locks, other) = (locks(), locks());
    for runtime in runtimes() {
        let guard = locks.lock("a").acquire().unwrap();
        let task = || {
            let (locks, other) = (locks.clone(), other.clone());
            async move {
                assert_refused(locks.lock("b").acquire());
                assert_refused(locks.lock("b").try_acquire());
                assert_refused(locks.inspect("a"));
                assert_refused(locks.close(Duration::ZERO));
                assert_refused(other.shutdown());
                // The task is not disturbed.
                tokio::task::yield_now().await;
                assert_refused(block_on(async {}));
            }
        };
        runtime.block_on(async {
            task().await;
            tokio::spawn(task()).await.unwrap();
        });
        LocalSet::new().block_on(&runtime, async { tokio::task::spawn_local(task()).await.unwrap() });
        assert!(locks.inspect("b").unwrap().is_free());
        // The release of a refused call is that of the drop.
        runtime.block_on(async { assert_refused(guard.release()) });
        assert!(locks.lock("a").wait(Duration::from_secs(10)).acquire().is_ok());
        let guard = locks.lock("a").wait(Duration::from_secs(10)).acquire().unwrap();
        let mut called = false;
        runtime.block_on(async { assert_refused(guard.run(|_| called = true)) });
        assert!(!called);
        assert!(locks.lock("a").wait(Duration::from_secs(10)).acquire().is_ok());
    }
    assert!(other.lock("a").try_acquire().unwrap().is_some(), "a refused shutdown has changed nothing");
}

#[test]
fn threads_that_may_block_are_not_refused() {
    for runtime in runtimes() {
        let locks = locks();
        let acquire = {
            let locks = locks.clone();
            move || locks.lock("a").wait(Duration::from_secs(10)).acquire().and_then(Guard::release)
        };
        runtime.block_on(async { spawn_blocking(acquire.clone()).await.unwrap().unwrap() });
        if runtime.handle().runtime_flavor() == RuntimeFlavor::MultiThread {
            let there = acquire.clone();
            runtime.block_on(async {
                block_in_place(&acquire).unwrap();
                tokio::spawn(async move { block_in_place(there) }).await.unwrap().unwrap();
            });
        }
        let _entered = runtime.enter();
        acquire().unwrap();
    }
}

#[test]
fn a_guard_reports_its_loss_to_a_thread() {
    let locks = locks();
    let guard = locks.lock("a").acquire().unwrap();
    assert_eq!(guard.lost(), None);
    let lost = guard.as_async().lost();
    let signalled = thread::spawn(move || block_on(lost).unwrap());
    block_on(locks.as_async().break_lock("a")).unwrap().unwrap();
    let reason = signalled.join().unwrap();
    assert!(matches!(reason, LostReason::Broken(_)), "{reason}");
    assert_eq!(guard.lost(), Some(reason.clone()));
    assert_eq!(guard.ensure_held().unwrap_err().lost(), Some(&reason));
    assert!(guard.remaining().is_zero() && !guard.is_held());
    // Work is not begun under a lock that was lost.
    let mut has_begun = false;
    let refused = guard.run(|_| has_begun = true).unwrap_err();
    assert_eq!((refused.lost(), has_begun), (Some(&reason), false));
    assert!(locks.lock("a").wait(Duration::from_secs(10)).acquire().is_ok());
}

#[test]
fn a_loss_during_the_work_is_an_error_even_if_the_work_ends() {
    let locks = locks();
    let outcome = locks.lock("a").acquire().unwrap().run(|guard| {
        block_on(locks.as_async().break_lock("a")).unwrap().unwrap();
        while guard.is_held() {
            thread::yield_now();
        }
        "done"
    });
    assert!(outcome.unwrap_err().lost().is_some());
    locks.lock("a").acquire().unwrap().run(Guard::ensure_held).unwrap().unwrap();
}

#[test]
fn a_panic_in_the_work_releases_the_lock() {
    let locks = locks();
    let there = locks.clone();
    let panicked = thread::spawn(move || {
        let guard = there.lock("a").acquire().unwrap();
        guard.run(|_| std::panic::resume_unwind(Box::new("an injected panic")))
    });
    assert!(panicked.join().is_err());
    assert!(locks.lock("a").wait(Duration::from_secs(10)).acquire().is_ok());
}

#[test]
fn a_thread_waits_no_longer_than_its_limit() {
    let locks = locks();
    let guard = locks.lock("a").acquire().unwrap();
    assert!(locks.lock("a").try_acquire().unwrap().is_none());
    let error = locks.lock("a").wait(Duration::from_millis(30)).acquire().unwrap_err();
    assert!(error.is_not_acquired(), "{error}");
    assert_eq!(locks.inspect("a").unwrap().waiters.len(), 0);
    guard.leave_to_expire().unwrap();
    assert!(locks.lock("a").try_acquire().unwrap().is_none());
}

/// Returns the names of the public methods in `text` that consume `self` and return it.
fn options(text: &str) -> BTreeSet<&str> {
    let names = text
        .lines()
        .filter(|line| line.starts_with("    pub ") && line.contains("self") && line.contains("-> Self"));
    names.filter_map(|line| line.split_once("fn ")?.1.split(['(', '<']).next()).collect()
}

#[test]
fn every_option_of_a_lock_is_forwarded() {
    let forwarded = include_str!("../src/blocking/lock.rs");
    let options = options(include_str!("../src/lock.rs"));
    assert!(options.contains("ttl") && options.len() >= 9, "{options:?}");
    let missing: Vec<_> =
        options.into_iter().filter(|option| !forwarded.contains(&format!("\n    {option}("))).collect();
    assert!(missing.is_empty(), "add {missing:?} to `options!` in blocking/lock.rs");
}

#[test]
fn a_future_that_is_woken_on_another_thread_ends() {
    let mut woken = false;
    let output = block_on(poll_fn(|context| {
        if woken {
            return Poll::Ready(7);
        }
        woken = true;
        let waker = context.waker().clone();
        thread::spawn(move || waker.wake());
        Poll::Pending
    }));
    assert_eq!(output.unwrap(), 7);
}
