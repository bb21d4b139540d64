//! Bugs planted in the routine that claims, and the tests that find them.

use std::time::Duration;

use polylock::{Error, Fault, Locks, Mode};
use polylock_integration_tests::{
    clock::{self, pause},
    load::{self, Load},
    servers::{self, Server},
};
use polylock_testkit::history;
use sqlx::{AssertSqlSafe, Executor};

use super::{busy, connection, lock_gates, number, plant, run, tables, wait_for_blocked_session, wait_until};

/// Where the gate is locked.
const BEGIN: &str = "    SET TRANSACTION ISOLATION LEVEL";
/// Where a program may stall without harm.
const STALL: &str = "    DO sleep(rand() * 0.02);\n";

/// The line of `routine` that holds `part`.
fn line<'a>(routine: &'a str, part: &str) -> &'a str {
    routine.lines().find(|line| line.contains(part)).unwrap()
}

/// The part of the line that locks the gate and draws the token.
const GATE: &str = "token + 1) WHERE shard = v_shard;";

#[tokio::test(flavor = "multi_thread")]
async fn planted_token_drawn_before_the_gate_is_caught() {
    let server = servers::mariadb().unwrap();
    // Programs that stall before they have the gate, which does a sound claim no harm ...
    let (sound, table) = tables(server, "");
    plant(server, &sound, &table, "claim", |claim| claim.replacen(BEGIN, &format!("{STALL}{BEGIN}"), 1))
        .await;
    let outcome = Load { min_holds: 50, ..load::tries_of_writers() }.run(&sound, async {}).await;
    outcome.assert_consistent();
    assert!(outcome.sections.len() > 50);

    // ... and one that has drawn its token by then.
    let (naive, table) = tables(server, "");
    plant(server, &naive, &table, "claim", |claim| {
        let draw = format!("{}\n    SET v_naive = last_insert_id();\n{STALL}{BEGIN}", line(claim, GATE));
        claim
            .replacen("    DECLARE v_now", "    DECLARE v_naive BIGINT;\n    DECLARE v_now", 1)
            .replacen(BEGIN, &draw, 1)
            .replace("a_request, v_token,", "a_request, v_naive,")
            .replace("SELECT v_token, a_ttl", "SELECT v_naive, a_ttl")
    })
    .await;
    let outcome = Load { min_holds: 200, ..load::tries_of_writers() }.run(&naive, async {}).await;
    let found = history::token_regressions(&outcome.sections);
    println!("{} regressions in {} sections", found.len(), outcome.sections.len());
    assert!(!found.is_empty(), "the planted bug was not caught");
}

#[tokio::test(flavor = "multi_thread")]
async fn planted_claim_that_releases_the_gate_early_is_caught() {
    let server = servers::mariadb().unwrap();
    let (url, table) = tables(server, "");
    plant(server, &url, &table, "claim", |claim| {
        // Locked and released immediately.
        let early = format!("{}\n{BEGIN}", line(claim, GATE));
        claim
            .replace(line(claim, GATE), "SET v_left = NULL;")
            .replace("IF row_count() = 0 THEN", "IF FALSE THEN")
            .replacen(BEGIN, &early, 1)
            // Changes between the check and the grant remain undetected.
            .replace("INSERT INTO", &format!("{}INSERT INTO", STALL.trim_start()))
    })
    .await;
    // The key still refuses a second exclusive holder, but not a reader beside a writer.
    assert_ne!(overlaps(&url).await, 0, "the planted bug was not caught");
}

/// Returns the number of overlapping holds in a load with shared holds.
async fn overlaps(url: &str) -> usize {
    let load = Load { min_holds: 200, ..load::tries_of_readers_and_writers() };
    let outcome = load.run(url, async {}).await;
    let found = history::overlaps(&outcome.sections).len();
    println!("{found} overlaps in {} sections, {} failures", outcome.sections.len(), outcome.failures);
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn planted_claim_that_ignores_shared_holds_is_caught() {
    let server = servers::mariadb().unwrap();
    let (url, table) = tables(server, "");
    plant(server, &url, &table, "claim", |claim| {
        claim.replacen("_holds WHERE name = a_name)", "_holds WHERE name = a_name AND slot = x'')", 1)
    })
    .await;
    assert_ne!(overlaps(&url).await, 0, "the planted bug was not caught");
}

/// Returns true if a new request overtakes a waiter of another process after the hold has ended.
async fn overtakes(server: &Server, url: &str, table: &str) -> bool {
    let locks = Locks::connect(url).await.unwrap();
    let guard = locks.lock("a").acquire().await.unwrap();
    // A process that stops as soon as it has joined the queue.
    let mut other = connection(server).await;
    run(&mut other, &claim(table, 5_000_000)).await;
    // Its lease has ended. A release would hand the lock over.
    run(&mut other, &format!("DELETE FROM {table}_holds")).await;
    let overtakes = locks.lock("a").try_acquire().await.unwrap().is_some();
    guard.release().await.unwrap_err();
    overtakes
}

#[tokio::test(flavor = "multi_thread")]
async fn planted_claim_that_ignores_waiters_is_caught() {
    let server = servers::mariadb().unwrap();
    let (url, table) = tables(server, "");
    assert!(!overtakes(server, &url, &table).await);
    let (url, table) = tables(server, "");
    plant(server, &url, &table, "claim", |claim| {
        claim.replacen("_waiters WHERE name = a_name)", "_waiters WHERE FALSE)", 1)
    })
    .await;
    assert!(overtakes(server, &url, &table).await);
}

/// Returns the age of a hold at its grant, after a wait of 700 ms for the gate.
async fn age_after_waiting(server: &Server, url: &str, table: &str) -> Duration {
    let locks = Locks::connect(url).await.unwrap();
    let mut keeper = lock_gates(server, table).await;
    let claim = tokio::spawn(locks.lock("a").acquire());
    wait_for_blocked_session(server).await;
    pause(Duration::from_secs(2)).await;
    run(&mut keeper, "COMMIT").await;
    let guard = claim.await.unwrap().unwrap();
    let age = locks.inspect("a").await.unwrap().holders[0].age;
    guard.release().await.unwrap();
    age
}

#[tokio::test(flavor = "multi_thread")]
async fn the_clock_is_read_inside_the_gate() {
    let server = servers::mariadb::start(&[]).unwrap();
    let (url, table) = tables(&server, "");
    let age = age_after_waiting(&server, &url, &table).await;
    assert!(age < Duration::from_millis(1800), "{age:?}");
    // The planted twin reads it when it begins.
    let (url, table) = tables(&server, "");
    plant(&server, &url, &table, "claim", |claim| {
        let read = line(claim, "SET v_now = ");
        claim.replace(read, "").replacen(BEGIN, &format!("{read}\n{BEGIN}"), 1)
    })
    .await;
    let age = age_after_waiting(&server, &url, &table).await;
    assert!(age > Duration::from_millis(1900), "{age:?}");
}

/// Returns the number of holds that a claim leaves if it arrives after its client's timeout.
async fn orphans(server: &Server, url: &str, table: &str) -> i64 {
    let locks = Locks::connect(url).await.unwrap();
    let mut keeper = lock_gates(server, table).await;
    let error = locks.lock("a").try_acquire().await.unwrap_err();
    assert!(matches!(&error, Error::Unavailable(error) if error.fault == Fault::Temporary), "{error:?}");
    // Its release needs no gate.
    assert!(locks.close(clock::TIMEOUT).await);
    pause(Duration::from_millis(300)).await;
    run(&mut keeper, "COMMIT").await;
    // Until the server has nothing more to do.
    wait_until(&mut keeper, &busy(table), |id| id == 0).await;
    number(&mut keeper, &format!("SELECT count(*) FROM {table}_holds")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_claim_is_not_executed() {
    let server = servers::mariadb::start(&[]).unwrap();
    let keys = "&polylock.operation_timeout=3s&polylock.outage=1ms&polylock.ttl=1h";
    let (url, table) = tables(&server, keys);
    assert_eq!(orphans(&server, &url, &table).await, 0);
    let (url, table) = tables(&server, keys);
    plant(&server, &url, &table, "claim", |claim| claim.replace("v_now > a_expiry", "FALSE")).await;
    assert_ne!(orphans(&server, &url, &table).await, 0);
}

/// Returns a claim of the lock `a` in exclusive mode, with a queue entry for `queue_lease`.
fn claim(table: &str, queue_lease: u64) -> String {
    let (mode, conflicts) = (Mode::Exclusive.bit(), Mode::Exclusive.conflicts());
    format!(
        "CALL {table}_claim_4(x'61', x'00112233445566778899aabbccddeeff', {mode}, {conflicts}, x'', x'6f', x'', \
         60000000, {queue_lease}, 0, 9223372036854775807)"
    )
}

/// Returns true for each claim that leaves a transaction open: after a lock wait timeout, and as the victim of a deadlock.
async fn left_open(server: &Server, table: &str) -> [bool; 2] {
    let mut client = connection(server).await;
    let left = async |expected: &str, claiming: sqlx::Result<()>| {
        let error = claiming.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let mut keeper = lock_gates(server, table).await;
    let claiming = client.execute(sqlx::raw_sql(AssertSqlSafe(claim(table, 0)))).await.map(drop);
    left("1205", claiming).await;
    let timed_out = number(&mut client, "SELECT @@in_transaction").await != 0;
    run(&mut keeper, "ROLLBACK").await;
    run(&mut client, "ROLLBACK").await;
    for session in [&mut keeper, &mut client] {
        // The claim must wait until the deadlock.
        run(session, "SET SESSION innodb_lock_wait_timeout = 60").await;
    }

    // The claim has locked the gate and waits for an expired row; a larger transaction has locked the row and waits for the gate.
    let row =
        |name: &str| format!("INSERT INTO {table}_holds VALUES ({name}, '', '', 1, 1, '', '', 0, 0, NULL)");
    run(&mut keeper, &row("'a'")).await;
    run(&mut keeper, "START TRANSACTION").await;
    for other in 0..100 {
        run(&mut keeper, &row(&format!("'b{other}'"))).await;
    }
    run(&mut keeper, &format!("SELECT * FROM {table}_holds WHERE name = 'a' FOR UPDATE")).await;
    let claiming = tokio::spawn({
        let sql = claim(table, 0);
        async move {
            let claimed = client.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await.map(drop);
            (client, claimed)
        }
    });
    wait_for_blocked_session(server).await;
    run(&mut keeper, &format!("SELECT * FROM {table}_gates FOR UPDATE")).await;
    let (mut client, claimed) = claiming.await.unwrap();
    let error = claimed.unwrap_err().to_string();
    assert!(error.contains("1213"), "{error}");
    let deadlocked = number(&mut client, "SELECT @@in_transaction").await != 0;
    [timed_out, deadlocked]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_claim_leaves_no_transaction_open() {
    let server = servers::mariadb::start(&["innodb_lock_wait_timeout=1"]).unwrap();
    let (url, table) = tables(&server, "");
    drop(Locks::connect(&url).await.unwrap());
    assert_eq!(left_open(&server, &table).await, [false; 2]);
    // Without its handler, it leaves the transaction open that met a lock timeout.
    let (url, table) = tables(&server, "");
    plant(&server, &url, &table, "claim", |claim| claim.replace("FOR SQLEXCEPTION", "FOR SQLSTATE '99999'"))
        .await;
    assert_eq!(left_open(&server, &table).await, [true, false]);
}

/// The server's clock, as the claims see it, is set forward by an hour and back, while a store is open.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_of_the_servers_clock_costs_a_claim_only_one_round_trip() {
    let server = servers::mariadb().unwrap();
    let (url, table) = tables(server, "");
    let locks = Locks::connect(&url).await.unwrap();
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
    for step in [3_600_000_000_i64, 0] {
        plant(server, &url, &table, "claim", |claim| {
            let read = line(claim, "SET v_now = ");
            claim.replace(read, &read.replace("= ", &format!("= {step} + ")))
        })
        .await;
        for _ in 0..2 {
            locks.lock("a").try_acquire().await.unwrap().expect("free").release().await.unwrap();
        }
    }
}
