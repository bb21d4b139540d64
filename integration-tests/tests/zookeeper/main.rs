//! ZooKeeper under faults: of the network, of servers, of sessions.
#![allow(clippy::unwrap_used, reason = "tests")]

mod access;
mod border;
mod breaking;
mod crashes;
mod deaths;
mod fence;
mod herd;
mod late;
mod leases;
mod list;
mod lock_nodes;
mod lost_answers;
mod orphans;
mod partitions;
mod reach;
mod reaper;
mod sessions;

use std::time::Duration;

use polylock::{Locks, LostReason};
use polylock_integration_tests::{
    clock, load,
    refusals::{timed_refusal as refusal, told},
    servers::Server,
};
use zookeeper_client::{Client, Error as Failure};

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
                Err(Failure::NoNode) => {}
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

/// Does everything that the store can do.
async fn everything_works(url: &str) {
    let (here, there) = (Locks::connect(url).await.unwrap(), Locks::connect(url).await.unwrap());
    let guard = here.lock("all").label("a test").acquire().await.unwrap();
    assert!(there.lock("all").try_acquire().await.unwrap().is_none());
    let waiting = tokio::spawn(there.lock("all").acquire());
    waiters(&here, "all", 1).await;
    assert_eq!(here.list("al").await.unwrap().len(), 1);
    let token = guard.fencing_token();
    guard.release().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    assert!(guard.fencing_token() > token);
    assert_eq!(here.break_lock("all").await.unwrap().len(), 1);
    assert!(matches!(guard.lost().await, LostReason::Broken(_)));
    drop(guard);
    let guard = here.lock("all").shared().acquire().await.unwrap();
    assert_eq!(there.break_lock("all").force().await.unwrap().len(), 1);
    there.lock("all").acquire().await.unwrap().release().await.unwrap();
    assert!(matches!(guard.release().await.unwrap_err().lost(), Some(LostReason::Broken(_))));
}
