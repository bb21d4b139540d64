//! Breaking a lock: the keys that remain in the server, and their expiry.

use std::time::Duration;

use polylock::Locks;
use polylock_core::{
    BreakNotice, BreakOrder, ClaimOutcome, KeepAlive, LockName, LostReason, Mode, OwnerId, Request, io,
};
use polylock_integration_tests::{
    clock::{self, now, pause},
    servers::redis,
};
use polylock_redis::single::{Config, connect};

use super::{Namespace, command};

fn notice() -> BreakNotice {
    BreakNotice::new(OwnerId::new("operator").unwrap(), None)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_repeated_does_not_extend_a_marked_hold() {
    const TTL: Duration = Duration::from_secs(6);
    let server = redis::start(&[]).unwrap();
    let namespace = Namespace::on(&server).await;
    let store = connect(Config::new(&namespace.url).unwrap()).await.unwrap();
    let (backend, inspect) = (store.backend.clone(), store.inspect.clone().unwrap());
    let request = Request::new(LockName::new("n").unwrap(), Mode::Exclusive, TTL);
    let (claimed, name) = (request.clone(), request.name.clone());
    let (granted, until, leases) = io::run("redis", async move {
        let until = now() + TTL;
        let Ok(ClaimOutcome::Granted(grant)) = backend.claim(&claimed).await else { panic!("it is free") };
        inspect.break_lock(&name, &BreakOrder::new(notice(), [Some(grant.token)])).await.unwrap();
        let mut leases = Vec::new();
        for _ in 0..3 {
            pause(TTL / 5).await;
            let Ok(ClaimOutcome::Granted(again)) = backend.claim(&claimed).await else {
                panic!("it holds the lock")
            };
            assert_eq!(again.token, grant.token);
            leases.push(again.lease);
            let lost = KeepAlive::Lost(LostReason::Broken(notice()));
            assert_eq!(backend.keep_alive(&[claimed.clone().into()]).await.unwrap(), [lost]);
        }
        (grant.token, until, leases)
    })
    .await
    .unwrap();
    assert!(leases.is_sorted_by(|a, b| a > b) && leases[2] < TTL * 3 / 5, "{leases:?}");
    let locks = namespace.locks().await;
    let next = locks.lock("n").acquire().await.unwrap();
    assert!(next.fencing_token() > granted && now() < until + TTL / 2, "after its lease");
    next.release().await.unwrap();
    namespace.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_notice_of_a_break_by_force_expires_with_the_lease() {
    let server = redis::start(&[]).unwrap();
    let namespace = Namespace::on(&server).await;
    let locks = namespace.locks().await;
    let notices = async || namespace.query::<usize>(command("HLEN").arg(namespace.key("b:n"))).await;
    for _ in 0..14 {
        // Left to expire, as if the clients had died.
        locks.lock("n").ttl(Duration::from_secs(3)).acquire().await.unwrap().leave_to_expire().unwrap();
        assert_eq!(locks.break_lock("n").force().await.unwrap().len(), 1);
        pause(Duration::from_millis(500)).await;
    }
    let kept = notices().await;
    assert!((1..=10).contains(&kept), "{kept}: those whose leases have expired are removed");
    let expires: i64 = namespace.query(command("PTTL").arg(namespace.key("b:n"))).await;
    assert!(expires > 0 && expires <= 4000, "{expires}");
    clock::until("they expire", async || notices().await == 0).await;
}

/// Clients of another prefix receive no notice.
#[tokio::test(flavor = "multi_thread")]
async fn a_break_reaches_every_client_of_the_prefix_and_no_other() {
    let server = redis::start(&[]).unwrap();
    let (here, there) = (Namespace::on(&server).await, Namespace::on(&server).await);
    let (own_locks, other_locks) = (here.locks().await, there.locks().await);
    let (guard, other) =
        (own_locks.lock("n").acquire().await.unwrap(), other_locks.lock("n").acquire().await.unwrap());
    let renewed = tokio::spawn(other.renewed());
    let operator: Locks = here.locks().await;
    assert_eq!(operator.break_lock("n").await.unwrap().len(), 1);
    assert!(matches!(guard.lost().await, LostReason::Broken(_)));
    pause(Duration::from_millis(300)).await;
    assert!(other.is_held() && !renewed.is_finished(), "it was not even checked");
    renewed.abort();
}
