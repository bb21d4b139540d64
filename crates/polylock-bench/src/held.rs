//! Locks that one process holds.

use std::{fmt, fs, time::Duration};

use futures_util::{StreamExt, TryStreamExt, stream};
use polylock::{Guard, core::Locks};

use crate::{
    Result,
    times::{now, pause},
    uncontended::pair,
};

/// The acquisitions and releases that run at the same time.
const AT_ONCE: usize = 64;
/// The longest interval at which the remaining time of all locks is read: that costs more than keeping them if it is done often.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Locks that are held until [`release`](Self::release).
#[derive(Debug)]
pub struct Held {
    guards: Vec<Guard>,
    ttl: Duration,
    /// The time in which they were acquired.
    pub acquired_in: Duration,
    /// The memory of this process for each, in bytes; `None` if it did not grow, or the system does not show it (`/proc`).
    pub bytes_each: Option<u64>,
}

/// The numbers of a time in which the locks were held.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Watched {
    /// The number of locks that were lost.
    pub lost: usize,
    /// The shortest remaining time of any lock.
    pub least_remaining: Duration,
}

/// The numbers of the releases.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Released {
    /// The time in which the locks were released.
    pub released_in: Duration,
    /// The number of releases that failed.
    pub failed: usize,
}

impl Held {
    /// Acquires `count` locks with this TTL.
    ///
    /// # Errors
    /// If an acquisition fails.
    ///
    /// # Cancel safety
    /// Dropping the future releases the locks in the background.
    pub async fn acquire(locks: &Locks, count: usize, ttl: Duration) -> Result<Self> {
        // Opens the connections.
        pair(locks, "held-0").await?;
        let (memory, began) = (resident_bytes("self"), now());
        let guards =
            stream::iter(0..count).map(|number| locks.lock(format!("held-{number}")).ttl(ttl).acquire());
        let guards: Vec<Guard> = guards.buffer_unordered(AT_ONCE).try_collect().await?;
        let acquired_in = now().since(began);
        let bytes = memory.zip(resident_bytes("self")).map(|(before, after)| after.saturating_sub(before));
        // Without growth, the locks use memory that the process had freed before.
        let bytes_each = bytes.map(|bytes| bytes / (count.max(1) as u64)).filter(|bytes| *bytes > 0);
        Ok(Self { guards, ttl, acquired_in, bytes_each })
    }

    /// Holds the locks for `lasts`.
    ///
    /// # Cancel safety
    /// Dropping the future ends the measurement; the locks are still held.
    pub async fn watch(&self, lasts: Duration) -> Watched {
        let (until, mut least_remaining) = (now() + lasts, self.ttl);
        while now() < until {
            pause(LOOK_EVERY.min(lasts / 5)).await;
            let held = self.guards.iter().filter(|guard| guard.is_held());
            least_remaining = least_remaining.min(held.map(Guard::remaining).min().unwrap_or_default());
        }
        Watched { lost: self.guards.iter().filter(|guard| !guard.is_held()).count(), least_remaining }
    }

    /// Releases the locks.
    ///
    /// # Cancel safety
    /// Dropping the future releases the rest in the background.
    pub async fn release(self) -> Released {
        let began = now();
        let releases = stream::iter(self.guards).map(Guard::release).buffer_unordered(AT_ONCE);
        let failed = releases.filter(|released| std::future::ready(released.is_err())).count().await;
        Released { released_in: now().since(began), failed }
    }
}

/// Returns the memory that a process has, by its number or `self`; `None` if the system does not show it (`/proc`).
pub fn resident_bytes(process: impl fmt::Display) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(1024 * line.trim().trim_end_matches(" kB").parse::<u64>().ok()?)
}

/// Returns the processor time that all threads of this process have used; `None` if the system does not show it (`/proc`).
#[must_use]
pub fn own_cpu() -> Option<Duration> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
    // Linux counts in hundredths of a second for programs, whatever its own ticks are.
    Some(Duration::from_millis(10 * (ticks(11)? + ticks(12)?)))
}

#[cfg(test)]
mod tests {
    use polylock::core::memory;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn lost_locks_are_counted() {
        let locks = Locks::new(memory::connect());
        let ttl = Duration::from_secs(5);
        let held = Held::acquire(&locks, 20, ttl).await.unwrap();
        locks.break_lock("held-3").force().await.unwrap();
        locks.break_lock("held-4").force().await.unwrap();
        let lost = async {
            while held.guards.iter().filter(|guard| !guard.is_held()).count() < 2 {
                pause(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), lost).await.expect("the renewal detects the loss");
        let watched = held.watch(Duration::from_millis(20)).await;
        assert_eq!(watched.lost, 2);
        assert!(watched.least_remaining > Duration::ZERO && watched.least_remaining < ttl);
        assert_eq!(held.release().await.failed, 2);
    }
}
