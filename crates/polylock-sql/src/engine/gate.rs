//! The gate in front of the connections to a database: renewals take precedence over releases, and releases over claims.
//!
//! A connection carries one operation at a time. Without precedence, a renewal would wait behind all claims of the process, and a
//! lock with a short TTL would be lost:
//! 1. ten thousand tasks claim at once, or a few claims hang and each keeps a connection for its time limit;
//! 2. a keep-alive for another lock joins the queue for a connection behind them;
//! 3. the deadline of that lock passes before its turn comes.
//!
//! So the operations queue here by class, in order of arrival within each class, and the lower classes leave some of the connections
//! to the higher ones. An operation is never interrupted: with a single connection, a renewal waits for the one statement that is
//! under way.

use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use polylock_core::{Clock, Operation, SystemClock};
use tokio::sync::oneshot;

/// The precedence of an operation: earlier classes go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// Whatever keeps a lock from being lost.
    KeepAlive,
    /// Whatever lets others go on: releases, withdrawals, breaks, and the rounds in which waiters learn that it is their turn.
    Release,
    /// Everything else.
    Claim,
}

impl Class {
    const ALL: [Self; 3] = [Self::KeepAlive, Self::Release, Self::Claim];

    const fn of(operation: Operation) -> Self {
        match operation {
            Operation::Renew => Self::KeepAlive,
            Operation::Release | Operation::Break | Operation::Wait => Self::Release,
            _ => Self::Claim,
        }
    }

    /// How many of `size` connections stay free of this class and of those behind it.
    const fn reserve(self, size: usize) -> usize {
        let reserve = match self {
            Self::KeepAlive => 0,
            Self::Release => 1,
            Self::Claim => 2,
        };
        // Each class can use one connection at least.
        if reserve < size { reserve } else { size - 1 }
    }
}

/// Admits as many operations as there are connections.
#[derive(Debug)]
pub(crate) struct Gate {
    size: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    free: usize,
    /// Those that wait, by class.
    queues: [VecDeque<oneshot::Sender<Permit>>; 3],
    /// How many operations the database has answered.
    answered: u64,
}

/// The right to use a connection, until this is dropped.
#[derive(Debug)]
pub(crate) struct Permit(Option<Arc<Gate>>);

impl Gate {
    /// A gate in front of `size` connections, of which there is one at least.
    pub(crate) fn new(size: usize) -> Arc<Self> {
        let size = size.max(1);
        Arc::new(Self { size, state: Mutex::new(State { free: size, ..State::default() }) })
    }

    /// How many claims it admits at once.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(crate) const fn for_claims(&self) -> usize {
        self.size - Class::Claim.reserve(self.size)
    }

    /// Waits for the turn of `operation`. Returns `None` when the database has answered nothing for `timeout`: as long as it answers,
    /// those ahead are only many.
    ///
    /// # Cancel safety
    /// Dropping it loses nothing: the next operation gets the permit.
    pub(crate) async fn enter(self: &Arc<Self>, operation: Operation, timeout: Duration) -> Option<Permit> {
        let class = Class::of(operation);
        let (mut turn, mut answered) = {
            let mut state = self.lock();
            let is_first = state.queues.iter().take(class as usize + 1).all(VecDeque::is_empty);
            if is_first && state.free > class.reserve(self.size) {
                state.free -= 1;
                return Some(Permit(Some(self.clone())));
            }
            let (sender, turn) = oneshot::channel();
            state.queues[class as usize].push_back(sender);
            (turn, state.answered)
        };
        loop {
            if let Some(permit) = SystemClock.before(SystemClock.now() + timeout, &mut turn).await {
                return permit.ok();
            }
            let seen = mem::replace(&mut answered, self.lock().answered);
            if seen == answered {
                return None;
            }
        }
    }

    /// Gives the free connections to those who are next.
    fn admit(self: &Arc<Self>, state: &mut State) {
        for class in Class::ALL {
            while state.free > class.reserve(self.size) {
                let Some(next) = state.queues[class as usize].pop_front() else { break };
                match next.send(Permit(Some(self.clone()))) {
                    Ok(()) => state.free -= 1,
                    // It does not wait any more. Its permit is not to be given back: it was not taken.
                    Err(mut permit) => permit.0 = None,
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit {
    /// Notes that the database has answered, whatever it was.
    pub(crate) fn answered(&self) {
        if let Some(gate) = &self.0 {
            gate.lock().answered += 1;
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(gate) = self.0.take() {
            let mut state = gate.lock();
            state.free += 1;
            gate.admit(&mut state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    const TIMEOUT: Duration = Duration::from_secs(60);

    fn enter(
        gate: &Arc<Gate>,
        operation: Operation,
    ) -> std::pin::Pin<Box<dyn Future<Output = Option<Permit>> + '_>> {
        let mut entering = Box::pin(gate.enter(operation, TIMEOUT));
        match entering.as_mut().now_or_never() {
            Some(permit) => Box::pin(std::future::ready(permit)),
            None => entering,
        }
    }

    fn admitted(entering: impl Future<Output = Option<Permit>>) -> Option<Permit> {
        entering.now_or_never().flatten()
    }

    #[tokio::test]
    async fn renewals_go_before_releases_and_releases_before_claims() {
        let gate = Gate::new(1);
        let under_way = admitted(enter(&gate, Operation::Claim)).unwrap();
        let (first, second) = (enter(&gate, Operation::Claim), enter(&gate, Operation::Claim));
        let (release, renewal) = (enter(&gate, Operation::Release), enter(&gate, Operation::Renew));
        drop(under_way);
        let renewal = admitted(renewal).expect("the renewal is next");
        drop(renewal);
        let release = admitted(release).expect("then the release");
        drop(release);
        let first = admitted(first).expect("then the claims, in order of arrival");
        drop(first);
        admitted(second).unwrap();
    }

    #[tokio::test]
    async fn claims_leave_connections_to_renewals_and_releases() {
        let gate = Gate::new(8);
        let claims: Vec<_> = (0..10).map(|_| enter(&gate, Operation::Claim)).map(admitted).collect();
        assert_eq!(claims.iter().flatten().count(), 8 - 2);
        let releases: Vec<_> = (0..3).map(|_| enter(&gate, Operation::Release)).map(admitted).collect();
        assert_eq!(releases.iter().flatten().count(), 1);
        admitted(enter(&gate, Operation::Renew)).expect("one is left to renewals");
        let reserved = [1, 2, 3, 4].map(|size| Class::Claim.reserve(size));
        assert_eq!(reserved, [0, 1, 2, 2], "one at least is for claims");
    }

    #[tokio::test]
    async fn whoever_gives_up_before_its_turn_or_with_it_leaves_no_connection_unused() {
        let gate = Gate::new(1);
        let under_way = admitted(enter(&gate, Operation::Claim)).unwrap();
        let (before, with, last) =
            (enter(&gate, Operation::Renew), enter(&gate, Operation::Renew), enter(&gate, Operation::Claim));
        drop(before);
        drop(under_way);
        drop(with);
        admitted(last).unwrap();
        assert_eq!(gate.lock().free, 1);
    }

    #[tokio::test]
    async fn the_time_limit_begins_anew_with_each_answer_of_the_database() {
        let gate = Gate::new(1);
        let under_way = admitted(enter(&gate, Operation::Claim)).unwrap();
        let (timeout, began) = (Duration::from_millis(40), SystemClock.now());
        let waits = gate.enter(Operation::Claim, timeout);
        let (permit, ()) = futures_util::future::join(waits, async { under_way.answered() }).await;
        assert!(permit.is_none());
        let waited = SystemClock.now().since(began);
        assert!(waited >= timeout * 2, "{waited:?}");
    }
}
