//! Azure Blob Storage under faults: lost replies, late requests, a service that is silent, busy or unreachable, and
//! administrators.
//!
//! The shortest lease is fifteen seconds, so tests of that length run concurrently.

mod breaking;
mod errors;
mod fairness;
mod fence;
mod last_grant;
mod late;
mod leases;
mod list;
mod lost_replies;
pub(crate) mod retry_after;
mod secrets;
mod waiting;

use std::{sync::OnceLock, time::Duration};

use polylock::{Guard, Locks, LostReason};
use polylock_integration_tests::{
    clock,
    proxy::Proxy,
    refusals::{describe, timed_refusal as refusal},
    servers::{
        PrivateServer, Server,
        azurite::{self, ACCOUNT},
    },
};

/// The tolerance of time limits on a busy machine.
const SLACK: Duration = Duration::from_millis(1500);

/// The shortest lease.
const MIN_LEASE: Duration = Duration::from_secs(15);

/// The time after which an abandoned request must not block the lock any more: far less than a lease.
const SETTLE_TIME: Duration = Duration::from_secs(6);

/// The server that these tests share, directly or through a proxy.
fn server() -> &'static PrivateServer {
    static SERVER: OnceLock<PrivateServer> = OnceLock::new();
    SERVER.get_or_init(|| azurite::start(&[]).unwrap())
}

/// A container and a path of a server that one test uses alone.
struct Namespace {
    url: String,
    server: String,
    /// The path in a request's URL, without a slash at its end.
    path: String,
}

impl Namespace {
    fn of(server: &Server) -> Self {
        Self::at(server, "polylock", &server.name())
    }

    /// Returns a namespace in a separate container, which does not exist yet.
    fn with_new_container(server: &Server) -> Self {
        Self::at(server, &server.name().replace('_', "-"), "locks")
    }

    fn at(server: &Server, container: &str, prefix: &str) -> Self {
        let (_, query) = server.url().split_once('?').unwrap();
        Self {
            url: format!("az://{container}@{ACCOUNT}/{prefix}?{query}"),
            server: server.url().to_owned(),
            path: format!("/{ACCOUNT}/{container}/{prefix}"),
        }
    }

    /// Returns the path of the container.
    fn container(&self) -> &str {
        self.path.rsplit_once('/').unwrap().0
    }

    /// Opens the store, as another process would.
    async fn locks(&self) -> Locks {
        Locks::connect(&self.url).await.unwrap()
    }

    /// Opens the store behind a separate proxy, with a short request timeout.
    async fn through(&self, server: &PrivateServer) -> (Proxy, Locks) {
        let proxy = Proxy::to_http(server.port());
        let url = format!("{}&polylock.operation_timeout=1s", proxy.url(&self.url));
        let locks = Locks::connect(&url).await.unwrap();
        (proxy, locks)
    }

    /// Sends a request to the server without the store, and returns the whole reply.
    async fn send(&self, request: &str) -> String {
        azurite::ask(&self.server, request).await.unwrap()
    }

    /// Sends a request, and checks that the reply contains `expected`.
    async fn expect_reply(&self, request: &str, expected: &str) {
        let reply = self.send(request).await;
        assert!(reply.contains(expected), "{request}: {reply}");
    }

    /// Breaks the lease of a blob, as an administrator would.
    async fn break_lease(&self, blob: &str) {
        let end = "x-ms-lease-action: break\nx-ms-lease-break-period: 0";
        self.expect_reply(&format!("PUT {}/{blob}?comp=lease\n{end}", self.path), " 202 ").await;
    }

    /// Breaks the lease of a blob at the end of its remaining time.
    async fn start_break(&self, blob: &str) {
        self.expect_reply(&format!("PUT {}/{blob}?comp=lease\nx-ms-lease-action: break", self.path), " 202 ")
            .await;
    }

    /// Deletes a blob, leased or not.
    async fn delete(&self, blob: &str) {
        if self.lease_state(blob).await == "leased" {
            self.break_lease(blob).await;
        }
        self.expect_reply(&format!("DELETE {}/{blob}", self.path), " 202 ").await;
    }

    /// Returns the server's time, in whole seconds.
    async fn second(&self) -> String {
        let head = self.send(&format!("HEAD {}", self.path)).await;
        head.lines().find_map(|line| line.strip_prefix("Date: ")).unwrap().to_owned()
    }

    /// Waits for the next second, after which a blob that is created again has a greater first token than the old one.
    async fn next_second(&self) {
        let second = self.second().await;
        clock::until("a second", async || self.second().await != second).await;
    }

    /// Returns the state of a blob's lease.
    async fn lease_state(&self, blob: &str) -> String {
        let head = self.send(&format!("HEAD {}/{blob}", self.path)).await;
        let state = head.lines().find_map(|line| line.strip_prefix("x-ms-lease-state: "));
        state.unwrap_or_default().to_owned()
    }
}

/// Acquires the lock in one try and releases it, and returns its token.
async fn acquire_and_release(locks: &Locks, name: &str) -> u64 {
    let guard = locks.lock(name).try_acquire().await.unwrap();
    let guard = guard.unwrap_or_else(|| panic!("{name}: it is held"));
    let token = guard.fencing_token().get();
    guard.release().await.unwrap();
    token
}

/// Acquires the lock within [`SETTLE_TIME`] and releases it, and returns its token.
async fn acquire_soon(locks: &Locks, name: &str) -> u64 {
    let began = clock::now();
    let guard = locks.lock(name).wait(MIN_LEASE).acquire().await.unwrap();
    let (took, token) = (clock::now().since(began), guard.fencing_token().get());
    assert!(took < SETTLE_TIME, "{name}: free after {took:.1?}");
    guard.release().await.unwrap();
    token
}

/// Returns the reason of the loss, which the guard must report within the time of a lease.
async fn loss(guard: &Guard) -> LostReason {
    let lost = tokio::time::timeout(MIN_LEASE + SLACK, guard.lost()).await;
    lost.unwrap_or_else(|_| panic!("{}: the loss was not reported", guard.name()))
}

/// Runs every operation of the store.
async fn check_all_operations(url: &str) {
    let (here, there) = (Locks::connect(url).await.unwrap(), Locks::connect(url).await.unwrap());
    let guard = here.lock("all").label("a test").acquire().await.unwrap();
    assert!(there.lock("all").try_acquire().await.unwrap().is_none());
    assert_eq!(here.list("al").await.unwrap().len(), 1);
    let waiting = tokio::spawn(there.lock("all").acquire());
    let token = guard.fencing_token();
    guard.release().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    assert!(guard.fencing_token() > token);
    assert_eq!(here.break_lock("all").await.unwrap().len(), 1);
    assert!(here.lock("all").try_acquire().await.unwrap().is_none());
    // The release finds its own lease, because no other client has acquired the lock.
    guard.release().await.unwrap();
    let guard = there.lock("all").acquire().await.unwrap();
    assert_eq!(here.break_lock("all").force().await.unwrap().len(), 1);
    acquire_and_release(&here, "all").await;
    let lost = guard.release().await.unwrap_err();
    assert!(matches!(lost.lost(), Some(LostReason::Broken(_))), "{lost:?}");
}
