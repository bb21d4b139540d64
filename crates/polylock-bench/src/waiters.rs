//! Many waiters of one lock in one process, and another lock of the same process meanwhile.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use polylock::{Guard, Moment, Order, core::Locks};
use tokio::task::JoinSet;

use crate::{
    Error, Result, Times,
    contended::finish,
    times::{now, pause},
    uncontended::pair,
};

const NAME: &str = "waited-for";
const FREE: &str = "free";
/// The TTL of the other lock: short, so that it is lost if its renewals are late.
const OTHER_TTL: Duration = Duration::from_secs(4);
/// The time between two pairs on the free lock.
const PAIR_EVERY: Duration = Duration::from_millis(100);
/// The interval at which the store is inspected until all wait.
const INSPECT_EVERY: Duration = Duration::from_millis(200);
/// The time after which all count as queued, if the store does not show them.
const QUEUED_AFTER: Duration = Duration::from_secs(1);

/// The waiters, which wait until [`drain`](Self::drain).
#[derive(Debug)]
pub struct Waiters {
    locks: Locks,
    first: Guard,
    other: Guard,
    tasks: JoinSet<polylock::Result<()>>,
    /// The numbers of the waiters, in the order in which they were served.
    served: Arc<Mutex<Vec<usize>>>,
    /// The numbers of the waiters in the order of the queue, if the store has one.
    arrivals: Option<Vec<usize>>,
    /// The time until all were queued.
    pub queued_in: Duration,
}

/// The numbers of the drain.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Drained {
    /// The time from the release of the lock until the last waiter had released it, too.
    pub drained_in: Duration,
    /// The number of waiters that were served before one that had arrived earlier; `None` if the store has no order.
    pub inversions: Option<usize>,
    /// The times of pairs on a free lock of the same process meanwhile.
    pub pairs: Times,
    /// True if another lock of the process, with a TTL of 4 s (or the shortest of the store), was not lost.
    pub other_lock_held: bool,
    /// The remaining time of that lock at the end.
    pub other_lock_remaining: Duration,
}

impl Waiters {
    /// Lets `count` tasks wait for one lock.
    ///
    /// # Errors
    /// If an acquisition fails.
    ///
    /// # Cancel safety
    /// Dropping the future ends the waiters.
    pub async fn queue(locks: &Locks, count: usize) -> Result<Self> {
        let first = locks.lock(NAME).acquire().await?;
        let ttl = locks.capabilities().nearest_ttl(OTHER_TTL);
        let other = locks.lock("other").ttl(ttl).acquire().await?;
        let (began, served) = (now(), Arc::new(Mutex::new(Vec::with_capacity(count))));
        let mut tasks = JoinSet::new();
        for number in 0..count {
            let acquisition = locks.lock(NAME).label(number.to_string()).acquire();
            let served = served.clone();
            tasks.spawn(async move {
                let guard = acquisition.await?;
                polylock::core::sync::lock(&served).push(number);
                guard.release().await
            });
        }
        let mut waiters = Self {
            locks: locks.clone(),
            first,
            other,
            tasks,
            served,
            arrivals: None,
            queued_in: Duration::ZERO,
        };
        waiters.arrivals = waiters.until_queued(count, began).await?;
        waiters.queued_in = now().since(began);
        Ok(waiters)
    }

    /// Waits until all are queued. Returns them in the order of arrival at the store, if it has one: requests of one process may overtake each
    /// other on the way.
    async fn until_queued(&mut self, count: usize, began: Moment) -> Result<Option<Vec<usize>>> {
        let is_ordered = self.locks.capabilities().order == Order::Fifo;
        loop {
            if let Some(ended) = self.tasks.try_join_next() {
                let ended = ended.map_err(|error| Error::Child(format!("a task has ended: {error}")))?;
                ended?;
                return Err(Error::Violation("a waiter has been granted a lock that was held".to_owned()));
            }
            if !is_ordered && now().since(began) >= QUEUED_AFTER {
                return Ok(None);
            }
            if is_ordered {
                let waiters = self.locks.inspect(NAME).await?.waiters;
                if waiters.len() == count {
                    let numbers = waiters.iter().map(|waiter| waiter.label.parse().ok());
                    return Ok(numbers.collect());
                }
            }
            pause(INSPECT_EVERY).await;
        }
    }

    /// Measures pairs on a free lock for `lasts`, while all wait.
    ///
    /// # Errors
    /// If a pair fails.
    ///
    /// # Cancel safety
    /// Dropping the future ends the measurement; the waiters continue.
    pub async fn idle(&self, lasts: Duration) -> Result<Times> {
        pairs(&self.locks, lasts).await
    }

    /// Releases the lock, and waits until each waiter has acquired and released it.
    ///
    /// # Errors
    /// If an acquisition, a release or a pair fails.
    ///
    /// # Cancel safety
    /// Dropping the future ends the waiters.
    pub async fn drain(self) -> Result<Drained> {
        let (is_done, began) = (Arc::new(AtomicBool::new(false)), now());
        let mut beside = JoinSet::new();
        beside.spawn(pairs_until_done(self.locks.clone(), is_done.clone()));
        self.first.release().await?;
        finish(self.tasks).await?;
        let drained_in = now().since(began);
        is_done.store(true, Ordering::Relaxed);
        let pairs = finish(beside).await?.pop().unwrap_or_default();
        let (other_lock_held, other_lock_remaining) = (self.other.is_held(), self.other.remaining());
        // A lost lock was counted.
        self.other.release().await.ok();
        let served = polylock::core::sync::lock(&self.served).clone();
        let inversions = self.arrivals.map(|arrivals| inversions(&arrivals, &served));
        Ok(Drained { drained_in, inversions, pairs, other_lock_held, other_lock_remaining })
    }
}

/// Returns the number of waiters that were served right before one that had arrived earlier.
fn inversions(arrivals: &[usize], served: &[usize]) -> usize {
    let mut positions = vec![0; arrivals.len()];
    arrivals.iter().enumerate().for_each(|(position, number)| positions[*number] = position);
    served.windows(2).filter(|pair| positions[pair[0]] > positions[pair[1]]).count()
}

/// Measures pairs on a free lock, ten a second, for `lasts`: at least one.
///
/// # Errors
/// If a pair fails.
///
/// # Cancel safety
/// Dropping the future releases the lock.
pub async fn pairs(locks: &Locks, lasts: Duration) -> Result<Times> {
    let is_done = Arc::new(AtomicBool::new(false));
    let mut task = JoinSet::new();
    task.spawn(pairs_until_done(locks.clone(), is_done.clone()));
    pause(lasts).await;
    is_done.store(true, Ordering::Relaxed);
    Ok(finish(task).await?.pop().unwrap_or_default())
}

async fn pairs_until_done(locks: Locks, is_done: Arc<AtomicBool>) -> polylock::Result<Times> {
    let mut times = Times::new();
    loop {
        let began = now();
        pair(&locks, FREE).await?;
        times.record_since(began);
        pause(PAIR_EVERY).await;
        if is_done.load(Ordering::Relaxed) {
            return Ok(times);
        }
    }
}

#[cfg(test)]
mod tests {
    use polylock::core::memory;

    use super::*;

    #[test]
    fn inversions_of_known_orders() {
        assert_eq!(inversions(&[2, 0, 1], &[2, 0, 1]), 0);
        assert_eq!(inversions(&[2, 0, 1], &[0, 1, 2]), 1);
        assert_eq!(inversions(&[0, 1, 2, 3], &[3, 2, 1, 0]), 3);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn all_waiters_are_served_in_order() {
        let locks = Locks::new(memory::connect());
        let waiters = Waiters::queue(&locks, 50).await.unwrap();
        let idle = waiters.idle(Duration::from_millis(50)).await.unwrap();
        let drained = waiters.drain().await.unwrap();
        assert_eq!((drained.inversions, drained.other_lock_held), (Some(0), true));
        assert!(!idle.is_empty() && !drained.pairs.is_empty());
    }
}
