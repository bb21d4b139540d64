//! Stores with servers that a test may kill, freeze and cut off.

mod azure;
mod pessimistic;
mod redlock;
mod sentinel;
mod single;
mod zookeeper;

use std::time::Duration;

use async_trait::async_trait;
use polylock_integration_tests::{
    clock,
    load::Outcome,
    proxy::Proxy,
    servers::PrivateServer,
    targets::{self, Namespace},
};
use polylock_testkit::{Missing, Target};
use tokio::task::block_in_place;

use super::outage::Outage;

const LIMITS: &[&str] = &["polylock.connect_timeout", "polylock.operation_timeout"];
const SQL_LIMITS: &[&str] = &["polylock.operation_timeout"];

/// A namespace of one test in a store with servers of its own.
#[async_trait]
pub(super) trait Victim: Send + Sync {
    fn namespace(&self) -> &Namespace;

    /// Returns the servers that keep the locks.
    fn servers(&self) -> Vec<&PrivateServer>;

    /// Kills a server: that with the greatest effect, of those that the store should survive.
    async fn kill(&self) {
        block_in_place(|| self.servers()[0].kill());
    }

    /// Starts the server that was killed, with its data.
    async fn restart(&self) {
        let servers = self.servers();
        let killed = servers.into_iter().filter(|server| server.id().is_none());
        block_in_place(|| killed.for_each(PrivateServer::restart));
    }

    /// Returns the number of times that a test kills a server.
    fn kills(&self) -> usize {
        2
    }

    fn freeze(&self) {
        block_in_place(|| self.servers().into_iter().for_each(PrivateServer::freeze));
    }

    fn thaw(&self) {
        block_in_place(|| self.servers().into_iter().for_each(PrivateServer::thaw));
    }

    /// Returns true if the queue entries of the last moment survive a kill, too. Otherwise waiters join the queue again.
    fn keeps_queue(&self) -> bool {
        true
    }

    /// Checks the promises that the store keeps when it survives a kill.
    fn check_after_kills(&self, outcome: &Outcome) {
        outcome.assert_consistent();
    }

    /// Returns the keys of the time limits for opening the store and for a request in the URL.
    fn limits(&self) -> &'static [&'static str] {
        LIMITS
    }

    /// Returns the outages that cost a lock at its deadline.
    fn outages(&self) -> Vec<Outage> {
        Outage::of_networks()
    }

    /// Returns the longest time of an attempt in an outage, with this time limit of a request and of a new connection.
    fn slowest_attempt(&self, limit: Duration) -> Duration {
        limit
    }

    /// Returns a part of the error message in an outage.
    fn cause(&self, outage: &Outage) -> &'static str;

    /// Returns true if this error message of a try states the cause.
    fn states_cause(&self, text: &str, outage: &Outage) -> bool {
        text.contains(self.cause(outage))
    }

    /// Returns the same part for opening the store.
    fn opening_cause(&self, outage: &Outage) -> &'static str {
        self.cause(outage)
    }
}

impl dyn Victim {
    /// Starts the servers of this target.
    ///
    /// # Panics
    /// If the target has none that can be hurt.
    pub(super) async fn start(target: &str) -> Box<Self> {
        let victim: Result<Box<Self>, Missing> = block_in_place(|| match target {
            "postgres_pessimistic" | "mariadb_pessimistic" => pessimistic::start(target),
            "redlock3" | "redlock5" => redlock::start(target),
            "redis_sentinel" => sentinel::start(),
            "zookeeper" | "zookeeper_ensemble" => zookeeper::start(target),
            "azure" => azure::start(),
            _ => single::start(target),
        });
        victim.unwrap_or_else(|Missing(why)| panic!("{target}: {why}"))
    }

    /// Returns `wanted`, or the shortest lease of the store.
    pub(super) fn lease(&self, wanted: Duration) -> Duration {
        self.namespace().lease(wanted)
    }

    /// Returns the URL for locks with this lease.
    pub(super) fn url(&self, lease: Duration) -> String {
        self.namespace().url_with_lease(lease)
    }

    /// Returns proxies in front of all servers, which are in the URL, and the URL through them, with these time limits.
    pub(super) fn route(&self, lease: Duration, limit: Duration) -> (Vec<Proxy>, String) {
        let (proxies, mut url) = targets::route(self.servers(), &self.url(lease));
        for key in self.limits() {
            url = format!("{url}&{key}={}", millis(limit));
        }
        (proxies, url)
    }

    /// Waits until no hold and no queue entry is left.
    pub(super) async fn wait_until_empty(&self) {
        clock::until("nothing is left", async || {
            match self.namespace().leftovers().await {
                // A server on a busy machine may be late.
                Err(error) if error.is_temporary() => false,
                entries => entries.unwrap().is_none_or(|entries| entries == 0),
            }
        })
        .await;
    }
}

fn millis(time: Duration) -> String {
    format!("{}ms", time.as_millis())
}
