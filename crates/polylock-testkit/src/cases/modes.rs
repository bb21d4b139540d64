//! The six modes: compatible holders, and the waiters that they block.

use polylock_core::{
    ClaimOutcome, Mode, Request,
    queue::{self, QueueEntry},
};

use crate::trial::{Outcome, Raw, Trial, acquired, lock_name, released, tried};

pub(super) async fn every_pair(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    for held in trial.modes() {
        for wanted in trial.modes() {
            let name = format!("{held}-{wanted}");
            let holder = acquired(here.lock(&name).mode(held)).await;
            assert_eq!(holder.mode(), held);
            let second = tried(there.lock(&name).mode(wanted)).await;
            assert_eq!(
                second.is_none(),
                held.conflicts_with(wanted),
                "{wanted} while {held} is held: granted against the conflict table, or refused"
            );
            released(holder).await;
            match second {
                Some(guard) => released(guard).await,
                None => released(acquired(there.lock(&name).mode(wanted)).await).await,
            }
        }
    }
    Ok(())
}

pub(super) async fn readers_share_the_lock(trial: Trial) -> Outcome {
    let locks = [trial.locks().await, trial.locks().await];
    let mut guards = Vec::new();
    for reader in 0..10 {
        guards.push(acquired(locks[reader % 2].lock("n").shared()).await);
    }
    assert!(tried(locks[1].lock("n")).await.is_none(), "a writer was granted beside ten readers");
    while let Some(guard) = guards.pop() {
        assert!(guard.is_held());
        released(guard).await;
        let writer = tried(locks[0].lock("n")).await;
        assert_eq!(
            writer.is_some(),
            guards.is_empty(),
            "a writer beside {} readers: granted too early, or refused",
            guards.len()
        );
    }
    Ok(())
}

/// A holder, a second and a third request: the store answers each according to the pure rule, for all 216 triples.
pub(super) async fn every_triple_follows_the_queue_rule(trial: Trial) -> Outcome {
    let raw = trial.raw().await;
    for first in Mode::ALL {
        for second in Mode::ALL {
            for third in Mode::ALL {
                triple(&trial, &raw, [first, second, third]).await;
            }
        }
    }
    trial.assert_entries(0, "after all triples").await;
    Ok(())
}

async fn triple(trial: &Trial, raw: &Raw, modes: [Mode; 3]) {
    let name = lock_name(&format!("{}-{}-{}", modes[0], modes[1], modes[2]));
    let requests = modes.map(|mode| Request::new(name.clone(), mode, trial.long()));
    let mut entries: Vec<QueueEntry> = Vec::new();
    for (request, seq) in requests.iter().zip(1..) {
        let is_grantable = queue::watched(&entries, seq, request.mode).is_none();
        let held = matches!(raw.claim(request).await, ClaimOutcome::Granted(_));
        assert_eq!(
            held, is_grantable,
            "request {seq} of {name}: granted against the queue rule, or not granted"
        );
        entries.push(QueueEntry { seq, mode: request.mode, held });
    }
    // When the first has been released, the others are granted according to the rule, claimed in reverse order.
    raw.release(&requests[0]).await;
    entries.remove(0);
    for at in [1, 0] {
        let entry = entries[at];
        let is_grantable = entry.held || queue::watched(&entries, entry.seq, entry.mode).is_none();
        let held = matches!(raw.claim(&requests[at + 1]).await, ClaimOutcome::Granted(_));
        assert_eq!(
            held, is_grantable,
            "request {} of {name} after the release of the first: granted against the queue rule, or not granted",
            entry.seq
        );
        entries[at].held = held;
    }
    for request in &requests[1..] {
        raw.release(request).await;
    }
}
