//! Breaks: what the service does with a lease that is broken, and what the store makes of it.

use std::time::Duration;

use polylock::{Guard, Locks, LostReason};
use polylock_core::BreakNotice;
use polylock_integration_tests::{
    clock::{now, until},
    servers::azurite,
};

use crate::{SETTLED, SHORTEST, SLACK, Spot, becomes_free, is_free, loss, server};

const OURS: &str = "11111111-2222-3333-4444-555555555555";
const ANOTHERS: &str = "66666666-7777-8888-9999-aaaaaaaaaaaa";

fn reason(lost: &LostReason) -> String {
    let LostReason::Broken(notice) = lost else { panic!("{lost:?}") };
    notice.reason.as_ref().map(|reason| reason.as_str().to_owned()).unwrap_or_default()
}

/// The blob with the notice is there.
async fn has_notice(spot: &Spot, name: &str) -> bool {
    spot.ask(&format!("HEAD {}/_broken_{name}", spot.path)).await.starts_with("HTTP/1.1 200")
}

/// What is documented of the states of a lease, and what the store relies on:
/// <https://learn.microsoft.com/rest/api/storageservices/lease-blob>.
#[tokio::test(flavor = "multi_thread")]
async fn the_states_of_a_lease_are_as_documented() {
    let spot = Spot::of(server());
    spot.locks().await.list("").await.unwrap();
    let act = async |blob: &str, action: &str, more: &str| {
        let request = format!("PUT {}/{blob}?comp=lease\nx-ms-lease-action: {action}\n{more}", spot.path);
        let answer = spot.ask(&request).await;
        let code = answer.lines().find_map(|line| line.strip_prefix("x-ms-error-code: ")).map(str::to_owned);
        let left = answer.lines().find_map(|line| line.strip_prefix("x-ms-lease-time: ")).map(str::to_owned);
        code.or(left).unwrap_or_else(|| answer.lines().next().unwrap_or_default()[9..12].to_owned())
    };
    let acquire = |id: &str| format!("x-ms-lease-duration: 15\nx-ms-proposed-lease-id: {id}");
    let ours = format!("x-ms-lease-id: {OURS}");
    let make = async |blob: &str| {
        let made = format!("PUT {}/{blob}\nx-ms-blob-type: BlockBlob", spot.path);
        spot.does(&made, " 201 ").await;
        assert_eq!(act(blob, "acquire", &acquire(OURS)).await, "201");
    };

    make("a").await;
    // With no period: what is left of the lease.
    let left: u32 = act("a", "break", "").await.parse().unwrap();
    assert!((10..=15).contains(&left), "{left}");
    assert_eq!(spot.lease("a").await, "breaking");
    assert_eq!(act("a", "renew", &ours).await, "LeaseIsBrokenAndCannotBeRenewed");
    assert_eq!(act("a", "acquire", &acquire(OURS)).await, "LeaseIsBreakingAndCannotBeAcquired");
    assert_eq!(act("a", "acquire", &acquire(ANOTHERS)).await, "LeaseAlreadyPresent");
    // A second break never makes it longer, and a period makes it shorter.
    let again: u32 = act("a", "break", "").await.parse().unwrap();
    assert!(again <= left, "{again}");
    let longer: u32 = act("a", "break", "x-ms-lease-break-period: 60").await.parse().unwrap();
    assert!(longer <= left, "{longer}");
    let shorter: u32 = act("a", "break", "x-ms-lease-break-period: 5").await.parse().unwrap();
    assert!(shorter <= 5, "{shorter}");
    // Its holder can release it, and it alone.
    let anothers = format!("x-ms-lease-id: {ANOTHERS}");
    assert_eq!(act("a", "release", &anothers).await, "LeaseIdMismatchWithLeaseOperation");
    assert_eq!(act("a", "release", &ours).await, "200");
    assert_eq!(act("a", "break", "").await, "LeaseNotPresentWithLeaseOperation");

    make("b").await;
    act("b", "break", "").await;
    assert_eq!(act("b", "break", "x-ms-lease-break-period: 0").await, "0");
    assert_eq!(spot.lease("b").await, "broken");
    assert_eq!(act("b", "renew", &ours).await, "LeaseIsBrokenAndCannotBeRenewed");
    // That of one that was broken by force is no sign of a hold: this is why the store takes the lease away.
    assert_eq!(act("b", "release", &ours).await, "200");

    make("c").await;
    assert_eq!(act("c", "break", "x-ms-lease-break-period: 0").await, "0");
    assert_eq!(act("c", "acquire", &acquire(ANOTHERS)).await, "201");
    assert_eq!(act("c", "renew", &ours).await, "LeaseIdMismatchWithLeaseOperation");
    assert_eq!(act("c", "release", &ours).await, "LeaseIdMismatchWithLeaseOperation");

    // Of the grant that is meant alone.
    make("d").await;
    assert_eq!(act("d", "break", "If-Match: \"0x1\"").await, "ConditionNotMet");
    assert_eq!(spot.lease("d").await, "leased");
}

/// The holder of `name`, and what others see of it.
async fn held(locks: &Locks, name: &'static str) -> Guard {
    locks.lock(name).ttl(SHORTEST).acquire().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_hold_is_seen_until_its_holder_releases_it() {
    let spot = Spot::of(server());
    let (here, there) = (spot.locks().await, spot.locks().await);
    let guard = held(&here, "a").await;
    let entries = there.break_lock("a").reason("first").await.unwrap();
    let [entry] = &entries[..] else { panic!("one holder: {entries:?}") };
    assert!(entry.expires_in <= SHORTEST && entry.expires_in > SHORTEST / 2, "{:?}", entry.expires_in);
    let second = there.break_lock("a").reason("second").await.unwrap();
    for seen in [&entries, &second, &there.inspect("a").await.unwrap().holders] {
        let notice = seen[0].broken.clone().expect("marked");
        assert_eq!(reason(&LostReason::Broken(notice)), "first");
    }
    let listed = there.list("").await.unwrap();
    assert_eq!(listed.len(), 1, "neither notices nor marks are locks: {listed:?}");
    assert!(listed[0].holders[0].broken.is_some());
    assert!(has_notice(&spot, "a").await);
    assert!(there.lock("a").try_acquire().await.unwrap().is_none(), "its holder may still be at work");
    assert_eq!(reason(&loss(&guard).await), "first");
    assert!(there.lock("a").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap_err();
    is_free(&there, "a").await;
    assert!(!has_notice(&spot, "a").await, "its holder has read it");
}

/// By the portal, or a version that leaves no notices.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_was_broken_by_other_means_is_told_without_a_notice() {
    let spot = Spot::of(server());
    let (here, there) = (spot.locks().await, spot.locks().await);
    let (left, taken) = (held(&here, "left").await, held(&here, "taken").await);
    let gently = format!("PUT {}/left?comp=lease\nx-ms-lease-action: break", spot.path);
    spot.does(&gently, " 202 ").await;
    assert_eq!(there.inspect("left").await.unwrap().holders[0].broken, Some(BreakNotice::default()));
    spot.breaks("taken").await;
    is_free(&there, "taken").await;
    let lost = tokio::join!(loss(&left), loss(&taken));
    assert_eq!(lost, (LostReason::Broken(BreakNotice::default()), LostReason::Gone));
    left.release().await.unwrap_err();
    becomes_free(&there, "left").await;
}

/// A notice that is left is for one grant, and no other is told of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_notice_is_for_one_grant_alone() {
    let spot = Spot::of(server());
    let (here, there) = (spot.locks().await, spot.locks().await);
    let guard = held(&here, "a").await;
    there.break_lock("a").reason("for the first").await.unwrap();
    // Before it has read the notice.
    guard.release().await.unwrap();
    assert!(has_notice(&spot, "a").await);
    let guard = held(&here, "a").await;
    assert_eq!(there.inspect("a").await.unwrap().holders[0].broken, None);
    spot.breaks("a").await;
    assert_eq!(loss(&guard).await, LostReason::Broken(BreakNotice::default()));
    let guard = held(&here, "a").await;
    let broken = there.break_lock("a").reason("for the third").await.unwrap();
    assert_eq!(reason(&LostReason::Broken(broken[0].broken.clone().unwrap())), "for the third");
    assert_eq!(reason(&loss(&guard).await), "for the third");
    drop(guard);
    becomes_free(&there, "a").await;
}

/// Who has died does not read its notice.
#[tokio::test(flavor = "multi_thread")]
async fn notices_that_nobody_read_are_deleted_by_a_later_break() {
    let server = azurite::start_like_the_service(&[]).unwrap();
    let spot = Spot::of(&server);
    let (here, there) = (spot.locks().await, spot.locks().await);
    // Something else that happens to be called so.
    let other = format!("PUT {}/_broken_other\nx-ms-blob-type: BlockBlob\nx-ms-meta-mine: 1", spot.path);
    let guards = [held(&here, "a").await, held(&here, "b").await];
    spot.does(&other, " 201 ").await;
    for name in ["a", "b"] {
        there.break_lock(name).await.unwrap();
    }
    let guard = held(&here, "c").await;
    there.break_lock("c").await.unwrap();
    for name in ["a", "b", "c"] {
        assert!(has_notice(&spot, name).await, "{name}: it may be read yet");
    }
    azurite::set_ahead(&server, Duration::from_secs(150));
    // By now their leases have run out.
    is_free(&there, "a").await;
    let last = held(&here, "d").await;
    there.break_lock("d").await.unwrap();
    for (name, there) in [("a", false), ("b", false), ("c", false), ("d", true), ("other", true)] {
        assert_eq!(has_notice(&spot, name).await, there, "{name}");
    }
    drop((guards, guard, last));
}

#[tokio::test(flavor = "multi_thread")]
async fn by_force_the_next_has_it_at_once_and_the_former_holder_learns_why() {
    let spot = Spot::of(server());
    let (here, there) = (spot.locks().await, spot.locks().await);
    let guard = held(&here, "a").await;
    let waiting = tokio::spawn(there.lock("a").acquire());
    until("it waits", async || spot.lease("a").await == "leased" && !waiting.is_finished()).await;
    let began = now();
    there.break_lock("a").reason("at once").force().await.unwrap();
    let next = tokio::time::timeout(SETTLED, waiting).await.expect("it is served").unwrap().unwrap();
    println!("the next has it after {:.1?}", now().since(began));
    assert!(now().since(began) < Duration::from_secs(1) + SLACK);
    assert!(next.fencing_token() > guard.fencing_token());
    let lost = guard.release().await.unwrap_err();
    assert_eq!(reason(lost.lost().unwrap()), "at once");
    assert!(!has_notice(&spot, "a").await, "its holder has read it");
    assert!(
        there.lock("a").try_acquire().await.unwrap().is_none(),
        "the former holder has released another's lock"
    );
    next.release().await.unwrap();
}
