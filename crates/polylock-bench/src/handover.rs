//! The time from the call of a release to the grant of a waiter.

use std::time::Duration;

use polylock::{Moment, core::Locks};

use crate::{
    Children, Error, Result, Times,
    child::{Child, Job},
    times::{now, pause},
};

/// The lock.
const NAME: &str = "handed-over";
/// The time after which a waiter counts as queued, if the store does not show it.
const QUEUED_AFTER: Duration = Duration::from_millis(300);
/// The interval at which the store is inspected meanwhile.
const INSPECT_EVERY: Duration = Duration::from_millis(2);
/// The smallest number of hand-overs.
const FEWEST: u64 = 3;

/// Hands a lock over to another task of this process, until `until` and for `most` times at most, but at least a few times.
///
/// # Errors
/// If an acquisition or a release fails.
///
/// # Cancel safety
/// Dropping the future releases the lock.
pub async fn within_process(locks: &Locks, until: Moment, most: u64) -> Result<Times> {
    let mut times = Times::new();
    while !is_over(&times, until, most) {
        let guard = locks.lock(NAME).acquire().await?;
        let waiter = locks.lock(NAME);
        let mut waiting = tokio::task::JoinSet::new();
        waiting.spawn(async move {
            let guard = waiter.acquire().await?;
            let granted = now();
            guard.release().await?;
            Ok::<_, polylock::Error>(granted)
        });
        until_queued(locks, NAME).await;
        let released = now();
        guard.release().await?;
        let granted = crate::contended::finish(waiting).await?;
        times.record(granted[0].since(released));
    }
    Ok(times)
}

/// Hands a lock over to another process in the same way.
///
/// # Errors
/// If an acquisition or a release fails, or the process.
///
/// # Cancel safety
/// Dropping the future releases the lock, and kills the process.
pub async fn across_processes(
    locks: &Locks,
    children: &Children,
    namespace: &str,
    until: Moment,
    most: u64,
) -> Result<Times> {
    let job = Job::Wait { namespace: namespace.to_owned(), name: NAME.to_owned() };
    let mut child = children.start(&job).await?;
    // The first one opens connections there.
    let mut times = Times::new();
    hand_over(locks, &mut child).await?;
    while !is_over(&times, until, most) {
        times.record(hand_over(locks, &mut child).await?);
    }
    Ok(times)
}

async fn hand_over(locks: &Locks, child: &mut Child) -> Result<Duration> {
    let guard = locks.lock(NAME).acquire().await?;
    child.0.send("");
    until_queued(locks, NAME).await;
    let released = now();
    guard.release().await?;
    let line = child.next_line().await?;
    let granted =
        line.parse().map_err(|_| Error::Child(format!("it has replied {line:?} instead of a time")))?;
    Ok(Moment::from_nanos(granted).since(released))
}

fn is_over(times: &Times, until: Moment, most: u64) -> bool {
    times.count() >= most || (times.count() >= FEWEST && now() >= until)
}

/// Waits until a request waits for the lock, as far as the store shows waiters.
pub(crate) async fn until_queued(locks: &Locks, name: &str) {
    let until = now() + QUEUED_AFTER;
    while now() < until {
        if locks.inspect(name).await.is_ok_and(|status| !status.waiters.is_empty()) {
            return;
        }
        pause(INSPECT_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use polylock::core::memory;

    use super::*;

    #[tokio::test]
    async fn each_hand_over_is_measured_until_one_limit_is_reached() {
        let locks = Locks::new(memory::connect());
        let times = within_process(&locks, now() + Duration::from_secs(60), 7).await.unwrap();
        assert_eq!(times.count(), 7);
        let times = within_process(&locks, now(), 7).await.unwrap();
        assert_eq!(times.count(), FEWEST);
        // A busy machine may delay one of them.
        assert!(times.p50() < QUEUED_AFTER, "the wait before the release does not count: {:?}", times.p50());
    }
}
