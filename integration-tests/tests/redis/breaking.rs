//! Breaking a lock: what stays in the server, and for how long.

use std::time::Duration;

use polylock::Locks;
use polylock_core::{
    BreakNotice, BreakOrder, KeepAlive, LockName, LostReason, Mode, OwnerId, Request, Standing, io,
};
use polylock_integration_tests::{
    clock::{self, now, pause},
    servers::redis,
};
use polylock_redis::single::{Config, connect};

use crate::{Spot, command};

fn order() -> BreakOrder {
    BreakOrder::new(BreakNotice::new(OwnerId::new("operator").unwrap(), None))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_repeated_does_not_extend_a_marked_hold() {
    const TTL: Duration = Duration::from_secs(2);
    let server = redis::start(&[]).unwrap();
    let spot = Spot::of(&server).await;
    let store = connect(Config::new(&spot.url).unwrap()).await.unwrap();
    let (backend, inspect) = (store.backend.clone(), store.inspect.clone().unwrap());
    let request = Request::new(LockName::new("n").unwrap(), Mode::Exclusive, TTL);
    let (mine, name) = (request.clone(), request.name.clone());
    let (granted, until, leases) = io::run("redis", async move {
        let until = now() + TTL;
        let Ok(Standing::Held(grant)) = backend.claim(&mine).await else { panic!("it is free") };
        inspect.break_lock(&name, &order()).await.unwrap();
        let mut leases = Vec::new();
        for _ in 0..3 {
            pause(TTL / 5).await;
            let Ok(Standing::Held(again)) = backend.claim(&mine).await else { panic!("it has the lock") };
            assert_eq!(again.token, grant.token);
            leases.push(again.lease);
            let lost = KeepAlive::Lost(LostReason::Broken(order().notice));
            assert_eq!(backend.keep_alive(&[mine.clone().into()]).await.unwrap(), [lost]);
        }
        (grant.token, until, leases)
    })
    .await
    .unwrap();
    assert!(leases.is_sorted_by(|a, b| a > b) && leases[2] < TTL * 3 / 5, "{leases:?}");
    let locks = spot.locks().await;
    let next = locks.lock("n").acquire().await.unwrap();
    assert!(next.fencing_token() > granted && now() < until + TTL / 2, "after its lease");
    next.release().await.unwrap();
    spot.is_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_notice_of_a_break_by_force_expires_with_the_lease() {
    let server = redis::start(&[]).unwrap();
    let spot = Spot::of(&server).await;
    let locks = spot.locks().await;
    let notices = async || spot.ask::<usize>(command("HLEN").arg(spot.key("b:n"))).await;
    for _ in 0..20 {
        // Left alone, as if their clients had died.
        locks.lock("n").ttl(Duration::from_millis(300)).acquire().await.unwrap().leave_to_expire().unwrap();
        assert_eq!(locks.break_lock("n").force().await.unwrap().len(), 1);
        pause(Duration::from_millis(100)).await;
    }
    let kept = notices().await;
    assert!((1..=10).contains(&kept), "{kept}: those whose leases have expired are removed");
    let expires: i64 = spot.ask(command("PTTL").arg(spot.key("b:n"))).await;
    assert!(expires > 0 && expires <= 1300, "{expires}");
    clock::until("they expire", async || notices().await == 0).await;
}

/// Who shares the prefix only receives notices of its own locks.
#[tokio::test(flavor = "multi_thread")]
async fn a_break_reaches_every_client_of_the_prefix_and_no_other() {
    let server = redis::start(&[]).unwrap();
    let (here, there) = (Spot::of(&server).await, Spot::of(&server).await);
    let (mine, others) = (here.locks().await, there.locks().await);
    let (guard, other) = (mine.lock("n").acquire().await.unwrap(), others.lock("n").acquire().await.unwrap());
    let renewed = tokio::spawn(other.renewed());
    let operator: Locks = here.locks().await;
    assert_eq!(operator.break_lock("n").await.unwrap().len(), 1);
    assert!(matches!(guard.lost().await, LostReason::Broken(_)));
    pause(Duration::from_millis(300)).await;
    assert!(other.is_held() && !renewed.is_finished(), "it was not even checked");
    renewed.abort();
}
