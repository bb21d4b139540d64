//! Claims and releases that callers drive on connections of their own runtimes.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt, future::join_all};
use polylock::Locks;
use polylock_integration_tests::{
    clock::{self, TIMEOUT, now, pause},
    proxy::{Direction, Flow, Proxy},
    servers::{Server, mariadb, postgres},
    stores,
};
use polylock_testkit::ManualClock;
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, PgConnection};

/// The timeout of a claim that a caller drives, after which the claim expires.
const CLAIM_EXPIRY: Duration = Duration::from_millis(250);
/// The name of a lock, and its form in statements.
const NAME: (&str, &str) = ("1234", "31323334");

async fn acquire_and_release(locks: &Locks) {
    locks.lock(NAME.0).acquire().await.unwrap().release().await.unwrap();
}

/// Uses a lock until this runtime sends its claims on its own connection. Returns the number of that connection.
async fn open_caller_connection(locks: &Locks, proxy: &Proxy) -> u64 {
    proxy.watch_for(NAME.1);
    acquire_and_release(locks).await;
    let thread = proxy.watched()[0];
    clock::until("this runtime has a connection of its own", async || {
        proxy.watch_for(NAME.1);
        acquire_and_release(locks).await;
        proxy.watched()[0] != thread
    })
    .await;
    proxy.watched()[0]
}

/// Delivers a claim after the release of its acquisition:
/// 1. The caller sends the claim on the connection of its own runtime, where the proxy holds it back.
/// 2. The caller drops the acquisition.
/// 3. The I/O thread releases on a connection of its own, and the server carries that out.
/// 4. The proxy lets the claim through, before it has expired.
///
/// The clock of the deadlines is stopped, so the I/O thread does not take over the claim.
async fn a_claim_of_a_dropped_acquisition_takes_no_lock(kind: &str) {
    let namespace = stores::namespace(kind).await;
    let at = namespace.url().find("127.0.0.1:").unwrap();
    let server = namespace.url()[at..].split('/').next().unwrap();
    let proxy = Proxy::start(server.parse().unwrap());
    let url = namespace.url().replacen(server, &proxy.address().to_string(), 1);
    // A listener makes the I/O thread open a second connection, which the test would take for that of this runtime.
    let url = if kind == "postgres" { format!("{url}&polylock.listen=off") } else { url };
    let direct = Locks::connect(namespace.url()).await.unwrap();
    clock::until("a claim is delivered while it is valid", async || {
        let delayed = Locks::builder(&url).clock(Arc::new(ManualClock::new())).connect().await.unwrap();
        let caller = open_caller_connection(&delayed, &proxy).await;
        proxy.set_one(caller, Direction::ToServer, Flow::Hold);
        proxy.watch_for(NAME.1);
        let sent = now();
        let mut acquisition = Box::pin(delayed.lock(NAME.0).acquire());
        assert!(acquisition.as_mut().now_or_never().is_none());
        clock::until("the claim is sent", async || !proxy.watched().is_empty()).await;
        assert_eq!(proxy.watched(), [caller]);
        let replies = proxy.counts().to_client;
        drop(acquisition);
        clock::until("it is released", async || {
            proxy.watched().len() > 1 && proxy.counts().to_client > replies
        })
        .await;
        proxy.set(Direction::ToServer, Flow::Pass);
        let is_valid = now().since(sent) < CLAIM_EXPIRY * 8 / 10;
        assert!(delayed.close(TIMEOUT).await);
        let next = direct.lock(NAME.0).try_acquire().await.unwrap();
        next.expect("nobody holds the lock").release().await.unwrap();
        is_valid
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_a_claim_of_a_dropped_acquisition_takes_no_lock() {
    a_claim_of_a_dropped_acquisition_takes_no_lock("postgres").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mariadb_a_claim_of_a_dropped_acquisition_takes_no_lock() {
    a_claim_of_a_dropped_acquisition_takes_no_lock("mariadb").await;
}

/// Uses a store with this many connections in two runtimes, each with dozens of tasks, while locks are renewed. Fails if the server has
/// more of them for longer than a busy server takes to close one.
async fn all_runtimes_together_keep_the_limit(url: &str, limit: usize, sessions: impl AsyncFn() -> usize) {
    const DURATION: Duration = Duration::from_secs(3);
    const CLOSING: Duration = Duration::from_secs(2);
    let locks = Locks::connect(url).await.unwrap();
    let kept = locks.lock("kept").ttl(Duration::from_secs(4)).acquire().await.unwrap();
    let renewed = kept.renewed();
    let end = now() + DURATION;
    let busy = move |locks: Locks| async move {
        let tasks = (0..24).map(|task| {
            let lock = locks.lock(format!("{task}"));
            tokio::spawn(async move {
                let mut pairs = 0;
                while now() < end {
                    lock.clone().acquire().await.unwrap().release().await.unwrap();
                    pairs += 1;
                }
                pairs
            })
        });
        join_all(tasks).await.into_iter().map(Result::unwrap).sum::<usize>()
    };
    let other = {
        let locks = locks.clone();
        std::thread::spawn(move || {
            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(busy(locks))
        })
    };
    let here = tokio::spawn(busy(locks.clone()));
    let mut exceeded = None;
    while now() < end {
        let count = sessions().await;
        if count <= limit {
            exceeded = None;
        } else {
            let lasts = now().since(*exceeded.get_or_insert_with(now));
            assert!(lasts < CLOSING, "{count} connections instead of {limit} for {lasts:?}");
        }
        pause(Duration::from_millis(20)).await;
    }
    let pairs = [here.await.unwrap(), other.join().unwrap()];
    assert!(pairs.iter().all(|pairs| *pairs > 20), "{pairs:?}");
    assert!(renewed.await.is_some(), "it was not renewed");
    kept.ensure_held().unwrap();
    kept.release().await.unwrap();
}

fn url(server: &Server, more: &str) -> String {
    format!("{}?polylock.connections=3{more}", server.url())
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_all_runtimes_together_keep_the_limit_of_connections() {
    let server = postgres::start(&[]).unwrap();
    let observer = PgConnection::connect(server.url()).await.unwrap();
    let observer = tokio::sync::Mutex::new(observer);
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'limited'";
    let sessions = async || {
        let count: i64 = sqlx::query_scalar(sql).fetch_one(&mut *observer.lock().await).await.unwrap();
        usize::try_from(count).unwrap()
    };
    // And the one that listens.
    all_runtimes_together_keep_the_limit(&url(&server, "&application_name=limited"), 4, sessions).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mariadb_all_runtimes_together_keep_the_limit_of_connections() {
    let server = mariadb::start(&[]).unwrap();
    let observer = MySqlConnection::connect(server.url()).await.unwrap();
    let observer = tokio::sync::Mutex::new(observer);
    let sql =
        "SELECT count(*) FROM information_schema.processlist WHERE user = 'root' AND id <> connection_id()";
    let sessions = async || {
        let count: i64 =
            sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut *observer.lock().await).await.unwrap();
        usize::try_from(count).unwrap()
    };
    all_runtimes_together_keep_the_limit(&url(&server, ""), 3, sessions).await;
}
