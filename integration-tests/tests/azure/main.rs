//! Azure Blob Storage under faults: answers that are lost, requests that come late, a service that is silent, busy or gone,
//! and administrators.
//!
//! The shortest lease is fifteen seconds, so what takes that long runs side by side.
#![allow(clippy::unwrap_used, reason = "tests")]

mod answers;
mod breaking;
mod errors;
mod late;
mod leases;
mod list;
mod secrets;
mod silence;
mod turns;
mod waiting;

use std::{sync::OnceLock, time::Duration};

use polylock::{Guard, Locks, LostReason};
use polylock_integration_tests::{
    clock, load,
    proxy::Proxy,
    refusals::{timed_refusal as refusal, told},
    servers::{
        Private, Server,
        azurite::{self, ACCOUNT},
    },
};

/// What a busy machine may add to a bound.
const SLACK: Duration = Duration::from_millis(500);

/// The shortest lease.
const SHORTEST: Duration = Duration::from_secs(15);

/// What nobody is kept waiting by what was given up: far less than a lease.
const SETTLED: Duration = Duration::from_secs(6);

/// One that these tests share, and whose answers a proxy may lose.
fn server() -> &'static Private {
    static SERVER: OnceLock<Private> = OnceLock::new();
    SERVER.get_or_init(|| azurite::start(&[]).unwrap())
}

/// Blobs of a server that nobody else uses.
struct Spot {
    url: String,
    server: String,
    /// The path of a request for what is below it, without a slash at its end.
    path: String,
}

impl Spot {
    fn of(server: &Server) -> Self {
        Self::at(server, "polylock", &server.name())
    }

    /// With a container of its own, which nobody has made yet.
    fn alone(server: &Server) -> Self {
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

    /// The path of its container.
    fn container(&self) -> &str {
        self.path.rsplit_once('/').unwrap().0
    }

    /// The store, as if in another process.
    async fn locks(&self) -> Locks {
        Locks::connect(&self.url).await.unwrap()
    }

    /// The store behind a proxy of its own, which does not wait for long for what is lost.
    async fn through(&self, server: &Private) -> (Proxy, Locks) {
        let proxy = Proxy::to_http(server.port());
        let url = format!("{}&polylock.request_timeout=1s", proxy.url(&self.url));
        let locks = Locks::connect(&url).await.unwrap();
        (proxy, locks)
    }

    /// Asks the server past the store; the whole answer.
    async fn ask(&self, request: &str) -> String {
        azurite::ask(&self.server, request).await.unwrap()
    }

    /// The same, which must be answered so.
    async fn does(&self, request: &str, answer: &str) {
        let answered = self.ask(request).await;
        assert!(answered.contains(answer), "{request}: {answered}");
    }

    /// Breaks the lease of a blob, as an administrator does.
    async fn breaks(&self, blob: &str) {
        let end = "x-ms-lease-action: break\nx-ms-lease-break-period: 0";
        self.does(&format!("PUT {}/{blob}?comp=lease\n{end}", self.path), " 202 ").await;
    }

    /// Deletes a blob, leased or not.
    async fn deletes(&self, blob: &str) {
        if self.lease(blob).await == "leased" {
            self.breaks(blob).await;
        }
        self.does(&format!("DELETE {}/{blob}", self.path), " 202 ").await;
    }

    /// The second of the server's clock.
    async fn second(&self) -> String {
        let head = self.ask(&format!("HEAD {}", self.path)).await;
        head.lines().find_map(|line| line.strip_prefix("Date: ")).unwrap().to_owned()
    }

    /// Waits for the next one, from which on a blob that is made anew is told from the one before.
    async fn next_second(&self) {
        let second = self.second().await;
        clock::until("a second", async || self.second().await != second).await;
    }

    /// The state of a blob's lease.
    async fn lease(&self, blob: &str) -> String {
        let head = self.ask(&format!("HEAD {}/{blob}", self.path)).await;
        let state = head.lines().find_map(|line| line.strip_prefix("x-ms-lease-state: "));
        state.unwrap_or_default().to_owned()
    }
}

/// Another has the lock when it asks for it, and not only when a lease has run out: its token.
async fn is_free(locks: &Locks, name: &str) -> u64 {
    let guard = locks.lock(name).try_acquire().await.unwrap();
    let guard = guard.unwrap_or_else(|| panic!("{name}: somebody has it"));
    let token = guard.fencing_token().get();
    guard.release().await.unwrap();
    token
}

/// The same within [`SETTLED`].
async fn becomes_free(locks: &Locks, name: &str) -> u64 {
    let began = clock::now();
    let guard = locks.lock(name).wait(SHORTEST).acquire().await.unwrap();
    let (took, token) = (clock::now().since(began), guard.fencing_token().get());
    assert!(took < SETTLED, "{name}: free after {took:.1?}");
    guard.release().await.unwrap();
    token
}

/// How the lock is lost, of which its holder is told in the time of a lease.
async fn loss(guard: &Guard) -> LostReason {
    let told = tokio::time::timeout(SHORTEST + SLACK, guard.lost()).await;
    told.unwrap_or_else(|_| panic!("{}: it is not lost", guard.name()))
}

/// Does everything that the store can do.
async fn everything_works(url: &str) {
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
    // It has found its entry: nobody else had the lock.
    guard.release().await.unwrap();
    let guard = there.lock("all").acquire().await.unwrap();
    assert_eq!(here.break_lock("all").force().await.unwrap().len(), 1);
    is_free(&here, "all").await;
    let lost = guard.release().await.unwrap_err();
    assert!(matches!(lost.lost(), Some(LostReason::Broken(_))), "{lost:?}");
}
