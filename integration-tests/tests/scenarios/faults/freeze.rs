//! Servers that are frozen, and continue. Their clocks continue meanwhile.

use std::time::Duration;

use polylock_integration_tests::{
    clock::{now, pause},
    load::Load,
    on_stores,
};

use super::{connect, granted, lost_at_the_deadline, use_lock, victim::Victim, waiter};

on_stores! {
    [postgres mariadb postgres_pessimistic mariadb_pessimistic redis redlock3 zookeeper zookeeper_ensemble azure]
    [
        servers_frozen_for_longer_than_a_lease_grant_no_lock_twice
        servers_frozen_for_half_a_lease_cost_no_lock
    ]
}

async fn servers_frozen_for_longer_than_a_lease_grant_no_lock_twice(store: &str) {
    let victim = <dyn Victim>::start(store).await;
    let lease = victim.lease(Duration::from_secs(4));
    let url = victim.url(lease);
    // The next hold must outlast the rush after the thaw.
    let longer = victim.url(victim.lease(Duration::from_secs(8)));
    let (here, there) = (connect(&url).await, connect(&longer).await);
    let guard = here.lock("held").acquire().await.unwrap();
    let waiting = waiter(&there, "held", &here).await;
    let min_holds = victim.namespace().times(200);
    let load = Load {
        stores: 3,
        tasks: 3,
        duration: lease + Duration::from_secs(3),
        min_holds,
        wait: 4 * lease,
        ..Load::default()
    };
    let outcome = load.run(&url, async {
        pause(Duration::from_millis(500)).await;
        victim.freeze();
        let frozen = now();
        let deadline = lost_at_the_deadline(&guard, store).await;
        assert!(deadline < frozen + lease, "{:?}", deadline.since(frozen));
        pause((frozen + lease + Duration::from_millis(500)).since(now())).await;
        assert!(!waiting.is_finished());
        victim.thaw();
        let (next, _) = granted(waiting).await;
        // The requests of the former holder do not affect it.
        assert!(next.fencing_token() > guard.fencing_token());
        assert!(next.renewed().await.is_some());
        let holders = there.inspect("held").await.unwrap().holders;
        assert_eq!(holders.iter().map(|entry| entry.token).collect::<Vec<_>>(), [Some(next.fencing_token())]);
        assert!(guard.release().await.is_err());
        next.release().await.unwrap();
    });
    let outcome = outcome.await;
    println!("{} sections, {} failures, {} losses", outcome.sections.len(), outcome.failures, outcome.losses);
    outcome.assert_consistent();
    assert!(outcome.sections.len() > min_holds, "too few sections: {}", outcome.sections.len());
    for name in ["held", "lock-0", "lock-1"] {
        use_lock(&here, name).await;
    }
    victim.wait_until_empty().await;
}

/// At least one renewal hangs meanwhile.
async fn servers_frozen_for_half_a_lease_cost_no_lock(store: &str) {
    let victim = <dyn Victim>::start(store).await;
    let lease = victim.lease(Duration::from_secs(10));
    let locks = connect(&victim.url(lease)).await;
    let guard = locks.lock("held").acquire().await.unwrap();
    let token = guard.fencing_token();
    // The lease of a session is shorter than the session.
    let half = guard.remaining() / 2;
    victim.freeze();
    pause(half).await;
    victim.thaw();
    assert!(guard.renewed().await.is_some());
    guard.ensure_held().unwrap();
    guard.release().await.unwrap();
    let next = locks.lock("held").try_acquire().await.unwrap().expect("it is free");
    assert!(next.fencing_token() > token);
    next.release().await.unwrap();
    victim.wait_until_empty().await;
}
