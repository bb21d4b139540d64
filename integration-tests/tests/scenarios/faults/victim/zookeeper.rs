//! A standalone ZooKeeper server, and an ensemble that loses its leader.

use std::time::Duration;

use async_trait::async_trait;
use polylock_integration_tests::{
    servers::{
        PrivateServer,
        zookeeper::{self, Ensemble},
    },
    targets::{self, Namespace, Own, path_of},
};
use polylock_testkit::Missing;
use tokio::task::block_in_place;

use super::Victim;
use crate::faults::outage::Outage;

/// A lease can't be longer than the session, which is the time limit of requests, too.
const LEASE: &str = "polylock.session_timeout";
const LIMITS: &[&str] = &["polylock.connect_timeout"];

struct ZooKeeper {
    namespace: Namespace,
    servers: Servers,
}

enum Servers {
    Standalone(PrivateServer),
    Ensemble(Ensemble),
}

pub(super) fn start() -> Result<Box<dyn Victim>, Missing> {
    let Own { namespace, server } = targets::own("zookeeper")?;
    Ok(Box::new(ZooKeeper { namespace, servers: Servers::Standalone(server) }))
}

pub(super) fn start_ensemble() -> Result<Box<dyn Victim>, Missing> {
    let ensemble = zookeeper::ensemble(3, &[])?;
    Ok(Box::new(ZooKeeper { namespace: path_of(&ensemble)?, servers: Servers::Ensemble(ensemble) }))
}

#[async_trait]
impl Victim for ZooKeeper {
    fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn servers(&self) -> Vec<&PrivateServer> {
        match &self.servers {
            Servers::Standalone(server) => vec![server],
            Servers::Ensemble(ensemble) => ensemble.members().iter().collect(),
        }
    }

    async fn kill(&self) {
        block_in_place(|| match &self.servers {
            Servers::Standalone(server) => server.kill(),
            Servers::Ensemble(ensemble) => ensemble.members()[ensemble.leader()].kill(),
        });
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
        match outage {
            Outage::Unreachable => "Connection refused",
            _ => "reachable, but opens no session",
        }
    }

    fn cause(&self, _: &Outage) -> &'static str {
        "no reply within"
    }
}
