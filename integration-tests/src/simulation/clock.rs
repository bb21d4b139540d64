//! The clocks of simulated machines, each with an offset and a rate of its own.

use std::{pin::Pin, sync::Arc};

use fastrand::Rng;

use super::time::Time;

/// The monotonic clock of a machine: nanoseconds since its start.
#[derive(Debug, Clone)]
pub struct LocalClock {
    time: Arc<Time>,
    offset: u64,
    /// The deviation of its rate, in millionths.
    ppm: i64,
}

/// The parts of a second, for [`LocalClock::ppm`].
const MILLION: i128 = 1_000_000;

/// The greatest deviation of a clock, so that two clocks differ by less than what `ServerClock` allows for.
const MAX_PPM: i64 = 400;

impl LocalClock {
    /// Draws the clock of a machine.
    pub fn draw(time: Arc<Time>, random: &mut Rng) -> Self {
        Self::draw_within(time, random, 1_000_000_000_000_000)
    }

    /// Draws the clock of a machine that shows less than `offset` at the begin of the run.
    pub fn draw_within(time: Arc<Time>, random: &mut Rng, offset: u64) -> Self {
        Self { time, offset: random.u64(..offset), ppm: random.i64(-MAX_PPM..=MAX_PPM) }
    }

    /// Returns the time that this clock shows.
    #[must_use]
    pub fn now(&self) -> u64 {
        let now = i128::from(self.time.now());
        let shown = i128::from(self.offset) + now + now * i128::from(self.ppm) / MILLION;
        u64::try_from(shown).unwrap_or(u64::MAX)
    }

    /// Returns the time of the run at which this clock shows `shown`.
    #[must_use]
    pub fn to_run(&self, shown: u64) -> u64 {
        let since = i128::from(shown) - i128::from(self.offset);
        let rate = MILLION + i128::from(self.ppm);
        // Rounded up, so that a sleep never ends early.
        u64::try_from(((since * MILLION).max(0) + rate - 1) / rate + 1).unwrap_or(u64::MAX)
    }

    /// Completes when this clock shows `shown`.
    pub fn sleep_until(&self, shown: u64) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(self.time.sleep_until(self.to_run(shown)))
    }
}

/// The wall clock of a server: microseconds since 1970.
#[derive(Debug, Clone)]
pub struct WallClock(LocalClock);

/// The time on the wall clocks at the begin of a run, in microseconds since 1970.
const EPOCH_US: i64 = 1_700_000_000_000_000;

impl WallClock {
    /// Returns the clock of a server that shows the time of the run.
    #[must_use]
    pub const fn exact(time: Arc<Time>) -> Self {
        Self(LocalClock { time, offset: 0, ppm: 0 })
    }

    /// Returns the wall clock of the machine with this monotonic one.
    #[must_use]
    pub const fn of_machine(clock: LocalClock) -> Self {
        Self(clock)
    }

    /// Draws the clock of a server that is ahead by less than `offset` at the begin of the run.
    pub fn draw_within(time: Arc<Time>, random: &mut Rng, offset: u64) -> Self {
        Self(LocalClock::draw_within(time, random, offset))
    }

    /// Returns the time that this clock shows.
    #[must_use]
    pub fn now_us(&self) -> i64 {
        EPOCH_US + (self.0.now() / 1000).cast_signed()
    }

    /// Returns the time of the run at which this clock shows `us`.
    #[must_use]
    pub fn to_run(&self, us: i64) -> u64 {
        self.0.to_run((us - EPOCH_US).max(0).cast_unsigned() * 1000)
    }
}
