//! Every grant has a greater token than every earlier one of its name.

use std::time::Duration;

use polylock_core::{BreakNotice, BreakOrder, FencingToken, Mode, Request};

use crate::trial::{Outcome, SOON, Trial, acquired, lock_name, released, soon, within};

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
        let order = BreakOrder::new(BreakNotice::default()).force();
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
