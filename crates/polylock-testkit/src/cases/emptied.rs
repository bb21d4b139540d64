//! A store whose records were all removed under running programs: by a clean-up between tests, or by a restored copy of the tables
//! alone.

use polylock_core::LostReason;

use crate::trial::{Outcome, Trial, acquired, released, tried};

/// The program that is running goes on: its holds are lost, and it acquires anew, with greater tokens.
pub(super) async fn ends_the_holds_and_nothing_else(trial: Trial) -> Outcome {
    let locks = trial.locks().await;
    released(acquired(locks.lock("n")).await).await;
    let guard = acquired(locks.lock("n")).await;
    let token = guard.fencing_token();
    trial.empty().await;
    let release = guard.release().await.expect_err("nothing is left to release");
    assert!(matches!(release.lost(), Some(LostReason::Gone | LostReason::Broken(_))), "{release:?}");
    let next = acquired(locks.lock("n")).await;
    assert!(next.fencing_token() > token, "{} after {token}", next.fencing_token());
    released(next).await;
    released(acquired(locks.lock("other")).await).await;
    Ok(())
}

/// Whoever opens it later is not refused, and a resource still refuses the holders of before.
pub(super) async fn is_opened_again_with_greater_tokens(trial: Trial) -> Outcome {
    let before = trial.locks().await;
    let guard = acquired(before.lock("n")).await;
    let token = guard.fencing_token();
    trial.empty().await;
    let after = trial.locks().await;
    let next = acquired(after.lock("n")).await;
    assert!(next.fencing_token() > token, "{} after {token}", next.fencing_token());
    assert!(tried(before.lock("n")).await.is_none(), "those who have it open see the same locks");
    drop(guard);
    released(next).await;
    Ok(())
}
