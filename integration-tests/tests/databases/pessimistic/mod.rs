//! `polylock.strategy=pessimistic`: locks that live in a connection, and end with it.

mod mariadb;
mod postgres;
mod site;

use std::{collections::HashMap, time::Duration};

use polylock::{Error, LostReason, NotAcquired, OwnerId};
use polylock_integration_tests::{
    clock::{PATIENCE, now, pause},
    servers::Private,
};
use polylock_testkit::history;

use crate::load::{Load, Outcome};
use site::Site;

/// What the server and the machine may be late by.
const SLACK: Duration = Duration::from_millis(700);
/// Much longer than any test: what ends, ends for another reason.
const LONG: &str = "&polylock.ttl=10m";

macro_rules! on_every_database {
    ($($case:ident)*) => {
        on_every_database! { @ on_postgres postgres $($case)* }
        on_every_database! { @ on_mariadb mariadb $($case)* }
    };
    (@ $module:ident $site:ident $($case:ident)*) => {
        mod $module {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(&super::Site::$site().await).await;
            })*
        }
    };
}

on_every_database! {
    a_connection_that_is_ended_frees_the_lock_at_once_and_its_holder_learns_it
    a_release_after_the_connection_was_ended_reports_the_loss
    a_killed_holder_frees_the_lock_at_once
    a_stopped_holder_loses_the_lock_by_the_servers_clock
    a_waiter_that_gave_up_is_gone_from_the_server
    a_killed_waiter_holds_nobody_up
    a_stopped_waiter_keeps_what_it_is_given_for_its_place_alone
    a_waiter_whose_connection_is_ended_waits_on
    a_wait_goes_on_when_the_server_ends_it
    readers_share_and_a_writer_waits_for_the_last
    cycles_leave_no_row_no_transaction_and_few_connections
    rows_that_the_dead_left_are_cleared_by_the_next_who_opens
    locks_taken_in_opposite_orders_end_by_the_time_limit
    more_locks_than_connections_is_told
    all_together_it_holds
    connections_that_are_ended_under_load_let_no_token_go_back
}

async fn a_connection_that_is_ended_frees_the_lock_at_once_and_its_holder_learns_it(site: &Site) {
    let ttl = Duration::from_secs(6);
    let (here, there) = (site.open("&polylock.ttl=6s").await, site.open(LONG).await);
    for shared in [false, true] {
        let lock = here.lock("n");
        let guard = if shared { lock.shared() } else { lock }.acquire().await.unwrap();
        let (lost, renewed) = (guard.lost(), now());
        assert!(there.lock("n").try_acquire().await.unwrap().is_none());
        assert_eq!(site.kill().await, 1);
        let killed = now();
        let next = there.lock("n").acquire().await.unwrap();
        assert!(now().since(killed) < SLACK, "free after {:?}", now().since(killed));
        assert!(next.fencing_token() > guard.fencing_token());
        // With the next renewal, long before the deadline.
        assert_eq!(lost.await, LostReason::SessionEnded);
        let after = now().since(renewed);
        assert!(after < ttl / 3 + SLACK, "told after {after:?}");
        assert!(!guard.is_held());
        let refused = guard.release().await.unwrap_err();
        assert_eq!(refused.lost(), Some(&LostReason::SessionEnded));
        assert!(next.is_held());
        next.release().await.unwrap();
        site.has(0, "all have left").await;
    }
}

async fn a_release_after_the_connection_was_ended_reports_the_loss(site: &Site) {
    let (here, there) = (site.open(LONG).await, site.open(LONG).await);
    for next_holds in [false, true] {
        let guard = here.lock("n").acquire().await.unwrap();
        assert_eq!(site.kill().await, 1);
        let next = if next_holds { Some(there.lock("n").acquire().await.unwrap()) } else { None };
        let refused = guard.release().await.unwrap_err();
        assert_eq!(refused.lost(), Some(&LostReason::SessionEnded), "another may have held it since");
        if let Some(next) = next {
            assert!(next.is_held() && here.lock("n").try_acquire().await.unwrap().is_none());
            next.release().await.unwrap();
        }
        site.has(0, "all have left").await;
    }
}

async fn a_killed_holder_frees_the_lock_at_once(site: &Site) {
    let locks = site.open(LONG).await;
    for name in ["one", "two", "three"] {
        let mut holder = site.worker("hold", LONG, name, &["1"]);
        holder.hears("held");
        assert!(locks.lock(name).try_acquire().await.unwrap().is_none());
        holder.kill();
        let killed = now();
        let guard = locks.lock(name).wait(PATIENCE).acquire().await.unwrap();
        assert!(now().since(killed) < SLACK, "free after {:?}", now().since(killed));
        guard.release().await.unwrap();
    }
}

async fn a_stopped_holder_loses_the_lock_by_the_servers_clock(site: &Site) {
    let ttl = Duration::from_secs(2);
    let locks = site.open(LONG).await;
    let mut holder = site.worker("hold", "&polylock.ttl=2s", "n", &["1"]);
    holder.hears("held");
    holder.stop();
    let stopped = now();
    let guard = locks.lock("n").wait(PATIENCE).acquire().await.unwrap();
    let after = now().since(stopped);
    println!("free {after:?} after its holder was stopped");
    // It was last renewed a third of the lease before it was stopped at the most.
    assert!(after > ttl / 2 && after < ttl + SLACK, "free after {after:?}");
    holder.go_on();
    let counts = holder.hears("lost");
    assert_eq!(counts[0], "0", "work was polled after the deadline");
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

async fn a_waiter_that_gave_up_is_gone_from_the_server(site: &Site) {
    let (here, there) = (site.open(LONG).await, site.open(LONG).await);
    let guard = here.lock("n").acquire().await.unwrap();
    for wait in [1, 5, 20, 100, 300] {
        let wait = Duration::from_millis(wait);
        let refused = there.lock("n").wait(wait).acquire().await.unwrap_err();
        assert!(refused.is_not_acquired() || refused.is_temporary(), "{refused}");
        // One who waits for a task that is dropped is gone, too.
        let dropped = tokio::time::timeout(wait, there.lock("n").shared().acquire()).await;
        assert!(dropped.is_err());
    }
    site.has(1, "the holder alone is left").await;
    guard.release().await.unwrap();
    site.has(0, "nobody was given the lock").await;
    assert_eq!(site.names().await, 0);
}

async fn a_killed_waiter_holds_nobody_up(site: &Site) {
    let locks = site.open(LONG).await;
    let guard = locks.lock("n").acquire().await.unwrap();
    let mut waiter = site.worker("queue", LONG, "n", &[]);
    waiter.hears("ready");
    site.blocks(1).await;
    waiter.kill();
    guard.release().await.unwrap();
    let began = now();
    let guard = locks.lock("n").wait(PATIENCE).acquire().await.unwrap();
    assert!(now().since(began) < SLACK, "free after {:?}", now().since(began));
    guard.release().await.unwrap();
    site.has(0, "the dead one is gone").await;
}

async fn a_stopped_waiter_keeps_what_it_is_given_for_its_place_alone(site: &Site) {
    let place = Duration::from_secs(2);
    let locks = site.open(LONG).await;
    let guard = locks.lock("n").acquire().await.unwrap();
    let mut waiter = site.worker("queue", "&polylock.ttl=2s", "n", &[]);
    waiter.hears("ready");
    site.blocks(1).await;
    waiter.stop();
    guard.release().await.unwrap();
    // The server has given it to it.
    site.blocks(0).await;
    let began = now();
    let guard = locks.lock("n").wait(PATIENCE).acquire().await.unwrap();
    let after = now().since(began);
    println!("a stopped waiter kept the lock for {after:?}");
    assert!(after > place / 2, "it was never given to it: {after:?}");
    assert!(after < place + SLACK, "free after {after:?}");
    waiter.go_on();
    // It does not believe that it holds it, and waits anew.
    pause(Duration::from_millis(100)).await;
    assert_eq!(waiter.line_within(Duration::ZERO), None);
    let token = guard.fencing_token().get();
    guard.release().await.unwrap();
    let served: u64 = waiter.hears("served")[0].parse().unwrap();
    assert!(served > token);
}

async fn a_waiter_whose_connection_is_ended_waits_on(site: &Site) {
    let (here, there) = (site.open(LONG).await, site.open(LONG).await);
    let first = here.lock("n").shared().acquire().await.unwrap();
    let waiting = tokio::spawn(there.lock("n").acquire());
    site.blocks(1).await;
    // Both: the reader does not know yet, and the writer claims again by itself.
    assert_eq!(site.kill().await, 2);
    let next = waiting.await.unwrap().unwrap();
    assert!(next.fencing_token() > first.fencing_token());
    next.release().await.unwrap();
}

async fn a_wait_goes_on_when_the_server_ends_it(site: &Site) {
    let (here, there) = (site.open(LONG).await, site.open(LONG).await);
    let reader = here.lock("n").shared().acquire().await.unwrap();
    let waiting = tokio::spawn(there.lock("n").acquire());
    site.blocks(1).await;
    // A server is told to wait for a while only, because it would not notice that nobody waits any more.
    pause(Duration::from_secs(17)).await;
    site.blocks(1).await;
    assert!(reader.is_held() && !waiting.is_finished());
    reader.release().await.unwrap();
    let writer = waiting.await.unwrap().unwrap();
    assert!(here.lock("n").shared().try_acquire().await.unwrap().is_none());
    writer.release().await.unwrap();
    site.has(0, "both have left").await;
}

async fn readers_share_and_a_writer_waits_for_the_last(site: &Site) {
    let (here, there) = (site.open(LONG).await, site.open(LONG).await);
    let first = here.lock("n").shared().acquire().await.unwrap();
    let second = there.lock("n").shared().acquire().await.unwrap();
    assert!(second.fencing_token() > first.fencing_token());
    let writer = tokio::spawn(there.lock("n").acquire());
    site.blocks(1).await;
    first.release().await.unwrap();
    assert!(!writer.is_finished());
    second.release().await.unwrap();
    let writer = writer.await.unwrap().unwrap();
    assert!(here.lock("n").shared().try_acquire().await.unwrap().is_none());
    writer.release().await.unwrap();
    let refused = here.lock("n").mode(polylock::Mode::ProtectedWrite).acquire().await.unwrap_err();
    assert!(refused.to_string().contains("but exclusive and shared"), "{refused}");
}

async fn cycles_leave_no_row_no_transaction_and_few_connections(site: &Site) {
    let locks = site.open("&polylock.ttl=10m&polylock.connections=6").await;
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
    assert!(again.close(PATIENCE).await);
    assert_eq!((site.names().await, site.transactions().await), (0, 0));
    // Those of the locks, and four more.
    let connections = site.connections().await;
    assert!(connections <= 6 + 4, "{connections} connections");
    drop(locks);
    site.has(0, "nothing is left").await;
}

async fn rows_that_the_dead_left_are_cleared_by_the_next_who_opens(site: &Site) {
    let mut dead: Vec<_> =
        ["a", "b", "c"].iter().map(|name| site.worker("hold", LONG, name, &["1"])).collect();
    dead.iter_mut().for_each(|dead| drop(dead.hears("held")));
    assert_eq!(site.names().await, 3);
    let living = site.open(LONG).await;
    let held = living.lock("living").acquire().await.unwrap();
    dead.iter_mut().for_each(|dead| assert!(!dead.kill().success()));
    site.has(1, "the dead are gone").await;
    assert_eq!(site.names().await, 4, "the dead have left rows");
    drop(site.open(LONG).await);
    assert_eq!(site.names().await, 1, "all but those in use are cleared");
    assert!(held.is_held());
    held.release().await.unwrap();
    assert_eq!(site.names().await, 0);
}

/// Each lock is a transaction of its own, so the database sees no cycle: the time limits of those who wait do.
async fn locks_taken_in_opposite_orders_end_by_the_time_limit(site: &Site) {
    let locks = site.open(LONG).await;
    let takes = |first: &'static str, second: &'static str, wait: u64| {
        let locks = locks.clone();
        async move {
            let held = locks.lock(first).acquire().await?;
            pause(Duration::from_millis(100)).await;
            let second = locks.lock(second).wait(Duration::from_millis(wait)).acquire().await?;
            second.release().await?;
            held.release().await
        }
    };
    let (impatient, patient) = tokio::join!(takes("a", "b", 400), takes("b", "a", 10_000));
    let refused = impatient.unwrap_err();
    assert!(matches!(refused, Error::NotAcquired { reason: NotAcquired::TimedOut { .. }, .. }), "{refused}");
    // It has given back what it held, so the other gets on.
    patient.unwrap();
    site.has(0, "both are gone").await;
}

async fn more_locks_than_connections_is_told(site: &Site) {
    let locks = site.open("&polylock.ttl=10m&polylock.connections=2").await;
    let me = OwnerId::unique();
    let first = locks.lock("a").reentrant(&me).acquire().await.unwrap();
    let second = locks.lock("b").acquire().await.unwrap();
    let again = locks.lock("a").reentrant(&me).acquire().await.unwrap();
    let refused = locks.lock("c").try_acquire().await.unwrap_err();
    assert!(refused.is_temporary(), "{refused}");
    let cause = std::error::Error::source(&refused).unwrap().to_string();
    assert!(cause.contains("all 2 connections") && cause.contains("polylock.connections"), "{cause}");
    // Who waits gets one as soon as one is free.
    let waiting = tokio::spawn(locks.lock("c").acquire());
    pause(Duration::from_millis(400)).await;
    second.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    drop((first, again));
}

async fn all_together_it_holds(site: &Site) {
    let outcome = Load { more_than: 300, ..Load::default() }
        .run(&site.with("&polylock.connections=20"), async {})
        .await;
    assert_eq!(history::check(&outcome.sections, history::Rules::default()), []);
    assert_eq!((outcome.failures, outcome.losses), (0, 0));
    println!("{} sections", outcome.sections.len());
    assert!(outcome.sections.len() > 300, "{} sections", outcome.sections.len());
    assert_eq!((site.names().await, site.transactions().await), (0, 0));
}

/// Whoever loses its connection does not know it until its next renewal, and the lock is another's by then. That is what
/// the tokens are for: none is smaller than one that was drawn before.
async fn connections_that_are_ended_under_load_let_no_token_go_back(site: &Site) {
    let outcome = Load { lasts: Duration::from_secs(5), ..Load::default() }
        .run(&site.with("&polylock.ttl=3s&polylock.connections=20"), async {
            let mut ended = 0;
            for _ in 0..60 {
                ended += site.kill().await;
                pause(Duration::from_millis(50)).await;
            }
            assert!(ended > 20, "only {ended} connections were ended");
        })
        .await;
    tokens_grow(&outcome);
    assert!(outcome.sections.len() > 20, "it went on: {}", outcome.sections.len());
    site.has(0, "all have left").await;
}

/// A server that stands still for a while, and one that does not come back in time.
async fn a_server_stands_still(server: &Private, site: &Site) {
    let ttl = Duration::from_secs(3);
    let locks = site.open("&polylock.ttl=3s").await;
    let guard = locks.lock("n").acquire().await.unwrap();
    for _ in 0..2 {
        tokio::task::block_in_place(|| server.freeze());
        pause(ttl / 2).await;
        tokio::task::block_in_place(|| server.thaw());
        assert!(guard.renewed().await.is_some() && guard.is_held(), "lost though it came back in time");
    }
    let lost = guard.lost();
    tokio::task::block_in_place(|| server.freeze());
    let (frozen, deadline) = (now(), guard.deadline());
    assert_eq!(lost.await, LostReason::DeadlineReached);
    assert!(now().since(frozen) < ttl + SLACK && now() >= deadline);
    tokio::task::block_in_place(|| server.thaw());
    drop(guard);
    let next = locks.lock("n").acquire().await.unwrap();
    next.release().await.unwrap();
    site.has(0, "the first hold is over on the server, too").await;
}

/// Whoever asks after another has given the lock back is given a greater token, and no token is given twice. (A holder
/// whose connection was ended as soon as it had the lock may hear of its grant when others have come and gone: its token
/// is the smaller one, as it should be.)
fn tokens_grow(outcome: &Outcome) {
    println!("{} sections, {} losses", outcome.sections.len(), outcome.losses);
    assert_eq!(history::repeated_tokens(&outcome.sections), []);
    let mut ended: Vec<_> =
        outcome.sections.iter().filter_map(|section| Some((section.released?, section))).collect();
    let mut asked: Vec<_> = outcome.sections.iter().collect();
    ended.sort_by_key(|(released, _)| *released);
    asked.sort_by_key(|section| section.invoked);
    let (mut ended, mut greatest) = (ended.into_iter().peekable(), HashMap::new());
    let mut compared = 0;
    for section in asked {
        while let Some((_, before)) = ended.next_if(|(released, _)| *released < section.invoked) {
            let greatest = greatest.entry(&before.lock).or_insert(before.token);
            *greatest = before.token.max(*greatest);
        }
        if let Some(before) = greatest.get(&section.lock) {
            assert!(section.token > *before, "{section:?} after {before:?}");
            compared += 1;
        }
    }
    assert!(compared > 50, "there was something to compare");
}
