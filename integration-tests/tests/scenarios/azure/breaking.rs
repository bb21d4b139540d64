//! Breaks: the service's behaviour after the break of a lease, and the store's.

use std::time::Duration;

use polylock::{Error, Guard, Locks, LostReason};
use polylock_core::BreakNotice;
use polylock_integration_tests::{
    clock::{now, until},
    proxy::{Proxy, RequestFault},
    servers::azurite,
};

use super::{MIN_LEASE, Namespace, SETTLE_TIME, SLACK, acquire_and_release, acquire_soon, loss, server};

const OWN_ID: &str = "11111111-2222-3333-4444-555555555555";
const OTHER_ID: &str = "66666666-7777-8888-9999-aaaaaaaaaaaa";

fn reason(lost: &LostReason) -> String {
    let LostReason::Broken(notice) = lost else { panic!("{lost:?}") };
    notice.reason.as_ref().map(|reason| reason.as_str().to_owned()).unwrap_or_default()
}

/// Returns true if the blob with the notice exists.
async fn has_notice(namespace: &Namespace, name: &str) -> bool {
    namespace.send(&format!("HEAD {}/_broken_{name}", namespace.path)).await.starts_with("HTTP/1.1 200")
}

/// The documented states of a lease on which the store relies:
/// <https://learn.microsoft.com/rest/api/storageservices/lease-blob>.
#[tokio::test(flavor = "multi_thread")]
async fn the_states_of_a_lease_are_as_documented() {
    let namespace = Namespace::of(server());
    namespace.locks().await.list("").await.unwrap();
    let change_lease = async |blob: &str, action: &str, more: &str| {
        let request =
            format!("PUT {}/{blob}?comp=lease\nx-ms-lease-action: {action}\n{more}", namespace.path);
        let answer = namespace.send(&request).await;
        let code = answer.lines().find_map(|line| line.strip_prefix("x-ms-error-code: ")).map(str::to_owned);
        let left = answer.lines().find_map(|line| line.strip_prefix("x-ms-lease-time: ")).map(str::to_owned);
        code.or(left).unwrap_or_else(|| answer.lines().next().unwrap_or_default()[9..12].to_owned())
    };
    let acquire = |id: &str| format!("x-ms-lease-duration: 15\nx-ms-proposed-lease-id: {id}");
    let own = format!("x-ms-lease-id: {OWN_ID}");
    let create_leased = async |blob: &str| {
        let create = format!("PUT {}/{blob}\nx-ms-blob-type: BlockBlob", namespace.path);
        namespace.expect_reply(&create, " 201 ").await;
        assert_eq!(change_lease(blob, "acquire", &acquire(OWN_ID)).await, "201");
    };

    create_leased("a").await;
    // Without a period, the lease lasts for its remaining time.
    let left: u32 = change_lease("a", "break", "").await.parse().unwrap();
    assert!((10..=15).contains(&left), "{left}");
    assert_eq!(namespace.lease_state("a").await, "breaking");
    assert_eq!(change_lease("a", "renew", &own).await, "LeaseIsBrokenAndCannotBeRenewed");
    assert_eq!(change_lease("a", "acquire", &acquire(OWN_ID)).await, "LeaseIsBreakingAndCannotBeAcquired");
    assert_eq!(change_lease("a", "acquire", &acquire(OTHER_ID)).await, "LeaseAlreadyPresent");
    // A second break never extends the remaining time, and a break period can shorten it.
    let again: u32 = change_lease("a", "break", "").await.parse().unwrap();
    assert!(again <= left, "{again}");
    let longer: u32 = change_lease("a", "break", "x-ms-lease-break-period: 60").await.parse().unwrap();
    assert!(longer <= left, "{longer}");
    let shorter: u32 = change_lease("a", "break", "x-ms-lease-break-period: 5").await.parse().unwrap();
    assert!(shorter <= 5, "{shorter}");
    // Only its holder can release it.
    let other = format!("x-ms-lease-id: {OTHER_ID}");
    assert_eq!(change_lease("a", "release", &other).await, "LeaseIdMismatchWithLeaseOperation");
    assert_eq!(change_lease("a", "release", &own).await, "200");
    assert_eq!(change_lease("a", "break", "").await, "LeaseNotPresentWithLeaseOperation");

    create_leased("b").await;
    change_lease("b", "break", "").await;
    assert_eq!(change_lease("b", "break", "x-ms-lease-break-period: 0").await, "0");
    assert_eq!(namespace.lease_state("b").await, "broken");
    assert_eq!(change_lease("b", "renew", &own).await, "LeaseIsBrokenAndCannotBeRenewed");
    // The service accepts the release of a lease that was broken by force, so the store acquires the lease once more.
    assert_eq!(change_lease("b", "release", &own).await, "200");

    create_leased("c").await;
    assert_eq!(change_lease("c", "break", "x-ms-lease-break-period: 0").await, "0");
    assert_eq!(change_lease("c", "acquire", &acquire(OTHER_ID)).await, "201");
    assert_eq!(change_lease("c", "renew", &own).await, "LeaseIdMismatchWithLeaseOperation");
    assert_eq!(change_lease("c", "release", &own).await, "LeaseIdMismatchWithLeaseOperation");

    // Only if the ETag is that of the grant.
    create_leased("d").await;
    assert_eq!(change_lease("d", "break", "If-Match: \"0x1\"").await, "ConditionNotMet");
    assert_eq!(namespace.lease_state("d").await, "leased");
}

/// Acquires `name` with the shortest lease.
async fn acquire(locks: &Locks, name: &'static str) -> Guard {
    locks.lock(name).ttl(MIN_LEASE).acquire().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_hold_is_listed_until_its_holder_releases_it() {
    let namespace = Namespace::of(server());
    let (here, there) = (namespace.locks().await, namespace.locks().await);
    let guard = acquire(&here, "a").await;
    let entries = there.break_lock("a").reason("first").await.unwrap();
    let [entry] = &entries[..] else { panic!("one holder: {entries:?}") };
    assert!(entry.expires_in <= MIN_LEASE && entry.expires_in > MIN_LEASE / 2, "{:?}", entry.expires_in);
    let second = there.break_lock("a").reason("second").await.unwrap();
    for seen in [&entries, &second, &there.inspect("a").await.unwrap().holders] {
        let notice = seen[0].broken.clone().expect("marked");
        assert_eq!(reason(&LostReason::Broken(notice)), "first");
    }
    let listed = there.list("").await.unwrap();
    assert_eq!(listed.len(), 1, "notices and markers are not locks: {listed:?}");
    assert!(listed[0].holders[0].broken.is_some());
    assert!(has_notice(&namespace, "a").await);
    assert!(there.lock("a").try_acquire().await.unwrap().is_none(), "its holder may still be working");
    assert_eq!(reason(&loss(&guard).await), "first");
    assert!(there.lock("a").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap_err();
    acquire_and_release(&there, "a").await;
    assert!(!has_notice(&namespace, "a").await, "its holder has read the notice");
}

/// 1. A claim acquires the lease, and the write of its grant is lost, also when it is repeated before step 2;
/// 2. the lease is broken;
/// 3. the claim is repeated, finds that its own lease is breaking, and is given up.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_gives_up_releases_its_own_broken_lease() {
    const LIMIT: Duration = Duration::from_secs(5);
    let namespace = Namespace::of(server());
    let there = namespace.locks().await;
    let last = acquire_and_release(&there, "a").await;
    let (proxy, here) = namespace.through(server()).await;
    proxy.fault_every(["comp=metadata"], RequestFault::Drop);
    let acquiring = tokio::spawn(here.lock("a").ttl(MIN_LEASE).wait(LIMIT).acquire());
    until("the grant is lost", async || proxy.counts().faulted > 0).await;
    there.break_lock("a").await.unwrap();
    assert_eq!(namespace.lease_state("a").await, "breaking");
    acquiring.await.unwrap().unwrap_err();
    assert!(acquire_soon(&there, "a").await > last);
}

/// In the portal, or by a version without notices.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_broken_by_other_means_is_reported_without_a_notice() {
    let namespace = Namespace::of(server());
    let (here, there) = (namespace.locks().await, namespace.locks().await);
    let (left, taken) = (acquire(&here, "left").await, acquire(&here, "taken").await);
    let cooperative = format!("PUT {}/left?comp=lease\nx-ms-lease-action: break", namespace.path);
    namespace.expect_reply(&cooperative, " 202 ").await;
    assert_eq!(there.inspect("left").await.unwrap().holders[0].broken, Some(BreakNotice::default()));
    namespace.break_lease("taken").await;
    acquire_and_release(&there, "taken").await;
    let lost = tokio::join!(loss(&left), loss(&taken));
    assert_eq!(lost, (LostReason::Broken(BreakNotice::default()), LostReason::Gone));
    left.release().await.unwrap_err();
    acquire_soon(&there, "left").await;
}

/// An unread notice is for one grant, and no other grant reports it.
#[tokio::test(flavor = "multi_thread")]
async fn a_notice_is_for_one_grant_only() {
    let namespace = Namespace::of(server());
    let (here, there) = (namespace.locks().await, namespace.locks().await);
    let guard = acquire(&here, "a").await;
    there.break_lock("a").reason("for the first").await.unwrap();
    // Before the holder has read the notice.
    guard.release().await.unwrap();
    assert!(has_notice(&namespace, "a").await);
    let guard = acquire(&here, "a").await;
    assert_eq!(there.inspect("a").await.unwrap().holders[0].broken, None);
    namespace.break_lease("a").await;
    assert_eq!(loss(&guard).await, LostReason::Broken(BreakNotice::default()));
    let guard = acquire(&here, "a").await;
    let broken = there.break_lock("a").reason("for the third").await.unwrap();
    assert_eq!(reason(&LostReason::Broken(broken[0].broken.clone().unwrap())), "for the third");
    assert_eq!(reason(&loss(&guard).await), "for the third");
    drop(guard);
    acquire_soon(&there, "a").await;
}

/// A holder that has died does not read its notice.
#[tokio::test(flavor = "multi_thread")]
async fn unread_notices_are_deleted_by_a_later_break() {
    let server = azurite::start_like_the_service(&[]).unwrap();
    let namespace = Namespace::of(&server);
    let (here, there) = (namespace.locks().await, namespace.locks().await);
    // A blob of another program with such a name.
    let other = format!("PUT {}/_broken_other\nx-ms-blob-type: BlockBlob\nx-ms-meta-mine: 1", namespace.path);
    let guards = [acquire(&here, "a").await, acquire(&here, "b").await];
    namespace.expect_reply(&other, " 201 ").await;
    for name in ["a", "b"] {
        there.break_lock(name).await.unwrap();
    }
    let guard = acquire(&here, "c").await;
    there.break_lock("c").await.unwrap();
    for name in ["a", "b", "c"] {
        assert!(has_notice(&namespace, name).await, "{name}: its holder may still read it");
    }
    azurite::set_ahead(&server, Duration::from_secs(150));
    // By now their leases have expired.
    acquire_and_release(&there, "a").await;
    let last = acquire(&here, "d").await;
    there.break_lock("d").await.unwrap();
    for (name, is_kept) in [("a", false), ("b", false), ("c", false), ("d", true), ("other", true)] {
        assert_eq!(has_notice(&namespace, name).await, is_kept, "{name}");
    }
    drop((guards, guard, last));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forced_break_frees_the_lock_and_the_former_holder_gets_the_notice() {
    let namespace = Namespace::of(server());
    let (here, there) = (namespace.locks().await, namespace.locks().await);
    let guard = acquire(&here, "a").await;
    let waiting = tokio::spawn(there.lock("a").acquire());
    until("it waits", async || namespace.lease_state("a").await == "leased" && !waiting.is_finished()).await;
    let began = now();
    there.break_lock("a").reason("at once").force().await.unwrap();
    let next = tokio::time::timeout(SETTLE_TIME, waiting)
        .await
        .expect("the waiter is granted the lock")
        .unwrap()
        .unwrap();
    println!("the next has it after {:.1?}", now().since(began));
    assert!(now().since(began) < Duration::from_secs(1) + SLACK);
    assert!(next.fencing_token() > guard.fencing_token());
    let lost = guard.release().await.unwrap_err();
    assert_eq!(reason(lost.lost().unwrap()), "at once");
    assert!(has_notice(&namespace, "a").await, "a release that is repeated must report the break, too");
    assert!(
        there.lock("a").try_acquire().await.unwrap().is_none(),
        "the former holder has released another's lock"
    );
    next.release().await.unwrap();
}

/// Returns another process that waits for late replies, and the proxy on its way.
async fn patient(namespace: &Namespace) -> (Proxy, Locks) {
    let proxy = Proxy::to_http(server().port());
    let url = format!("{}&polylock.operation_timeout=8s", proxy.url(&namespace.url));
    let locks = Locks::connect(&url).await.unwrap();
    acquire_and_release(&locks, "first").await;
    (proxy, locks)
}

/// 1. Another process adopts a hold: it reads the blob, and its acquisition is delayed on its way;
/// 2. the hold is broken, and its lease ends;
/// 3. the acquisition arrives.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_is_broken_during_its_adoption_stays_broken() {
    const DELAY: Duration = Duration::from_secs(4);
    let broken_by = async |force: bool| {
        let namespace = Namespace::of(server());
        let there = namespace.locks().await;
        let (proxy, adopter) = patient(&namespace).await;
        let guard = there.lock("a").ttl(Duration::from_secs(60)).acquire().await.unwrap();
        let handle = guard.into_handle().await.unwrap();
        proxy.fault_next(["x-ms-lease-action: acquire"], RequestFault::Delay(DELAY));
        let began = now();
        let adopting = tokio::spawn(async move { adopter.adopt(&handle).await });
        until("the acquisition is under way", async || proxy.counts().faulted > 0).await;
        let order = there.break_lock("a").reason("for all");
        if force { order.force().await } else { order.await }.unwrap();
        if !force {
            // The break period is over.
            namespace.break_lease("a").await;
        }
        assert_ne!(namespace.lease_state("a").await, "leased");
        assert!(now().since(began) < DELAY, "the acquisition has arrived before the break");
        let lost = adopting.await.unwrap().unwrap_err();
        assert_eq!(reason(lost.lost().unwrap()), "for all", "force: {force}");
        namespace.lease_state("a").await
    };
    let (forced, at_the_end) = tokio::join!(broken_by(true), broken_by(false));
    assert!(["available", "broken"].contains(&&*forced), "the lock is free at once: {forced}");
    assert_ne!(at_the_end, "leased");
}

/// 1. A process adopts a hold: it reads the blob, and its acquisition is delayed on its way;
/// 2. another process that has adopted the hold releases it;
/// 3. the acquisition arrives.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_is_released_during_its_adoption_stays_released() {
    const DELAY: Duration = Duration::from_secs(2);
    let namespace = Namespace::of(server());
    let there = namespace.locks().await;
    let (proxy, adopter) = patient(&namespace).await;
    let guard = there.lock("a").ttl(Duration::from_secs(60)).acquire().await.unwrap();
    let handle = guard.into_handle().await.unwrap();
    let guard = there.adopt(&handle).await.unwrap();
    proxy.fault_next(["x-ms-lease-action: acquire"], RequestFault::Delay(DELAY));
    let began = now();
    let adopting = tokio::spawn(async move { adopter.adopt(&handle).await });
    until("the acquisition is under way", async || proxy.counts().faulted > 0).await;
    guard.release().await.unwrap();
    assert!(now().since(began) < DELAY, "the acquisition has arrived before the release");
    let adopted = adopting.await.unwrap();
    assert!(matches!(adopted, Err(Error::Lost { reason: LostReason::Gone, .. })), "{adopted:?}");
    assert_eq!(namespace.lease_state("a").await, "available");
}

/// 1. A process leaves a hold to others, and it is broken: by a client with a notice, or by a stranger without one;
/// 2. another process finds that in its adoption, and releases the hold by its handle.
#[tokio::test(flavor = "multi_thread")]
async fn a_broken_hold_is_reported_by_its_adoption_and_can_be_released_by_its_handle() {
    let broken_by = async |stranger: bool| {
        let namespace = Namespace::of(server());
        let (there, adopter) = (namespace.locks().await, namespace.locks().await);
        let guard = acquire(&there, "a").await;
        let handle = guard.into_handle().await.unwrap();
        if stranger {
            namespace.start_break("a").await;
        } else {
            there.break_lock("a").reason("for all").await.unwrap();
        }
        let lost = adopter.adopt(&handle).await.unwrap_err();
        assert_eq!(reason(lost.lost().unwrap()), if stranger { "" } else { "for all" });
        assert_eq!(
            namespace.lease_state("a").await,
            "breaking",
            "its release is left to those who know of it"
        );
        adopter.release(&handle).await.unwrap();
        assert_eq!(namespace.lease_state("a").await, "available");
    };
    tokio::join!(broken_by(true), broken_by(false));
}

/// Its last holder has released the lock long ago, and must not be looked for.
#[tokio::test(flavor = "multi_thread")]
async fn an_infinite_lease_of_another_program_is_not_shown_as_the_last_holder() {
    let namespace = Namespace::of(server());
    let locks = namespace.locks().await;
    acquire(&locks, "a").await.release().await.unwrap();
    let lease = "x-ms-lease-action: acquire\nx-ms-lease-duration: -1";
    namespace.expect_reply(&format!("PUT {}/a?comp=lease\n{lease}", namespace.path), " 201 ").await;
    for status in [locks.inspect("a").await.unwrap(), locks.list("a").await.unwrap().remove(0)] {
        let [holder] = &status.holders[..] else { panic!("{status:?}") };
        assert!(holder.owner.as_str() == "unknown" && holder.label.contains("infinite"), "{status:?}");
    }
    assert_eq!(locks.break_lock("a").force().await.unwrap().len(), 1);
    acquire(&locks, "a").await.release().await.unwrap();
}
