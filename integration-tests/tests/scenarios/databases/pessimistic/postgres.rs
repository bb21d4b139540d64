//! Behaviour that only PostgreSQL has.

use std::time::Duration;

use polylock::Locks;
use polylock_integration_tests::{
    clock::{self, pause},
    load::Load,
    servers::{pgbouncer, postgres},
};
use polylock_testkit::history::{self, Rules};
use sqlx::{AssertSqlSafe, Executor};

use super::{LONG_TTL, TestDatabase, test_database::connection};

/// Global settings of an administrator: none of them may cause a loss or a second grant of a lock.
#[tokio::test(flavor = "multi_thread")]
async fn locks_exclude_under_foreign_settings() {
    let server = postgres::start(&[
        "default_transaction_isolation=serializable",
        "statement_timeout=2s",
        "lock_timeout=100ms",
        "idle_in_transaction_session_timeout=200ms",
        "standard_conforming_strings=off",
        "bytea_output=escape",
    ])
    .unwrap();
    let database = TestDatabase::on_postgres(&server);
    let locks = database.open(LONG_TTL).await;
    let guard = locks.lock("n").acquire().await.unwrap();
    let waiting = tokio::spawn(locks.lock("n").acquire());
    database.wait_for_blocked(1).await;
    // Longer than the limits, of which the first one also applies to the queries of this test.
    pause(Duration::from_secs(3)).await;
    database.wait_for_blocked(1).await;
    assert!(guard.is_held() && !waiting.is_finished());
    guard.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();

    let outcome = Load::default().run(&database.url_with("&polylock.connections=20"), async {}).await;
    assert_eq!(history::check(&outcome.sections, Rules::default()), []);
    assert_eq!((outcome.failures, outcome.losses), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_exclude_behind_a_pooler_in_transaction_mode() {
    let server = postgres::start(&[]).unwrap();
    let pooler = pgbouncer::start(&server, &["default_pool_size=30"]).unwrap();
    let database = TestDatabase::on_postgres(&pooler);
    let outcome = Load::default().run(&database.url_with("&polylock.connections=20"), async {}).await;
    assert_eq!(history::check(&outcome.sections, Rules::default()), []);
    assert_eq!((outcome.failures, outcome.losses), (0, 0));
    let locks = database.open(LONG_TTL).await;
    let guard = locks.lock("n").acquire().await.unwrap();
    let refused = locks.lock("n").wait(Duration::from_secs(2)).acquire().await.unwrap_err();
    assert!(refused.is_not_acquired(), "{refused}");
    database.wait_for_transactions(1, "the withdrawn waiter is gone").await;
    guard.release().await.unwrap();
}

/// If the statistics of the table count one row, the planner repeats a locking subquery for each row that a `DELETE` joins with it.
#[tokio::test(flavor = "multi_thread")]
async fn releases_delete_all_rows_with_any_statistics() {
    let server = postgres().unwrap();
    let database = TestDatabase::on_postgres(server);
    let locks = database.open(LONG_TTL).await;
    let mut session = connection(server).await;
    let one_row_counted = format!(
        "INSERT INTO {0}_rows VALUES ('other', 0); ANALYZE {0}_rows; DELETE FROM {0}_rows WHERE name = 'other'",
        database.table
    );
    session.execute(sqlx::raw_sql(AssertSqlSafe(one_row_counted))).await.unwrap();
    locks.lock("n").acquire().await.unwrap().release().await.unwrap();
    assert_eq!(database.count_names().await, 0, "the release left rows");

    let mut dead = database.worker("hold", LONG_TTL, "n", &["1"]);
    dead.expect_line("held");
    assert!(!dead.kill().success());
    database.wait_for_transactions(0, "the dead holder is gone").await;
    clock::until("a sweep has deleted the rows", async || {
        drop(database.open(LONG_TTL).await);
        database.count_names().await == 0
    })
    .await;
}

/// An open transaction has advanced the sequence beyond the token, and that record is not on the disk yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_returned_token_survives_a_server_killed_immediately_afterwards() {
    let server = postgres::start(&["wal_writer_delay=10s"]).unwrap();
    let database = TestDatabase::on_postgres(&server);
    let locks = database.open(LONG_TTL).await;
    let mut other = connection(&server).await;
    other.execute("BEGIN").await.unwrap();
    let table = &database.table;
    // The server writes 32 numbers in advance.
    other.execute(AssertSqlSafe(format!("SELECT nextval('{table}_tokens')"))).await.unwrap();
    let token = locks.lock("n").acquire().await.unwrap().fencing_token();
    tokio::task::block_in_place(|| server.kill());
    tokio::task::block_in_place(|| server.restart());
    let next = locks.lock("n").acquire().await.unwrap();
    assert!(next.fencing_token() > token, "{} after {token}", next.fencing_token());
    next.release().await.unwrap();
}

/// A holder loses its connection before it draws its token, and draws a greater token than the next holder.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_drawn_after_the_lock_was_lost_is_discarded() {
    let server = postgres().unwrap();
    let database = TestDatabase::on_postgres(server);
    let (first, second) = (database.open(LONG_TTL).await, database.open(LONG_TTL).await);
    let mut keeper = connection(server).await;
    // No token can be drawn until this transaction ends.
    let table = &database.table;
    let keep = format!("BEGIN; ALTER SEQUENCE {table}_tokens INCREMENT 1");
    keeper.execute(sqlx::raw_sql(AssertSqlSafe(keep))).await.unwrap();
    let drawing = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%";
    let drawing = format!("{drawing}{table}_tokens%' AND pid <> pg_backend_pid()");

    let one = tokio::spawn(first.lock("n").acquire());
    clock::until("the first draws", async || database.number(&drawing).await == 1).await;
    assert_eq!(database.kill_sessions().await, 1);
    let two = tokio::spawn(second.lock("n").acquire());
    clock::until("the second draws", async || database.number(&drawing).await == 2).await;
    keeper.execute("COMMIT").await.unwrap();
    let two = two.await.unwrap().unwrap();
    database.wait_for_blocked(1).await;
    assert!(!one.is_finished(), "both hold the lock");
    let token = two.fencing_token();
    two.release().await.unwrap();
    let one = one.await.unwrap().unwrap();
    assert!(one.fencing_token() > token);
    one.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tables_of_the_other_strategy_are_refused() {
    let server = postgres().unwrap();
    for strategies in [["lease", "pessimistic"], ["pessimistic", "lease"]] {
        let database = TestDatabase::on_postgres(server);
        let [first, second] =
            strategies.map(|strategy| database.url.replace("=pessimistic", &format!("={strategy}")));
        drop(Locks::connect(&first).await.unwrap());
        let refused = Locks::connect(&second).await.unwrap_err().to_string();
        assert!(refused.starts_with("polylock.strategy") && refused.contains(strategies[0]), "{refused}");
        drop(Locks::connect(&first).await.unwrap());
    }
}
