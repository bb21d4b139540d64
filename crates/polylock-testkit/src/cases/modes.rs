//! The six modes: which holders may meet, and who waits for whom.

use polylock_core::{
    Mode, Request, Standing,
    queue::{self, Standpoint},
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
            assert_eq!(second.is_none(), held.conflicts_with(wanted), "{wanted} while {held} is held");
            released(holder).await;
            match second {
                Some(guard) => released(guard).await,
                None => released(acquired(there.lock(&name).mode(wanted)).await).await,
            }
        }
    }
    Ok(())
}

pub(super) async fn readers_hold_together(trial: Trial) -> Outcome {
    let locks = [trial.locks().await, trial.locks().await];
    let mut guards = Vec::new();
    for reader in 0..10 {
        guards.push(acquired(locks[reader % 2].lock("n").shared()).await);
    }
    assert!(tried(locks[1].lock("n")).await.is_none(), "a writer beside ten readers");
    while let Some(guard) = guards.pop() {
        assert!(guard.is_held());
        released(guard).await;
        let writer = tried(locks[0].lock("n")).await;
        assert_eq!(writer.is_some(), guards.is_empty(), "a writer beside {} readers", guards.len());
    }
    Ok(())
}

/// A holder, a second one, and a third one: the store answers each as the pure rule does, for all 216 triples.
pub(super) async fn every_triple_keeps_the_queue_rule(trial: Trial) -> Outcome {
    let raw = trial.raw().await;
    for first in Mode::ALL {
        for second in Mode::ALL {
            for third in Mode::ALL {
                triple(&trial, &raw, [first, second, third]).await;
            }
        }
    }
    trial.keeps(0, "after all triples").await;
    Ok(())
}

async fn triple(trial: &Trial, raw: &Raw, modes: [Mode; 3]) {
    let name = lock_name(&format!("{}-{}-{}", modes[0], modes[1], modes[2]));
    let requests = modes.map(|mode| Request::new(name.clone(), mode, trial.long()));
    let mut entries: Vec<Standpoint> = Vec::new();
    for (request, seq) in requests.iter().zip(1..) {
        let free = queue::watched(&entries, seq, request.mode).is_none();
        let held = matches!(raw.claim(request).await, Standing::Held(_));
        assert_eq!(held, free, "number {seq} of {name}");
        entries.push(Standpoint { seq, mode: request.mode, held });
    }
    // When the first has gone, the others are granted by the rule, asked in their order and against it.
    raw.release(&requests[0]).await;
    entries.remove(0);
    for at in [1, 0] {
        let me = entries[at];
        let free = me.held || queue::watched(&entries, me.seq, me.mode).is_none();
        let held = matches!(raw.claim(&requests[at + 1]).await, Standing::Held(_));
        assert_eq!(held, free, "number {} of {name} after the first has gone", me.seq);
        entries[at].held = held;
    }
    for request in &requests[1..] {
        raw.release(request).await;
    }
}
