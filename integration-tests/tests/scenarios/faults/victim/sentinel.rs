//! A primary that is killed, and its replica, which the Sentinels make the primary.

use async_trait::async_trait;
use polylock_integration_tests::{
    clock,
    load::Outcome,
    servers::{
        PrivateServer,
        redis_sentinel::{self, Watched},
    },
    targets::{Namespace, watched_by},
};
use polylock_testkit::{Missing, history};
use tokio::task::block_in_place;

use super::Victim;
use crate::faults::outage::Outage;

struct Failover {
    namespace: Namespace,
    watched: Watched,
}

pub(super) fn start() -> Result<Box<dyn Victim>, Missing> {
    let watched = redis_sentinel::start(&[], &[])?;
    Ok(Box::new(Failover { namespace: watched_by(&watched)?, watched }))
}

#[async_trait]
impl Victim for Failover {
    fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn servers(&self) -> Vec<&PrivateServer> {
        self.watched.servers.iter().collect()
    }

    async fn kill(&self) {
        let [primary, replica] = &self.watched.servers;
        block_in_place(|| primary.kill());
        clock::until("a failover", async || self.watched.primary().await == Some(replica.port())).await;
    }

    fn kills(&self) -> usize {
        1
    }

    /// The last acknowledged writes may be lost, so two may hold a lock. Its tokens grow all the same.
    fn check_after_kills(&self, outcome: &Outcome) {
        assert_eq!(history::token_regressions(&outcome.sections), []);
        assert_eq!(history::repeated_tokens(&outcome.sections), []);
    }

    fn cause(&self, _: &Outage) -> &'static str {
        "can't be reached"
    }
}
