//! Renewals and releases do not wait behind claims for a connection.

use std::time::Duration;

use futures_util::future::join_all;
use polylock::Locks;
use polylock_integration_tests::{
    clock::{now, pause},
    stores,
    targets::Namespace,
};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, PgConnection};

const TTL: Duration = Duration::from_secs(4);

/// More claims of the lock `stuck` than the store has connections, all of which hang and time out one after the other.
/// Meanwhile a lock with a short TTL is kept, and another one is released.
async fn keeps_a_lock_while_claims_hang(url: &str) {
    let locks = Locks::connect(url).await.unwrap();
    let kept = locks.lock("kept").ttl(TTL).acquire().await.unwrap();
    let released = locks.lock("released").acquire().await.unwrap();
    let claims = (0..60).map(|_| {
        let lock = locks.lock("stuck").wait(Duration::from_millis(10));
        tokio::spawn(async move { lock.acquire().await.unwrap_err() })
    });
    let claims: Vec<_> = claims.collect();
    // Longer than the lease, and much shorter than the claims hang.
    let until = now() + TTL + Duration::from_secs(1);
    while now() < until {
        kept.ensure_held().unwrap();
        pause(Duration::from_millis(50)).await;
    }
    let began = now();
    released.release().await.unwrap();
    let took = now().since(began);
    assert!(took < Duration::from_secs(3), "the release waited for {took:?}");
    kept.release().await.unwrap();
    drop(join_all(claims).await);
}

/// The URL of a store of its own, that of its server, and the prefix of its tables.
async fn store(kind: &str) -> (Namespace, String, String, String) {
    let namespace = stores::namespace(kind).await;
    let (server, query) = namespace.url().split_once('?').unwrap();
    let prefix = query.split('&').find_map(|pair| pair.strip_prefix("polylock.namespace=")).unwrap();
    let (url, server, prefix) =
        (namespace.url_with("polylock.operation_timeout", "12s"), server.to_owned(), prefix.to_owned());
    // The tables are there once the store was opened.
    drop(Locks::connect(&url).await.unwrap());
    (namespace, url, server, prefix)
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_keeps_a_lock_while_claims_hang() {
    let (_spot, url, server, prefix) = store("postgres").await;
    // The first lock that a claim acquires.
    let mut other = PgConnection::connect(&server).await.unwrap();
    let key = format!("hashtextextended('\"public\".{prefix}:' || encode('stuck', 'hex'), 0)");
    other.execute(AssertSqlSafe(format!("SELECT pg_advisory_lock({key})"))).await.unwrap();
    keeps_a_lock_while_claims_hang(&url).await;
    other.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn mariadb_keeps_a_lock_while_claims_hang() {
    let (_spot, url, server, prefix) = store("mariadb").await;
    let mut other = MySqlConnection::connect(&server).await.unwrap();
    let gate = format!("BEGIN; SELECT * FROM {prefix}_gates WHERE shard = crc32('stuck') & 1023 FOR UPDATE");
    other.execute(sqlx::raw_sql(AssertSqlSafe(gate))).await.unwrap();
    keeps_a_lock_while_claims_hang(&url).await;
    other.close().await.unwrap();
}
