//! Stores that misbehave on purpose: wrappers around a [`Backend`] that put a fault between it and core.
//!
//! | wrapper | what it does |
//! |---|---|
//! | [`Overtaking`] | holds every claim back on its way, so that a release that does not wait for it lands first |
//! | [`Flaky`] | fails operations with a temporary error, before or after they took effect; by a seed or on demand |
//! | [`Slow`] | delays requests and replies |
//! | [`Gate`] | holds operations at a gate, before or after they took effect, until it opens; all of them: a frozen store |
//! | [`Recording`] | writes down what was asked of the store, and when |
//! | [`Polls`] | measures which operations block the thread that polls them |
//!
//! A request that has been sent can't be called back. So an operation that is dropped goes on here, as it would over
//! a network, and takes its effect later. Only [`Backend::wait`] ends when it is dropped, as the contract has it; and what a caller
//! drives on a connection of its own ([`Backend::here`]), which has not been sent before the store sends it.
//!
//! A wrapper hides nothing that the store promises, so a store that passes the suite passes it behind [`Overtaking`],
//! [`Flaky`] and [`Slow`], too; the suite tries it for every store.
//!
//! ```
//! use std::sync::Arc;
//! use polylock_core::{Locks, Operation, memory};
//! use polylock_testkit::faults::{Gate, Side, wrap};
//!
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let mut gate = None;
//! let store = wrap(memory::connect(), |inner| gate.insert(Arc::new(Gate::new(inner))).clone());
//! let gate = gate.unwrap();
//! let locks = Locks::new(store);
//!
//! gate.shut(Operation::Claim, Side::Reply);
//! let waiting = tokio::spawn(locks.lock("n").acquire());
//! gate.arrived(Operation::Claim).await;              // the store has granted it, and nobody knows
//! gate.open(Operation::Claim);
//! assert!(waiting.await.unwrap()?.is_held());
//! # Ok::<(), polylock_core::Error>(()) }).unwrap();
//! ```

mod flaky;
mod gate;
mod overtaking;
mod polls;
mod recording;
mod slow;

use std::{future::Future, sync::Arc};

use polylock_core::{Backend, Error, Fault, Operation, Result, Store, Unavailable};

pub use flaky::{Flaky, Trouble};
pub use gate::{Gate, Side};
pub use overtaking::Overtaking;
pub use polls::Polls;
pub use recording::{Call, Recording};
pub use slow::Slow;

/// `store` with its backend wrapped; inspection stays unwrapped.
pub fn wrap<B: Backend>(store: Store, wrapper: impl FnOnce(Arc<dyn Backend>) -> Arc<B>) -> Store {
    let Store { backend, inspect, alerts } = store;
    Store { backend: wrapper(backend), inspect, alerts }
}

/// Who drives the operations of a wrapper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Driver {
    /// The I/O thread: an operation runs to its end even if it is dropped.
    Thread,
    /// The caller, which may drop an operation: the part that the store has not sent by then is not sent.
    Caller,
}

impl Driver {
    /// Sends an operation.
    async fn send<T: Send + 'static>(
        self,
        backend: &'static str,
        operation: Operation,
        future: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        if self == Self::Caller {
            return future.await;
        }
        match tokio::spawn(future).await {
            Ok(outcome) => outcome,
            Err(cut) if cut.is_panic() => std::panic::resume_unwind(cut.into_panic()),
            Err(cut) => Err(Unavailable::new(backend, operation, Fault::Temporary, cut).into()),
        }
    }
}

/// A temporary fault that was put in on purpose.
fn planted(backend: &'static str, operation: Operation, what: &'static str) -> Error {
    Unavailable::new(backend, operation, Fault::Temporary, what).into()
}
