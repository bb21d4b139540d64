//! Servers that are killed, and started again.

use std::{collections::BTreeSet, time::Duration};

use polylock::LostReason;
use polylock_integration_tests::{
    clock::{now, pause, until},
    load::Load,
    on_stores,
};

use super::{connect, granted, use_lock, victim::Victim, waiter};

/// Much longer than it takes to start a server.
const LEASE: Duration = Duration::from_secs(20);

/// The time after a kill in which no queue entry expires: it lasts for five seconds, and was renewed less than half of that before.
const QUEUE_LASTS: Duration = Duration::from_millis(2500);

on_stores! {
    [postgres mariadb postgres_pessimistic mariadb_pessimistic redis redis_sentinel redlock3 zookeeper zookeeper_ensemble azure]
    [servers_killed_under_load_grant_no_lock_twice_and_no_smaller_token]
}

async fn servers_killed_under_load_grant_no_lock_twice_and_no_smaller_token(store: &str) {
    let victim = <dyn Victim>::start(store).await;
    let min_holds = victim.namespace().times(200);
    let load = Load {
        duration: Duration::from_secs(4),
        min_holds,
        wait: Duration::from_secs(30),
        ..Load::default()
    };
    let url = victim.url(victim.lease(Duration::from_secs(2)));
    let outcome = load.run(&url, async {
        for _ in 0..victim.kills() {
            pause(Duration::from_secs(1)).await;
            victim.kill().await;
            pause(Duration::from_millis(300)).await;
            victim.restart().await;
        }
    });
    let outcome = outcome.await;
    println!("{} sections, {} failures, {} losses", outcome.sections.len(), outcome.failures, outcome.losses);
    victim.check_after_kills(&outcome);
    assert!(outcome.sections.len() > min_holds, "too few sections: {}", outcome.sections.len());
    // The next claim for a lock deletes its expired entries.
    let locks = connect(&url).await;
    for number in 0..load.names {
        use_lock(&locks, &format!("{}-{number}", load.name)).await;
    }
    victim.wait_until_empty().await;
}

mod slots {
    use super::*;

    on_stores! {
        [redis_sentinel redlock5 zookeeper_ensemble azure]
        [servers_killed_under_load_grant_no_slot_twice]
    }
}

async fn servers_killed_under_load_grant_no_slot_twice(store: &str) {
    let victim = <dyn Victim>::start(store).await;
    let lease = victim.lease(Duration::from_secs(2));
    let load = Load {
        stores: 3,
        tasks: 2,
        name: "pool",
        names: 1,
        min_holds: victim.namespace().times(30),
        readers: false,
        slots: 3,
        wait: Duration::from_secs(30),
        // So long that the other tasks find the first slots in use: a slow store has long leases.
        hold_for: lease / 8,
        ..Load::default()
    };
    let url = victim.url(lease);
    let outcome = load.run(&url, async {
        pause(Duration::from_secs(1)).await;
        victim.kill().await;
        pause(Duration::from_millis(300)).await;
        victim.restart().await;
    });
    let outcome = outcome.await;
    victim.check_after_kills(&outcome);
    let slots: BTreeSet<_> = outcome.sections.iter().map(|section| &section.lock).collect();
    // A slow machine seldom needs the third.
    assert!(slots.len() > 1, "{slots:?}");
    victim.wait_until_empty().await;
}

mod kept {
    use super::*;

    on_stores! {
        [postgres mariadb redis redlock3 zookeeper zookeeper_ensemble azure]
        [a_killed_server_keeps_holds_queue_and_tokens]
    }
}

async fn a_killed_server_keeps_holds_queue_and_tokens(store: &str) {
    let victim = <dyn Victim>::start(store).await;
    let url = victim.url(LEASE);
    let (here, there) = (connect(&url).await, connect(&url).await);
    let mut last = None;
    for _ in 0..victim.kills() {
        let guard = here.lock("kept").acquire().await.unwrap();
        assert!(Some(guard.fencing_token()) > last);
        last = Some(guard.fencing_token());
        let waiting = waiter(&there, "kept", &here).await;
        let waiters = here.inspect("kept").await.unwrap().waiters.len();
        let killed = now();
        victim.kill().await;
        victim.restart().await;
        // A connection to the server of before fails first. A lock of a Redlock is shown when most votes are.
        until("the hold is shown", async || {
            there.inspect("kept").await.is_ok_and(|status| !status.holders.is_empty())
        })
        .await;
        let status = there.inspect("kept").await.unwrap();
        assert_eq!(status.holders.iter().map(|entry| entry.token).collect::<Vec<_>>(), [last]);
        // After a slow start of the server, the waiter has to join the queue again.
        let is_soon = now().since(killed) < QUEUE_LASTS;
        assert!(!victim.keeps_queue() || !is_soon || status.waiters.len() == waiters);
        assert!(connect(&url).await.lock("kept").try_acquire().await.unwrap().is_none());
        assert!(guard.renewed().await.is_some() && !waiting.is_finished());
        until("it waits again", async || there.inspect("kept").await.unwrap().waiters.len() == waiters).await;
        guard.release().await.unwrap();
        let (next, _) = granted(waiting).await;
        assert!(Some(next.fencing_token()) > last);
        last = Some(next.fencing_token());
        next.release().await.unwrap();
    }
    victim.wait_until_empty().await;
}

mod ended {
    use super::*;

    on_stores! {
        [postgres_pessimistic mariadb_pessimistic]
        [a_hold_that_ends_with_its_server_is_reported_and_the_next_token_is_greater]
    }
}

async fn a_hold_that_ends_with_its_server_is_reported_and_the_next_token_is_greater(store: &str) {
    let victim = <dyn Victim>::start(store).await;
    let url = victim.url(LEASE);
    let (here, there) = (connect(&url).await, connect(&url).await);
    let guard = here.lock("ended").acquire().await.unwrap();
    let waiting = waiter(&there, "ended", &here).await;
    victim.kill().await;
    victim.restart().await;
    let (next, _) = granted(waiting).await;
    assert!(next.fencing_token() > guard.fencing_token());
    assert_eq!(guard.lost().await, LostReason::SessionEnded);
    assert_eq!(guard.release().await.unwrap_err().lost(), Some(&LostReason::SessionEnded));
    assert!(next.renewed().await.is_some());
    next.release().await.unwrap();
    use_lock(&here, "ended").await;
    victim.wait_until_empty().await;
}
