//! Every grant has a greater token than every earlier one of its name.

use std::time::Duration;

use polylock_core::{BreakNotice, BreakOrder, ClaimOutcome, FencingToken, Grant, Mode, Request};

use crate::trial::{Outcome, Raw, SOON, Trial, acquired, lock_name, pass, released, soon, within};

/// The token of the previous grant. It checks that the next one is greater.
struct Growing(Option<FencingToken>);

impl Growing {
    fn next(&mut self, token: FencingToken, what: &str) {
        if let Some(before) = self.0 {
            assert!(token > before, "{what}: the token {token} does not grow after {before}");
        }
        self.0 = Some(token);
    }
}

pub(super) async fn tokens_grow_across_releases(trial: Trial) -> Outcome {
    let connections = [trial.locks().await, trial.locks().await];
    let mut growing = [Growing(None), Growing(None)];
    for round in 0..20 {
        for (name, growing) in ["a", "b"].into_iter().zip(&mut growing) {
            let guard = acquired(connections[round % 2].lock(name)).await;
            growing.next(guard.fencing_token(), "after a release");
            released(guard).await;
        }
    }
    // Nothing remains of an idle lock that could restart its tokens.
    trial.assert_empty(&[], "after the releases").await;
    Ok(())
}

pub(super) async fn tokens_grow_across_reconnects(trial: Trial) -> Outcome {
    let mut growing = Growing(None);
    for _ in 0..5 {
        let locks = trial.locks().await;
        let guard = acquired(locks.lock("n")).await;
        growing.next(guard.fencing_token(), "on a new connection");
        released(guard).await;
        assert!(locks.close(Duration::from_secs(10)).await, "the releases did not complete in time");
    }
    Ok(())
}

pub(super) async fn tokens_grow_across_an_expiry(trial: Trial) -> Outcome {
    let (raw, locks) = (trial.raw().await, trial.locks().await);
    let mut growing = Growing(None);
    for round in 0..2 {
        // The lock is held and abandoned; the next request gets it when the lease has run out.
        let dead = Request::new(lock_name("n"), Mode::Exclusive, trial.short());
        growing.next(raw.hold(&dead).await.token, "before the expiry");
        let next =
            within(trial.short() + SOON, "the grant after the expiry", acquired(locks.lock("n"))).await;
        growing.next(next.fencing_token(), &format!("after expiry number {round}"));
        released(next).await;
    }
    Ok(())
}

pub(super) async fn tokens_grow_across_a_break(trial: Trial) -> Outcome {
    let (locks, inspect) = (trial.locks().await, trial.inspect());
    let mut growing = Growing(None);
    for _ in 0..3 {
        let guard = acquired(locks.lock("n")).await;
        growing.next(guard.fencing_token(), "before a break");
        let (inspect, name) = (inspect.clone(), lock_name("n"));
        let order = BreakOrder::new(BreakNotice::default(), [Some(guard.fencing_token())]).force();
        trial.on_io(async move { inspect.break_lock(&name, &order).await }).await;
        let next = acquired(locks.lock("n")).await;
        growing.next(next.fencing_token(), "after a break");
        released(next).await;
        // The holder may or may not have been notified: both are correct.
        drop(soon("the release of a broken hold", guard.release()).await);
    }
    Ok(())
}

pub(super) async fn concurrent_holders_have_different_tokens(trial: Trial) -> Outcome {
    let connections = [trial.locks().await, trial.locks().await];
    let mut growing = Growing(None);
    let mut readers = Vec::new();
    for reader in 0..6 {
        let guard = acquired(connections[reader % 2].lock("n").shared()).await;
        growing.next(guard.fencing_token(), "another reader");
        readers.push(guard);
    }
    for guard in readers {
        released(guard).await;
    }
    let writer = acquired(connections[0].lock("n")).await;
    growing.next(writer.fencing_token(), "the writer after the readers");
    released(writer).await;
    Ok(())
}

/// Near, and far: a store may raise its tokens in several ways.
pub(super) async fn tokens_continue_after_a_raise(trial: Trial) -> Outcome {
    let (store, there) = (trial.store().await, trial.raw().await);
    let (here, raise) = (Raw(store.backend), store.raise.expect("the case needs it"));
    let request = || Request::new(lock_name("n"), Mode::Exclusive, trial.long());
    let raised = async |holder: &Request, to: FencingToken| {
        let (raise, holder) = (raise.clone(), holder.clone());
        trial.on_io(async move { raise.raise(&holder, to).await }).await
    };
    for distance in [1, 40, 5000, 1 << 40] {
        let (holder, next) = (request(), request());
        let token = granted(&here, &holder).await.token;
        let to = FencingToken::new(token.get() + distance).expect("the tokens are not used up");
        let last = raised(&holder, to).await;
        assert!(
            (token..to).contains(&last),
            "raised {token} to {to}: the store states that {last} may have been drawn before"
        );
        // Repeated, as after a lost reply, and late.
        raised(&holder, to).await;
        raised(&holder, token).await;
        assert_eq!(here.hold(&holder).await.token, token, "the raise changed the token of the hold");
        here.release(&holder).await;
        let mut growing = Growing(Some(to));
        growing.next(granted(&there, &next).await.token, &format!("raised by {distance}"));
        there.release(&next).await;
    }
    trial.assert_empty(&["n"], "at the end").await;
    Ok(())
}

/// Claims until the claim is granted: a store without a queue may have to try several numbers.
async fn granted(raw: &Raw, request: &Request) -> Grant {
    let claims = async {
        loop {
            match raw.claim(request).await {
                ClaimOutcome::Granted(grant) => return grant,
                ClaimOutcome::Queued(position) => pass(position.recheck_after).await,
            }
        }
    };
    within(SOON, "the grant of a free lock", claims).await
}
