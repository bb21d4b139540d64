//! A grant removes the expired entries that it overrides: no step of the server's clock, and no renewal, brings one back.

use std::time::Duration;

use polylock_core::{LockName, Mode, Renewal, Request, Standing, Store, io};
use polylock_integration_tests::{stores, targets::Spot};
use polylock_testkit::Target;
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, PgConnection, SqliteConnection};

/// Runs `sql` on the tables of `spot`, which it calls `{p}`: the number of rows that changed.
async fn run(spot: &Spot, sql: &str) -> u64 {
    let (server, query) = spot.url().split_once('?').unwrap();
    let prefix = query.split('&').find_map(|pair| pair.strip_prefix("polylock.table=")).unwrap_or("polylock");
    let sql = AssertSqlSafe(sql.replace("{p}", prefix));
    let scheme = server.split(':').next().unwrap();
    let changed = match scheme {
        "postgres" => {
            PgConnection::connect(server).await.unwrap().execute(sql).await.unwrap().rows_affected()
        }
        "mysql" => {
            MySqlConnection::connect(server).await.unwrap().execute(sql).await.unwrap().rows_affected()
        }
        _ => SqliteConnection::connect(server).await.unwrap().execute(sql).await.unwrap().rows_affected(),
    };
    changed
}

/// Longer than any lease of this test.
const HOUR: i64 = 3_600_000_000;

async fn claim(store: &Store, request: &Request) -> Standing {
    let (backend, request) = (store.backend.clone(), request.clone());
    io::run(async move { backend.claim(&request).await }).await.unwrap().unwrap()
}

/// The server's clock goes beyond all leases, and back later: seen from the tables, all rows become older, and then younger.
async fn a_grant_removes_what_it_overrides(store: &str) {
    let spot = stores::spot(store).await;
    let store = spot.connect().await.unwrap();
    let request = |mode| Request::new(LockName::new("n").unwrap(), mode, Duration::from_secs(60));
    let (reader, waiter, writer) =
        (request(Mode::Shared), request(Mode::Exclusive), request(Mode::Exclusive));
    assert!(matches!(claim(&store, &reader).await, Standing::Held(_)));
    assert!(matches!(claim(&store, &waiter).await, Standing::Queued(_)));
    for table in ["holds", "waiters"] {
        run(&spot, &format!("UPDATE {{p}}_{table} SET expires_at = expires_at - {HOUR}")).await;
    }
    assert!(matches!(claim(&store, &writer).await, Standing::Held(_)), "all others have expired");
    run(&spot, &format!("UPDATE {{p}}_holds SET expires_at = expires_at + {HOUR} WHERE slot <> ''")).await;
    run(&spot, &format!("UPDATE {{p}}_waiters SET expires_at = expires_at + {HOUR}")).await;
    let (inspect, name) = (store.inspect.clone().unwrap(), writer.name.clone());
    let status = io::run(async move { inspect.inspect(&name).await }).await.unwrap().unwrap();
    assert_eq!((status.holders.len(), status.waiters.len()), (1, 0), "back again: {status:?}");
    let backend = store.backend.clone();
    let renewal = io::run(async move { backend.renew(&reader).await }).await.unwrap().unwrap();
    assert!(matches!(renewal, Renewal::Lost(_)), "{renewal:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn in_postgres() {
    a_grant_removes_what_it_overrides("postgres").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_mariadb() {
    a_grant_removes_what_it_overrides("mariadb").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_sqlite() {
    a_grant_removes_what_it_overrides("sqlite_full").await;
}
