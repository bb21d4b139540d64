//! A ZooKeeper server, and an ensemble whose leader is killed.

use std::time::Duration;

use async_trait::async_trait;
use polylock_integration_tests::{
    servers::{PrivateServer, zookeeper},
    targets::{self, Namespace, path_of},
};
use polylock_testkit::Missing;
use tokio::task::block_in_place;

use super::Victim;
use crate::faults::outage::Outage;

/// A lease can't be longer than the session, which is the time limit of requests, too.
const LEASE: &str = "polylock.session_timeout";
const LIMITS: &[&str] = &["polylock.connect_timeout"];

struct Standalone(targets::Own);

pub(super) fn start() -> Result<Box<dyn Victim>, Missing> {
    Ok(Box::new(Standalone(targets::own("zookeeper")?)))
}

impl Victim for Standalone {
    fn namespace(&self) -> &Namespace {
        &self.0.namespace
    }

    fn servers(&self) -> Vec<&PrivateServer> {
        vec![&self.0.server]
    }

    fn lease_key(&self) -> &'static str {
        LEASE
    }

    fn limits(&self) -> &'static [&'static str] {
        LIMITS
    }

    fn slowest_attempt(&self, limit: Duration) -> Duration {
        2 * limit
    }

    fn opening_cause(&self, outage: &Outage) -> &'static str {
        opening_cause(outage)
    }

    fn cause(&self, _: &Outage) -> &'static str {
        "no reply within"
    }
}

struct Ensemble {
    namespace: Namespace,
    ensemble: zookeeper::Ensemble,
}

pub(super) fn start_ensemble() -> Result<Box<dyn Victim>, Missing> {
    let ensemble = zookeeper::ensemble(3, &[])?;
    Ok(Box::new(Ensemble { namespace: path_of(&ensemble)?, ensemble }))
}

#[async_trait]
impl Victim for Ensemble {
    fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn servers(&self) -> Vec<&PrivateServer> {
        self.ensemble.members().iter().collect()
    }

    async fn kill(&self) {
        block_in_place(|| self.ensemble.members()[self.ensemble.leader()].kill());
    }

    fn lease_key(&self) -> &'static str {
        LEASE
    }

    fn limits(&self) -> &'static [&'static str] {
        LIMITS
    }

    fn slowest_attempt(&self, limit: Duration) -> Duration {
        2 * limit
    }

    fn opening_cause(&self, outage: &Outage) -> &'static str {
        opening_cause(outage)
    }

    fn cause(&self, _: &Outage) -> &'static str {
        "no reply within"
    }
}

fn opening_cause(outage: &Outage) -> &'static str {
    match outage {
        Outage::Unreachable => "Connection refused",
        _ => "reachable, but opens no session",
    }
}
