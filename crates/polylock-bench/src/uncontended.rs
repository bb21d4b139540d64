//! One task acquires and releases a lock that no other task uses, in turns with the raw driver.

use polylock::{Moment, core::Locks};

use crate::{RawClient, Result, Times, raw::owner, times::now};

/// The pairs of a batch. Batches alternate, so that other load of the machine affects all alike.
const BATCH: u32 = 20;
/// The batches at the start that do not count: statements are prepared and files grow.
const WARM_UP: usize = 5;
const NAME: &str = "uncontended";

/// The end of a measurement.
#[derive(Debug, Clone, Copy)]
pub enum Until {
    /// After so many rounds, each of one batch of polylock and of each raw client.
    Rounds(usize),
    /// At this time.
    Time(Moment),
}

impl Until {
    fn is_reached(self, round: usize) -> bool {
        match self {
            Self::Rounds(rounds) => round >= rounds,
            // At least two rounds count.
            Self::Time(end) => round >= WARM_UP + 2 && now() >= end,
        }
    }
}

/// Returns the times of pairs: those of polylock, and then those of each raw client. A client that is `None` has no times.
///
/// # Errors
/// If the store or a driver fails.
///
/// # Cancel safety
/// Dropping the future releases the lock.
pub async fn measure(
    locks: &Locks,
    raw: &mut [Option<Box<dyn RawClient>>],
    until: Until,
) -> Result<Vec<Times>> {
    let sides = raw.len() + 1;
    let mut times = vec![Times::new(); sides];
    let mut round = 0;
    while !until.is_reached(round) {
        for turn in 0..sides {
            // Each is the first one equally often.
            let side = (turn + round) % sides;
            let mut client = match side.checked_sub(1).map(|at| &mut raw[at]) {
                Some(Some(client)) => Some(client),
                Some(None) => continue,
                None => None,
            };
            for _ in 0..BATCH {
                let began = now();
                match &mut client {
                    Some(client) => client.pair(NAME, owner(began)).await?,
                    None => pair(locks, NAME).await?,
                }
                if round >= WARM_UP {
                    times[side].record_since(began);
                }
            }
        }
        round += 1;
    }
    Ok(times)
}

/// Acquires and releases a lock.
pub(crate) async fn pair(locks: &Locks, name: &str) -> polylock::Result<()> {
    locks.lock(name).acquire().await?.release().await
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use async_trait::async_trait;
    use polylock::core::memory;

    use super::*;
    use crate::times::pause;

    /// A driver that needs this time for a pair.
    struct Slow(Arc<Duration>);

    #[async_trait]
    impl RawClient for Slow {
        fn description(&self) -> &'static str {
            "a pause"
        }

        async fn pair(&mut self, _: &str, _: [u8; 16]) -> Result<()> {
            pause(*self.0).await;
            Ok(())
        }

        fn share(&self) -> Option<Box<dyn RawClient>> {
            Some(Box::new(Self(self.0.clone())))
        }
    }

    #[tokio::test]
    async fn each_side_has_its_own_times_and_the_first_batches_do_not_count() {
        let locks = Locks::new(memory::connect());
        let slow: Box<dyn RawClient> = Box::new(Slow(Arc::new(Duration::from_millis(2))));
        let rounds = WARM_UP + 3;
        let times = measure(&locks, &mut [None, Some(slow)], Until::Rounds(rounds)).await.unwrap();
        let counts: Vec<u64> = times.iter().map(Times::count).collect();
        assert_eq!(counts, [60, 0, 60]);
        assert!(times[2].min() >= Duration::from_millis(2), "{:?}", times[2].min());
        assert!(times[0].p50() < times[2].min(), "{:?}", times[0].p50());
    }
}
