//! The term of a leader.

use std::sync::Arc;

use tokio::sync::watch;

use crate::{
    FencingToken, Guard, LockName, LostReason,
    engine::{Hold, Phase},
};

/// The term of a leader, from [`Election::run`](crate::Election::run). Clones are the same term; they do not prolong it.
#[derive(Debug, Clone)]
pub struct Term {
    hold: Arc<Hold>,
    /// True once the leader has resigned.
    resignation: Arc<watch::Sender<bool>>,
}

impl Term {
    pub(super) fn new(guard: &Guard) -> Self {
        Self { hold: guard.shared_hold().hold().clone(), resignation: Arc::new(watch::Sender::new(false)) }
    }

    /// Returns the name of the election.
    #[must_use]
    pub fn name(&self) -> &LockName {
        self.hold.name()
    }

    /// Returns the number of the term for the protected resource to check: greater than that of every earlier term, of any
    /// candidate.
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.hold.token()
    }

    /// Returns true while the term lasts: it was not lost, and the leader has not resigned. Reads only the clock: no I/O.
    #[must_use]
    pub fn is_leading(&self) -> bool {
        !self.has_resigned() && self.hold.check().is_ok()
    }

    /// Steps down: the work of this term is dropped at its next `await`, the lock is released, and another candidate gets a turn
    /// before this one campaigns again. The output of work that returns after this call is discarded.
    ///
    /// A second call, or a call after the end of the term, has no effect.
    pub fn resign(&self) {
        self.resignation.send_replace(true);
    }

    /// Completes when the leadership has been lost. The future borrows nothing, and a resignation never completes it.
    pub fn lost(&self) -> impl Future<Output = LostReason> + Send + Sync + 'static {
        self.hold.phase_when(|phase| match phase {
            Phase::Lost(reason) => Some(reason.clone()),
            Phase::Held { .. } | Phase::Left => None,
        })
    }

    /// Completes when the term has ended: it was lost, the leader has resigned, or its work has returned. The future borrows nothing:
    /// it is for tasks that the work has spawned.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + 'static {
        let (resigned, left) =
            (self.resigned(), self.hold.phase_when(|phase| (!phase.is_held()).then_some(())));
        async move {
            tokio::select! {
                biased;
                () = resigned => {}
                () = left => {}
            }
        }
    }

    pub(super) fn has_resigned(&self) -> bool {
        *self.resignation.borrow()
    }

    /// Completes when the leader has resigned.
    pub(super) fn resigned(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut resignation = self.resignation.subscribe();
        async move {
            if resignation.wait_for(|resigned| *resigned).await.is_err() {
                // All clones of the term are gone, so no code can resign.
                std::future::pending::<()>().await;
            }
        }
    }
}
