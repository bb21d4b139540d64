//! The time until a lock is free after its holder, a process, was killed.

use std::time::Duration;

use polylock::{Moment, core::Locks};
use tokio::task::JoinSet;

use crate::{
    Children, Error, Result,
    child::{HELD, Job},
    contended::finish,
    handover::until_queued,
    times::{now, pause},
};

/// The renewals in the length of a lease.
const RENEWALS: u32 = 3;

/// The times from a kill to the grant of a waiter.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Kills {
    /// The TTL of the locks.
    pub ttl: Duration,
    /// The times, in ascending order.
    pub times: Vec<Duration>,
}

impl Kills {
    fn new(ttl: Duration, mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self { ttl, times }
    }

    /// Returns the shortest time.
    #[must_use]
    pub fn min(&self) -> Duration {
        self.times.first().copied().unwrap_or_default()
    }

    /// Returns the median: the greater one of the two in the middle, if there are two.
    #[must_use]
    pub fn median(&self) -> Duration {
        self.times.get(self.times.len() / 2).copied().unwrap_or_default()
    }

    /// Returns the longest time.
    #[must_use]
    pub fn max(&self) -> Duration {
        self.times.last().copied().unwrap_or_default()
    }
}

/// Lets `count` processes hold a lock each, with this TTL (and with this timeout of their sessions, if they have any), kills them with
/// SIGKILL, and measures the time until a waiter in this process has the lock. The kills are spread over the time between two renewals, because the lease that remains depends on it.
///
/// # Errors
/// If an acquisition or a process fails, or a waiter has a lock before its holder was killed.
///
/// # Cancel safety
/// Dropping the future kills the processes, and ends the waiters.
pub async fn measure(
    locks: &Locks,
    children: &Children,
    namespace: &str,
    count: u32,
    ttl: Duration,
    session: Option<Duration>,
) -> Result<Kills> {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let name = |number: u32| format!("killed-{number}");
    let job = |number: u32| Job::Hold {
        namespace: namespace.to_owned(),
        name: name(number),
        ttl_ms: millis(ttl),
        session_ms: session.map(millis),
    };
    let mut holders = children.start_all(&(0..count).map(job).collect::<Vec<_>>()).await?;
    for holder in &mut holders {
        holder.expect(HELD).await?;
    }
    let mut waiting = JoinSet::new();
    for number in 0..count {
        let acquisition = locks.lock(name(number)).acquire();
        waiting.spawn(async move {
            let guard = acquisition.await?;
            let granted = now();
            guard.release().await?;
            Ok::<_, polylock::Error>((number, granted))
        });
    }
    for number in 0..count {
        until_queued(locks, &name(number)).await;
    }
    let mut killed = Vec::new();
    for holder in &mut holders {
        killed.push(now());
        holder.0.kill();
        pause(ttl / RENEWALS / count.max(1)).await;
    }
    // An early grant is a violation, so it must not be rounded to zero.
    let granted = finish(waiting).await?;
    let times = times(&killed, &granted)?;
    Ok(Kills::new(ttl, times))
}

/// Returns the time from each kill to its grant.
fn times(killed: &[Moment], granted: &[(u32, Moment)]) -> Result<Vec<Duration>> {
    let time = |(number, granted): &(u32, Moment)| {
        let killed = killed[*number as usize];
        if *granted < killed {
            let early = killed.since(*granted);
            return Err(Error::Violation(format!(
                "a lock was granted {early:?} before its holder was killed"
            )));
        }
        Ok(granted.since(killed))
    };
    granted.iter().map(time).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(millis: u64) -> Moment {
        Moment::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn each_grant_is_compared_with_the_kill_of_its_own_holder() {
        // In the order of the grants, which is not that of the kills.
        let times = times(&[at(0), at(100), at(200)], &[(2, at(1_200)), (0, at(1_500)), (1, at(1_800))]);
        let kills = Kills::new(Duration::from_secs(2), times.unwrap());
        let millis = [kills.min(), kills.median(), kills.max()].map(|time| time.as_millis());
        assert_eq!(millis, [1_000, 1_500, 1_700]);
    }

    #[test]
    fn a_grant_before_the_kill_is_a_violation() {
        let early = times(&[at(100)], &[(0, at(99))]);
        assert!(matches!(early, Err(Error::Violation(_))), "{early:?}");
    }

    #[test]
    fn the_median_of_two() {
        let kills = Kills::new(Duration::from_secs(2), vec![Duration::from_secs(2), Duration::from_secs(1)]);
        assert_eq!((kills.min().as_secs(), kills.median().as_secs(), kills.max().as_secs()), (1, 2, 2));
        assert_eq!(Kills::new(kills.ttl, Vec::new()).max(), Duration::ZERO);
    }
}
