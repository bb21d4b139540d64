//! Scenarios that hold a lock or wait for one, until the test kills or stops the process.
#![expect(clippy::future_not_send, reason = "a single thread, so that the counts need no locks")]

use std::{
    cell::Cell,
    future::{Future, poll_fn},
    pin::pin,
    process::{Command, Stdio},
    time::Duration,
};

use polylock::{Guard, Moment, OwnerId};
use polylock_integration_tests::clock::{self, now};

use crate::task::{Task, print_line, wait_for_line};

/// `open URL NAME`: opens the store after a line of input, and acquires and releases the lock once.
pub(crate) async fn open(task: &Task) {
    print_line("ready");
    wait_for_line();
    let locks = task.locks().await;
    let guard = locks.lock(&task.name).acquire().await.unwrap();
    let token = guard.fencing_token();
    guard.release().await.unwrap();
    print_line(format_args!("token {token}"));
}

/// `queue URL NAME`: waits for the lock, and releases it at once.
pub(crate) async fn queue(task: &Task) {
    let locks = task.locks().await;
    print_line("ready");
    let guard = locks.lock(&task.name).acquire().await.unwrap();
    print_line(format_args!("served {}", guard.fencing_token()));
    guard.release().await.unwrap();
}

/// The protection of the work.
#[derive(Clone, Copy)]
pub(crate) enum Guarded {
    /// `Guard::run`.
    Run,
    /// A counterexample: a plain `select!` with the lost signal, which may poll the work first.
    Select,
}

/// `hold URL NAME TIMES`: acquires the lock, prints `held TOKEN DEADLINE`, and works until it is lost; then prints
/// `lost LATE UNDERWAY POLLS`. Repeats this TIMES times, and ends after a line of input: a busy machine may lose the last hold before the
/// test stops this process.
///
/// - LATE: the number of polls of the work that the runtime started after the deadline: must be 0;
/// - UNDERWAY: the number of polls that started in time, with the deadline before the first instruction of the work. No library
///   can prevent these if the process is stopped at that point; the fencing token protects the resource.
pub(crate) async fn hold(task: &Task, guarded: Guarded) {
    let locks = task.locks().await;
    let owner = OwnerId::unique();
    for _ in 0..task.number(0) {
        let guard = locks.lock(&task.name).reentrant(&owner).acquire().await.unwrap();
        // A second guard on the same hold reads the deadline while the first one is in use.
        let monitor = PollMonitor::new(locks.lock(&task.name).reentrant(&owner).acquire().await.unwrap());
        print_line(format_args!("held {} {}", guard.fencing_token(), guard.deadline().as_nanos()));
        monitor.run_until_lost(guard, guarded).await;
        print_line(format_args!(
            "lost {} {} {}",
            monitor.late.get(),
            monitor.underway.get(),
            monitor.polls.get()
        ));
    }
    wait_for_line();
}

/// `hold-with-child URL NAME`: acquires the lock, starts a child that ends at the end of the input, and holds the lock.
pub(crate) async fn hold_with_child(task: &Task) {
    let locks = task.locks().await;
    let guard = locks.lock(&task.name).acquire().await.unwrap();
    let mut child = Command::new("cat").stdout(Stdio::null()).spawn().unwrap();
    print_line("held");
    guard.run(std::future::pending::<()>()).await.unwrap();
    child.wait().unwrap();
}

/// Counts the polls of the work by their times.
struct PollMonitor {
    guard: Guard,
    /// The start of the current poll.
    began: Cell<Moment>,
    /// The last observed deadline while the lock was held.
    deadline: Cell<Moment>,
    late: Cell<u64>,
    underway: Cell<u64>,
    polls: Cell<u64>,
}

impl PollMonitor {
    fn new(guard: Guard) -> Self {
        let deadline = Cell::new(guard.deadline());
        let none = Cell::default;
        Self { guard, began: Cell::default(), deadline, late: none(), underway: none(), polls: none() }
    }

    async fn run_until_lost(&self, guard: Guard, guarded: Guarded) {
        let work = self.work();
        let lost = async {
            match guarded {
                Guarded::Run => guard.run(work).await.is_err_and(|error| error.lost().is_some()),
                Guarded::Select => tokio::select! {
                    _ = guard.lost() => true,
                    () = work => false,
                },
            }
        };
        let mut lost = pin!(lost);
        let lost = poll_fn(|context| {
            self.began.set(now());
            lost.as_mut().poll(context)
        });
        assert!(lost.await, "the hold ended without a loss");
    }

    /// Work that never ends.
    async fn work(&self) {
        let busy = async {
            loop {
                clock::pause(Duration::from_millis(1)).await;
            }
        };
        let mut busy = pin!(busy);
        poll_fn(|context| {
            self.count_poll();
            busy.as_mut().poll(context)
        })
        .await;
    }

    fn count_poll(&self) {
        let plus_one = |count: &Cell<u64>| count.set(count.get() + 1);
        plus_one(&self.polls);
        let deadline = self.guard.deadline();
        if self.guard.is_held() {
            self.deadline.set(deadline);
        } else if self.began.get() >= self.deadline.get() {
            plus_one(&self.late);
        } else {
            plus_one(&self.underway);
        }
    }
}
