//! Restarted servers, killed connections, and the statements that a waiting process sends.

use std::time::Duration;

use polylock::Locks;
use polylock_integration_tests::{
    clock::{self, now, pause},
    load::Load,
    servers::mariadb,
};

use super::{
    busy, connection, counter, lock_gates, number, plant, run, tables, wait_for_blocked_session, wait_until,
};

/// A token of the lock `a`, which is free before and afterwards.
async fn token(url: &str) -> u64 {
    let locks = Locks::connect(url).await.unwrap();
    let guard = locks.lock("a").acquire().await.unwrap();
    let token = guard.fencing_token().get();
    guard.release().await.unwrap();
    token
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_grow_across_restarts_emptied_tables_and_new_tables() {
    let server = mariadb::start(&[]).unwrap();
    let (url, table) = tables(&server, "");
    let mut tokens = vec![token(&url).await];
    for how in [
        "",
        "TRUNCATE {p}_holds; TRUNCATE {p}_waiters",
        "OPTIMIZE TABLE {p}_gates",
        "TRUNCATE {p}_gates",
        "DROP TABLE {p}_holds, {p}_waiters, {p}_gates, {p}_meta",
    ] {
        if how.is_empty() {
            tokio::task::block_in_place(|| server.restart());
        } else {
            run(&mut connection(&server).await, &how.replace("{p}", &table)).await;
        }
        tokens.push(token(&url).await);
    }
    assert!(tokens.is_sorted_by(|before, after| before < after), "{tokens:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_and_queries_ended_under_load_cause_no_violation() {
    let server = mariadb::start(&[]).unwrap();
    let (url, table) = tables(&server, "&polylock.ttl=5s");
    let mut killer = connection(&server).await;
    let load = Load { duration: Duration::from_secs(6), min_holds: 50, ..Load::default() };
    let outcome = load
        .run(&url, async {
            let until = now() + Duration::from_secs(5);
            let mut ended = 0;
            while now() < until {
                // Half of them connections, half of them only running statements.
                let sql = "SELECT coalesce(max(id), 0) FROM information_schema.processlist \
                           WHERE id <> connection_id() AND user = 'root' ORDER BY rand()";
                let busy = sql.replace("ORDER", "AND command = 'Query' ORDER");
                for (what, sql) in [("CONNECTION", sql), ("QUERY", busy.as_str())] {
                    let id = number(&mut killer, sql).await;
                    let kill = format!("KILL {what} {id}");
                    // It may have gone by itself.
                    let killed =
                        sqlx::Executor::execute(&mut killer, sqlx::raw_sql(sqlx::AssertSqlSafe(kill))).await;
                    ended += u32::from(killed.is_ok());
                }
                pause(Duration::from_millis(10)).await;
            }
            assert!(ended > 50, "only {ended} were ended");
        })
        .await;
    outcome.assert_consistent();
    // A broken connection is no loss: another one renews.
    assert_eq!(outcome.losses, 0);
    assert!(outcome.sections.len() > 20, "it went on");
    // A hold whose last release was killed expires, and is deleted when a store is opened.
    let (mut observer, holds) = (connection(&server).await, format!("SELECT count(*) FROM {table}_holds"));
    let end = now() + clock::TIMEOUT;
    while number(&mut observer, &holds).await != 0 {
        assert!(now() < end, "holds are left");
        drop(Locks::connect(&url).await.unwrap());
    }
    // And no transaction is left that a killed query has begun.
    run(&mut lock_gates(&server, &table).await, "COMMIT").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_closed_by_the_server_are_replaced() {
    let server = mariadb::start(&["wait_timeout=2"]).unwrap();
    let locks = Locks::connect(&tables(&server, "&polylock.ttl=1h").0).await.unwrap();
    let claims: Vec<_> = (0..8).map(|name| tokio::spawn(locks.lock(name.to_string()).acquire())).collect();
    let mut guards = Vec::new();
    for claim in claims {
        guards.push(claim.await.unwrap().unwrap());
    }
    let others = "SELECT count(*) FROM information_schema.processlist \
                  WHERE id <> connection_id() AND user = 'root'";
    let mut observer = connection(&server).await;
    // Its pauses between two queries may be long on a busy machine.
    run(&mut observer, "SET SESSION wait_timeout = 600").await;
    // A program keeps two open for a while.
    wait_until(&mut observer, others, |others| others <= 2).await;
    for guard in guards {
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_with_a_killed_query_is_retried_on_another_connection() {
    let server = mariadb::start(&[]).unwrap();
    let (url, table) = tables(&server, "");
    let locks = Locks::connect(&url).await.unwrap();
    let mut keeper = lock_gates(&server, &table).await;
    let claim = tokio::spawn(locks.lock("a").acquire());
    wait_for_blocked_session(&server).await;
    let id = &busy(&table);
    let first = number(&mut keeper, id).await;
    run(&mut keeper, &format!("KILL QUERY {first}")).await;
    wait_until(&mut keeper, id, |second| second != 0 && second != first).await;
    run(&mut keeper, "COMMIT").await;
    claim.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquisition_among_64_contenders_costs_a_constant_number_of_statements() {
    let server = mariadb::start(&[]).unwrap();
    let (url, _) = tables(&server, "");
    drop(Locks::connect(&url).await.unwrap());
    let mut observer = connection(&server).await;
    let deadlocks = counter(&mut observer, "innodb_deadlocks").await;
    let calls = counter(&mut observer, "com_call_procedure").await;
    let load = Load { stores: 4, tasks: 16, names: 1, readers: false, min_holds: 500, ..Load::default() };
    let outcome = load.run(&url, async {}).await;
    outcome.assert_consistent();
    let calls = counter(&mut observer, "com_call_procedure").await - calls;
    let acquisitions = f64::from(u32::try_from(outcome.sections.len()).unwrap());
    let each = f64::from(u32::try_from(calls).unwrap()) / acquisitions;
    println!("{calls} calls for {acquisitions} acquisitions: {each:.2} each");
    // One to enqueue, one to acquire, one to release, and a recheck every second.
    let waited: u64 = outcome.sections.iter().map(|section| section.acquired - section.invoked).sum();
    let seconds = Duration::from_nanos(waited).as_secs_f64() / acquisitions;
    // While hand-overs are slow, each store polls again after 20 ms without a change.
    let began = outcome.sections.iter().map(|section| section.invoked).min().unwrap();
    let ended = outcome.sections.iter().map(|section| section.acquired).max().unwrap();
    let polls = 4.0 * Duration::from_nanos(ended - began).as_secs_f64() / 0.02 / acquisitions;
    assert!(each < 3.2 + seconds + polls, "{each:.2} in {seconds:.2} s, with {polls:.2} polls");
    assert_eq!(counter(&mut observer, "innodb_deadlocks").await, deadlocks);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_statements_are_sent_without_waiters() {
    let server = mariadb::start(&[]).unwrap();
    let (url, _) = tables(&server, "&polylock.ttl=1h&polylock.poll=5ms");
    let (here, there) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    let mut observer = connection(&server).await;
    let guard = here.lock("a").acquire().await.unwrap();
    let mut asked = async |during: Duration| {
        let before = counter(&mut observer, "com_call_procedure").await;
        pause(during).await;
        counter(&mut observer, "com_call_procedure").await - before
    };
    assert_eq!(asked(Duration::from_millis(300)).await, 0);
    let waits = tokio::spawn(there.lock("a").acquire());
    clock::until("it waits", async || here.inspect("a").await.unwrap().waiters.len() == 1).await;
    // Each window in which this machine does not stand still has many; rechecks and keep-alives would be two or three.
    let end = now() + clock::TIMEOUT;
    while asked(Duration::from_millis(500)).await <= 5 {
        assert!(now() < end, "the waiter is not polled for");
    }
    guard.release().await.unwrap();
    waits.await.unwrap().unwrap().release().await.unwrap();
    // The poller ends without waiters.
    while asked(Duration::from_millis(50)).await > 0 {}
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_before_the_reply_to_a_claim_is_not_missed() {
    let server = mariadb().unwrap();
    let (url, table) = tables(server, "&polylock.poll=1s&polylock.ttl=1h");
    // Whoever joins the queue is answered 200 ms later.
    plant(server, &url, &table, "claim", |claim| {
        claim.replacen("SELECT NULL, v_left", "DO sleep(0.2);\n        SELECT NULL, v_left", 1)
    })
    .await;
    let (locks, other) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    let held = other.lock("a").acquire().await.unwrap();
    let long = tokio::spawn(locks.lock("a").acquire());
    let mut delays = Vec::new();
    for _ in 0..3 {
        // A waiter has been waiting for long, so the pauses of the poller are long.
        pause(Duration::from_secs(3)).await;
        let guard = locks.lock("b").acquire().await.unwrap();
        let waits = tokio::spawn(locks.lock("b").acquire());
        clock::until("it is in the queue", async || other.inspect("b").await.unwrap().waiters.len() == 1)
            .await;
        let released = now();
        guard.release().await.unwrap();
        waits.await.unwrap().unwrap().release().await.unwrap();
        delays.push(now().since(released));
    }
    // A missed release would be found by the recheck, after more than a second each time. A busy machine may delay some.
    assert!(delays.iter().any(|delay| *delay < Duration::from_millis(500)), "{delays:?}");
    held.release().await.unwrap();
    long.await.unwrap().unwrap().release().await.unwrap();
}
