//! What is MariaDB's own.

use std::time::Duration;

use polylock::Locks;
use polylock_integration_tests::{clock::pause, servers::mariadb};
use polylock_testkit::history::{self, Rules};

use super::{LONG, Site, a_server_stands_still, tokens_grow};
use crate::load::Load;

/// Settings that an administrator may have made for all: none of them is a reason to lose a lock or to give it twice.
#[tokio::test(flavor = "multi_thread")]
async fn it_holds_under_settings_that_are_not_its_own() {
    let server = mariadb::start(&[
        "transaction_isolation=SERIALIZABLE",
        "innodb_lock_wait_timeout=1",
        // With the statement that has waited for too long goes the transaction, and with it the place among the users.
        "innodb_rollback_on_timeout=ON",
        "wait_timeout=2",
        "idle_transaction_timeout=1",
        "idle_write_transaction_timeout=1",
        "max_statement_time=0.5",
        "sql_mode=ANSI,NO_BACKSLASH_ESCAPES,SIMULTANEOUS_ASSIGNMENT",
    ])
    .unwrap();
    let site = Site::on_mariadb(&server).await;
    let locks = site.open(LONG).await;
    let guard = locks.lock("n").acquire().await.unwrap();
    let waiting = tokio::spawn(locks.lock("n").acquire());
    site.blocks(1).await;
    // Longer than the server waits at a time.
    pause(Duration::from_secs(17)).await;
    site.blocks(1).await;
    assert!(guard.is_held() && !waiting.is_finished());
    let token = guard.fencing_token();
    guard.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    assert!(next.fencing_token() > token);
    assert!(locks.lock("n").shared().try_acquire().await.unwrap().is_none(), "the next one holds nothing");
    next.release().await.unwrap();

    let outcome = Load::default().run(&site.with("&polylock.connections=20"), async {}).await;
    assert_eq!(history::check(&outcome.sections, Rules::default()), []);
    assert_eq!((outcome.failures, outcome.losses), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stands_still_costs_the_lock_at_its_deadline_and_not_before() {
    let server = mariadb::start(&[]).unwrap();
    a_server_stands_still(&server, &Site::on_mariadb(&server).await).await;
}

/// The server forgets who held what: that is its nature. Its tokens do not go back.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_under_load_gives_no_smaller_token() {
    let server = mariadb::start(&[]).unwrap();
    let site = Site::on_mariadb(&server).await;
    let outcome = Load { lasts: Duration::from_secs(10), ..Load::default() }
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

#[tokio::test(flavor = "multi_thread")]
async fn the_tables_of_the_other_strategy_are_refused() {
    for strategies in [["lease", "pessimistic"], ["pessimistic", "lease"]] {
        let site = Site::mariadb().await;
        let [first, second] =
            strategies.map(|strategy| site.url.replace("=pessimistic", &format!("={strategy}")));
        drop(Locks::connect(&first).await.unwrap());
        let refused = Locks::connect(&second).await.unwrap_err().to_string();
        assert!(refused.starts_with("polylock.strategy") && refused.contains(strategies[0]), "{refused}");
        drop(Locks::connect(&first).await.unwrap());
    }
}
