//! A standalone ZooKeeper server, and an ensemble that loses its leader.

use std::time::Duration;

use async_trait::async_trait;
use polylock_integration_tests::{
    servers::PrivateServer,
    targets::{self, Namespace, Own, Servers},
};
use polylock_testkit::Missing;
use tokio::task::block_in_place;

use super::Victim;
use crate::faults::outage::Outage;

const LIMITS: &[&str] = &["polylock.connect_timeout"];

struct ZooKeeper(Own);

pub(super) fn start(target: &str) -> Result<Box<dyn Victim>, Missing> {
    Ok(Box::new(ZooKeeper(targets::own(target)?)))
}

#[async_trait]
impl Victim for ZooKeeper {
    fn namespace(&self) -> &Namespace {
        &self.0.namespace
    }

    fn servers(&self) -> Vec<&PrivateServer> {
        self.0.servers.all().iter().collect()
    }

    async fn kill(&self) {
        block_in_place(|| match &self.0.servers {
            Servers::Ensemble(ensemble) => ensemble.members()[ensemble.leader()].kill(),
            servers => servers.all()[0].kill(),
        });
    }

    fn limits(&self) -> &'static [&'static str] {
        LIMITS
    }

    fn slowest_attempt(&self, limit: Duration) -> Duration {
        2 * limit
    }

    fn opening_cause(&self, outage: &Outage) -> &'static str {
        match outage {
            Outage::Unreachable => "Connection refused",
            _ => "reachable, but opens no session",
        }
    }

    fn cause(&self, _: &Outage) -> &'static str {
        "no reply within"
    }

    fn states_cause(&self, text: &str, outage: &Outage) -> bool {
        // The driver has the same limit, and may notice the silence first.
        text.contains(self.cause(outage)) || text.contains("no response from connection in")
    }
}
