//! An ensemble with an observer, to which some processes are connected: it takes no part in the votes, and shows writes later than the others.

use std::time::Duration;

use polylock::{Locks, LostReason};
use polylock_integration_tests::{
    clock::{TIMEOUT, now},
    load::Load,
    proxy::{Direction, Flow, Proxy},
    servers::zookeeper::{self, Ensemble},
    stores::wait_for_waiters,
};

use super::{Namespace, check_all_operations};

const SESSION: Duration = Duration::from_secs(4);

/// An ensemble with an observer, and two processes.
struct Setup {
    namespace: Namespace,
    /// Is connected to the observer only.
    here: Locks,
    /// Is connected to the others only.
    there: Locks,
    /// What the observer receives from the others passes these.
    proxies: [Proxy; 3],
    here_url: String,
    _ensemble: Ensemble,
}

impl Setup {
    async fn start(settings: &[&str]) -> Self {
        let (ensemble, proxies) = zookeeper::ensemble_with_observer(settings).unwrap();
        let namespace = Namespace::of(&ensemble);
        let ports: Vec<String> =
            ensemble.members().iter().map(|member| format!("127.0.0.1:{}", member.port())).collect();
        let url = |servers: &[String]| {
            let timeout = SESSION.as_millis();
            let servers = servers.join(",");
            format!("zookeeper://{servers}{}?polylock.session_timeout={timeout}ms", namespace.root)
        };
        let here_url = url(&ports[3..]);
        let here = Locks::connect(&here_url).await.unwrap();
        let there = Locks::connect(&url(&ports[..3])).await.unwrap();
        Self { namespace, here, there, proxies, here_url, _ensemble: ensemble }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_observer_carries_out_every_operation() {
    let setup = Setup::start(&[]).await;
    check_all_operations(&setup.here_url).await;
    setup.namespace.wait_until_empty().await;
}

/// What it shows is old by a third of a second. Locks are handed over in both directions, and never held twice.
#[tokio::test(flavor = "multi_thread")]
async fn an_observer_that_lags_breaks_no_guarantee() {
    const LAG: Duration = Duration::from_millis(333);
    let setup = Setup::start(&[]).await;
    setup.proxies.iter().for_each(|proxy| proxy.set(Direction::ToClient, Flow::Delay(LAG)));
    for (holder, waiter) in [(&setup.here, &setup.there), (&setup.there, &setup.here)] {
        let guard = holder.lock("n").acquire().await.unwrap();
        let waiting = tokio::spawn(waiter.lock("n").acquire());
        wait_for_waiters(holder, "n", 1).await;
        assert!(waiter.lock("n").try_acquire().await.unwrap().is_none());
        let (token, released) = (guard.fencing_token(), now());
        guard.release().await.unwrap();
        let next = tokio::time::timeout(TIMEOUT, waiting).await.unwrap().unwrap().unwrap();
        println!("granted {:.2?} after the release", now().since(released));
        assert!(next.fencing_token() > token);
        next.release().await.unwrap();
    }
    let load = Load { tasks: 2, name: "load", names: 1, duration: SESSION, min_holds: 4, ..Load::default() };
    let outcome = load.on(vec![setup.here.clone(), setup.there.clone()], async {}).await;
    outcome.assert_consistent();
    assert_eq!((outcome.failures, outcome.losses), (0, 0));
    assert!(outcome.of(0) > 0 && outcome.of(1) > 0);
    setup.namespace.wait_until_empty().await;
}

/// It replies to its clients, while the leader ends their sessions.
#[tokio::test(flavor = "multi_thread")]
async fn an_observer_that_is_cut_off_renews_no_hold() {
    // It notices after twenty seconds.
    let setup = Setup::start(&["syncLimit=100"]).await;
    let guard = setup.here.lock("n").acquire().await.unwrap();
    let next = tokio::spawn(setup.there.lock("n").acquire());
    wait_for_waiters(&setup.there, "n", 1).await;
    let lost = guard.lost();
    let lost = tokio::spawn(async { (lost.await, now()) });
    setup.proxies.iter().for_each(|proxy| proxy.set_both(Flow::Drop));
    let next = tokio::time::timeout(SESSION + TIMEOUT, next).await.unwrap().unwrap().unwrap();
    let granted = now();
    assert!(lost.is_finished(), "the lock was granted before the former holder was notified");
    let (reason, notified) = lost.await.unwrap();
    println!("notified {:.2?} before the next grant", granted.since(notified));
    assert_eq!(reason, LostReason::DeadlineReached);
    assert!(next.fencing_token() > guard.fencing_token());
    setup.proxies.iter().for_each(|proxy| proxy.set_both(Flow::Pass));
    drop(guard);
    next.release().await.unwrap();
    setup.here.lock("n").acquire().await.unwrap().release().await.unwrap();
    setup.namespace.wait_until_empty().await;
}
