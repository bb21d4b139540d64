//! Holds without a process.

use polylock_core::{Error, Guard, HoldHandle, HoldLifetime, Locks, LostReason, Mode};

use crate::trial::{Outcome, SOON, Trial, acquired, pass, released, soon, tried, within};

async fn adopted(locks: &Locks, handle: &HoldHandle) -> Guard {
    let guard = soon("adopt", locks.adopt(handle)).await;
    guard.unwrap_or_else(|error| panic!("adopt: {}", error.chain()))
}

async fn handle(guard: Guard) -> HoldHandle {
    let hold = soon("into_handle", guard.into_handle()).await;
    let text = hold.unwrap_or_else(|error| panic!("into_handle: {}", error.chain())).to_text();
    text.parse().expect("the text of a handle")
}

pub(super) async fn another_process_renews_and_releases_the_hold(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let guard = acquired(here.lock("n")).await;
    let token = guard.fencing_token();
    let hold = handle(guard).await;
    drop(here);
    assert!(tried(there.lock("n")).await.is_none(), "the hold ended with its process");
    let guard = adopted(&there, &hold).await;
    assert!(guard.is_held() && guard.fencing_token() == token && guard.remaining() > trial.long() / 2);
    let renewed = guard.renewed();
    let hold = handle(guard).await;
    assert_eq!(soon("the end of the hold here", renewed).await, None);
    released(adopted(&there, &hold).await).await;
    let next = tried(there.lock("n")).await.expect("free after the release");
    assert!(next.fencing_token() > token);
    released(next).await;
    let lost = soon("adopt", there.adopt(&hold)).await;
    assert_eq!(lost.as_ref().err().and_then(Error::lost), Some(&LostReason::Gone), "{lost:?}");
    trial.assert_entries(0, "at the end").await;
    Ok(())
}

pub(super) async fn a_hold_that_nobody_renews_ends_with_its_lease(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let ttl = trial.renewable();
    let hold = handle(acquired(here.lock("n").ttl(ttl)).await).await;
    let next = within(ttl + SOON, "the next holder", there.lock("n").acquire()).await;
    let next = next.unwrap_or_else(|error| panic!("acquire: {}", error.chain()));
    assert!(next.fencing_token() > hold.fencing_token());
    let lost = soon("adopt", here.adopt(&hold)).await;
    assert!(lost.as_ref().is_err_and(|error| error.lost().is_some()), "{lost:?}");
    assert!(next.is_held());
    released(next).await;
    trial.assert_entries(0, "at the end").await;
    Ok(())
}

pub(super) async fn a_broken_hold_is_not_adopted(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let hold = handle(acquired(here.lock("n")).await).await;
    soon("break", there.break_lock("n").force()).await.expect("a store that can be inspected");
    let lost = soon("adopt", here.adopt(&hold)).await;
    let reason = lost.as_ref().err().and_then(Error::lost);
    assert!(matches!(reason, Some(LostReason::Broken(_))), "{lost:?}");
    released(acquired(there.lock("n")).await).await;
    Ok(())
}

pub(super) async fn a_broken_hold_is_released_by_its_handle(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let hold = handle(acquired(here.lock("n")).await).await;
    soon("break", there.break_lock("n")).await.expect("a store that can be inspected");
    assert!(tried(there.lock("n")).await.is_none(), "a break without force waits for the holder");
    soon("release", there.release(&hold)).await.expect("the hold is in the store");
    released(tried(there.lock("n")).await.expect("free after the release")).await;
    let lost = soon("release", there.release(&hold)).await;
    assert!(lost.as_ref().is_err_and(|error| error.lost().is_some()), "{lost:?}");
    trial.assert_entries(0, "at the end").await;
    Ok(())
}

pub(super) async fn a_hold_of_a_session_has_no_handle(trial: Trial) -> Outcome {
    let locks = trial.locks().await;
    let guard = acquired(locks.lock("n")).await;
    let is_lease = locks.capabilities().hold_lifetime == HoldLifetime::Lease;
    match soon("into_handle", guard.into_handle()).await {
        Ok(hold) if is_lease => released(adopted(&locks, &hold).await).await,
        Err(Error::Unsupported { .. }) if !is_lease => {}
        other => panic!("{other:?}"),
    }
    trial.assert_entries(0, "at the end").await;
    Ok(())
}

pub(super) async fn a_renewal_elsewhere_never_shortens_the_lease(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let guard = acquired(here.lock("n")).await;
    let hold = guard.handle().unwrap_or_else(|error| panic!("handle: {}", error.chain()));
    let shorter = trial.short();
    // The other process renews it for a shorter time, and leaves it.
    let other = soon("adopt", there.adopt_for(&hold, shorter)).await;
    let other = other.unwrap_or_else(|error| panic!("adopt: {}", error.chain()));
    assert!(other.remaining() <= shorter);
    let left = handle(other).await;
    assert!(left.ttl() > trial.long() / 2, "the lease of the handle is that of the hold: {:?}", left.ttl());
    pass(shorter + shorter / 4).await;
    assert!(tried(there.lock("n")).await.is_none(), "the lease of the first guard was shortened");
    assert!(guard.is_held());
    released(guard).await;
    trial.assert_entries(0, "at the end").await;
    Ok(())
}

pub(super) async fn an_adoption_has_the_terms_of_the_store(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let mut guard = acquired(here.lock("n")).await;
    let hold = guard.handle().unwrap_or_else(|error| panic!("handle: {}", error.chain()));
    soon("downgrade", guard.downgrade(Mode::Shared)).await.expect("a downgrade");
    let reader = tried(there.lock("n").shared()).await.expect("a reader beside a reader");
    let other = adopted(&there, &hold).await;
    assert_eq!((other.mode(), other.fencing_token()), (Mode::Shared, guard.fencing_token()));
    assert!(other.fencing_token() > hold.fencing_token());
    released(reader).await;
    released(guard).await;
    drop(other);
    trial.assert_entries(0, "at the end").await;
    Ok(())
}

pub(super) async fn a_conversion_elsewhere_ends_the_guard(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let guard = acquired(here.lock("n").ttl(trial.renewable())).await;
    let hold = guard.handle().unwrap_or_else(|error| panic!("handle: {}", error.chain()));
    let mut other = adopted(&there, &hold).await;
    soon("downgrade", other.downgrade(Mode::Shared)).await.expect("a downgrade");
    // With its next renewal.
    assert_eq!(within(trial.renewable() + SOON, "the loss", guard.lost()).await, LostReason::Gone);
    drop(guard);
    assert!(other.is_held());
    assert!(
        tried(there.lock("n")).await.is_none(),
        "the guard that was lost has released the hold of the other"
    );
    released(other).await;
    trial.assert_entries(0, "at the end").await;
    Ok(())
}

pub(super) async fn a_slot_has_a_handle(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let slot = soon("a slot", here.semaphore("gpu", 1).acquire()).await;
    let guard = slot.unwrap_or_else(|error| panic!("a slot: {}", error.chain())).into_guard();
    let hold = handle(guard).await;
    assert_eq!(hold.name().slot(), Some(("gpu", 0)));
    let semaphore = || there.semaphore("gpu", 1);
    assert!(soon("a try", semaphore().try_acquire()).await.expect("a try").is_none());
    released(adopted(&there, &hold).await).await;
    let slot = soon("a slot", semaphore().try_acquire()).await.expect("a try");
    drop(slot.expect("free after the release by its handle"));
    trial.assert_entries(0, "at the end").await;
    Ok(())
}

pub(super) async fn a_hold_that_was_left_is_not_adopted(trial: Trial) -> Outcome {
    if !trial.orders_messages() {
        return Ok(());
    }
    let (here, there) = (trial.locks().await, trial.locks().await);
    let guard = acquired(here.lock("n")).await;
    let hold = guard.handle().unwrap_or_else(|error| panic!("handle: {}", error.chain()));
    let left = trial.short();
    soon("release_after", guard.release_after(left)).await.expect("it is left");
    let adopted = soon("adopt", there.adopt(&hold)).await;
    assert_eq!(adopted.as_ref().err().and_then(Error::lost), Some(&LostReason::Gone), "{adopted:?}");
    released(within(left + SOON, "the next holder", acquired(there.lock("n"))).await).await;
    trial.assert_entries(0, "at the end").await;
    Ok(())
}
