//! Three or five durable nodes, of which one at a time may be killed.

use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use async_trait::async_trait;
use polylock_integration_tests::{
    servers::PrivateServer,
    targets::{self, Namespace, Own},
};
use polylock_testkit::Missing;
use tokio::task::block_in_place;

use super::Victim;
use crate::faults::outage::Outage;

struct Nodes {
    own: Own,
    killed: AtomicUsize,
}

pub(super) fn start(target: &str) -> Result<Box<dyn Victim>, Missing> {
    Ok(Box::new(Nodes { own: targets::own(target)?, killed: AtomicUsize::new(0) }))
}

#[async_trait]
impl Victim for Nodes {
    fn namespace(&self) -> &Namespace {
        &self.own.namespace
    }

    fn servers(&self) -> Vec<&PrivateServer> {
        self.own.servers.all().iter().collect()
    }

    /// Each time another one.
    async fn kill(&self) {
        let servers = self.own.servers.all();
        let next = self.killed.fetch_add(1, Relaxed) % servers.len();
        block_in_place(|| servers[next].kill());
    }

    fn kills(&self) -> usize {
        self.own.servers.all().len()
    }

    /// A command, and then a new connection.
    fn slowest_attempt(&self, limit: Duration) -> Duration {
        2 * limit
    }

    fn cause(&self, outage: &Outage) -> &'static str {
        match outage {
            Outage::Unreachable => "can't be reached",
            _ => "no reply within",
        }
    }
}
