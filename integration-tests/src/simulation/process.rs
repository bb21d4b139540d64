//! The surroundings of a simulated process: its clock, its random bits and its connections.

use std::{
    pin::Pin,
    sync::{Arc, Mutex},
};

use fastrand::Rng;
use polylock_core::{
    simulation::{Bug, Connecting, Environment},
    sync::lock,
};

use super::{
    clock::LocalClock,
    plan::{Plan, Planted, stream},
    servers::{Life, Servers},
};

/// The surroundings of one process.
#[derive(Debug)]
pub struct Surroundings {
    clock: LocalClock,
    random: Mutex<Rng>,
    servers: Arc<dyn Servers>,
    life: Life,
    bug: Option<Bug>,
}

impl Surroundings {
    /// Returns the surroundings of a process of `plan` in a life, on a machine with `clock`.
    #[must_use]
    pub fn new(clock: LocalClock, plan: &Plan, life: Life, servers: Arc<dyn Servers>) -> Self {
        let random = Mutex::new(stream(plan.seed, &[2, life.0 as u64, life.1]));
        Self { clock, random, servers, life, bug: plan.planted.and_then(Planted::bug) }
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

    fn bug(&self) -> Option<Bug> {
        self.bug
    }
}
