//! Three durable nodes, of which one at a time may be killed.

use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use async_trait::async_trait;
use polylock_integration_tests::{
    servers::{PrivateServer, redis, redlock},
    targets::{Namespace, nodes_of},
};
use polylock_testkit::Missing;
use tokio::task::block_in_place;

use super::Victim;
use crate::faults::outage::Outage;

struct Nodes {
    namespace: Namespace,
    servers: Vec<PrivateServer>,
    killed: AtomicUsize,
}

pub(super) fn start() -> Result<Box<dyn Victim>, Missing> {
    let servers = redlock::start(3, redis::DURABLE)?;
    let urls: Vec<String> = servers.iter().map(|server| server.url().to_owned()).collect();
    Ok(Box::new(Nodes { namespace: nodes_of(&urls, [])?, servers, killed: AtomicUsize::new(0) }))
}

#[async_trait]
impl Victim for Nodes {
    fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn servers(&self) -> Vec<&PrivateServer> {
        self.servers.iter().collect()
    }

    /// Each time another one.
    async fn kill(&self) {
        let next = self.killed.fetch_add(1, Relaxed) % self.servers.len();
        block_in_place(|| self.servers[next].kill());
    }

    fn kills(&self) -> usize {
        self.servers.len()
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
