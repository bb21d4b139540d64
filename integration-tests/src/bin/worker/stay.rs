//! Holding a lock and waiting for one, to be killed or stopped in the middle of it.
#![expect(clippy::future_not_send, reason = "one thread does it all, so that the counts need no locks")]

use std::{
    cell::Cell,
    future::{Future, poll_fn},
    pin::pin,
    time::Duration,
};

use polylock::{Guard, Moment, OwnerId};
use polylock_integration_tests::clock::{self, now};

use crate::{Task, say, wait_for_the_word};

/// `open URL NAME`: opens the store when told to, and takes and releases the lock once.
pub(crate) async fn open(task: &Task) {
    say("ready");
    wait_for_the_word();
    let locks = task.locks().await;
    let guard = locks.lock(&task.name).acquire().await.unwrap();
    let token = guard.fencing_token();
    guard.release().await.unwrap();
    say(format_args!("token {token}"));
}

/// `queue URL NAME`: waits for the lock, gives it back at once.
pub(crate) async fn queue(task: &Task) {
    let locks = task.locks().await;
    say("ready");
    let guard = locks.lock(&task.name).acquire().await.unwrap();
    say(format_args!("served {}", guard.fencing_token()));
    guard.release().await.unwrap();
}

/// What protects the work.
#[derive(Clone, Copy)]
pub(crate) enum Guarded {
    /// `Guard::run`.
    Run,
    /// A planted bug: a plain `select!` with the lost signal, which may poll the work first.
    Select,
}

/// `hold URL NAME TIMES`: takes the lock, says `held TOKEN DEADLINE`, and works until it is lost; then says
/// `lost LATE UNDERWAY POLLS`. As often as that.
///
/// - LATE: how often the work was polled though the deadline had passed before the runtime began to poll: must be 0;
/// - UNDERWAY: how often a poll began in time, and the deadline passed before the work's first instruction. A process
///   that is stopped just there can't be helped by any library, but by the fencing token.
pub(crate) async fn hold(task: &Task, guarded: Guarded) {
    let locks = task.locks().await;
    let me = OwnerId::unique();
    for _ in 0..task.number(0) {
        let guard = locks.lock(&task.name).reentrant(&me).acquire().await.unwrap();
        // A second guard on the same hold tells the deadline while the first one is busy.
        let eye = Eye::new(locks.lock(&task.name).reentrant(&me).acquire().await.unwrap());
        say(format_args!("held {} {}", guard.fencing_token(), guard.deadline().as_nanos()));
        eye.watches_until_lost(guard, guarded).await;
        say(format_args!("lost {} {} {}", eye.late.get(), eye.underway.get(), eye.polls.get()));
    }
}

/// Counts the polls of the work, and when they come.
struct Eye {
    guard: Guard,
    /// When the runtime began the poll that is under way.
    began: Cell<Moment>,
    /// As last seen while the lock was held.
    deadline: Cell<Moment>,
    late: Cell<u64>,
    underway: Cell<u64>,
    polls: Cell<u64>,
}

impl Eye {
    fn new(guard: Guard) -> Self {
        let deadline = Cell::new(guard.deadline());
        let none = Cell::default;
        Self { guard, began: Cell::default(), deadline, late: none(), underway: none(), polls: none() }
    }

    async fn watches_until_lost(&self, guard: Guard, guarded: Guarded) {
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
        assert!(lost.await, "the hold ended, and was not lost");
    }

    /// Something to do all the time.
    async fn work(&self) {
        let busy = async {
            loop {
                clock::pause(Duration::from_millis(1)).await;
            }
        };
        let mut busy = pin!(busy);
        poll_fn(|context| {
            self.is_polled();
            busy.as_mut().poll(context)
        })
        .await;
    }

    fn is_polled(&self) {
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
