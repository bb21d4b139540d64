//! Tables that are dropped and created again, as for an upgrade without steps.

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
fn created_objects(url: &str) -> Vec<String> {
    let script = schema(url).unwrap().unwrap();
    let created_objects = |kind: &str| {
        let begins = format!("CREATE {kind} IF NOT EXISTS ");
        let names = script.split(&begins).skip(1).map(|rest| rest.split([' ', '(', ';']).next().unwrap());
        names.map(|name| format!("{kind} {name}")).collect::<Vec<_>>()
    };
    [created_objects("TABLE"), created_objects("SEQUENCE")].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_begins_with_greater_tokens() {
    let namespace = stores::namespace("postgres").await;
    let before = token(namespace.url()).await;
    let mut admin = PgConnection::connect(namespace.url().split('?').next().unwrap()).await.unwrap();
    for what in created_objects(namespace.url()) {
        admin.execute(AssertSqlSafe(format!("DROP {what} CASCADE"))).await.unwrap();
    }
    let after = token(namespace.url()).await;
    assert!(after > before, "{after} after {before}");
}

#[tokio::test(flavor = "multi_thread")]
async fn mysql_begins_with_greater_tokens() {
    let namespace = stores::namespace("mariadb").await;
    let before = token(namespace.url()).await;
    let mut admin = MySqlConnection::connect(namespace.url().split('?').next().unwrap()).await.unwrap();
    for what in created_objects(namespace.url()) {
        admin.execute(AssertSqlSafe(format!("DROP {what}"))).await.unwrap();
    }
    let after = token(namespace.url()).await;
    assert!(after > before, "{after} after {before}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_begins_with_greater_tokens() {
    let namespace = stores::namespace("sqlite_full").await;
    let before = token(namespace.url()).await;
    for file in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        std::fs::remove_file(namespace.file(file)).ok();
    }
    let after = token(namespace.url()).await;
    assert!(after > before, "{after} after {before}");
}
