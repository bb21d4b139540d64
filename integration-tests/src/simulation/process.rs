//! The surroundings of a simulated process: its clock, its random bits and its connections.

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
    clock::LocalClock,
    plan::stream,
    servers::{Life, Servers},
};

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
        self.clock.sleep_until(nanos)
    }

    fn fill(&self, bytes: &mut [u8]) {
        lock(&self.random).fill(bytes);
    }

    fn connect(&self, address: &str) -> Connecting {
        self.servers.connect(self.life, address)
    }
}
