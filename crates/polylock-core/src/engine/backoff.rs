//! The delays between retries: exponential with jitter.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

/// Delays that double from `MIN` to a maximum, each with up to as much again at random.
#[derive(Debug)]
pub(crate) struct Backoff {
    max: Duration,
    delays: ExponentialBackoff,
}

const MIN: Duration = Duration::from_millis(10);

impl Backoff {
    /// Creates delays of at most `max`, before the jitter.
    pub(crate) fn up_to(max: Duration) -> Self {
        let max = max.max(MIN);
        let delays = ExponentialBuilder::new()
            .with_jitter()
            .with_factor(2.0)
            .with_min_delay(MIN)
            .with_max_delay(max)
            .without_max_times();
        Self { max, delays: delays.build() }
    }

    /// Returns the next delay.
    pub(crate) fn next(&mut self) -> Duration {
        self.delays.next().unwrap_or(self.max)
    }

    /// Starts again with the shortest delay, after a success.
    pub(crate) fn reset(&mut self) {
        *self = Self::up_to(self.max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_its_maximum_and_never_ends() {
        let mut backoff = Backoff::up_to(Duration::from_secs(1));
        let delays: Vec<Duration> = (0..100).map(|_| backoff.next()).collect();
        assert!(delays[0] < 2 * MIN + MIN);
        assert!(delays[20..].iter().all(|delay| (1..=2).contains(&delay.as_secs())), "{delays:?}");
        backoff.reset();
        assert!(backoff.next() < Duration::from_millis(50));
    }
}
