//! Servers that are silent or unreachable, for some clients.

use std::time::Duration;

use futures_util::future::join_all;
use polylock::Fault;
use polylock_integration_tests::{
    clock::{now, pause},
    on_stores,
    refusals::{describe, timed_refusal},
};

use super::{
    SLACK, connect, granted, lost_at_the_deadline, outage::Outage, spawn, use_lock, victim::Victim, waiter,
};

/// The time limit of a request.
const LIMIT: Duration = Duration::from_secs(1);

/// The time that a claim has for its reply after the end of a wait.
const GRACE: Duration = Duration::from_millis(300);

on_stores! {
    [postgres mariadb postgres_pessimistic mariadb_pessimistic redis redlock3 zookeeper zookeeper_ensemble azure]
    [
        a_holder_loses_the_lock_at_its_deadline_and_waiters_continue
        a_slot_is_lost_at_its_deadline_and_the_others_are_not
        an_acquisition_fails_in_time_with_the_cause
        opening_fails_in_time_with_the_cause
    ]
}

async fn a_holder_loses_the_lock_at_its_deadline_and_waiters_continue(store: &str) {
    let victim = <dyn Victim>::start(store).await;
    let lease = victim.lease(Duration::from_secs(4));
    // The next hold must outlast the steps of the test.
    let direct = &connect(&victim.url(victim.lease(Duration::from_secs(8)))).await;
    let victim = &*victim;
    let lose = |(number, outage): (usize, Outage)| async move {
        let (what, name) = (format!("{store}, {outage:?}"), format!("lock-{number}"));
        let (proxies, url) = victim.route(lease, LIMIT);
        let (here, behind) = (connect(&url).await, connect(&url).await);
        let guard = here.lock(&name).acquire().await.unwrap();
        let far = waiter(direct, &name, direct).await;
        outage.begin(&proxies);
        let near = spawn(&behind, &name);
        let deadline = lost_at_the_deadline(&guard, &what).await;
        let (next, at) = granted(far).await;
        println!("{what}: granted to the next {:.1?} after the deadline", at.since(deadline));
        assert!(at >= deadline && next.fencing_token() > guard.fencing_token(), "{what}");
        assert!(!near.is_finished(), "{what}");
        outage.end(&proxies);
        // The requests of the former holder, which may arrive now, do not affect it.
        assert!(guard.release().await.is_err(), "{what}");
        assert!(next.renewed().await.is_some(), "{what}");
        let token = next.fencing_token();
        next.release().await.unwrap();
        let (last, _) = granted(near).await;
        assert!(last.fencing_token() > token, "{what}");
        last.release().await.unwrap();
        use_lock(direct, &name).await;
    };
    join_all(victim.outages().into_iter().enumerate().map(lose)).await;
    victim.wait_until_empty().await;
}

async fn a_slot_is_lost_at_its_deadline_and_the_others_are_not(store: &str) {
    let victim = <dyn Victim>::start(store).await;
    let lease = victim.lease(Duration::from_secs(4));
    let direct = &connect(&victim.url(victim.lease(Duration::from_secs(8)))).await;
    let victim = &*victim;
    let lose = |(number, outage): (usize, Outage)| async move {
        let (what, name) = (format!("{store}, {outage:?}"), format!("slots-{number}"));
        let (proxies, url) = victim.route(lease, LIMIT);
        let here = connect(&url).await;
        let kept = direct.semaphore(&name, 2).acquire().await.unwrap();
        let lost = here.semaphore(&name, 2).acquire().await.unwrap();
        let waiting = {
            let acquisition = direct.semaphore(&name, 2).acquire();
            tokio::spawn(async { (acquisition.await.unwrap().into_guard(), now()) })
        };
        pause(LIMIT / 3).await;
        outage.begin(&proxies);
        let refused = here.semaphore(&name, 2).outage(LIMIT / 3).acquire();
        let (refused, deadline) = tokio::join!(refused, lost_at_the_deadline(&lost, &what));
        let error = refused.expect_err("the store can't be reached");
        assert!(error.is_temporary() && !error.is_not_acquired(), "{what}: {error:?}");
        let (next, at) = granted(waiting).await;
        assert!(at >= deadline && next.fencing_token() > lost.fencing_token(), "{what}");
        assert!(kept.is_held() && next.name() == lost.name(), "{what}: {}", next.name());
        outage.end(&proxies);
        assert!(lost.release().await.is_err(), "{what}");
        assert!(next.renewed().await.is_some(), "{what}: its slot was released by the one before");
        next.release().await.unwrap();
        kept.release().await.unwrap();
        here.semaphore(&name, 2).acquire().await.unwrap().release().await.unwrap();
    };
    join_all(victim.outages().into_iter().enumerate().map(lose)).await;
    victim.wait_until_empty().await;
}

async fn an_acquisition_fails_in_time_with_the_cause(store: &str) {
    let victim = <dyn Victim>::start(store).await;
    let victim = &*victim;
    let fail = |(number, outage): (usize, Outage)| async move {
        let (proxies, url) = victim.route(victim.lease(6 * LIMIT), LIMIT);
        let (locks, name) = (connect(&url).await, format!("lock-{number}"));
        use_lock(&locks, &name).await;
        outage.begin(&proxies);
        let lock = || locks.lock(&name);
        let (wait, outage_limit) = (LIMIT * 12 / 10, LIMIT * 3 / 10);
        let attempt = victim.slowest_attempt(LIMIT);
        // A reply may come a little after the end of a wait. A request may be in flight, or delayed for a second, when the outage
        // limit is reached.
        for (what, lock, limit) in [
            ("a try", lock().wait(Duration::ZERO), attempt),
            ("a wait", lock().wait(wait), wait + GRACE),
            ("an outage", lock().outage(outage_limit), outage_limit + attempt + LIMIT),
        ] {
            let began = now();
            let error = lock.acquire().await.unwrap_err();
            let (took, text) = (now().since(began), describe(&error).1);
            println!("{store}, {outage:?}: {what} ended after {took:.1?}: {text}");
            assert!(error.is_temporary(), "{outage:?}: {error:?}");
            // A wait may end during its first attempt. A request on a connection that was reset may fail at any point.
            let is_clear = what == "a try" && !matches!(outage, Outage::Unreachable);
            assert!(!is_clear || victim.states_cause(&text, &outage), "{outage:?}: {text}");
            assert!(took < limit + SLACK, "{outage:?}: {what}: {took:.1?}");
        }
        outage.end(&proxies);
        let began = now();
        use_lock(&locks, &name).await;
        assert!(now().since(began) < 4 * LIMIT, "{outage:?}: {:?}", now().since(began));
    };
    join_all(victim.outages().into_iter().enumerate().map(fail)).await;
    victim.wait_until_empty().await;
}

async fn opening_fails_in_time_with_the_cause(store: &str) {
    let victim = <dyn Victim>::start(store).await;
    let victim = &*victim;
    use_lock(&connect(&victim.url(victim.lease(6 * LIMIT))).await, "open").await;
    let fail = |outage: Outage| async move {
        let (proxies, url) = victim.route(victim.lease(6 * LIMIT), LIMIT);
        outage.begin(&proxies);
        let (fault, text, took) = timed_refusal(&url).await;
        assert!(
            fault == Some(Fault::Temporary) && text.contains(victim.opening_cause(&outage)),
            "{outage:?}: {text}"
        );
        assert!(took < victim.slowest_attempt(LIMIT) + SLACK, "{outage:?}: {took:.1?}");
        // One that is being opened continues after the outage.
        let opening = tokio::spawn(async move { connect(&url).await });
        pause(LIMIT / 5).await;
        outage.end(&proxies);
        use_lock(&opening.await.unwrap(), "open").await;
    };
    join_all(victim.outages().into_iter().map(fail)).await;
}
