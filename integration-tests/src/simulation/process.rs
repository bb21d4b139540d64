//! The surroundings of a simulated process: its clock, which has an offset and a rate of its own, and its random bits.

use std::{
    pin::Pin,
    sync::{Arc, Mutex},
};

use fastrand::Rng;
use polylock_core::{
    simulation::{Connecting, Environment},
    sync::lock,
};

use super::{
    plan::stream,
    servers::{Life, Servers},
    time::Time,
};

/// The clock of a process: nanoseconds since its machine was started.
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
}

/// The surroundings of one process.
#[derive(Debug)]
pub struct Surroundings {
    clock: LocalClock,
    random: Mutex<Rng>,
    servers: Arc<dyn Servers>,
    life: Life,
}

impl Surroundings {
    /// Returns those of a process in a life, on a machine with `clock`.
    #[must_use]
    pub fn new(clock: LocalClock, seed: u64, life: Life, servers: Arc<dyn Servers>) -> Self {
        let random = Mutex::new(stream(seed, &[2, life.0 as u64, life.1]));
        Self { clock, random, servers, life }
    }
}

impl Environment for Surroundings {
    fn nanos(&self) -> u64 {
        self.clock.now()
    }

    fn sleep_until(&self, nanos: u64) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(self.clock.time.sleep_until(self.clock.to_run(nanos)))
    }

    fn fill(&self, bytes: &mut [u8]) {
        lock(&self.random).fill(bytes);
    }

    fn connect(&self, address: &str) -> Connecting {
        self.servers.connect(self.life, address)
    }
}
