//! Behaviour that only MariaDB has.

use std::time::Duration;

use polylock::Locks;
use polylock_integration_tests::{
    clock::{TIMEOUT, pause},
    load::Load,
    servers::{Server, mariadb},
};
use polylock_testkit::history::{self, Rules};
use sqlx::{Connection, Executor, MySqlConnection, Row};

use super::{LONG_TTL, TestDatabase};

/// Global settings of an administrator: none of them may cause a loss or a second grant of a lock.
#[tokio::test(flavor = "multi_thread")]
async fn locks_exclude_under_foreign_settings() {
    let server = mariadb::start(&[
        "transaction_isolation=SERIALIZABLE",
        "innodb_lock_wait_timeout=1",
        // A lock wait timeout then ends the whole transaction, and the session no longer counts as a user of the name.
        "innodb_rollback_on_timeout=ON",
        "wait_timeout=2",
        "idle_transaction_timeout=1",
        "idle_write_transaction_timeout=1",
        // It also applies to the queries of this test.
        "max_statement_time=2",
        "sql_mode=ANSI,NO_BACKSLASH_ESCAPES,SIMULTANEOUS_ASSIGNMENT",
    ])
    .unwrap();
    let database = TestDatabase::on_mariadb(&server).await;
    let locks = database.open(LONG_TTL).await;
    let guard = locks.lock("n").acquire().await.unwrap();
    let waiting = tokio::spawn(locks.lock("n").acquire());
    database.wait_for_blocked(1).await;
    // Longer than the server waits at a time.
    pause(Duration::from_secs(17)).await;
    database.wait_for_blocked(1).await;
    assert!(guard.is_held() && !waiting.is_finished());
    let token = guard.fencing_token();
    guard.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    assert!(next.fencing_token() > token);
    assert!(locks.lock("n").shared().try_acquire().await.unwrap().is_none(), "the next one holds nothing");
    next.release().await.unwrap();

    let outcome = Load::default().run(&database.url_with("&polylock.connections=20"), async {}).await;
    assert_eq!(history::check(&outcome.sections, Rules::default()), []);
    assert_eq!((outcome.failures, outcome.losses), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tables_of_the_other_strategy_are_refused() {
    for strategies in [["lease", "pessimistic"], ["pessimistic", "lease"]] {
        let database = TestDatabase::mariadb().await;
        let [first, second] =
            strategies.map(|strategy| database.url.replace("=pessimistic", &format!("={strategy}")));
        drop(Locks::connect(&first).await.unwrap());
        let refused = Locks::connect(&second).await.unwrap_err().to_string();
        assert!(refused.starts_with("polylock.strategy") && refused.contains(strategies[0]), "{refused}");
        drop(Locks::connect(&first).await.unwrap());
    }
}

/// Connections of another program, which has nothing to do with locks, with their numbers: one for each number up to this.
async fn other_sessions(server: &Server, last: u64) -> Vec<(u64, MySqlConnection)> {
    let mut other_sessions = Vec::new();
    loop {
        let mut session = MySqlConnection::connect(server.url()).await.unwrap();
        let number = session.fetch_one("SELECT CAST(connection_id() AS UNSIGNED)").await.unwrap().get(0);
        other_sessions.push((number, session));
        if number > last {
            return other_sessions;
        }
    }
}

/// Returns the number of sessions that the server has ended.
async fn count_ended(other_sessions: Vec<(u64, MySqlConnection)>) -> usize {
    let mut ended = 0;
    for (_, mut session) in other_sessions {
        ended += usize::from(session.ping().await.is_err());
    }
    ended
}

/// A restarted server assigns the connection numbers that it assigned before.
#[tokio::test(flavor = "multi_thread")]
async fn the_clean_up_after_a_restart_ends_no_other_session() {
    let server = mariadb::start(&[]).unwrap();
    let database = TestDatabase::on_mariadb(&server).await;
    for others_lock in [false, true] {
        let locks = database.open("&polylock.ttl=3s").await;
        let mut guards = Vec::new();
        for name in ["a", "b", "c"] {
            guards.push(locks.lock(name).acquire().await.unwrap());
        }
        let last =
            "SELECT CAST(max(id) AS SIGNED) FROM information_schema.processlist WHERE id <> connection_id()";
        let last = database.number(last).await.unsigned_abs();
        tokio::task::block_in_place(|| server.kill());
        tokio::task::block_in_place(|| server.restart());
        // The first connections have these numbers now: those of other programs, or of other lockers.
        let (others, mut held) =
            (database.open("&polylock.ttl=10m&polylock.connections=100").await, Vec::new());
        let mut foreign = if others_lock { Vec::new() } else { other_sessions(&server, last).await };
        while others_lock && foreign.last().is_none_or(|(number, _)| *number <= last) {
            held.push(others.lock(held.len().to_string()).acquire().await.unwrap());
            foreign = other_sessions(&server, 0).await;
        }
        for guard in guards {
            guard.lost().await;
        }
        assert!(locks.close(TIMEOUT).await, "it has cleaned up");
        assert_eq!(count_ended(foreign).await, 0, "sessions of another program were ended");
        for guard in held {
            guard.release().await.unwrap_or_else(|error| panic!("another's lock was ended: {error}"));
        }
    }
}

/// The same under load. The full form restarts the server 50 times:
///
/// ```text
/// POLYLOCK_TEST_RESTARTS=50 cargo test -p polylock-integration-tests --test scenarios restarts_under_load
/// ```
#[tokio::test(flavor = "multi_thread")]
async fn restarts_under_load_end_no_other_session_and_grant_no_lock_twice() {
    let restarts: u32 =
        std::env::var("POLYLOCK_TEST_RESTARTS").map_or(3, |restarts| restarts.parse().unwrap());
    let server = mariadb::start(&[]).unwrap();
    let database = TestDatabase::on_mariadb(&server).await;
    let lasts = Duration::from_secs(4) * restarts + Duration::from_secs(4);
    let load = Load { stores: 16, tasks: 1, duration: lasts, min_holds: 100, ..Load::default() };
    let mut victims = 0;
    let outcome = load
        .run(&database.url_with("&polylock.ttl=3s&polylock.connections=4"), async {
            for _ in 0..restarts {
                pause(Duration::from_secs(1)).await;
                tokio::task::block_in_place(|| server.kill());
                tokio::task::block_in_place(|| server.restart());
                let other_sessions = other_sessions(&server, 60).await;
                // Longer than it takes until all holders have renewed, and have cleaned up after their sessions of before.
                pause(Duration::from_millis(1500)).await;
                victims += count_ended(other_sessions).await;
            }
        })
        .await;
    println!("{restarts} restarts, {} sections, {victims} sessions ended", outcome.sections.len());
    assert_eq!(victims, 0, "sessions of another program were ended");
    assert_eq!(history::check(&outcome.sections, Rules::default()), []);
    assert!(outcome.sections.len() > 100, "it went on: {}", outcome.sections.len());
}
