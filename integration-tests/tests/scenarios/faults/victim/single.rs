//! Stores with one server that keeps its locks when it is killed.

use std::time::Duration;

use polylock_integration_tests::{
    servers::PrivateServer,
    targets::{self, Namespace, Own},
};
use polylock_testkit::Missing;

use super::{LIMITS, SQL_LIMITS, Victim};
use crate::faults::outage::Outage;

struct Single {
    own: Own,
    limits: &'static [&'static str],
}

pub(super) fn start(target: &str) -> Result<Box<dyn Victim>, Missing> {
    let limits = if target == "redis" { LIMITS } else { SQL_LIMITS };
    Ok(Box::new(Single { own: targets::own(target)?, limits }))
}

impl Victim for Single {
    fn namespace(&self) -> &Namespace {
        &self.own.namespace
    }

    fn servers(&self) -> Vec<&PrivateServer> {
        self.own.servers.all().iter().collect()
    }

    fn keeps_queue(&self) -> bool {
        !self.own.namespace.url().starts_with("postgres:")
    }

    fn limits(&self) -> &'static [&'static str] {
        self.limits
    }

    fn slowest_attempt(&self, limit: Duration) -> Duration {
        // A command, and then a new connection, if each has a limit.
        limit * u32::try_from(self.limits.len()).unwrap()
    }

    fn cause(&self, outage: &Outage) -> &'static str {
        match outage {
            Outage::Unreachable => "can't be reached",
            _ => "no reply within",
        }
    }
}
