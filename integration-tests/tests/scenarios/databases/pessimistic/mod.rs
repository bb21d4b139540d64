//! `polylock.strategy=pessimistic`: locks that live in a connection, and end with it.

mod mariadb;
mod postgres;
mod test_database;

use std::{collections::HashMap, time::Duration};

use polylock::{Error, LostReason, Moment, NotAcquired, OwnerId};
use polylock_integration_tests::{
    clock::{self, TIMEOUT, now, pause},
    load::{Load, Outcome},
};
use polylock_testkit::history;
use tokio::sync::Barrier;

use test_database::TestDatabase;

/// The tolerated delay of the server and the machine.
const TOLERANCE: Duration = Duration::from_secs(2);
/// A TTL much longer than any test, so that no lock ends because of its TTL.
const LONG_TTL: &str = "&polylock.ttl=10m";

macro_rules! on_every_database {
    ($($case:ident)*) => {
        on_every_database! { @ on_postgres postgres $($case)* }
        on_every_database! { @ on_mariadb mariadb $($case)* }
    };
    (@ $module:ident $database:ident $($case:ident)*) => {
        mod $module {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(&super::TestDatabase::$database().await).await;
            })*
        }
    };
}

on_every_database! {
    a_closed_connection_frees_the_lock_at_once_and_the_holder_reports_loss
    a_release_after_the_connection_was_closed_reports_the_loss
    a_killed_holder_frees_the_lock_at_once
    a_stopped_holder_loses_the_lock_by_the_servers_clock
    a_withdrawn_waiter_leaves_no_transaction_on_the_server
    waiters_withdrawn_at_any_moment_leave_at_once
    a_killed_waiter_delays_no_other_waiter
    a_stopped_waiter_keeps_a_granted_lock_for_its_queue_lease
    a_waiter_with_a_closed_connection_continues_to_wait
    a_wait_continues_when_the_server_cancels_it
    readers_share_and_a_writer_waits_for_the_last_reader
    cycles_leave_no_row_no_transaction_and_few_connections
    rows_of_dead_holders_are_deleted_when_a_store_is_opened
    rows_in_use_when_their_hold_ends_are_deleted_later
    locks_acquired_in_opposite_orders_end_by_the_timeout
    more_locks_than_connections_is_an_error
    holds_left_to_expire_return_their_connections
    locks_exclude_under_a_mixed_load
    connections_closed_under_load_return_no_smaller_token
}

async fn a_closed_connection_frees_the_lock_at_once_and_the_holder_reports_loss(database: &TestDatabase) {
    let ttl = Duration::from_secs(6);
    let (here, there) = (database.open("&polylock.ttl=6s").await, database.open(LONG_TTL).await);
    for shared in [false, true] {
        let lock = here.lock("n");
        let guard = if shared { lock.shared() } else { lock }.acquire().await.unwrap();
        let (lost, renewed) = (guard.lost(), now());
        assert!(there.lock("n").try_acquire().await.unwrap().is_none());
        // The lost hold of the last round is released in the background, on a connection that may be among them.
        assert_ne!(database.kill_sessions().await, 0);
        let killed = now();
        let next = there.lock("n").acquire().await.unwrap();
        assert!(now().since(killed) < TOLERANCE, "free after {:?}", now().since(killed));
        assert!(next.fencing_token() > guard.fencing_token());
        // With the next renewal, long before the deadline.
        assert_eq!(lost.await, LostReason::SessionEnded);
        let after = now().since(renewed);
        assert!(after < ttl / 3 + TOLERANCE, "reported after {after:?}");
        assert!(!guard.is_held());
        let refused = guard.release().await.unwrap_err();
        assert_eq!(refused.lost(), Some(&LostReason::SessionEnded));
        assert!(next.is_held());
        next.release().await.unwrap();
        database.wait_for_transactions(0, "all have left").await;
    }
}

async fn a_release_after_the_connection_was_closed_reports_the_loss(database: &TestDatabase) {
    let (here, there) = (database.open(LONG_TTL).await, database.open(LONG_TTL).await);
    for next_holds in [false, true] {
        let guard = here.lock("n").acquire().await.unwrap();
        assert_eq!(database.kill_sessions().await, 1);
        let next = if next_holds { Some(there.lock("n").acquire().await.unwrap()) } else { None };
        let refused = guard.release().await.unwrap_err();
        assert_eq!(refused.lost(), Some(&LostReason::SessionEnded), "another request may have held it since");
        if let Some(next) = next {
            assert!(next.is_held() && here.lock("n").try_acquire().await.unwrap().is_none());
            next.release().await.unwrap();
        }
        database.wait_for_transactions(0, "all have left").await;
    }
}

async fn a_killed_holder_frees_the_lock_at_once(database: &TestDatabase) {
    let locks = database.open(LONG_TTL).await;
    for name in ["one", "two", "three"] {
        let mut holder = database.worker("hold", LONG_TTL, name, &["1"]);
        holder.expect_line("held");
        assert!(locks.lock(name).try_acquire().await.unwrap().is_none());
        holder.kill();
        let killed = now();
        let guard = locks.lock(name).wait(TIMEOUT).acquire().await.unwrap();
        assert!(now().since(killed) < TOLERANCE, "free after {:?}", now().since(killed));
        guard.release().await.unwrap();
    }
}

async fn a_stopped_holder_loses_the_lock_by_the_servers_clock(database: &TestDatabase) {
    let ttl = Duration::from_secs(2);
    let locks = database.open(LONG_TTL).await;
    let mut holder = database.worker("hold", "&polylock.ttl=2s", "n", &["1"]);
    let held = holder.expect_line("held");
    let deadline = Moment::from_nanos(held[1].parse().unwrap());
    holder.stop();
    let stopped = now();
    let guard = locks.lock("n").wait(TIMEOUT).acquire().await.unwrap();
    let (granted, after) = (now(), now().since(stopped));
    println!("free {after:?} after its holder was stopped");
    // Renewals before the stop have only moved the deadline.
    assert!(granted >= deadline, "free {:?} before the deadline", deadline.since(granted));
    assert!(after < ttl + TOLERANCE, "free after {after:?}");
    holder.resume();
    let counts = holder.expect_line("lost");
    assert_eq!(counts[0], "0", "work was polled after the deadline");
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

async fn a_withdrawn_waiter_leaves_no_transaction_on_the_server(database: &TestDatabase) {
    let (here, there) = (database.open(LONG_TTL).await, database.open(LONG_TTL).await);
    let guard = here.lock("n").acquire().await.unwrap();
    for wait in [1, 5, 20, 100, 300] {
        let wait = Duration::from_millis(wait);
        let refused = there.lock("n").wait(wait).acquire().await.unwrap_err();
        assert!(refused.is_not_acquired() || refused.is_temporary(), "{refused}");
        // A waiter with a dropped future leaves no transaction either.
        let dropped = tokio::time::timeout(wait, there.lock("n").shared().acquire()).await;
        assert!(dropped.is_err());
    }
    assert!(there.close(TIMEOUT).await, "all are withdrawn");
    database.wait_for_transactions(1, "the holder alone is left").await;
    guard.release().await.unwrap();
    database.wait_for_transactions(0, "no waiter was granted the lock").await;
    // A withdrawal that has ended its session by force deletes the rows in the background.
    clock::until("the rows are deleted", async || database.count_names().await == 0).await;
}

/// MariaDB sends no reply to a message of several statements if the waiter is cancelled between two of them.
async fn waiters_withdrawn_at_any_moment_leave_at_once(database: &TestDatabase) {
    let (here, there) = (database.open(LONG_TTL).await, database.open(LONG_TTL).await);
    let guard = here.lock("n").acquire().await.unwrap();
    let waiter = |offset| {
        let there = there.clone();
        async move {
            for wait in 0_u64..300 {
                let wait = Duration::from_micros(100 * (1 + (wait * 7 + offset) % 50));
                let refused = there.lock("n").wait(wait).acquire().await.unwrap_err();
                assert!(refused.is_not_acquired() || refused.is_temporary(), "{refused}");
            }
        }
    };
    let waiters: Vec<_> = (0..8).map(|offset| tokio::spawn(waiter(offset))).collect();
    for waiter in waiters {
        waiter.await.unwrap();
    }
    let began = now();
    database.wait_for_transactions(1, "the holder alone is left").await;
    assert!(now().since(began) < TOLERANCE, "all have left after {:?}", now().since(began));
    guard.release().await.unwrap();
    clock::until("the rows are deleted", async || database.count_names().await == 0).await;
}

async fn a_killed_waiter_delays_no_other_waiter(database: &TestDatabase) {
    let locks = database.open(LONG_TTL).await;
    let guard = locks.lock("n").acquire().await.unwrap();
    let mut waiter = database.worker("queue", LONG_TTL, "n", &[]);
    waiter.expect_line("ready");
    database.wait_for_blocked(1).await;
    waiter.kill();
    guard.release().await.unwrap();
    let began = now();
    let guard = locks.lock("n").wait(TIMEOUT).acquire().await.unwrap();
    assert!(now().since(began) < TOLERANCE, "free after {:?}", now().since(began));
    guard.release().await.unwrap();
    database.wait_for_transactions(0, "the dead waiter is gone").await;
}

async fn a_stopped_waiter_keeps_a_granted_lock_for_its_queue_lease(database: &TestDatabase) {
    let queue_lease = Duration::from_secs(2);
    let locks = database.open(LONG_TTL).await;
    let guard = locks.lock("n").acquire().await.unwrap();
    let mut waiter = database.worker("queue", "&polylock.ttl=2s", "n", &[]);
    waiter.expect_line("ready");
    database.wait_for_blocked(1).await;
    waiter.stop();
    let before = now();
    guard.release().await.unwrap();
    // The server has granted the lock to the stopped waiter.
    database.wait_for_blocked(0).await;
    let began = now();
    let guard = locks.lock("n").wait(TIMEOUT).acquire().await.unwrap();
    let (after_release, after) = (now().since(before), now().since(began));
    println!("a stopped waiter kept the lock for {after:?}");
    assert!(after_release > queue_lease / 2, "the stopped waiter was never granted it: {after_release:?}");
    assert!(after < queue_lease + TOLERANCE, "free after {after:?}");
    waiter.resume();
    // It does not report the expired grant, and waits again.
    pause(Duration::from_millis(100)).await;
    assert_eq!(waiter.next_line(Duration::ZERO), None);
    let token = guard.fencing_token().get();
    guard.release().await.unwrap();
    let served: u64 = waiter.expect_line("served")[0].parse().unwrap();
    assert!(served > token);
}

async fn a_waiter_with_a_closed_connection_continues_to_wait(database: &TestDatabase) {
    let (here, there) = (database.open(LONG_TTL).await, database.open(LONG_TTL).await);
    let first = here.lock("n").shared().acquire().await.unwrap();
    let waiting = tokio::spawn(there.lock("n").acquire());
    database.wait_for_blocked(1).await;
    // Both: the reader has not detected it yet, and the writer claims again.
    assert_eq!(database.kill_sessions().await, 2);
    let next = waiting.await.unwrap().unwrap();
    assert!(next.fencing_token() > first.fencing_token());
    match next.release().await {
        // The reader's session was ended first, and the writer's after it had been granted the lock.
        Ok(()) | Err(Error::Lost { reason: LostReason::SessionEnded, .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

async fn a_wait_continues_when_the_server_cancels_it(database: &TestDatabase) {
    let (here, there) = (database.open(LONG_TTL).await, database.open(LONG_TTL).await);
    let reader = here.lock("n").shared().acquire().await.unwrap();
    let waiting = tokio::spawn(there.lock("n").acquire());
    database.wait_for_blocked(1).await;
    // Each waiting statement has a time limit, because the server does not detect that its client has gone.
    pause(Duration::from_secs(17)).await;
    database.wait_for_blocked(1).await;
    assert!(reader.is_held() && !waiting.is_finished());
    reader.release().await.unwrap();
    let writer = waiting.await.unwrap().unwrap();
    assert!(here.lock("n").shared().try_acquire().await.unwrap().is_none());
    writer.release().await.unwrap();
    database.wait_for_transactions(0, "both have left").await;
}

async fn readers_share_and_a_writer_waits_for_the_last_reader(database: &TestDatabase) {
    let (here, there) = (database.open(LONG_TTL).await, database.open(LONG_TTL).await);
    let first = here.lock("n").shared().acquire().await.unwrap();
    let second = there.lock("n").shared().acquire().await.unwrap();
    assert!(second.fencing_token() > first.fencing_token());
    let writer = tokio::spawn(there.lock("n").acquire());
    database.wait_for_blocked(1).await;
    first.release().await.unwrap();
    assert!(!writer.is_finished());
    second.release().await.unwrap();
    let writer = writer.await.unwrap().unwrap();
    assert!(here.lock("n").shared().try_acquire().await.unwrap().is_none());
    writer.release().await.unwrap();
    let refused = here.lock("n").mode(polylock::Mode::ProtectedWrite).acquire().await.unwrap_err();
    assert!(refused.to_string().contains("but exclusive and shared"), "{refused}");
}

async fn cycles_leave_no_row_no_transaction_and_few_connections(database: &TestDatabase) {
    let locks = database.open("&polylock.ttl=10m&polylock.connections=6").await;
    let tasks: Vec<_> = (0..6)
        .map(|task| {
            let locks = locks.clone();
            tokio::spawn(async move {
                for cycle in 0..100 {
                    let name = format!("{task}/{cycle}");
                    let guard = locks.lock(&name).acquire().await.unwrap();
                    if cycle % 2 == 0 {
                        guard.release().await.unwrap();
                    } else {
                        drop(guard);
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let again = locks.clone();
    assert!(again.close(TIMEOUT).await);
    database.wait_for_transactions(0, "all have left").await;
    clock::until("the rows are deleted", async || database.count_names().await == 0).await;
    // Those of the locks, and four more. The server may not have noticed yet that another one was closed.
    clock::until("at most ten are connected", async || database.count_connections().await <= 6 + 4).await;
    drop(locks);
    database.wait_for_transactions(0, "nothing is left").await;
}

async fn rows_of_dead_holders_are_deleted_when_a_store_is_opened(database: &TestDatabase) {
    let mut dead: Vec<_> =
        ["a", "b", "c"].iter().map(|name| database.worker("hold", LONG_TTL, name, &["1"])).collect();
    dead.iter_mut().for_each(|dead| drop(dead.expect_line("held")));
    assert_eq!(database.count_names().await, 3);
    let living = database.open(LONG_TTL).await;
    let held = living.lock("living").acquire().await.unwrap();
    dead.iter_mut().for_each(|dead| assert!(!dead.kill().success()));
    database.wait_for_transactions(1, "the dead holders are gone").await;
    assert_eq!(database.count_names().await, 4, "the dead holders have left rows");
    // A server may show a dead session for a moment after the end of its transaction.
    clock::until("only the rows in use are left", async || {
        drop(database.open(LONG_TTL).await);
        database.count_names().await == 1
    })
    .await;
    assert!(held.is_held());
    held.release().await.unwrap();
    assert_eq!(database.count_names().await, 0);
}

/// 1. The connection of a holder is closed.
/// 2. Another transaction still uses the rows, like a session that the server ends slowly.
/// 3. The holder releases: the rows can't be deleted.
/// 4. The other transaction ends.
async fn rows_in_use_when_their_hold_ends_are_deleted_later(database: &TestDatabase) {
    let locks = database.open(LONG_TTL).await;
    let guard = locks.lock("n").acquire().await.unwrap();
    assert_eq!(database.kill_sessions().await, 1);
    database.wait_for_transactions(0, "the holder's connection is closed").await;
    let release = async {
        assert_eq!(guard.release().await.unwrap_err().lost(), Some(&LostReason::SessionEnded));
        assert_ne!(database.count_names().await, 0, "the rows were deleted in use");
    };
    database.use_rows_during(release).await;
    clock::until("the rows are deleted", async || database.count_names().await == 0).await;
}

/// Each lock is a separate transaction, so the database detects no deadlock: the timeouts of the waiters end it.
async fn locks_acquired_in_opposite_orders_end_by_the_timeout(database: &TestDatabase) {
    let locks = database.open(LONG_TTL).await;
    let both_hold = &Barrier::new(2);
    let acquire_both = |first: &'static str, second: &'static str, wait: u64| {
        let locks = locks.clone();
        async move {
            let held = locks.lock(first).acquire().await.unwrap();
            both_hold.wait().await;
            let second = locks.lock(second).wait(Duration::from_millis(wait)).acquire().await?;
            second.release().await?;
            held.release().await
        }
    };
    let (short_wait, long_wait) = tokio::join!(acquire_both("a", "b", 2000), acquire_both("b", "a", 20_000));
    let refused = short_wait.unwrap_err();
    assert!(matches!(refused, Error::NotAcquired { reason: NotAcquired::TimedOut { .. }, .. }), "{refused}");
    // It has released its lock, so the other one continues.
    long_wait.unwrap();
    database.wait_for_transactions(0, "both are gone").await;
}

async fn more_locks_than_connections_is_an_error(database: &TestDatabase) {
    let locks = database.open("&polylock.ttl=10m&polylock.connections=2").await;
    let owner = OwnerId::unique();
    let first = locks.lock("a").reentrant(&owner).acquire().await.unwrap();
    let second = locks.lock("b").acquire().await.unwrap();
    let again = locks.lock("a").reentrant(&owner).acquire().await.unwrap();
    let refused = locks.lock("c").try_acquire().await.unwrap_err();
    assert!(refused.is_temporary(), "{refused}");
    let cause = std::error::Error::source(&refused).unwrap().to_string();
    assert!(cause.contains("all 2 connections") && cause.contains("polylock.connections"), "{cause}");
    // A waiter gets a connection as soon as one is free.
    let waiting = tokio::spawn(locks.lock("c").acquire());
    pause(Duration::from_millis(400)).await;
    second.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    drop((first, again));
}

async fn holds_left_to_expire_return_their_connections(database: &TestDatabase) {
    let locks = database.open("&polylock.ttl=3s&polylock.connections=2").await;
    for round in 0..2 {
        for name in ["a", "b"] {
            locks.lock(format!("{name}{round}")).acquire().await.unwrap().leave_to_expire().unwrap();
        }
        assert!(
            locks.lock("c").try_acquire().await.unwrap_err().is_temporary(),
            "the leases have not expired"
        );
        database.wait_for_transactions(0, "the leases have expired").await;
    }
}

async fn locks_exclude_under_a_mixed_load(database: &TestDatabase) {
    let outcome = Load { min_holds: 300, ..Load::default() }
        .run(&database.url_with("&polylock.connections=20"), async {})
        .await;
    assert_eq!(history::check(&outcome.sections, history::Rules::default()), []);
    assert_eq!((outcome.failures, outcome.losses), (0, 0));
    println!("{} sections", outcome.sections.len());
    assert!(outcome.sections.len() > 300, "{} sections", outcome.sections.len());
    database.wait_for_transactions(0, "all have left").await;
    // A release that has met a deadlock of the deletions deletes the rows in the background.
    clock::until("the rows are deleted", async || database.count_names().await == 0).await;
}

/// A holder with a closed connection detects the loss at its next renewal, when the lock may have another holder. Fencing tokens
/// cover that: none is smaller than one that was drawn before.
async fn connections_closed_under_load_return_no_smaller_token(database: &TestDatabase) {
    let outcome = Load { duration: Duration::from_secs(5), min_holds: 100, ..Load::default() }
        .run(&database.url_with("&polylock.ttl=3s&polylock.connections=20"), async {
            let mut ended = 0;
            for _ in 0..60 {
                ended += database.kill_sessions().await;
                pause(Duration::from_millis(50)).await;
            }
            assert!(ended > 20, "only {ended} connections were ended");
        })
        .await;
    tokens_grow(&outcome);
    assert!(outcome.sections.len() > 20, "{} sections", outcome.sections.len());
    database.wait_for_transactions(0, "all have left").await;
}

/// A request after the release of another one gets a greater token, and no token is granted twice. (A holder with a connection that
/// was closed right after the grant may receive the grant after later holders have released: its token is smaller, as it should be.)
pub(crate) fn tokens_grow(outcome: &Outcome) {
    println!("{} sections, {} losses", outcome.sections.len(), outcome.losses);
    assert_eq!(history::repeated_tokens(&outcome.sections), []);
    let mut ended: Vec<_> =
        outcome.sections.iter().filter_map(|section| Some((section.released?, section))).collect();
    let mut by_invocation: Vec<_> = outcome.sections.iter().collect();
    ended.sort_by_key(|(released, _)| *released);
    by_invocation.sort_by_key(|section| section.invoked);
    let (mut ended, mut greatest) = (ended.into_iter().peekable(), HashMap::new());
    let mut compared = 0;
    for section in by_invocation {
        while let Some((_, before)) = ended.next_if(|(released, _)| *released < section.invoked) {
            let greatest = greatest.entry(&before.lock).or_insert(before.token);
            *greatest = before.token.max(*greatest);
        }
        if let Some(before) = greatest.get(&section.lock) {
            assert!(section.token > *before, "{section:?} after {before:?}");
            compared += 1;
        }
    }
    assert!(compared > 50, "only {compared} comparisons");
}
