//! As many locks as tasks, in one process: the capacity of its pool, connection or session.

use std::time::Duration;

use polylock::core::Locks;
use tokio::task::JoinSet;

use crate::{
    Error, RawClient, Result, Times,
    raw::owner,
    times::{now, per},
    uncontended::pair,
};

/// The slices at the start that do not count: tables and directories still grow.
const WARM_UP: u32 = 2;

/// The times of pairs, and their number per second.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Throughput {
    /// The times of pairs.
    pub times: Times,
    /// The time in which they were measured.
    pub elapsed: Duration,
}

impl Throughput {
    /// Returns the pairs per second, of all tasks together.
    #[must_use]
    pub fn rate(&self) -> f64 {
        per(self.times.count(), self.elapsed.as_secs_f64())
    }
}

/// Lets `tasks` tasks acquire and release locks of their own, in slices of `slice` that alternate with those of the raw client, if there is
/// one that tasks can share. Returns the throughput of polylock and of the raw client.
///
/// # Errors
/// If the store or the driver fails.
///
/// # Cancel safety
/// Dropping the future ends the tasks, and releases their locks.
pub async fn measure(
    locks: &Locks,
    raw: Option<&dyn RawClient>,
    tasks: usize,
    slices: u32,
    slice: Duration,
) -> Result<[Throughput; 2]> {
    let can_share = raw.is_some_and(|raw| raw.share().is_some());
    let mut measured = [Throughput::default(), Throughput::default()];
    // Each is the first one equally often.
    for (number, side) in (0..slices + WARM_UP).zip([0, 1, 1, 0].into_iter().cycle()) {
        if side == 1 && !can_share {
            continue;
        }
        let began = now();
        let mut running = JoinSet::new();
        for task in 0..tasks {
            let raw = if side == 1 { raw.and_then(RawClient::share) } else { None };
            running.spawn(run(locks.clone(), raw, format!("own-{task}"), began + slice));
        }
        let mut times = Times::new();
        while let Some(done) = running.join_next().await {
            let done = done.map_err(|error| Error::Child(format!("a task has ended: {error}")))?;
            times.add(&done?);
        }
        if number >= WARM_UP {
            measured[side].times.add(&times);
            measured[side].elapsed += now().since(began);
        }
    }
    Ok(measured)
}

async fn run(
    locks: Locks,
    mut raw: Option<Box<dyn RawClient>>,
    name: String,
    until: polylock::Moment,
) -> Result<Times> {
    let mut times = Times::new();
    while now() < until {
        let began = now();
        match &mut raw {
            Some(raw) => raw.pair(&name, owner(began)).await?,
            None => pair(&locks, &name).await?,
        }
        times.record_since(began);
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use polylock::core::memory;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn the_rate_is_that_of_the_counted_slices() {
        let locks = Locks::new(memory::connect());
        let slice = Duration::from_millis(40);
        let [polylock, raw] = measure(&locks, None, 4, 4, slice).await.unwrap();
        // Of six slices, those of the raw client are left out, and the first two do not count.
        assert!(polylock.elapsed >= 2 * slice && polylock.elapsed < 100 * slice, "{:?}", polylock.elapsed);
        assert!(polylock.rate() > 100.0 && raw.times.is_empty(), "{}", polylock.rate());
        let known = Throughput { elapsed: Duration::from_secs(2), ..polylock };
        assert_eq!(known.rate(), per(known.times.count(), 2.0));
    }
}
