//! Of all candidates of an election, one leads at a time, and the others follow.

use std::{
    future::{pending, poll_fn},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use polylock_core::{Election, Fencing, FencingToken, Operation, Term};

use crate::{
    ManualClock,
    trial::{Outcome, Trial, join, pass, released, scale, soon, until, while_running},
};

const CANDIDATES: usize = 4;

/// The resource that only the leader may use.
#[derive(Default)]
struct Resource {
    leaders: AtomicUsize,
    /// The token of the last term.
    last: AtomicU64,
}

impl Resource {
    /// Uses the resource in a term.
    async fn work(&self, term: &Term, has_tokens: bool) {
        let leaders = self.leaders.fetch_add(1, Ordering::SeqCst);
        assert_eq!(leaders, 0, "two leaders at the same time");
        if has_tokens {
            let token = term.fencing_token().get();
            let before = self.last.swap(token, Ordering::SeqCst);
            assert!(before < token, "the token {token} of a term after {before}");
        }
        // Long enough for another leader, if the election admits one.
        pass(Duration::from_millis(1)).await;
        assert!(term.is_leading(), "a term with a lease of a minute ended at once");
        self.leaders.fetch_sub(1, Ordering::SeqCst);
    }
}

pub(super) async fn one_leader_at_a_time(trial: Trial) -> Outcome {
    let connections = [trial.locks().await, trial.locks().await];
    let has_tokens = trial.capabilities().fencing != Fencing::Absent;
    let (resource, terms) = (Arc::new(Resource::default()), 3 * scale());
    let candidates: Vec<_> = (0..CANDIDATES)
        .map(|candidate| {
            let election = connections[candidate % 2].election("n");
            let (resource, mut led) = (resource.clone(), 0);
            tokio::spawn(election.run(async move |term: Term| {
                resource.work(&term, has_tokens).await;
                led += 1;
                if led < terms {
                    term.resign();
                    pending::<()>().await;
                }
                led
            }))
        })
        .collect();
    for candidate in candidates {
        let led = join(candidate).await.unwrap_or_else(|error| panic!("an election: {}", error.chain()));
        assert_eq!(led, terms);
    }
    trial.assert_empty(&["n"], "after the election").await;
    Ok(())
}

/// Campaigns; the next guard of `election` must come soon.
async fn elected(mut election: Election) -> (Election, polylock_core::Guard) {
    let guard = soon("campaign", election.campaign()).await;
    (election, guard.unwrap_or_else(|error| panic!("campaign: {}", error.chain())))
}

pub(super) async fn a_resignation_gives_the_next_candidate_a_turn(trial: Trial) -> Outcome {
    let (here, (there, recording)) = (trial.locks().await, trial.recorded().await);
    let (began, mut terms) = tokio::sync::mpsc::unbounded_channel();
    let former = tokio::spawn(here.election("n").run(async move |term: Term| {
        began.send(term.clone()).ok();
        term.ended().await;
        pending::<()>().await;
    }));
    let first = soon("the first term", terms.recv()).await.expect("the candidate campaigns");
    let next = tokio::spawn(elected(there.election("n")));
    until("the next candidate is in the queue", || !recording.of(Operation::Wait).is_empty()).await;
    assert!(first.is_leading() && !next.is_finished());
    first.resign();
    let (_, guard) = join(next).await;
    assert!(!first.is_leading(), "a leader that has resigned leads");
    assert!(terms.try_recv().is_err(), "the former leader was elected before the next candidate");
    released(guard).await;
    let second = soon("the next term", terms.recv()).await.expect("the candidate campaigns");
    assert!(second.is_leading());
    assert!(second.fencing_token() >= first.fencing_token());
    former.abort();
    assert!(former.await.is_err_and(|error| error.is_cancelled()));
    trial.assert_empty(&["n"], "after the election was dropped").await;
    Ok(())
}

/// The process is paused in a poll of the work, past the deadline.
pub(super) async fn a_lost_term_is_followed_by_another_one(trial: Trial) -> Outcome {
    let clock = ManualClock::new();
    let locks = trial.open_by(trial.store().await, &clock);
    let (mut tokens, pauser, over) = (Vec::new(), clock.clone(), trial.long());
    let election = tokio::spawn(locks.election("n").run(async move |term: Term| {
        tokens.push(term.fencing_token());
        if tokens.len() == 3 {
            return tokens.clone();
        }
        let mut polls = 0;
        poll_fn(|context| {
            polls += 1;
            assert_eq!(polls, 1, "polled after the deadline");
            pauser.advance(over);
            context.waker().wake_by_ref();
            Poll::<Vec<FencingToken>>::Pending
        })
        .await
    }));
    let tokens = while_running(&clock, join(election)).await;
    let tokens = tokens.unwrap_or_else(|error| panic!("an election: {}", error.chain()));
    if trial.capabilities().fencing != Fencing::Absent {
        assert!(tokens.is_sorted_by(|before, after| before < after), "{tokens:?}");
    }
    trial.assert_empty(&["n"], "after the election").await;
    Ok(())
}
