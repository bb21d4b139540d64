//! ZooKeeper under faults: of the network, of servers, of sessions.
#![allow(clippy::unwrap_used, reason = "tests")]

mod crashes;
mod fence;
#[path = "../databases/load.rs"]
mod load;
mod lost_answers;
mod partitions;

use std::time::Duration;

use polylock::Locks;
use polylock_integration_tests::{clock, servers::Server};
use zookeeper_client::{Client, Error};

/// What a busy machine may add to a bound.
const SLACK: Duration = Duration::from_millis(500);

/// A path of a server that nobody else uses.
struct Spot {
    url: String,
    root: String,
    servers: String,
}

impl Spot {
    fn of(server: &Server) -> Self {
        let root = format!("/{}", server.name());
        let servers = server.url().split_once("://").unwrap().1.to_owned();
        Self { url: format!("{}{root}", server.url()), root, servers }
    }

    /// Its URL with sessions of this time, which limit the leases.
    fn with(&self, session: Duration) -> String {
        format!("{}?polylock.session_timeout={}ms", self.url, session.as_millis())
    }

    /// Past the store.
    async fn raw(&self) -> Client {
        Client::connect(&self.servers).await.unwrap()
    }

    /// How many nodes of requests there are.
    async fn requests(&self, raw: &Client) -> usize {
        raw.sync("/").await.unwrap();
        let Ok(locks) = raw.list_children(&self.root).await else { return 0 };
        let mut count = 0;
        for lock in locks {
            match raw.list_children(&format!("{}/{lock}", self.root)).await {
                Err(Error::NoNode) => {}
                requests => count += requests.unwrap().len(),
            }
        }
        count
    }

    /// Nothing is left, in less time than a session lasts.
    async fn is_clean(&self) {
        let raw = self.raw().await;
        clock::until("nothing is left", async || self.requests(&raw).await == 0).await;
    }
}

/// Until so many wait.
async fn waiters(locks: &Locks, name: &str, count: usize) {
    clock::until("they wait", async || locks.inspect(name).await.unwrap().waiters.len() == count).await;
}
