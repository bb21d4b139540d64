//! Distributions of times.

use std::time::Duration;

use hdrhistogram::Histogram;
use polylock::{Clock, Moment, SystemClock};

/// A distribution of times up to ten minutes, with three significant digits.
#[derive(Debug, Clone)]
pub struct Times(Histogram<u64>);

impl Default for Times {
    fn default() -> Self {
        Self::new()
    }
}

impl Times {
    /// The longest time that is distinguished from longer ones.
    const LONGEST: Duration = Duration::from_secs(600);

    /// Creates an empty distribution.
    ///
    /// # Panics
    /// Never: the bounds are in order.
    #[must_use]
    pub fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, nanos(Self::LONGEST), 3);
        Self(histogram.unwrap_or_else(|error| panic!("fixed bounds: {error}")))
    }

    /// Adds a time.
    pub fn record(&mut self, time: Duration) {
        self.0.saturating_record(nanos(time));
    }

    /// Adds the time since `began`.
    pub fn record_since(&mut self, began: Moment) {
        self.record(now().since(began));
    }

    /// Adds all times of `other`.
    pub fn add(&mut self, other: &Self) {
        // Both have the same bounds, so none is out of range.
        self.0.add(&other.0).ok();
    }

    /// Returns the number of times.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Returns true if there is no time.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the quantile `share`: 0.5 is the median, 1.0 the longest time.
    #[must_use]
    pub fn at(&self, share: f64) -> Duration {
        Duration::from_nanos(self.0.value_at_quantile(share))
    }

    /// Returns the shortest time.
    #[must_use]
    pub fn min(&self) -> Duration {
        Duration::from_nanos(self.0.min())
    }

    /// Returns the median.
    #[must_use]
    pub fn p50(&self) -> Duration {
        self.at(0.5)
    }

    /// Returns the time that one of a hundred exceeds.
    #[must_use]
    pub fn p99(&self) -> Duration {
        self.at(0.99)
    }

    /// Returns the longest time.
    #[must_use]
    pub fn max(&self) -> Duration {
        self.at(1.0)
    }

    /// Returns the median as a multiple of the median of `floor`.
    #[must_use]
    pub fn ratio_to(&self, floor: &Self) -> Option<f64> {
        let is_measured = !self.is_empty() && !floor.is_empty();
        is_measured.then(|| self.p50().as_secs_f64() / floor.p50().as_secs_f64().max(f64::EPSILON))
    }

    /// Returns the cumulative distribution: times, each with the share of all times that are not longer.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a share for people")]
    pub fn cumulative(&self) -> Vec<(Duration, f64)> {
        let all = self.count().max(1) as f64;
        let mut so_far = 0;
        let recorded = self.0.iter_recorded();
        let steps = recorded.map(|step| {
            so_far += step.count_since_last_iteration();
            (Duration::from_nanos(step.value_iterated_to()), so_far as f64 / all)
        });
        steps.collect()
    }
}

impl FromIterator<Duration> for Times {
    fn from_iter<I: IntoIterator<Item = Duration>>(times: I) -> Self {
        let mut all = Self::new();
        times.into_iter().for_each(|time| all.record(time));
        all
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the time of the machine's clock, which all its processes share.
pub(crate) fn now() -> Moment {
    SystemClock.now()
}

/// Waits for this time.
pub(crate) async fn pause(time: Duration) {
    SystemClock.sleep_until(now() + time).await;
}

/// Returns a count in a number of seconds, or of anything else.
#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
pub(crate) fn per(count: u64, of: f64) -> f64 {
    count as f64 / of.max(f64::EPSILON)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    /// Rounds to the precision of a distribution.
    fn rounded(time: Duration) -> f64 {
        (time.as_secs_f64() * 1e3).round() / 1e3
    }

    #[test]
    fn the_quantiles_of_known_times() {
        let times: Times = (1..=200).map(ms).collect();
        assert_eq!(times.count(), 200);
        assert_eq!((rounded(times.p50()), rounded(times.p99()), rounded(times.max())), (0.1, 0.198, 0.2));
        assert_eq!(rounded(times.min()), 0.001);
        let half: Times = (1..=200).map(|time| ms(time) / 2).collect();
        let ratio = |of: &Times, to: &Times| of.ratio_to(to).map(|ratio| (ratio * 100.0).round() / 100.0);
        assert_eq!((ratio(&times, &half), ratio(&half, &times)), (Some(2.0), Some(0.5)));
        assert_eq!(times.ratio_to(&Times::new()), None);
    }

    #[test]
    fn a_longer_time_than_the_longest_counts_as_the_longest() {
        let mut times = Times::new();
        times.record(Duration::from_secs(10_000));
        assert_eq!((times.count(), times.max().as_secs()), (1, 600));
    }

    #[test]
    fn the_cumulative_distribution_ends_with_all_times() {
        let mut times: Times = [ms(3), ms(1)].into_iter().collect();
        times.add(&[ms(1), ms(2)].into_iter().collect());
        let steps: Vec<(f64, f64)> =
            times.cumulative().into_iter().map(|(time, share)| (rounded(time), share)).collect();
        assert_eq!(steps, [(0.001, 0.5), (0.002, 0.75), (0.003, 1.0)]);
        assert_eq!(Times::new().cumulative(), []);
    }
}
