//! Fault injection: wrappers around a [`Backend`] that inject a fault between it and core.
//!
//! | wrapper | effect |
//! |---|---|
//! | [`Overtaking`] | delays every claim on its way, so that a release that does not wait for it arrives first |
//! | [`Flaky`] | fails operations with a temporary error, before or after they took effect; by a seed or on demand |
//! | [`Slow`] | delays requests and replies |
//! | [`Gate`] | blocks operations, before or after they took effect, until it opens; with all operations blocked it is a frozen store |
//! | [`Withheld`] | withholds the claims and keep-alives of one request, so that its queue entry expires |
//! | [`Recording`] | records the operations, and their times |
//! | [`Polls`] | measures which operations block the thread that polls them |
//!
//! A request that has been sent can't be cancelled. So a dropped operation continues here, as it would over a network, and takes effect
//! later. There are two exceptions. [`Backend::wait`] ends when it is dropped, according to its contract. An operation that a caller
//! drives on a connection of its own ([`Backend::here`]) ends, too, unless the store has already sent it.
//!
//! A wrapper preserves the promises of the store, so a store that passes the suite passes it behind [`Overtaking`], [`Flaky`] and
//! [`Slow`], too; the suite verifies this for every store.
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
//! gate.blocked(Operation::Claim).await;              // the store has granted it; the reply is blocked
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
mod withheld;

use std::{future::Future, sync::Arc};

use polylock_core::{Backend, Error, Fault, Operation, Result, Store, Unavailable};

pub use flaky::{Flaky, InjectedFault};
pub use gate::{Gate, Side};
pub use overtaking::Overtaking;
pub use polls::Polls;
pub use recording::{Call, Recording};
pub use slow::Slow;
pub use withheld::Withheld;

/// Returns `store` with a wrapped backend; its other interfaces stay unwrapped.
pub fn wrap<B: Backend>(store: Store, wrapper: impl FnOnce(Arc<dyn Backend>) -> Arc<B>) -> Store {
    Store { backend: wrapper(store.backend.clone()), ..store }
}

/// The driver of a wrapper's operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Driver {
    /// The I/O thread: an operation runs to completion even if it is dropped.
    Thread,
    /// The caller, which may drop an operation: a request that the store has not sent by then is not sent.
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
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(error) => Err(Unavailable::new(backend, operation, Fault::Temporary, error).into()),
        }
    }
}

/// Returns an injected temporary fault.
fn injected(backend: &'static str, operation: Operation, what: &'static str) -> Error {
    Unavailable::new(backend, operation, Fault::Temporary, what).into()
}
