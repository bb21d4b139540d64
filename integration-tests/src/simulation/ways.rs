//! The ways in which clients acquire locks and end their holds.

use std::{
    fmt,
    future::poll_fn,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use fastrand::Rng;
use polylock_core::{Clock, Result, SystemClock};

use super::plan::between;
use crate::recipe::{Held, Wanted};

/// The shortest time after which a hold is ended by a lease that ends then: the shortest lease. A process waits for a shorter time, and then
/// releases the hold whatever token it has.
pub const SHORTEST_PARK: Duration = Duration::from_millis(100);

/// The way in which a client acquires.
#[derive(Debug, Clone, Copy)]
pub enum Way {
    /// One try.
    Try,
    /// One try, which waits for the store for this time.
    Outlast(Duration),
    /// Without a time limit.
    Wait,
    /// With a time limit.
    WaitFor(Duration),
    /// The future is dropped after a number of polls, or after a time.
    Drop(u32, Duration),
    /// The future is not polled for this time after a number of polls. Then it is dropped if this is true, or polled again.
    Stall(u32, Duration, bool),
}

/// The way in which a client ends its hold.
#[derive(Debug, Clone, Copy)]
pub enum End {
    /// A release.
    Release,
    /// A release that is dropped.
    DropRelease,
    /// A release that is polled once, not for this time, and then again.
    StallRelease(Duration),
    /// The guard is dropped.
    Drop,
    /// The lease expires.
    LeaveToExpire,
    /// The lock is released after this time.
    ReleaseAfter(Duration),
}

/// What a client does with a hold besides using it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passing {
    /// It ends the hold itself.
    None,
    /// It ends the hold in its process, and leaves it to another one.
    Leaves,
    /// It downgrades the hold, and goes on.
    Downgrades,
}

/// Acquires the lock in this way. The outcome is `None` if it is not acquired in time, or the future is dropped.
///
/// # Errors
/// The errors of the acquisition.
///
/// # Cancel safety
/// The same as [`Wanted::acquire`].
pub async fn acquire(lock: Wanted, way: Way) -> Result<Option<Held>> {
    match way {
        Way::Try => lock.try_acquire().await,
        Way::Outlast(outage) => lock.outage(outage).try_acquire().await,
        Way::Wait => lock.acquire().await.map(Some),
        Way::WaitFor(limit) => match lock.wait(limit).acquire().await {
            Err(error) if error.is_not_acquired() => Ok(None),
            outcome => outcome.map(Some),
        },
        Way::Drop(polls, limit) => match Limited::new(lock.acquire(), polls, limit).await {
            Some(outcome) => outcome.map(Some),
            None => Ok(None),
        },
        Way::Stall(polls, time, drops) => {
            let mut acquiring = pin!(lock.acquire());
            if let Some(outcome) = poll_times(acquiring.as_mut(), polls).await {
                return outcome.map(Some);
            }
            SystemClock.sleep_until(SystemClock.now() + time).await;
            if drops { Ok(None) } else { acquiring.await.map(Some) }
        }
    }
}

/// Ends a hold in this way.
///
/// # Errors
/// The errors of the release.
///
/// # Cancel safety
/// The same as [`Guard::release`](polylock_core::Guard::release).
pub async fn finish(held: Held, end: End, random: &mut Rng) -> Result<()> {
    match end {
        End::Release => held.release().await,
        End::DropRelease => {
            let (polls, limit) = (random.u32(0..4), between(random, 1..20));
            Limited::new(held.release(), polls, limit).await.unwrap_or(Ok(()))
        }
        End::StallRelease(time) => {
            let mut releasing = pin!(held.release());
            if let Some(outcome) = poll_times(releasing.as_mut(), 1).await {
                return outcome;
            }
            SystemClock.sleep_until(SystemClock.now() + time).await;
            releasing.await
        }
        End::Drop => {
            drop(held);
            Ok(())
        }
        End::LeaveToExpire => held.leave_to_expire(),
        End::ReleaseAfter(delay) => held.release_after(delay).await,
    }
}

/// Polls a future this number of times. Returns its output if it ends with one of them.
async fn poll_times<F: Future>(mut future: Pin<&mut F>, mut times: u32) -> Option<F::Output> {
    poll_fn(|context| {
        let output = future.as_mut().poll(context).map(Some);
        times = times.saturating_sub(1);
        if output.is_pending() && times == 0 { Poll::Ready(None) } else { output }
    })
    .await
}

/// A future that is dropped after a number of polls, or after a time: then the output is `None`.
struct Limited<F> {
    future: Option<Pin<Box<F>>>,
    polls: u32,
    limit: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl<F: Future> Limited<F> {
    fn new(future: F, polls: u32, limit: Duration) -> Self {
        let limit = SystemClock.sleep_until(SystemClock.now() + limit);
        Self { future: Some(Box::pin(future)), polls, limit }
    }
}

impl<F> fmt::Debug for Limited<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limited").field("polls", &self.polls).finish_non_exhaustive()
    }
}

impl<F: Future> Future for Limited<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { future, polls, limit } = &mut *self;
        if *polls == 0 || limit.as_mut().poll(cx).is_ready() {
            *future = None;
            return Poll::Ready(None);
        }
        *polls -= 1;
        match future {
            Some(future) => future.as_mut().poll(cx).map(Some),
            None => Poll::Ready(None),
        }
    }
}
