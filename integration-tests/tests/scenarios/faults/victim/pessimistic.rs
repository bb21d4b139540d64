//! Locks that end with their connections.

use polylock_integration_tests::{
    load::Outcome,
    servers::PrivateServer,
    targets::{self, Namespace, Own},
};
use polylock_testkit::Missing;

use super::{SQL_LIMITS, Victim};
use crate::{databases::pessimistic::tokens_grow, faults::outage::Outage};

struct Pessimistic(Own);

pub(super) fn start(target: &str) -> Result<Box<dyn Victim>, Missing> {
    Ok(Box::new(Pessimistic(targets::own(target)?)))
}

impl Victim for Pessimistic {
    fn namespace(&self) -> &Namespace {
        &self.0.namespace
    }

    fn servers(&self) -> Vec<&PrivateServer> {
        self.0.servers.all().iter().collect()
    }

    /// The server loses its sessions, and with them the locks, by design. Its tokens do not decrease.
    fn check_after_kills(&self, outcome: &Outcome) {
        tokens_grow(outcome);
    }

    /// A reset connection costs the lock at once.
    fn outages(&self) -> Vec<Outage> {
        Outage::of_networks().into_iter().filter(|outage| !matches!(outage, Outage::Unreachable)).collect()
    }

    fn limits(&self) -> &'static [&'static str] {
        SQL_LIMITS
    }

    fn cause(&self, _: &Outage) -> &'static str {
        "no reply within"
    }
}
