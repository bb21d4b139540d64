//! Tables that are dropped and made anew: the way from one version of them to another.

use polylock::{Locks, schema};
use polylock_integration_tests::stores;
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, PgConnection};

async fn token(url: &str) -> u64 {
    let locks = Locks::connect(url).await.unwrap();
    let guard = locks.lock("n").acquire().await.unwrap();
    let token = guard.fencing_token().get();
    guard.release().await.unwrap();
    token
}

/// The names of the tables, and of the sequence, of the URL, with their kinds.
fn made(url: &str) -> Vec<String> {
    let script = schema(url).unwrap().unwrap();
    let made = |kind: &str| {
        let begins = format!("CREATE {kind} IF NOT EXISTS ");
        let names = script.split(&begins).skip(1).map(|rest| rest.split([' ', '(', ';']).next().unwrap());
        names.map(|name| format!("{kind} {name}")).collect::<Vec<_>>()
    };
    [made("TABLE"), made("SEQUENCE")].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_begins_with_greater_tokens() {
    let spot = stores::spot("postgres").await;
    let before = token(spot.url()).await;
    let mut admin = PgConnection::connect(spot.url().split('?').next().unwrap()).await.unwrap();
    for what in made(spot.url()) {
        admin.execute(AssertSqlSafe(format!("DROP {what} CASCADE"))).await.unwrap();
    }
    let after = token(spot.url()).await;
    assert!(after > before, "{after} after {before}");
}

#[tokio::test(flavor = "multi_thread")]
async fn mysql_begins_with_greater_tokens() {
    let spot = stores::spot("mariadb").await;
    let before = token(spot.url()).await;
    let mut admin = MySqlConnection::connect(spot.url().split('?').next().unwrap()).await.unwrap();
    for what in made(spot.url()) {
        admin.execute(AssertSqlSafe(format!("DROP {what}"))).await.unwrap();
    }
    let after = token(spot.url()).await;
    assert!(after > before, "{after} after {before}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_begins_with_greater_tokens() {
    let spot = stores::spot("sqlite_full").await;
    let before = token(spot.url()).await;
    for file in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        std::fs::remove_file(spot.file(file)).ok();
    }
    let after = token(spot.url()).await;
    assert!(after > before, "{after} after {before}");
}
