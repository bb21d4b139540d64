//! What is PostgreSQL's own.

use std::time::Duration;

use polylock::Locks;
use polylock_integration_tests::{
    clock::{self, pause},
    servers::{pgbouncer, postgres},
};
use polylock_testkit::history::{self, Rules};
use sqlx::{AssertSqlSafe, Executor};

use super::{LONG, Site, a_server_stands_still, site::connection, tokens_grow};
use crate::load::Load;

/// Settings that an administrator may have made for all: none of them is a reason to lose a lock or to give it twice.
#[tokio::test(flavor = "multi_thread")]
async fn it_holds_under_settings_that_are_not_its_own() {
    let server = postgres::start(&[
        "default_transaction_isolation=serializable",
        "statement_timeout=300ms",
        "lock_timeout=100ms",
        "idle_in_transaction_session_timeout=200ms",
        "standard_conforming_strings=off",
        "bytea_output=escape",
    ])
    .unwrap();
    let site = Site::on_postgres(&server);
    let locks = site.open(LONG).await;
    let guard = locks.lock("n").acquire().await.unwrap();
    let waiting = tokio::spawn(locks.lock("n").acquire());
    site.blocks(1).await;
    pause(Duration::from_secs(1)).await;
    site.blocks(1).await;
    assert!(guard.is_held() && !waiting.is_finished());
    guard.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();

    let outcome = Load::default().run(&site.with("&polylock.connections=20"), async {}).await;
    assert_eq!(history::check(&outcome.sections, Rules::default()), []);
    assert_eq!((outcome.failures, outcome.losses), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn it_holds_behind_a_pooler_that_gives_a_transaction_a_session() {
    let server = postgres::start(&[]).unwrap();
    let pooler = pgbouncer::start(&server, &["default_pool_size=30"]).unwrap();
    let site = Site::on_postgres(&pooler);
    let outcome = Load::default().run(&site.with("&polylock.connections=20"), async {}).await;
    assert_eq!(history::check(&outcome.sections, Rules::default()), []);
    assert_eq!((outcome.failures, outcome.losses), (0, 0));
    let locks = site.open(LONG).await;
    let guard = locks.lock("n").acquire().await.unwrap();
    let refused = locks.lock("n").wait(Duration::from_millis(300)).acquire().await.unwrap_err();
    assert!(refused.is_not_acquired(), "{refused}");
    site.has(1, "who gave up is gone").await;
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stands_still_costs_the_lock_at_its_deadline_and_not_before() {
    let server = postgres::start(&[]).unwrap();
    a_server_stands_still(&server, &Site::on_postgres(&server)).await;
}

/// The server forgets who held what: that is its nature. Its tokens do not go back.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_under_load_gives_no_smaller_token() {
    let server = postgres::start(&[]).unwrap();
    let site = Site::on_postgres(&server);
    let outcome = Load { lasts: Duration::from_secs(8), more_than: 200, ..Load::default() }
        .run(&site.with("&polylock.ttl=2s&polylock.connections=20"), async {
            for _ in 0..2 {
                pause(Duration::from_secs(2)).await;
                tokio::task::block_in_place(|| server.kill());
                pause(Duration::from_millis(300)).await;
                tokio::task::block_in_place(|| server.restart());
            }
        })
        .await;
    tokens_grow(&outcome);
    assert!(outcome.sections.len() > 200, "it went on: {}", outcome.sections.len());
}

/// What another transaction, still open, has written of the sequence covers our token too, and is not on the disk yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_survives_a_server_that_is_killed_right_after_it_was_told() {
    let server = postgres::start(&["wal_writer_delay=10s"]).unwrap();
    let site = Site::on_postgres(&server);
    let locks = site.open(LONG).await;
    let mut other = connection(&server).await;
    other.execute("BEGIN").await.unwrap();
    let table = &site.table;
    // The server writes 32 numbers in advance.
    other.execute(AssertSqlSafe(format!("SELECT nextval('{table}_tokens')"))).await.unwrap();
    let token = locks.lock("n").acquire().await.unwrap().fencing_token();
    tokio::task::block_in_place(|| server.kill());
    tokio::task::block_in_place(|| server.restart());
    let next = locks.lock("n").acquire().await.unwrap();
    assert!(next.fencing_token() > token, "{} after {token}", next.fencing_token());
    next.release().await.unwrap();
}

/// A holder loses its connection between taking the lock and drawing its token, and draws a greater one than who took
/// the lock after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_drawn_after_the_lock_was_lost_does_not_count() {
    let server = postgres().unwrap();
    let site = Site::on_postgres(server);
    let (first, second) = (site.open(LONG).await, site.open(LONG).await);
    let mut keeper = connection(server).await;
    // Nobody can draw a token until this is over.
    let table = &site.table;
    let keep = format!("BEGIN; ALTER SEQUENCE {table}_tokens INCREMENT 1");
    keeper.execute(sqlx::raw_sql(AssertSqlSafe(keep))).await.unwrap();
    let drawing = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%";
    let drawing = format!("{drawing}{table}_tokens%' AND pid <> pg_backend_pid()");

    let one = tokio::spawn(first.lock("n").acquire());
    clock::until("the first draws", async || site.number(&drawing).await == 1).await;
    assert_eq!(site.kill().await, 1);
    let two = tokio::spawn(second.lock("n").acquire());
    clock::until("the second draws", async || site.number(&drawing).await == 2).await;
    keeper.execute("COMMIT").await.unwrap();
    let two = two.await.unwrap().unwrap();
    site.blocks(1).await;
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
        let site = Site::on_postgres(server);
        let [first, second] =
            strategies.map(|strategy| site.url.replace("=pessimistic", &format!("={strategy}")));
        drop(Locks::connect(&first).await.unwrap());
        let refused = Locks::connect(&second).await.unwrap_err().to_string();
        assert!(refused.starts_with("polylock.strategy") && refused.contains(strategies[0]), "{refused}");
        drop(Locks::connect(&first).await.unwrap());
    }
}
