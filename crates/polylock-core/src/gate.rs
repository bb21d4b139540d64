//! A gate in front of a limited resource: renewals go before releases, and releases before claims.
//!
//! Without precedence, a renewal would wait behind all claims of the process, and a lock with a short TTL would be lost:
//! 1. Ten thousand tasks claim at once, or a few claims hang and each keeps a connection for its time limit.
//! 2. A keep-alive for another lock joins the queue for a connection behind them.
//! 3. The deadline of that lock passes before the keep-alive has a connection.
//!
//! So the operations queue here by class, in order of arrival within each class, and the gate can reserve permits for the higher
//! classes. An operation is never interrupted.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard},
};

use tokio::sync::oneshot;

use crate::{Operation, sync::lock};

/// The precedence of an operation: earlier classes go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precedence {
    /// Operations that keep a lock from being lost.
    KeepAlive,
    /// Operations that other requests wait for: releases, withdrawals, breaks, and the polls by which waiters detect their turn.
    Release,
    /// All other operations.
    Claim,
}

impl Precedence {
    const ALL: [Self; 3] = [Self::KeepAlive, Self::Release, Self::Claim];

    /// Returns the precedence of `operation`.
    #[must_use]
    pub const fn of(operation: Operation) -> Self {
        match operation {
            Operation::Renew => Self::KeepAlive,
            Operation::Release | Operation::Break | Operation::Convert | Operation::Wait => Self::Release,
            _ => Self::Claim,
        }
    }
}

/// Admits a limited number of operations.
///
/// ```
/// use polylock_core::gate::{Gate, Precedence};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// // Two at once, but only one claim.
/// let gate = Gate::new(2, [0, 0, 1]);
/// let claim = gate.enter(Precedence::Claim).await;
/// let renewal = gate.enter(Precedence::KeepAlive).await;
/// # });
/// ```
#[derive(Debug)]
pub struct Gate {
    reserves: [usize; 3],
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    free: usize,
    /// The waiting operations, by class.
    queues: [VecDeque<oneshot::Sender<Permit>>; 3],
}

impl State {
    fn has_room(&self, precedence: Precedence, reserves: &[usize; 3]) -> bool {
        let class = precedence as usize;
        self.free > reserves[class] && self.queues.iter().take(class + 1).all(VecDeque::is_empty)
    }
}

/// The permit for one operation; dropping it admits the next one.
#[derive(Debug)]
pub struct Permit(Option<Arc<Gate>>);

impl Gate {
    /// Creates a gate that admits `size` operations at once, at least one. An operation is admitted only if the number of permits
    /// in `reserves` for its class, in the order of the classes, stays free.
    #[must_use]
    pub fn new(size: usize, reserves: [usize; 3]) -> Arc<Self> {
        Arc::new(Self { reserves, state: Mutex::new(State { free: size.max(1), ..State::default() }) })
    }

    /// Waits for the permit of an operation.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the queue and loses nothing: the next operation gets the permit.
    pub async fn enter(self: &Arc<Self>, precedence: Precedence) -> Permit {
        let turn = {
            let mut state = self.lock();
            if state.has_room(precedence, &self.reserves) {
                state.free -= 1;
                return Permit(Some(self.clone()));
            }
            let (sender, turn) = oneshot::channel();
            state.queues[precedence as usize].push_back(sender);
            turn
        };
        // The gate keeps the sender until it has sent the permit.
        turn.await.unwrap_or(Permit(None))
    }

    /// Returns true if an operation would be admitted at once.
    #[must_use]
    pub fn has_room(&self, precedence: Precedence) -> bool {
        self.lock().has_room(precedence, &self.reserves)
    }

    /// Sends the free permits to the next operations.
    fn admit(self: &Arc<Self>, state: &mut State) {
        for class in Precedence::ALL {
            while state.free > self.reserves[class as usize] {
                let Some(next) = state.queues[class as usize].pop_front() else { break };
                match next.send(Permit(Some(self.clone()))) {
                    Ok(()) => state.free -= 1,
                    // The receiver was dropped. Its permit was not taken, so it must not be returned.
                    Err(mut permit) => permit.0 = None,
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
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
    use std::{future::Future, pin::Pin};

    use Precedence::{Claim, KeepAlive, Release};

    /// Returns the operation after it has joined the queue.
    fn enter(gate: &Arc<Gate>, precedence: Precedence) -> Pin<Box<dyn Future<Output = Permit> + '_>> {
        let mut entering = Box::pin(gate.enter(precedence));
        match entering.as_mut().now_or_never() {
            Some(permit) => Box::pin(std::future::ready(permit)),
            None => entering,
        }
    }

    #[test]
    fn renewals_go_before_releases_and_releases_before_claims() {
        let gate = Gate::new(1, [0; 3]);
        let under_way = enter(&gate, Claim).now_or_never().unwrap();
        let (first, second) = (enter(&gate, Claim), enter(&gate, Claim));
        let (release, renewal) = (enter(&gate, Release), enter(&gate, KeepAlive));
        drop(under_way);
        let renewal = renewal.now_or_never().expect("the renewal is next");
        drop(renewal);
        let release = release.now_or_never().expect("then the release");
        drop(release);
        let first = first.now_or_never().expect("then the claims, in order of arrival");
        drop(first);
        second.now_or_never().unwrap();
    }

    #[test]
    fn lower_classes_leave_permits_to_higher_ones() {
        let gate = Gate::new(8, [0, 1, 2]);
        let claims: Vec<_> = (0..10).map(|_| enter(&gate, Claim).now_or_never()).collect();
        assert_eq!(claims.iter().flatten().count(), 8 - 2);
        let releases: Vec<_> = (0..3).map(|_| enter(&gate, Release).now_or_never()).collect();
        assert_eq!(releases.iter().flatten().count(), 1);
        enter(&gate, KeepAlive).now_or_never().expect("one is left to renewals");
    }

    #[test]
    fn a_cancelled_entry_leaves_no_permit_unused() {
        let gate = Gate::new(1, [0; 3]);
        let under_way = enter(&gate, Claim).now_or_never().unwrap();
        let (before, with, last) = (enter(&gate, KeepAlive), enter(&gate, KeepAlive), enter(&gate, Claim));
        drop(before);
        drop(under_way);
        drop(with);
        assert!(!gate.has_room(KeepAlive));
        last.now_or_never().unwrap();
        assert!(gate.has_room(Claim));
        assert_eq!(gate.lock().free, 1);
    }
}
