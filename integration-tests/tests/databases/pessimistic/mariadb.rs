//! What is MariaDB's own.

use std::time::Duration;

use polylock::Locks;
use polylock_integration_tests::{
    clock::{PATIENCE, pause},
    servers::{Server, mariadb},
};
use polylock_testkit::history::{self, Rules};
use sqlx::{Connection, Executor, MySqlConnection, Row};

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
    let outcome = Load { lasts: Duration::from_secs(10), more_than: 200, ..Load::default() }
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

/// Connections of another program, which has nothing to do with locks, with their numbers: one for each number up to this.
async fn strangers(server: &Server, last: u64) -> Vec<(u64, MySqlConnection)> {
    let mut strangers = Vec::new();
    loop {
        let mut stranger = MySqlConnection::connect(server.url()).await.unwrap();
        let number = stranger.fetch_one("SELECT CAST(connection_id() AS UNSIGNED)").await.unwrap().get(0);
        strangers.push((number, stranger));
        if number > last {
            return strangers;
        }
    }
}

/// How many of them the server has ended.
async fn ended(strangers: Vec<(u64, MySqlConnection)>) -> usize {
    let mut ended = 0;
    for (_, mut stranger) in strangers {
        ended += usize::from(stranger.ping().await.is_err());
    }
    ended
}

/// A server that was restarted gives its connections the numbers of those that there were before.
#[tokio::test(flavor = "multi_thread")]
async fn the_clean_up_after_a_restart_ends_no_other_session() {
    let server = mariadb::start(&[]).unwrap();
    let site = Site::on_mariadb(&server).await;
    for others_lock in [false, true] {
        let locks = site.open("&polylock.ttl=3s").await;
        let mut guards = Vec::new();
        for name in ["a", "b", "c"] {
            guards.push(locks.lock(name).acquire().await.unwrap());
        }
        let last =
            "SELECT CAST(max(id) AS SIGNED) FROM information_schema.processlist WHERE id <> connection_id()";
        let last = site.number(last).await.unsigned_abs();
        tokio::task::block_in_place(|| server.kill());
        tokio::task::block_in_place(|| server.restart());
        // Those who come first have the numbers now: other programs, or others who lock.
        let (others, mut held) = (site.open("&polylock.ttl=10m&polylock.connections=100").await, Vec::new());
        let mut strange = if others_lock { Vec::new() } else { strangers(&server, last).await };
        while others_lock && strange.last().is_none_or(|(number, _)| *number <= last) {
            held.push(others.lock(held.len().to_string()).acquire().await.unwrap());
            strange = strangers(&server, 0).await;
        }
        for guard in guards {
            guard.lost().await;
        }
        assert!(locks.close(PATIENCE).await, "it has cleaned up");
        assert_eq!(ended(strange).await, 0, "sessions of another program were ended");
        for guard in held {
            guard.release().await.unwrap_or_else(|error| panic!("another's lock was ended: {error}"));
        }
    }
}

/// The same under load. The full form restarts the server 50 times:
///
/// ```text
/// POLYLOCK_TEST_RESTARTS=50 cargo test -p polylock-integration-tests --test databases restarts_under_load
/// ```
#[tokio::test(flavor = "multi_thread")]
async fn restarts_under_load_end_no_other_session_and_give_no_lock_twice() {
    let restarts: u32 =
        std::env::var("POLYLOCK_TEST_RESTARTS").map_or(3, |restarts| restarts.parse().unwrap());
    let server = mariadb::start(&[]).unwrap();
    let site = Site::on_mariadb(&server).await;
    let lasts = Duration::from_secs(4) * restarts + Duration::from_secs(4);
    let load = Load { stores: 16, tasks: 1, lasts, more_than: 100, ..Load::default() };
    let mut victims = 0;
    let outcome = load
        .run(&site.with("&polylock.ttl=3s&polylock.connections=4"), async {
            for _ in 0..restarts {
                pause(Duration::from_secs(1)).await;
                tokio::task::block_in_place(|| server.kill());
                tokio::task::block_in_place(|| server.restart());
                let strangers = strangers(&server, 60).await;
                // Longer than it takes until all holders have renewed, and have cleaned up after their sessions of before.
                pause(Duration::from_millis(1500)).await;
                victims += ended(strangers).await;
            }
        })
        .await;
    println!("{restarts} restarts, {} sections, {victims} sessions ended", outcome.sections.len());
    assert_eq!(victims, 0, "sessions of another program were ended");
    assert_eq!(history::check(&outcome.sections, Rules::default()), []);
    assert!(outcome.sections.len() > 100, "it went on: {}", outcome.sections.len());
}
