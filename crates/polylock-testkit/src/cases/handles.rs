//! Holds without a process.

use polylock_core::{Error, Guard, HoldHandle, HoldLifetime, Locks, LostReason};

use crate::trial::{Outcome, SOON, Trial, acquired, chain, released, soon, tried, within};

async fn adopted(locks: &Locks, handle: &HoldHandle) -> Guard {
    let guard = soon("adopt", locks.adopt(handle)).await;
    guard.unwrap_or_else(|error| panic!("adopt: {}", chain(&error)))
}

async fn handle(guard: Guard) -> HoldHandle {
    let hold = soon("into_handle", guard.into_handle()).await;
    let text = hold.unwrap_or_else(|error| panic!("into_handle: {}", chain(&error))).to_text();
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
    let next = next.unwrap_or_else(|error| panic!("acquire: {}", chain(&error)));
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
