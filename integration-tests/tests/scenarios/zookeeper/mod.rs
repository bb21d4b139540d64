//! ZooKeeper under faults: of the network, of servers, of sessions.

mod access;
mod breaking;
mod cleanup;
mod ensemble;
mod fence;
mod herd;
mod late;
mod leases;
mod list;
mod lock_nodes;
mod lost_replies;
mod orphans;
mod partitions;
mod reach;
mod reaper;
mod sequence_overflow;
mod sessions;

use std::time::Duration;

use polylock::{Locks, LostReason};
use polylock_integration_tests::{
    clock,
    refusals::{describe, timed_refusal as refusal},
    servers::Server,
    stores::wait_for_waiters,
};
use zookeeper_client::{Client, Error as Failure};

/// The tolerance of time limits on a busy machine.
const SLACK: Duration = Duration::from_millis(1500);

/// A path of a server that one test uses alone.
struct Namespace {
    url: String,
    root: String,
    servers: String,
}

impl Namespace {
    fn of(server: &Server) -> Self {
        let root = format!("/{}", server.name());
        let servers = server.url().split_once("://").unwrap().1.to_owned();
        Self { url: format!("{}{root}", server.url()), root, servers }
    }

    /// Returns the URL with this session timeout, which limits the leases.
    fn url_with_session(&self, session: Duration) -> String {
        format!("{}?polylock.session_timeout={}ms", self.url, session.as_millis())
    }

    /// Returns a client of the servers, independent of the store.
    async fn client(&self) -> Client {
        Client::connect(&self.servers).await.unwrap()
    }

    /// Returns the number of requests' nodes.
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

    /// Waits until no request's node is left.
    async fn wait_until_empty(&self) {
        let raw = self.client().await;
        clock::until("nothing is left", async || self.requests(&raw).await == 0).await;
    }
}

/// Runs every operation of the store.
async fn check_all_operations(url: &str) {
    let (here, there) = (Locks::connect(url).await.unwrap(), Locks::connect(url).await.unwrap());
    let guard = here.lock("all").label("a test").acquire().await.unwrap();
    assert!(there.lock("all").try_acquire().await.unwrap().is_none());
    let waiting = tokio::spawn(there.lock("all").acquire());
    wait_for_waiters(&here, "all", 1).await;
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
